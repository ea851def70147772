"""A secured server's secrets appear only in its own files, never in logs, answers, metrics, audit or titles.

The servers log at debug level while users are created, mistyped, changed and refused, by RocketMQ's and
Kafka's clients. Then everything they printed, answered and stored is searched for every secret: as it is, in
base64, and as its bytes in hexadecimal digits.
"""

import asyncio
import signal
import stat
import urllib.request
from base64 import b64encode
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from libramq import LibraError, Message, Producer
from libramq.client import Credentials, Tls
from libramq.formats.properties_file import read_properties
from tests.cli.commands import end, libra, start
from tests.interop.ports import free_broker_port, free_port
from tests.interop.process import descendants

FIRST, SECOND, CHANGED, MISTYPED = "first-hush-1", "second-hush-2", "changed-hush-3", "mistyped-hush-4"
#: The files that hold secrets, readable by their owner alone.
OWN_FILES = ("users.json", "access.properties", "ca.key", "server.key")


class Shown:
    """All output of the servers so far, by place."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}

    def add(self, where: str, text: bytes | str) -> None:
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        self.texts[where] = self.texts.get(where, b"") + data

    def leaked(self, secrets: list[str]) -> list[str]:
        """Return the places where a secret appears."""
        forms = {
            form: secret
            for secret in secrets
            for form in (
                secret.encode(),
                b64encode(secret.encode()).rstrip(b"="),
                secret.encode().hex().encode(),
            )
        }
        return [
            f"{forms[form]} in {where}"
            for where, text in self.texts.items()
            for form in forms
            if form in text
        ]


def run(shown: Shown, *arguments: str, stdin: str = "") -> str:
    """Run an administrator's command; keep its output."""
    done = libra("admin", *arguments, stdin=stdin)
    shown.add(f"answer to {arguments[0]}", done.out + done.err)
    return done.out


async def try_to_send(namesrv: str, password: str, ca_file: Path) -> None:
    credentials = Credentials("orders", password)
    async with Producer(namesrv=namesrv, credentials=credentials, tls=Tls(ca_file=str(ca_file))) as producer:
        for topic in ("T", "Forbidden"):
            try:
                await producer.send(Message(topic, b"x"))
            except LibraError:
                continue


def try_kafka(address: str, password: str, mechanism: str, ca_file: Path) -> None:
    options: dict[str, str | int | float | bool] = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(ca_file),
        "sasl.mechanism": mechanism,
        "sasl.username": "orders",
        "sasl.password": password,
        "log_level": 0,
    }
    try:
        AdminClient(options).list_topics(timeout=3)
    except KafkaException:
        return


def test_no_secret_is_shown_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, shown = tmp_path / "data", Shown()
    access, ca_file = data / "secure" / "access.properties", data / "secure" / "ca.pem"
    namesrv, kafka, metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}", free_port()
    up = start([
        "up", "--secure", "--data", str(data), "--log-level", "debug",
        "--nameserver-port", namesrv.rpartition(":")[2], "--broker-port", str(free_broker_port()),
        "--kafka-port", kafka.rpartition(":")[2], "--metrics-port", str(metrics),
    ])  # fmt: skip
    try:
        assert up.stdout is not None
        while "export LIBRA_ACCESS=" not in (line := up.stdout.readline()):
            assert line, up.stderr.read() if up.stderr else ""
            shown.add("output", line)
        monkeypatch.setenv("LIBRA_ACCESS", str(access))
        root = read_properties(access)["secretKey"]
        at = ("-n", namesrv, "-c", "DefaultCluster")
        run(shown, "createUser", *at, "-u", "orders", stdin=f"{FIRST}\n")
        run(shown, "createUser", *at, "-u", "orders", stdin=f"{MISTYPED}\n")  # There is one.
        run(shown, "createAcl", *at, "-s", "User:orders", "-r", "Topic:T", "-a", "Pub", "-d", "Allow")
        run(shown, "updateUser", *at, "-u", "orders", "--second", "-", stdin=f"{SECOND}\n")
        for password in (FIRST, SECOND, MISTYPED):
            asyncio.run(try_to_send(namesrv, password, ca_file))
            for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
                try_kafka(kafka, password, mechanism, ca_file)
        run(shown, "updateUser", *at, "-u", "orders", "--withdraw", "first")
        run(shown, "updateUser", *at, "-u", "orders", "-p", "-", stdin=f"{CHANGED}\n")
        for answers in (
            ("getUser", *at, "-u", "orders", "--json"), ("listUser", *at, "--json"),
            ("listAcl", *at, "--json"), ("getBrokerConfig", *at, "--json"), ("brokerStatus", *at, "--json"),
            ("getNamesrvConfig", "-n", namesrv, "--json"), ("clusterList", "-n", namesrv, "--json"),
            ("audit", "-n", namesrv, "--json"),
        ):  # fmt: skip
            assert run(shown, *answers), answers
        context = Tls(ca_file=str(ca_file)).context()
        with urllib.request.urlopen(f"https://127.0.0.1:{metrics}/metrics", context=context) as answer:
            shown.add("metrics", answer.read())
        for pid in descendants(up.pid):
            for name in ("cmdline", "comm", "environ"):
                shown.add(f"{name} of a server", Path(f"/proc/{pid}/{name}").read_bytes())
        up.send_signal(signal.SIGTERM)
        out, errors = up.communicate(timeout=60)
        shown.add("output", out)
        shown.add("log", errors)
    finally:
        if up.poll() is None:
            end(up)
    kept = Shown()
    for file in (path for path in data.rglob("*") if path.is_file() and not path.is_symlink()):
        if file.name.startswith(OWN_FILES):
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
            kept.add(file.name, file.read_bytes())
        else:
            shown.add(str(file.relative_to(data)), file.read_bytes())
    assert len(shown.texts["log"]) > 1_000
    assert b"AUTH_UPDATE_USER" in shown.texts["answer to audit"]
    assert len(kept.leaked([CHANGED, root])) >= 2, "the search finds existing secrets"
    assert shown.leaked([FIRST, SECOND, CHANGED, MISTYPED, root]) == []
