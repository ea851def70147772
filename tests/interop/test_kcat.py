"""kcat against our Kafka port: producing, reading, metadata, times, and groups.

Debian's has an older librdkafka, 2.0.2.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.formats.properties_file import read_properties
from tests.cli.commands import end, start
from tests.interop.apache import set_up
from tests.interop.kafka_programs import KafkaUp
from tests.interop.ports import free_broker_port, free_port
from tests.interop.process import PATIENCE_S, Process

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaUp]:
    set_up()
    up = KafkaUp(tmp_path_factory.mktemp("kafka"))
    try:
        up.wait_ready()
        yield up
    finally:
        up.stop()


def kcat(servers: KafkaUp, *options: str, stdin: str = "") -> str:
    """Run kcat to its end, and return what it printed."""
    command = ["kcat", "-b", servers.kafka, *options]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def produce(servers: KafkaUp, topic: str, *lines: str, partition: int = 0) -> None:
    options = ("-P", "-t", topic, "-p", str(partition), "-K", ":", "-H", "h=1")
    kcat(servers, *options, stdin="".join(f"{line}\n" for line in lines))


def test_kcat_reads_its_own_records(servers: KafkaUp):
    produce(servers, "kcat-records", "k:one", "k:two")
    read = kcat(servers, "-C", "-t", "kcat-records", "-p", "0", "-o", "beginning", "-e", "-J").splitlines()
    records = [json.loads(line) for line in read]
    assert [(each["offset"], each["key"], each["payload"]) for each in records] == [
        (0, "k", "one"), (1, "k", "two"),
    ]  # fmt: skip
    assert records[0]["headers"] == ["h", "1"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_kcat_compresses(servers: KafkaUp, codec: str):
    topic = f"kcat-{codec}"
    lines = [f"k:{number} " + "x" * 100 for number in range(100)]
    kcat(servers, "-P", "-t", topic, "-p", "0", "-K", ":", "-z", codec, stdin="\n".join(lines) + "\n")
    read = kcat(servers, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-K", ":")
    assert read.splitlines() == lines


def test_kcat_lists_the_cluster_and_finds_offsets_by_time(servers: KafkaUp):
    produce(servers, "kcat-list", "k:one", "k:two")
    metadata = json.loads(kcat(servers, "-L", "-J", "-t", "kcat-list"))
    assert [each["name"] for each in metadata["brokers"]] == [servers.kafka]
    (topic,) = metadata["topics"]
    assert topic["topic"] == "kcat-list"
    assert all(each["leader"] == metadata["brokers"][0]["id"] for each in topic["partitions"])
    options = ("-C", "-t", "kcat-list", "-p", "0", "-o", "-1", "-e", "-J")
    last = json.loads(kcat(servers, *options))
    assert last["offset"] == 1
    assert kcat(servers, "-Q", "-t", f"kcat-list:0:{last['ts']}").startswith("kcat-list [0] offset")
    assert kcat(servers, "-Q", "-t", "kcat-list:0:-1").split() == ["kcat-list", "[0]", "offset", "2"]


class Member(Process):
    """A member of a group; it prints its partitions and what it reads."""

    def __init__(self, servers: KafkaUp, home: Path, name: str, topic: str, *options: str) -> None:
        settings = ["-X", "auto.offset.reset=earliest", "-X", f"client.id={name}", *options]
        command = ["kcat", "-b", servers.kafka, *settings, "-u", "-f", "%p %o %s\n", "-G", "readers", topic]
        super().__init__(name, ["sh", "-c", f"exec {shlex.join(command)} 2>&1"], directory=home)

    @property
    def partitions(self) -> list[int]:
        """Return its latest assignment."""
        told = [line for line in self.lines if "rebalanced" in line]
        if not told or "assigned" not in told[-1]:
            return []
        return sorted(int(each) for each in re.findall(r"\[(\d+)\]", told[-1].partition("assigned")[2]))

    @property
    def records(self) -> list[str]:
        return [line for line in self.lines if re.fullmatch(r"\d+ \d+ \w+", line)]

    def wait_share(self, count: int) -> None:
        self.wait_until(lambda: len(self.partitions) == count, f"not {count} partitions", within_s=PATIENCE_S)


def test_members_of_a_group_share_the_partitions(servers: KafkaUp, tmp_path: Path):
    kcat(servers, "-L", "-t", "kcat-group")  # Makes it, with eight partitions.
    with Member(servers, tmp_path, "one", "kcat-group") as one:
        one.wait_share(8)
        with Member(servers, tmp_path, "two", "kcat-group") as two:
            two.wait_share(4)
            one.wait_share(4)
            for partition in range(8):
                produce(servers, "kcat-group", "k:value", partition=partition)
            for member in (one, two):
                member.wait_until(
                    lambda member=member: len(member.records) == 4, "not four records", within_s=PATIENCE_S
                )
            assert sorted(one.records + two.records) == [f"{partition} 0 value" for partition in range(8)]
            two.kill()
        one.wait_share(8)


def test_kcat_signs_in_to_secured_servers(tmp_path: Path):
    """PLAIN over TLS: SCRAM of this librdkafka repeats a nonce, against RFC 5802 (CVE-2024-56128)."""
    set_up()
    ports = {name: free_port() for name in ("nameserver", "kafka")}
    options = ["--nameserver-port", str(ports["nameserver"]), "--kafka-port", str(ports["kafka"])]
    options += ["--broker-port", str(free_broker_port()), "--data", str(tmp_path)]
    up = start(["up", "--secure", *options])
    try:
        assert up.stdout is not None
        while "export LIBRA_ACCESS=" not in (line := up.stdout.readline()):
            assert line, up.stderr.read() if up.stderr else ""
        user = read_properties(tmp_path / "secure" / "access.properties")
        for password, is_known in ((user["secretKey"], True), ("wrong", False)):
            properties = {
                "security.protocol": "sasl_ssl",
                "ssl.ca.location": str(tmp_path / "secure" / "ca.pem"),
                "sasl.mechanism": "PLAIN",
                "sasl.username": user["accessKey"],
                "sasl.password": password,
            }
            command = ["kcat", "-b", f"127.0.0.1:{ports['kafka']}", "-L", "-m", "5"]
            command += [word for name, text in properties.items() for word in ("-X", f"{name}={text}")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            assert ("1 brokers:" in done.stdout) == is_known, done
            assert ("wrong user or password" in done.stderr) == (not is_known), done
    finally:
        end(up)
