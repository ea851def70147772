"""Coordinated groups while a master is gone and its slave serves: real brokers, real consumers, one loop."""

import asyncio
import shutil
from collections.abc import AsyncIterator

import pytest

from libramq.filesystem import LocalFileSystem
from libramq.message.queue import MessageQueue
from libramq.store.copying import copy_store
from tests.broker.clusters import TOPIC, Cluster, Member, group_at
from tests.transport.loops import until

A, B = "broker-a", "broker-b"
QUEUES = {A: 6, B: 4}
COUNT = 20
#: Few enough that most messages are still unread when the master is gone.
PREFETCHED = 1
#: Longer than any stall of a busy machine.
SESSION_MS = 30_000
#: How soon members learn that a slave replaces their master if they first ask too early.
ROUTE_REFRESH_MS = 500


@pytest.fixture
async def cluster(tmp_path) -> AsyncIterator[Cluster]:
    async with asyncio.timeout(60), Cluster(tmp_path, dict(QUEUES), copied=[A]) as cluster:
        await cluster.start_slave(A)
        yield cluster


def of(member: Member, broker_name: str) -> set[MessageQueue]:
    return {queue for queue in member.queues if queue.broker_name == broker_name}


async def all_but_the_first_unread(cluster: Cluster, group: str, *names: str) -> list[Member]:
    """Return members whose handlers block on prefetched messages, once the slave has everything."""
    members = [
        await cluster.join(
            group,
            name,
            pull_threshold_for_queue=PREFETCHED,
            pull_batch_size=1,
            threads=COUNT * sum(QUEUES.values()),
            session_ms=SESSION_MS,
            route_refresh_ms=ROUTE_REFRESH_MS,
        )
        for name in names
    ]
    await cluster.even(*members)
    for member in members:
        member.gate = asyncio.Event()
    await cluster.send(COUNT)
    await cluster.copied(A)
    queues = cluster.queues()  # Each of them is open, not only assigned.
    await until(lambda: read_of(queues, *members) == set(queues))
    return members


def read_of(queues: list[MessageQueue], *members: Member) -> set[MessageQueue]:
    """Return the queues of which handlers have a message. `Cluster.send` numbers messages in turn."""
    return {queues[int(body) % len(queues)] for member in members for body in member.begun}


async def absent(cluster: Cluster) -> None:
    """Wait until the other broker knows that the master is gone."""
    await until(lambda: cluster.servers[B].broker.cluster.others.view.absent == {A})


@pytest.mark.parametrize("coordinator", [A, B])
async def test_members_read_on_from_the_slave_under_their_old_openings(cluster: Cluster, coordinator) -> None:
    """No other member gets these queues; commits wait for the master, and nothing is redelivered."""
    group = group_at(coordinator, cluster.names)
    one, two = await all_but_the_first_unread(cluster, group, "one", "two")
    before = of(one, A), of(two, A)
    await cluster.kill(A)
    await absent(cluster)
    one.gate.set()
    two.gate.set()
    await cluster.all_handled()
    assert (of(one, A), of(two, A)) == before
    assert one.lost == two.lost == []
    offsets = cluster.slaves[A].broker.offsets
    committed = [offsets.first_to_read(group, TOPIC, number) or 0 for number in range(QUEUES[A])]
    assert max(committed) < COUNT
    await cluster.start(A)
    await cluster.all_committed(group, COUNT)
    assert (of(one, A), of(two, A)) == before
    assert one.lost == two.lost == []
    assert cluster.repeated == {}


async def test_a_member_that_joins_takes_no_queue_of_an_absent_master(cluster: Cluster) -> None:
    """The old holder could not commit the queue, and the new one could not open it.

    The queue may move once the master is back, maybe before its holder has committed, so some messages
    may be redelivered.
    """
    group = group_at(B, cluster.names)
    (one,) = await all_but_the_first_unread(cluster, group, "one")
    await cluster.kill(A)
    await absent(cluster)
    one.gate.set()
    two = await cluster.join(group, "two")
    await until(lambda: bool(of(two, B)) and cluster.group(group)[1].is_settled)
    assert of(one, A) == set(cluster.queues(A))
    await cluster.all_handled()
    assert (one.lost, of(two, A)) == ([], set())
    await cluster.start(A)
    await cluster.even(one, two)
    await cluster.all_committed(group, COUNT)


async def test_the_queue_of_a_member_that_ends_is_opened_when_the_master_is_back(cluster: Cluster) -> None:
    """The queues that the other member reads meanwhile stay with that member."""
    group = group_at(B, cluster.names)
    one, two = await all_but_the_first_unread(cluster, group, "one", "two")
    before = of(one, A)
    await cluster.kill(A)
    await absent(cluster)
    one.gate.set()
    two.gate.set()
    await cluster.all_handled()
    # Its commits cannot reach the master, which it would wait for.
    await cluster.members.pop("two").consumer.stop(timeout_ms=1_000)
    await until(lambda: of(one, B) == set(cluster.queues(B)))
    await cluster.start(A)
    await cluster.even(one)
    await cluster.all_committed(group, COUNT)
    assert before.isdisjoint(one.lost)


async def test_what_a_masters_disk_lost_and_its_slave_delivered_makes_nobody_skip_what_takes_its_place(
    cluster: Cluster, tmp_path
) -> None:
    """Under ASYNC_FLUSH a slave may have the last half second that a power cut takes from its master."""
    group = group_at(B, cluster.names)
    one = await cluster.join(
        group,
        "one",
        session_ms=SESSION_MS,
        route_refresh_ms=ROUTE_REFRESH_MS,
        pull_threshold_for_queue=PREFETCHED,
    )
    await cluster.even(one)
    await cluster.send(1)
    await cluster.all_committed(group, 1)
    store = cluster.servers[A].broker.store
    await until(lambda: store.flushed_offset == store.end)
    copy_store(tmp_path / A, tmp_path / "on the disk", LocalFileSystem())
    one.gate = asyncio.Event()
    await cluster.send(COUNT, A)
    await cluster.copied(A)
    await cluster.kill(A)
    await absent(cluster)
    one.gate.set()
    await cluster.all_handled()
    shutil.rmtree(tmp_path / A)
    (tmp_path / "on the disk").rename(tmp_path / A)
    await cluster.start(A)
    await until(cluster.sees_all)
    await cluster.new_producer()  # One that has not noticed that the master was gone.
    lost = list(cluster.sent)
    await cluster.send(2 * COUNT, A)
    await cluster.all_handled()
    assert set(lost) < set(cluster.handled)
    await cluster.copied(A)
    for number in range(QUEUES[A]):
        for server in (cluster.servers[A], cluster.slaves[A]):
            assert server.broker.store.max_offset(TOPIC, number) == 1 + 2 * COUNT
