"""Our clients at an Apache broker that requires authentication (ACL 2.0) and TLS."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from libramq.client import ConsumeFrom, Credentials, Tls
from libramq.errors import NameServerUnavailable, NoPermission, RemoteError
from libramq.message import Message, MessageExt
from libramq.sync import Admin, Producer, PushConsumer
from tests.interop.libra import SOURCES
from tests.interop.process import PATIENCE_S
from tests.interop.secured import Secured
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.interop

WRONG = {
    "nobody": (None, "username cannot be null"),
    "unknown": (Credentials("eve", "rootsecret"), "User:eve is not found"),
    "mistyped": (Credentials("root", "Rootsecret"), "check signature failed"),
}
wrong = pytest.mark.parametrize(("credentials", "told"), WRONG.values(), ids=list(WRONG))


@pytest.fixture(scope="module")
def secured(_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def topic(secured: Secured, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    secured.create_topic(name, 4)
    return name


class Inbox:
    def __init__(self) -> None:
        self.bodies: set[bytes] = set()
        self._changed = threading.Condition()

    def __call__(self, messages: list[MessageExt]) -> None:
        with self._changed:
            self.bodies |= {message.body for message in messages}
            self._changed.notify_all()

    def wait_count(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.bodies) >= count, PATIENCE_S), self.bodies


def test_a_signed_client_sends_and_consumes(secured: Secured, topic: str) -> None:
    """Every way of sending is tried because each signs differently."""
    access = {"namesrv": secured.namesrv, "credentials": secured.credentials, "tls": secured.tls}
    inbox = Inbox()
    with Producer(**access) as producer:
        producer.send(Message(topic, "grün".encode(), tags="Ü", keys="k"))
        producer.send(Message(topic, b"large " * 2_000))
        producer.send_batch([Message(topic, b"batch %d" % n) for n in range(3)])
        for number in range(50):
            producer.send_nowait(Message(topic, b"nowait %d" % number))
        producer.flush()
        producer.send_oneway(Message(topic, b"oneway"))
    member = PushConsumer(group=f"G-{topic}", consume_from=ConsumeFrom.FIRST_OFFSET, **access)
    member.subscribe(topic, "*", inbox)
    with member:
        inbox.wait_count(56)
    secured.wait_stored(topic, 56)
    with Admin(**access) as admin:
        assert sum(ends.max_offset for ends in admin.topic_stats(topic).values()) == 56
        consumed = admin.consume_stats(f"G-{topic}", topic)
    assert sum(each.consumer_offset for each in consumed.values()) == 56


@wrong
def test_wrong_credentials_are_refused(
    secured: Secured, topic: str, credentials: Credentials | None, told: str
) -> None:
    """The error has the broker's own text and shows no secret."""
    access = {"namesrv": secured.namesrv, "credentials": credentials, "tls": secured.tls}
    with Producer(**access) as producer, pytest.raises(NoPermission, match=told) as refused:
        producer.send(Message(topic, b"x"))
    assert "secret" not in str(refused.value)
    with Admin(**access) as admin, pytest.raises(NoPermission, match=told):
        admin.create_topic(f"{topic}-2")


@wrong
def test_a_consumer_with_unknown_credentials_reports_it(
    secured: Secured, topic: str, credentials: Credentials | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer keeps trying, as Java's does; its log names the problem."""
    heard = threading.Event()

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if told in record.getMessage():
                heard.set()

    member = PushConsumer(
        group=f"G-{topic}", namesrv=secured.namesrv, credentials=credentials, tls=secured.tls
    )
    member.subscribe(topic, "*", lambda _: None)
    caplog.set_level(logging.WARNING)
    listening = Listening()
    logging.getLogger().addHandler(listening)
    try:
        with member:
            assert heard.wait(PATIENCE_S), caplog.text
    finally:
        logging.getLogger().removeHandler(listening)
    assert "secret" not in caplog.text


def test_a_plaintext_client_gets_an_error_that_names_tls(secured: Secured, topic: str) -> None:
    """The name server accepts plain connections, the broker does not."""
    with (
        Producer(namesrv=secured.namesrv, credentials=secured.credentials) as producer,
        pytest.raises(RemoteError, match="may require TLS"),
    ):
        producer.send(Message(topic, b"x"))


def test_servers_with_an_untrusted_certificate_are_not_used(secured: Secured, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    tls = replace(secured.tls, ca_file=str(stranger))
    with (
        Admin(namesrv=secured.namesrv, credentials=secured.credentials, tls=tls) as admin,
        pytest.raises(NameServerUnavailable, match=r"certificate of .* is not accepted.*give the ca_file"),
    ):
        admin.topics()


def test_certificate_checks_can_be_switched_off(secured: Secured, topic: str) -> None:
    tls = Tls(verify="none")
    with Producer(namesrv=secured.namesrv, credentials=secured.credentials, tls=tls) as producer:
        assert producer.send(Message(topic, b"x")).queue.topic == topic


def test_commands_read_credentials_from_a_file(secured: Secured, topic: str, tmp_path: Path) -> None:
    """They are not options, because anyone who lists a machine's processes could read those."""
    file = tmp_path / "access"
    file.write_text("".join(f"{name}={text}\n" for name, text in secured.properties.items()))
    file.chmod(0o600)

    def libra(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "libramq.cli.main", *arguments, "-n", secured.namesrv],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, "PYTHONPATH": str(SOURCES), **environment},
        )

    sent = libra("send", "-t", topic, "hello", LIBRA_ACCESS=str(file))
    assert sent.returncode == 0, sent.stderr
    tailed = libra("tail", "-t", topic, "--from", "earliest", "--count", "1", LIBRA_ACCESS=str(file))
    assert "hello" in tailed.stdout, tailed.stderr
    listed = libra("admin", "clusterList", LIBRA_ACCESS=str(file))
    assert "apache-a" in listed.stdout, listed.stderr
    file.write_text(file.read_text().replace("rootsecret", "Rootsecret"))
    refused = libra("send", "-t", topic, "hello", LIBRA_ACCESS=str(file))
    assert refused.returncode == 2
    assert "check signature failed" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert "secret" not in refused.stderr.lower()


@pytest.mark.spark
class TestSpark:
    def test_sink_and_source_work_with_credentials(
        self, secured: Secured, topic: str, spark: "SparkSession", tmp_path: Path
    ) -> None:
        """The sink and the source each run in a batch and in a stream."""
        options = secured.spark_options
        rows = spark.range(500).selectExpr("concat('body ', id) as body")
        rows.write.format("rocketmq").options(topic=topic, **options).mode("append").save()
        secured.wait_stored(topic, 500)
        table = spark.read.format("rocketmq").options(subscribe=topic, **options).load()
        assert sorted(bytes(row.body) for row in table.collect()) == sorted(
            b"body %d" % n for n in range(500)
        )
        stream = spark.readStream.format("rocketmq").options(
            subscribe=topic, startingOffsets="earliest", commitGroupId=f"mirror-{topic}", **options
        )
        query = (
            stream.load()
            .selectExpr("concat('again ', cast(body as string)) as body")
            .writeStream.format("rocketmq")
            .options(topic=f"{topic}-again", checkpointLocation=str(tmp_path), **options)
            .trigger(availableNow=True)
        )
        secured.create_topic(f"{topic}-again", 2)
        assert query.start().awaitTermination(PATIENCE_S)
        secured.wait_stored(f"{topic}-again", 500)
        again = spark.read.format("rocketmq").options(subscribe=f"{topic}-again", **options).load()
        assert again.count() == 500

    def test_query_plans_show_no_secrets(
        self, secured: Secured, topic: str, spark: "SparkSession", capsys: pytest.CaptureFixture[str]
    ) -> None:
        table = spark.read.format("rocketmq").options(subscribe=topic, **secured.spark_options).load()
        for mode in ("simple", "extended", "formatted", "cost"):
            table.explain(mode=mode)
        shown = capsys.readouterr().out
        assert "rocketmq" in shown
        assert "rootsecret" not in shown

    @pytest.mark.parametrize(
        ("option", "value", "told"),
        [
            ("rocketmq.secretKey", "Rootsecret", "check signature failed"),
            ("rocketmq.accessKey", "eve", "User:eve is not found"),
            ("rocketmq.tls.client.trustCertPath", "/no/ca.pem", "ca_file /no/ca.pem cannot be used"),
            ("rocketmq.tls.enable", "false", "may require TLS"),
        ],
        ids=["secret", "user", "authority", "plain"],
    )
    def test_a_mistake_is_one_clear_error(
        self, secured: Secured, topic: str, spark: "SparkSession", option: str, value: str, told: str
    ) -> None:
        options = {**secured.spark_options, "brokerTimeout": "1s", option: value}
        with pytest.raises(Exception, match=told) as refused:
            spark.read.format("rocketmq").options(subscribe=topic, **options).load().count()
        assert "rootsecret" not in str(refused.value)
        options.pop("brokerTimeout")
        rows = spark.range(5).selectExpr("'x' as body")
        with pytest.raises(Exception, match=told):
            rows.write.format("rocketmq").options(topic=topic, **options).mode("append").save()
