"""Apache's Java push consumers under setClientRebalance(false): the broker assigns their queues."""

import collections
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.broker.clusters import group_at
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S, Events, Process, Program
from tests.interop.test_rebalance import queues_of, send, wait_bodies, wait_queues

pytestmark = pytest.mark.interop

QUEUES = 8

STOP: Callable[[Program], None] = Program.finish
KILL: Callable[[Process], None] = Process.kill


@pytest.mark.parametrize("leave", [STOP, KILL], ids=["stopped", "killed"])
def test_two_server_assigned_members_share_the_queues_and_one_takes_over(
    cluster: Cluster, leave: Callable[[Program], None]
) -> None:
    """One member, then two with four queues each, then one. At our broker a join redelivers nothing.

    At Apache's broker it may: a new member gets its queues before their owner has released them, and
    simultaneous commits can overwrite each other.
    """
    topic, group = cluster.fresh_name("Asked"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    first = cluster.consumer(group, topic, clientRebalance=False)
    wait_queues(cluster, first, topic, QUEUES)
    send(cluster, topic, "alone", 24)
    wait_bodies(cluster, "alone", 24, first)

    second = cluster.consumer_process(group, topic, clientRebalance=False)
    wait_queues(cluster, first, topic, QUEUES // 2)
    wait_queues(cluster, second, topic, QUEUES // 2)
    assert queues_of(first, topic) | queues_of(second, topic) == all_queues(cluster)
    send(cluster, topic, "both", 24)
    wait_bodies(cluster, "both", 24, first, second)
    assert second.of("message"), "the second member consumes its queues' messages"
    if cluster.kind == "libra":
        assert redelivered(first, second) == {}

    leave(second)
    wait_queues(cluster, first, topic, QUEUES)
    send(cluster, topic, "again", 24)
    wait_bodies(cluster, "again", 24, first)


def test_a_server_assigned_member_works_beside_one_that_allocates(cluster: Cluster) -> None:
    """Their halves of the queues are complementary."""
    topic, group = cluster.fresh_name("Mixed"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    asks = cluster.consumer(group, topic, clientRebalance=False)
    allocates = cluster.consumer(group, topic)
    wait_queues(cluster, asks, topic, QUEUES // 2)
    wait_queues(cluster, allocates, topic, QUEUES // 2)
    assert queues_of(asks, topic) | queues_of(allocates, topic) == all_queues(cluster)
    allocates.finish()
    wait_queues(cluster, asks, topic, QUEUES)


def test_loads_are_even_across_topics(cluster: Cluster) -> None:
    """For four topics of one queue, Apache assigns all to the first member; we assign two to each."""
    if cluster.kind != "libra":
        pytest.skip("Apache's broker assigns each topic by itself")
    topics, group = [cluster.fresh_name("Single") for _ in range(4)], cluster.fresh_name("group")
    for topic in topics:
        cluster.create_topic(topic, 1)
    names = {"group": group, "topic": ",".join(topics), "clientRebalance": False}
    members = [cluster.start("Consume", names) for _ in range(2)]

    def loads() -> list[int]:
        return [sum(len(queues_of(member, topic)) for topic in topics) for member in members]

    cluster.wait_until(lambda: loads() == [2, 2], "two queues each", within_s=PATIENCE_S)
    members[1].finish()
    cluster.wait_until(lambda: loads()[0] == 4, "all queues", within_s=PATIENCE_S)


A, B = "broker-a", "broker-b"


@pytest.mark.parametrize("home", [A, B])
def test_queues_of_two_brokers_are_shared(servers: LibraServers, tmp_path: Path, home: str) -> None:
    """Java queries a different broker each time; queues stay where possible, even if a broker is killed.

    There are two members, then three; broker-b is killed and restarted. The group's coordinator is broker-b
    or the other one.
    """
    with ExitStack() as stack:
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic, group = cluster.fresh_name("Spread"), group_at(home, [A, B])
        cluster.create_topic(topic, QUEUES)
        at = {name: {f"{name}:{queue}" for queue in range(QUEUES // 2)} for name in (A, B)}

        def held() -> list[set[str]]:
            return [queues_of(member, topic) for member in members]

        def wait_shares(queues: set[str], loads: list[int]) -> None:
            cluster.wait_until(
                lambda: sorted(map(len, held())) == loads and set().union(*held()) == queues,
                f"loads of {loads}",
                within_s=PATIENCE_S,
            )

        members = [cluster.consumer(group, topic, clientRebalance=False)]
        wait_shares(at[A] | at[B], [8])
        members.append(cluster.consumer(group, topic, clientRebalance=False))
        wait_shares(at[A] | at[B], [4, 4])
        send(cluster, topic, "two", 24)
        wait_bodies(cluster, "two", 24, *members)

        before = held()
        counts = [len(member.of("queues", topic=topic)) for member in members]
        members.append(cluster.consumer(group, topic, clientRebalance=False))
        wait_shares(at[A] | at[B], [2, 3, 3])
        assert [len(lot & now) for lot, now in zip(before, held(), strict=False)] == [3, 3]
        for member, count, now in zip(members, counts, held(), strict=False):
            changes = member.of("queues", topic=topic)[count:]
            assert all(now <= set(change["queues"]) for change in changes), "kept queues are always owned"
        send(cluster, topic, "three", 24)
        wait_bodies(cluster, "three", 24, *members)
        assert redelivered(*members) == {}

        before = held()
        servers.kill(B)
        wait_shares(at[A], [1, 1, 2])
        gained = [now - lot for lot, now in zip(before, held(), strict=True)]
        loads = sorted(len(lot & at[A]) for lot in before)
        assert sum(map(len, gained)) == max(sum(max(load - 2, 0) for load in loads), loads.count(0))
        before = held()
        servers.start(B)
        wait_shares(at[A] | at[B], [2, 3, 3])
        assert all(lot <= now for lot, now in zip(before, held(), strict=True))
        send(cluster, topic, "back", 24)
        wait_bodies(cluster, "back", 24, *members)
        assert [body for body in redelivered(*members) if body.startswith("back")] == []


@pytest.fixture
def servers(_programs: None, tmp_path: Path) -> Iterator[LibraServers]:
    servers = LibraServers(tmp_path / "servers", A, B)
    yield servers
    servers.stop()


def all_queues(cluster: Cluster) -> set[str]:
    return {f"{cluster.broker_name}:{queue}" for queue in range(QUEUES)}


def redelivered(*consumers: Events) -> dict[str, int]:
    """Return the bodies that were delivered more than once, with their counts."""
    counts = collections.Counter(
        delivery["body"] for consumer in consumers for delivery in consumer.of("message")
    )
    return {body: count for body, count in counts.items() if count > 1}
