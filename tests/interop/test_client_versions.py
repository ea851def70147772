"""Apache's clients of other versions than the tests' own: the oldest, one of 5.1, and the newest."""

import subprocess
from pathlib import Path

import pytest

from tests.interop.apache import CACHE, HERE, SETUP_TIMEOUT_S, SMALL_JVM
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Event, Program
from tests.interop.test_pop import QUEUES

pytestmark = pytest.mark.interop

#: ClientConfig: whether members of a version can have their queues assigned by the broker.
ASKS_BROKER = {"4.9.8": False, "5.1.4": True, "5.5.0": True}
PREFIXES = {"4.9.8": "Old", "5.1.4": "Before", "5.5.0": "New"}
COUNT = 8


@pytest.fixture(scope="module", params=ASKS_BROKER)
def version(request: pytest.FixtureRequest) -> str:
    """A version; its client has been fetched, and our program has been compiled against it."""
    chosen: str = request.param
    done = subprocess.run(
        [HERE / "clients" / "setup", chosen],
        capture_output=True,
        text=True,
        timeout=SETUP_TIMEOUT_S,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr
    return chosen


def start(cluster: Cluster, version: str, prefix: str) -> Program:
    """Start the program with the jars of a version; one JVM for all features."""
    files = CACHE / "clients" / version
    home: Path = cluster.home / cluster.fresh_name("features")
    properties = {
        "namesrv": cluster.namesrv,
        "prefix": prefix,
        "user.home": home,
        "rocketmq.log.root": home / "logs",
        "rocketmq.client.logRoot": home / "logs",
    }
    options = [f"-D{name}={value}" for name, value in properties.items()]
    command = ["java", *SMALL_JVM, *options, "-cp", f"{files}/classes:{files}/lib/*", "Features"]
    return Program(f"features-{version}", command, directory=home)


def handled(program: Program, kind: str) -> list[Event]:
    return program.of("message", kind=kind)


def bodies(program: Program, kind: str) -> set[str]:
    return {each["body"] for each in handled(program, kind)}


def test_a_client_of_another_version_finds_every_feature(cluster: Cluster, version: str) -> None:
    """It sends all kinds of messages, traces, and consumes concurrently, in order, by lite pull and POP."""
    prefix = cluster.fresh_name(PREFIXES[version])
    kinds = ("concurrent", "orderly", "popped", "pulled")
    concurrent, orderly, popped, pulled = (f"{prefix}_{kind}" for kind in kinds)
    for topic in (concurrent, orderly, popped, pulled):
        cluster.create_topic(topic, QUEUES)
    at = ("-b", cluster.broker_address)
    cluster.admin("updateSubGroup", *at, "-g", popped)
    cluster.admin("setConsumeMode", *at, "-t", popped, "-g", popped, "-m", "POP", "-q", "-1")
    with start(cluster, version, prefix) as program:
        assert program.wait_event("started")["pops"] is ASKS_BROKER[version]
        lines = [f"send {concurrent} c{number}" for number in range(COUNT)]
        lines += [f"ordered {orderly} o{number}" for number in range(COUNT)]
        lines += [f"delay {concurrent} delayed"]
        lines += [f"transaction {concurrent} {how} {how}" for how in ("commit", "rollback")]
        lines += [f"send {popped} p{number}" for number in range(COUNT)]
        fetched = [f"f{number}" for number in range(COUNT)]
        lines += [f"batch {pulled} {','.join(fetched)}"]
        for line in lines:
            program.tell(line)
        sent = program.wait_count(len(lines), "sent")
        assert {each["status"] for each in sent} == {"SEND_OK"}

        wanted = {*(f"c{number}" for number in range(COUNT)), "delayed", "commit"}
        program.wait_until(
            lambda: bodies(program, "concurrent") >= wanted,
            f"not all of {sorted(wanted)}",
            within_s=PATIENCE_S,
        )
        assert "rollback" not in bodies(program, "concurrent")
        delayed, *_ = program.of("message", kind="concurrent", body="delayed")
        assert delayed["waitedMs"] >= 900, "the broker stores it again after a second, by its own clock"
        ordered = [f"o{number}" for number in range(COUNT)]
        program.wait_until(lambda: bodies(program, "orderly") >= set(ordered), "orderly", within_s=PATIENCE_S)
        assert list(dict.fromkeys(each["body"] for each in handled(program, "orderly"))) == ordered
        program.wait_until(lambda: bodies(program, "pulled") >= set(fetched), "pulled", within_s=PATIENCE_S)
        if ASKS_BROKER[version]:
            taken = {f"p{number}" for number in range(COUNT)}
            program.wait_until(lambda: bodies(program, "popped") >= taken, "popped", within_s=PATIENCE_S)
            assert all(each["popped"] for each in handled(program, "popped"))
        program.finish()
    traces = f"{prefix}_traces"
    cluster.wait_until(lambda: cluster.route(traces) is not None, f"no {traces}", within_s=PATIENCE_S)
