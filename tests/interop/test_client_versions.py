"""Apache's clients of other versions than the tests' own: the oldest, one of 5.1, and the newest."""

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.apache import CACHE, HERE, SETUP_TIMEOUT_S, SMALL_JVM
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraUp
from tests.interop.process import PATIENCE_S, Event, Program
from tests.interop.test_pop import QUEUES

pytestmark = pytest.mark.interop

#: ClientConfig: whether a version supports queue assignment by the broker. The versions that do have timers.
ASKS_BROKER = {"4.9.8": False, "5.1.4": True, "5.5.0": True}
PREFIXES = {"4.9.8": "Old", "5.1.4": "Before", "5.5.0": "New"}
COUNT = 8


@pytest.fixture(
    scope="module",
    # Version 5.1 differs from the oldest or from the newest in nothing else.
    params=[
        pytest.param(each, marks=pytest.mark.thorough if each == "5.1.4" else ()) for each in ASKS_BROKER
    ],
)
def version(request: pytest.FixtureRequest) -> str:
    """A version; its client has been fetched, and our program has been compiled against it."""
    chosen: str = request.param
    fetch(chosen)
    return chosen


def fetch(version: str) -> None:
    done = subprocess.run(
        [HERE / "clients" / "setup", version],
        capture_output=True,
        text=True,
        timeout=SETUP_TIMEOUT_S,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr


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


def topics(cluster: Cluster, prefix: str, *kinds: str) -> list[str]:
    names = [f"{prefix}_{kind}" for kind in kinds]
    for name in names:
        cluster.create_topic(name, QUEUES)
    return names


def test_a_client_of_another_version_finds_every_feature(cluster: Cluster, version: str) -> None:
    """It sends all kinds of messages, traces, and consumes in every way that it has."""
    prefix = cluster.fresh_name(PREFIXES[version])
    concurrent, orderly, popped, pulled = topics(cluster, prefix, "concurrent", "orderly", "popped", "pulled")
    filtered, requested, broadcast = topics(cluster, prefix, "filtered", "requested", "broadcast")
    at = ("-b", cluster.broker_address)
    cluster.admin("updateSubGroup", *at, "-g", popped)
    cluster.admin("setConsumeMode", *at, "-t", popped, "-g", popped, "-m", "POP", "-q", "-1")
    with start(cluster, version, prefix) as program:
        assert program.wait_event("started")["pops"] is ASKS_BROKER[version]
        lines = [f"transaction {concurrent} unknown unknown"]
        lines += [f"send {concurrent} c{number}" for number in range(COUNT)]
        lines += [f"ordered {orderly} o{number}" for number in range(COUNT)]
        lines += [f"delay {concurrent} delayed"]
        lines += [f"transaction {concurrent} {how} {how}" for how in ("commit", "rollback")]
        lines += [f"send {popped} p{number}" for number in range(COUNT)]
        fetched = [f"f{number}" for number in range(COUNT)]
        lines += [f"batch {pulled} {','.join(fetched)}"]
        lines += [f"numbered {filtered} {number} {number}" for number in range(COUNT)]
        lines += [f"send {broadcast} b{number}" for number in range(COUNT)]
        lines += [f"request {requested} question", f"pull {pulled} all"]
        for line in lines:
            program.tell(line)
        sent = program.wait_count(len(lines), "sent")
        assert {each["status"] for each in sent} == {"SEND_OK"}
        program.tell(f"timer {concurrent} timed")
        has_timers = program.wait_event("sent", body="timed")["status"] == "SEND_OK"
        assert has_timers is ASKS_BROKER[version]

        wanted = {*(f"c{number}" for number in range(COUNT)), "delayed", "commit"}
        wait_for(program, "concurrent", wanted | ({"timed"} if has_timers else set()))
        assert "rollback" not in bodies(program, "concurrent")
        delayed, *_ = program.of("message", kind="concurrent", body="delayed")
        assert delayed["waitedMs"] >= 900, "the broker stores it again after a second, by its own clock"
        ordered = [f"o{number}" for number in range(COUNT)]
        wait_for(program, "orderly", set(ordered))
        assert list(dict.fromkeys(each["body"] for each in handled(program, "orderly"))) == ordered
        wait_for(program, "pulled", set(fetched))
        assert bodies(program, "fetched") == set(fetched)
        wait_for(program, "filtered", {str(number) for number in range(3, COUNT)})
        assert not bodies(program, "filtered") & {"0", "1", "2"}
        for one in ("broadcast1", "broadcast2"):
            wait_for(program, one, {f"b{number}" for number in range(COUNT)})
        assert program.wait_event("replied", to="question")["body"] == "QUESTION"
        if ASKS_BROKER[version]:
            wait_for(program, "popped", {f"p{number}" for number in range(COUNT)})
            assert all(each["popped"] for each in handled(program, "popped"))
        program.wait_event("checked", body="unknown")
        wait_for(program, "concurrent", {"unknown"})
        program.finish()
    traces = f"{prefix}_traces"
    cluster.wait_until(lambda: cluster.route(traces) is not None, f"no {traces}", within_s=PATIENCE_S)


def test_the_newest_client_sends_priority_messages_and_pops_the_highest_first(tmp_path: Path) -> None:
    """At our broker alone: Apache's 5.3.3 knows no priorities."""
    fetch("5.5.0")
    with ExitStack() as stack:
        servers = LibraUp(tmp_path / "up")
        stack.callback(servers.stop)
        servers.wait_ready()
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        later = cluster.fresh_name("Later")
        (popped,) = topics(cluster, later, "popped")
        at = ("-b", cluster.broker_address)
        cluster.admin("updateTopic", *at, "-t", popped, "-r", "4", "-w", "4", "-a", "+message.type=PRIORITY")
        cluster.admin("updateSubGroup", *at, "-g", popped)
        cluster.admin("setConsumeMode", *at, "-t", popped, "-g", popped, "-m", "POP", "-q", "-1")
        priorities = [0, 2, 1, 3, 0, 7, 2]
        with start(cluster, "5.5.0", cluster.fresh_name("Producing")) as program:
            program.wait_event("started")
            for number, priority in enumerate(priorities):
                program.tell(f"prioritised {popped} {priority}-{number} {priority}")
            sent = program.wait_count(len(priorities), "sent")
            assert {each["status"] for each in sent} == {"SEND_OK"}
            program.finish()
        expected = ["3-3", "7-5", "2-1", "2-6", "1-2", "0-0", "0-4"]
        with start(cluster, "5.5.0", later) as program:
            wait_for(program, "popped", set(expected))
            assert [each["body"] for each in handled(program, "popped")] == expected
            program.finish()


def wait_for(program: Program, kind: str, wanted: set[str]) -> None:
    """Wait until consumers of a kind have handled these messages."""
    program.wait_until(
        lambda: bodies(program, kind) >= wanted, f"not all of {sorted(wanted)}", within_s=PATIENCE_S
    )
