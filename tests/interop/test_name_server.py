"""Mixed name servers and brokers: Apache's broker at ours, our broker at Apache's, one broker at both."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli import commands
from tests.interop import wire
from tests.interop.apache import (
    BINARY_HEADERS,
    SMALL_STORE,
    ApacheBroker,
    ApacheNameServer,
    set_up,
)
from tests.interop.cluster import Cluster
from tests.interop.libra import SOURCES, LibraServers
from tests.interop.ports import free_broker_port, free_port
from tests.interop.process import PATIENCE_S, Process

pytestmark = pytest.mark.interop
FORGOTTEN_SECONDS = 60.0
#: More than the 10 s within which Apache's broker registers, less than the 40 s of a second attempt.
AT_ONCE_S = 25.0
GET_ALL_TOPIC_LIST = 206


def create_topic(broker: str, topic: str) -> None:
    done = commands.libra("admin", "updateTopic", "-b", broker, "-t", topic)
    assert done.code == 0, done


def libra(home: Path, *arguments: str) -> Process:
    home.mkdir(parents=True, exist_ok=True)
    return Process(
        f"libra-{arguments[0]}",
        [sys.executable, "-m", "libramq.cli.main", *arguments],
        directory=home,
        env={"PYTHONPATH": os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])},
    )


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    process = libra(tmp_path_factory.mktemp("ours"), "nameserver", "--port", str(port))
    try:
        process.wait_line(f"listens on 127.0.0.1:{port}", within_s=PATIENCE_S)
        yield f"127.0.0.1:{port}"
    finally:
        process.stop()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    set_up()
    server = ApacheNameServer(tmp_path_factory.mktemp("theirs"))
    try:
        server.wait_ready()
        yield server.address
    finally:
        server.stop()


def addresses(namesrv: str) -> dict[str, str]:
    return {name: data["brokerAddrs"]["0"] for name, data in wire.brokers_of(namesrv).items()}


def topics(namesrv: str) -> list[str]:
    return sorted(json.loads(wire.ask(namesrv, GET_ALL_TOPIC_LIST).body)["topicList"])


@pytest.mark.parametrize("headers", ["json", "rocketmq"])
def test_apaches_broker_registers_with_both(ours: str, theirs: str, tmp_path: Path, headers: str) -> None:
    """Both give the same answers, and forget a killed broker as soon as its connection ends."""
    name = f"apache-{headers}"
    broker = ApacheBroker(
        tmp_path / "broker",
        namesrv=f"{theirs};{ours}",
        name=name,
        properties=BINARY_HEADERS if headers == "rocketmq" else {},
        settings=SMALL_STORE,
    )
    try:
        broker.process.wait_line("boot success", within_s=PATIENCE_S)
        Cluster.wait_until(lambda: name in addresses(ours), "not registered with ours", within_s=PATIENCE_S)
        Cluster.wait_until(
            lambda: name in addresses(theirs), "not registered with theirs", within_s=PATIENCE_S
        )
        assert addresses(ours)[name] == addresses(theirs)[name] == broker.address
        create_topic(broker.address, f"Both_{headers}")
        request = (wire.GET_ROUTEINFO_BY_TOPIC, {"topic": f"Both_{headers}"})
        Cluster.wait_until(
            lambda: all(wire.ask(one, *request).header["code"] == 0 for one in (ours, theirs)),
            "no route",
            within_s=PATIENCE_S,
        )
        # The bytes are equal in either dialect.
        for version in (wire.VERSION_NOW, wire.VERSION_BEFORE_STANDARD_JSON):
            assert (
                wire.ask(ours, *request, version=version).body
                == wire.ask(theirs, *request, version=version).body
            )
        # Another test's broker may still be known to one of them.
        Cluster.wait_until(lambda: topics(ours) == topics(theirs), "the same topics", within_s=PATIENCE_S)
        assert f"Both_{headers}" in topics(ours)
    finally:
        broker.process.kill()
    Cluster.wait_until(
        lambda: name not in addresses(ours), "a killed broker is remembered", within_s=FORGOTTEN_SECONDS
    )


def test_apaches_broker_registers_again_right_after_a_kill(ours: str, tmp_path: Path) -> None:
    """The name server accepts it again as soon as the old connection has ended.

    Apache's broker registers at its start or 10 s later, at any name server; if refused, again after 30 s.
    """
    name, home = "apache-again", tmp_path / "broker"
    broker = ApacheBroker(home, namesrv=ours, name=name, settings=SMALL_STORE)
    with ExitStack() as stack:
        processes = [broker.process]
        stack.callback(lambda: [process.kill() for process in processes])
        broker.process.wait_line("boot success", within_s=PATIENCE_S)
        Cluster.wait_until(lambda: name in addresses(ours), "not registered", within_s=PATIENCE_S)
        broker.process.kill()
        broker = ApacheBroker(home, namesrv=ours, name=name, settings=SMALL_STORE, port=broker.port)
        processes.append(broker.process)
        Cluster.wait_until(
            lambda: name not in addresses(ours), "a killed broker is remembered", within_s=PATIENCE_S
        )
        broker.process.wait_line("boot success", within_s=PATIENCE_S)
        Cluster.wait_until(lambda: name in addresses(ours), "not registered again", within_s=AT_ONCE_S)
        assert addresses(ours)[name] == broker.address


def test_apaches_broker_proves_who_it_is_to_our_name_server(tmp_path: Path) -> None:
    """It signs with the cluster's secret; a broker with another secret is refused, and
    cannot end the first.
    """
    option = "innerClientAuthenticationCredentials"
    right, wrong = (json.dumps({"accessKey": "brokers", "secretKey": secret}) for secret in ("ours", "other"))
    with ExitStack() as stack:
        servers = LibraServers(tmp_path, name_server={option: right})
        stack.callback(servers.stop)
        brokers = {}
        for name, credentials in (("turned-away", wrong), ("proven", right)):
            settings = {
                **SMALL_STORE,
                option: credentials,
                "authenticationMetadataProvider": (
                    "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
                ),
            }
            brokers[name] = ApacheBroker(
                tmp_path / name, namesrv=servers.namesrv, name=name, settings=settings
            )
            stack.callback(brokers[name].process.kill)
            brokers[name].process.wait_line("boot success", within_s=PATIENCE_S)
        known = {"proven": brokers["proven"].address}
        Cluster.wait_until(lambda: addresses(servers.namesrv) == known, "the proven one", within_s=PATIENCE_S)


def test_our_broker_registers_with_apaches_name_server(theirs: str, ours: str, tmp_path: Path) -> None:
    port = free_broker_port()
    (tmp_path / "broker.conf").write_text(
        f"brokerName=libra-z\nlistenPort={port}\nstorePathRootDir={tmp_path / 'store'}\n"
    )
    with ExitStack() as stack:
        broker = libra(tmp_path, "broker", "-c", str(tmp_path / "broker.conf"), "-n", f"{theirs};{ours}")
        stack.callback(broker.kill)
        for namesrv in (theirs, ours):
            Cluster.wait_until(
                lambda namesrv=namesrv: addresses(namesrv).get("libra-z") == f"127.0.0.1:{port}",  # type: ignore[misc]
                "not registered",
                within_s=PATIENCE_S,
            )
        create_topic(f"127.0.0.1:{port}", "AtOurs")
        request = (wire.GET_ROUTEINFO_BY_TOPIC, {"topic": "AtOurs"})
        Cluster.wait_until(
            lambda: all(wire.ask(one, *request).header["code"] == 0 for one in (theirs, ours)),
            "no route at both",
            within_s=PATIENCE_S,
        )
        assert wire.ask(theirs, *request).body == wire.ask(ours, *request).body
        # Whole tables, from which both learn of deletions, Apache's if so configured.
        setting = ("-k", "deleteTopicWithBrokerRegistration", "-v", "true")
        done = commands.libra("admin", "updateNamesrvConfig", "-n", theirs, *setting)
        assert done.code == 0, done
        deleted = wire.ask(f"127.0.0.1:{port}", wire.DELETE_TOPIC_IN_BROKER, {"topic": "AtOurs"})
        assert deleted.header["code"] == 0
        Cluster.wait_until(
            lambda: all(wire.ask(one, *request).header["code"] == 17 for one in (theirs, ours)),
            "still a route",
            within_s=PATIENCE_S,
        )
        broker.stop()
        Cluster.wait_until(
            lambda: "libra-z" not in addresses(theirs), "still registered", within_s=FORGOTTEN_SECONDS
        )


def test_both_name_servers_answer_an_unknown_topic_alike(theirs: str, ours: str) -> None:
    replies = [wire.ask(one, wire.GET_ROUTEINFO_BY_TOPIC, {"topic": "Nope"}).header for one in (theirs, ours)]
    assert replies[0]["code"] == replies[1]["code"] == 17
    assert replies[0]["remark"] == replies[1]["remark"]
