"""Apache's Java push consumer in POP mode: the broker hands out messages instead of queues."""

import collections
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from libramq.errors import RemoteProtocolError
from libramq.message.names import TIMER_TOPIC
from libramq.message.record import MAGIC_V1, MAGIC_V2, decode_record
from libramq.pop.entries import AckEntry, decode_entry
from tests.interop.apache import SMALL_STORE, ApacheBroker
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S, Program
from tests.interop.test_rebalance import send

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

QUEUES = 4
#: ConsumeMessagePopConcurrentlyService: the minimum that the client accepts.
INVISIBLE_MS = 5_000
#: The maximum that the client accepts: not even a member on a busy machine exceeds it and gets redeliveries.
INVISIBLE_MS_MAX = 300_000
#: Long enough for a member to take messages and be killed, even on a slow machine.
HANDED_INVISIBLE_MS = 15_000
BROKER = "broker-a"
#: Settings that must be equal for both brokers to use one directory.
STORE = {
    name: SMALL_STORE[name]
    for name in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
}


def pops(cluster: Cluster, topic: str, group: str) -> None:
    """Create a topic and set a group to POP mode, as an operator does."""
    cluster.create_topic(topic, QUEUES)
    address = cluster.broker_address
    cluster.admin("updateSubGroup", "-b", address, "-g", group)
    done = cluster.admin("setConsumeMode", "-b", address, "-t", topic, "-g", group, "-m", "POP", "-q", "-1")
    assert "success" in done, done


def popper(cluster: Cluster, topic: str, group: str, **settings: object) -> Program:
    settings = {"invisible": INVISIBLE_MS, "clientRebalance": False, **settings}
    consumer = cluster.start("Consume", {"group": group, "topic": topic, **settings})
    consumer.wait_event("started")
    return consumer


def accepted(*consumers: Program) -> collections.Counter[str]:
    """Return how often each message was handled."""
    return collections.Counter(each["body"] for consumer in consumers for each in consumer.of("message"))


def wait_handled(cluster: Cluster, bodies: set[str], *consumers: Program) -> None:
    cluster.wait_until(
        lambda: accepted(*consumers).keys() >= bodies,
        f"not handled: {sorted(bodies - accepted(*consumers).keys())[:10]}",
        within_s=PATIENCE_S,
    )


def named(what: str, count: int) -> set[str]:
    return {f"{what} {number}" for number in range(count)}


def test_each_message_is_handled_by_one_of_two_members(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("group")
    pops(cluster, topic, group)
    members = [popper(cluster, topic, group, invisible=INVISIBLE_MS_MAX) for _ in range(2)]
    send(cluster, topic, "shared", 200)
    wait_handled(cluster, named("shared", 200), *members)
    if cluster.kind == "libra":
        assert set(accepted(*members).values()) == {1}


def test_a_killed_members_messages_are_handled_by_another(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("group")
    pops(cluster, topic, group)
    first = popper(cluster, topic, group, hold="held 0")
    send(cluster, topic, "held", 1)
    taken = first.wait_event("message")
    first.kill()
    second = popper(cluster, topic, group)
    again = second.wait_event("message", within_s=4 * PATIENCE_S)
    assert (again["body"], again["reconsumeTimes"]) == (taken["body"], 1)
    pop_time_ms = int(taken["properties"]["POP_CK"].split()[1])
    assert again["atMs"] - pop_time_ms >= INVISIBLE_MS
    if cluster.kind == "libra":
        assert again["properties"]["1ST_POP_TIME"] == str(pop_time_ms)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[LibraServers]:
    started = LibraServers(tmp_path, BROKER, settings=STORE)
    try:
        yield started
    finally:
        started.stop()


def test_a_killed_broker_loses_nothing_that_was_in_flight(servers: LibraServers, tmp_path: Path) -> None:
    """Only messages that were not acknowledged are redelivered."""
    cluster = Cluster("libra", servers.namesrv, tmp_path)
    topic, group = "Popped", "group"
    with ExitStack() as stack:
        stack.callback(cluster.stop_programs, keep_producers=False)
        pops(cluster, topic, group)
        # Held messages must not be redelivered before the member is killed: it would hold them again.
        first = popper(cluster, topic, group, hold="m 3,m 17", invisible=HANDED_INVISIBLE_MS)
        send(cluster, topic, "m", 40)
        wait_handled(cluster, named("m", 40), first)
        wait_acknowledged(cluster, tmp_path / BROKER / "store", 38)
        first.kill()
        servers.kill(BROKER)
        servers.start(BROKER)
        second = popper(cluster, topic, group)
        wait_handled(cluster, {"m 3", "m 17"}, second)
        assert accepted(second) == {"m 3": 1, "m 17": 1}


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_messages_in_flight_are_handed_to_apaches_broker_and_back(
    servers: LibraServers, tmp_path: Path, is_killed: bool
) -> None:
    cluster = Cluster("libra", servers.namesrv, tmp_path)
    topic, group, invisible_ms = "Popped", "group", HANDED_INVISIBLE_MS
    with ExitStack() as stack:
        stack.callback(cluster.stop_programs, keep_producers=False)
        pops(cluster, topic, group)
        first = popper(cluster, topic, group, hold="m 3,m 17", invisible=invisible_ms)
        send(cluster, topic, "m", 40)
        wait_handled(cluster, named("m", 40), first)
        wait_acknowledged(cluster, tmp_path / BROKER / "store", 38)
        cluster.wait_until(lambda: servers.has_written(BROKER, topic), "topics.json", within_s=PATIENCE_S)
        first.kill()
        (servers.kill if is_killed else servers.stop_broker)(BROKER)

        apache = ApacheBroker(
            tmp_path / BROKER,
            namesrv=servers.namesrv,
            name=BROKER,
            port=servers.ports[BROKER],
            settings={**SMALL_STORE, "enablePopLog": "true"},
        )
        stack.callback(apache.process.kill)
        apache.wait_ready()
        before = acknowledged(tmp_path / BROKER / "store")
        second = popper(cluster, topic, group, hold="n 5", invisible=invisible_ms)
        wait_handled(cluster, {"m 3", "m 17"}, second)
        send(cluster, topic, "n", 20)
        wait_handled(cluster, named("n", 20), second)
        if not is_killed:  # After a kill, Apache's broker may have offsets up to 5 s old.
            assert accepted(second).keys() == {"m 3", "m 17"} | named("n", 20)
        wait_acknowledged(cluster, tmp_path / BROKER / "store", before + 21)
        second.kill()
        apache.process.kill() if is_killed else apache.stop()

        servers.start(BROKER)
        third = popper(cluster, topic, group)
        wait_handled(cluster, {"n 5"}, third)
        if not is_killed:
            assert accepted(third) == {"n 5": 1}


def wait_acknowledged(cluster: Cluster, store: Path, count: int) -> None:
    """Wait until the log has this many acknowledgements: the client does not wait for their answers."""
    cluster.wait_until(lambda: acknowledged(store) >= count, f"{count} acknowledgements", within_s=PATIENCE_S)


def acknowledged(store: Path) -> int:
    """Return how many messages are acknowledged according to the log."""
    count, at = 0, 0
    data = (store / "commitlog" / f"{0:020d}").read_bytes()
    while int.from_bytes(data[at + 4 : at + 8]) in (MAGIC_V1, MAGIC_V2):
        try:
            decoded = decode_record(data, at)
        except RemoteProtocolError:  # The record is being written.
            break
        if decoded is None:
            break
        message, at = decoded
        entry = decode_entry(message.tags, message.body) if message.topic == TIMER_TOPIC else None
        if isinstance(entry, AckEntry):
            count += len(entry.offsets or (entry.offset,))
    return count
