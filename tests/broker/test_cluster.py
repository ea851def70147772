"""Coordinated groups over several brokers: real brokers, a name server and real consumers in one loop."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from libramq.broker.cluster.member_relay import EDGE_SILENCE_MS_MAX
from libramq.broker.cluster.peer_brokers import BEAT_MS
from libramq.client.blocking_cluster import Timeouts
from libramq.client.queue_reader import QueueReader
from libramq.clock import SystemClock
from libramq.errors import LibraError, NotCoordinator
from libramq.groups.rebalance_history import rebalances
from libramq.message import Message
from libramq.remoting.body.coordination import GroupPollBody
from libramq.rpc import broker_calls, group_calls
from libramq.transport.asyncio_remotes import AsyncioRemotes
from tests.broker.brokers import heartbeat
from tests.broker.clusters import SESSION_MS, TOPIC, Cluster, group_at
from tests.transport.loops import until, until_asked

#: What a busy machine may add to the end of a session.
SLOW_S = 9

A, B, C, D = "broker-a", "broker-b", "broker-c", "broker-d"
QUEUES = {A: 8, B: 5, C: 3}


@pytest.fixture
async def cluster(tmp_path) -> AsyncIterator[Cluster]:
    async with asyncio.timeout(60), Cluster(tmp_path, dict(QUEUES)) as cluster:
        yield cluster


async def ask(remotes: AsyncioRemotes, address: str, call, timeout_ms: int = 3_000):
    reply = await remotes.call(address, call.command(), timeout_ms=timeout_ms)
    return call.result(reply, where=address)


async def test_members_share_the_queues_of_all_brokers(cluster):
    """Loads are within one at each step, and no queue moves without need."""
    group = group_at(B, cluster.names)
    await cluster.send(3)
    one = await cluster.join(group, "one")
    await cluster.even(one)
    two = await cluster.join(group, "two")
    await cluster.even(one, two)
    assert (len(one.gave), len(two.gained)) == (8, 8)
    three = await cluster.join(group, "three")
    await cluster.even(one, two, three)
    assert len(three.gained) == 5
    assert len(one.gained) + len(two.gained) == 16 + 8
    await cluster.send(3)
    before = len(one.gained) + len(three.gained)
    freed = len(two.queues)
    await cluster.leave("two")
    await cluster.even(one, three)
    assert len(one.gained) + len(three.gained) == before + freed
    await cluster.send(3)
    await cluster.all_handled()
    assert cluster.repeated == {}
    assert cluster.group(group)[0] == B


async def test_others_read_the_drained_queues_of_a_member_that_is_still_stopping(cluster):
    """All queues move except the unfinished message's, which follows the goodbye; no queue moves twice."""
    group = group_at(B, cluster.names)
    one, two = await cluster.join(group, "one"), await cluster.join(group, "two")
    await cluster.even(one, two)
    gained, busy = len(two.gained), min(one.queues)
    one.gate = asyncio.Event()
    cluster.sent.append(b"slow")
    await cluster.producer.send(Message(TOPIC, b"slow"), queue=busy)
    await until(lambda: one.waiting)
    stopping = asyncio.create_task(cluster.leave("one"))
    await until(lambda: len(two.queues) == 15)
    assert busy not in two.queues
    await cluster.send(1, *(name for name in cluster.names if name != busy.broker_name))
    await until(lambda: len(cluster.handled) == len(cluster.sent) - 1)
    assert not stopping.done()
    one.gate.set()
    await stopping
    await cluster.even(two)
    await cluster.all_handled()
    assert cluster.repeated == {}
    assert len(two.gained) == gained + 8


async def test_every_broker_records_the_rebalance_of_its_queues(cluster):
    """Together the records show one rebalance with one cause, all of its moves, and no needless move."""
    group = group_at(B, cluster.names)
    one = await cluster.join(group, "one")
    await cluster.even(one)

    def settled(count: int) -> bool:
        ends = Counter(name for name, event in cluster.events() if event.kind == "settled")
        return all(ends[name] >= count for name in cluster.names)

    await until(lambda: settled(1))
    two = await cluster.join(group, "two")
    await cluster.even(one, two)
    await until(lambda: settled(2))
    last = rebalances(cluster.events(), wall_ms=SystemClock().wall_ms())[-1]
    assert last.brokers == (A, B, C)
    assert [cause.reason for cause in last.causes] == ["member_joined"]
    assert (last.moved, last.minimum, last.unowned) == (8, 8, 0)
    assert sorted(last.loads.values()) == [8, 8]


async def test_every_broker_names_a_groups_coordinator(cluster):
    """A broker where the group does not live redirects members to the coordinator."""
    remotes = AsyncioRemotes(SystemClock().monotonic_ms)
    addresses = {name: server.address for name, server in cluster.servers.items()}
    for coordinator in cluster.names:
        group = group_at(coordinator, cluster.names)
        for name, address in addresses.items():
            assert await ask(remotes, address, group_calls.find_group(group)) == addresses[coordinator]
            if name != coordinator:
                with pytest.raises(NotCoordinator) as refused:
                    await ask(remotes, address, group_calls.poll_group(group, "m", 0, GroupPollBody(), 1_000))
                assert refused.value.remark == addresses[coordinator]
    await remotes.aclose()


async def consumer_list(remotes: AsyncioRemotes, address: str, group: str) -> list[str]:
    try:
        return sorted(await ask(remotes, address, broker_calls.consumer_list(group)))
    except LibraError:
        return []


async def test_stock_members_see_one_list_whichever_broker_they_ask(cluster):
    """Each is connected to one broker; the list is the same also while brokers come and go."""
    addresses = [server.address for server in cluster.servers.values()]
    group = group_at(B, [A, B, C])
    told: dict[str, int] = {}
    stock: dict[str, AsyncioRemotes] = {}

    def notified(name: str) -> None:
        told[name] = told.get(name, 0) + 1

    for name, address in zip(("x", "y", "z"), addresses, strict=True):
        stock[name] = AsyncioRemotes(
            SystemClock().monotonic_ms, on_request=lambda *_, name=name: notified(name)
        )
        await ask(stock[name], address, broker_calls.heartbeat(heartbeat(name, group)))

    async def lists() -> list[list[str]]:
        return [
            await consumer_list(stock[name], address, group)
            for name, address in zip(stock, addresses, strict=False)
        ]

    async def agree(*names: str) -> None:
        async def do() -> bool:
            return await lists() == [sorted(names)] * len(stock)

        await until_asked(do)

    await agree("x", "y", "z")
    await until(lambda: set(told) == {"x", "y", "z"})
    told.clear()
    await stock.pop("z").aclose()
    await agree("x", "y")
    await until(lambda: set(told) == {"x", "y"})
    # The coordinator is at the second broker: its list stays valid, then another broker has the group.
    killing_at = asyncio.get_running_loop().time()
    await cluster.kill(B)
    seen = await consumer_list(stock["x"], addresses[0], group)
    took_ms = 1_000 * (asyncio.get_running_loop().time() - killing_at)
    # Its clients count while other brokers know it: until it has been silent for so long, of which a beat may
    # have passed before, or until the next query to the name server, which knows at once.
    knew = B in cluster.servers[A].broker.cluster.others.view.names
    assert seen == ["x", "y"] or not knew or took_ms >= EDGE_SILENCE_MS_MAX - 2 * BEAT_MS
    await until(cluster.sees_all)
    last = stock.pop("y")

    async def x_is_alone() -> bool:
        return await consumer_list(stock["x"], addresses[0], group) == ["x"]

    await until_asked(x_is_alone)
    await last.aclose()
    await stock["x"].aclose()


async def test_a_handover_survives_the_death_of_its_coordinator(cluster):
    """Other queues are still read, the handover completes, nothing is redelivered, and the group returns."""
    group = group_at(A, cluster.names)
    loop = asyncio.get_running_loop()
    one = await cluster.join(group, "one")
    await cluster.even(one)
    await cluster.send(2)
    await cluster.all_committed(group, 2)
    two = await cluster.join(group, "two")
    await until(lambda: one.gave)
    await cluster.kill(A)
    killed_at = loop.time()
    await cluster.send(5, B, C)
    await cluster.all_handled()
    await cluster.even(one, two)
    await until(lambda: cluster.group(group)[1] is not None and cluster.group(group)[1].is_settled)
    assert loop.time() - killed_at <= SESSION_MS / 1000 + SLOW_S
    assert cluster.repeated == {}
    # The broker restarts: the group returns to it, its queues are granted again, and no other queue moves.
    await until(lambda: cluster.is_even(one, two))
    before = set(one.queues), set(two.queues)
    await cluster.start(A)
    await cluster.even(one, two)
    await until(lambda: cluster.group(group)[0] == A and cluster.group(group)[1].is_settled)
    assert all(kept <= member.queues for kept, member in zip(before, (one, two), strict=True))
    await cluster.send(2)
    await cluster.all_handled()
    assert cluster.repeated == {}


async def test_a_broker_is_added_while_the_group_consumes(cluster):
    """Its queues are shared too, and the group moves to it without moving any queue for that."""
    group = group_at(A, cluster.names, besides=D)
    one, two = await cluster.join(group, "one"), await cluster.join(group, "two")
    await cluster.even(one, two)
    moved = len(one.gave) + len(two.gave)
    sending = asyncio.create_task(cluster.send(10))
    await cluster.add(D, 4)
    await cluster.even(one, two)
    await until(lambda: cluster.group(group)[0] == D and cluster.group(group)[1].is_settled)
    assert len(one.gave) + len(two.gave) == moved
    assert one.lost == two.lost == []
    await sending
    await cluster.new_producer()  # It sees the new queues at once; the other one in half a minute.
    await cluster.send(1, D)
    await cluster.all_handled()
    assert cluster.repeated == {}


async def test_a_member_that_left_while_a_broker_was_away_is_not_awaited(cluster):
    """The returning broker's fence remembers the member, but the previous coordinator knows that it left."""
    group = group_at(A, cluster.names)
    one, two = [await cluster.join(group, name, session_ms=600_000) for name in ("one", "two")]
    await cluster.even(one, two)
    await cluster.send(1)
    await cluster.all_handled()
    await cluster.kill(A)
    await until(lambda: cluster.group(group)[1] is not None and cluster.group(group)[1].is_settled)
    await cluster.leave("two")
    await cluster.start(A)
    async with asyncio.timeout(60):
        await cluster.even(one)
        await until(lambda: cluster.group(group)[0] == A and cluster.group(group)[1].is_settled)


async def test_name_servers_remember_who_had_a_topic(cluster):
    """A reader that keeps its own positions got the other brokers' queues, without notice of missing ones."""
    reader = QueueReader([cluster.namesrv.address], group="g", timeouts=Timeouts(retry_ms=300))
    try:
        assert len(await asyncio.to_thread(reader.queues, TOPIC)) == 16
        assert reader.absent_brokers([TOPIC]) == {}
        await cluster.kill(B)
        await until(cluster.is_routed)
        assert len(await asyncio.to_thread(reader.queues, TOPIC)) == 11
        assert await asyncio.to_thread(reader.absent_brokers, [TOPIC], waits=True) == {B: [TOPIC]}
        assert await asyncio.to_thread(reader.absent_brokers, [TOPIC], [A, D]) == {B: [TOPIC], D: []}
        await cluster.start(B)
        await until(cluster.is_routed)
        assert await asyncio.to_thread(reader.absent_brokers, [TOPIC], waits=True) == {}
        assert len(await asyncio.to_thread(reader.queues, TOPIC)) == 16
    finally:
        reader.close()


async def test_a_reader_knows_the_topics_that_were_made_again(cluster):
    reader = QueueReader([cluster.namesrv.address], group="g")
    try:
        queues = await asyncio.to_thread(reader.queues, TOPIC)
        await asyncio.to_thread(reader.max_offsets, queues)
        assert reader.topics_since() == {(TOPIC, A): 0, (TOPIC, B): 0, (TOPIC, C): 0}
        await cluster.new_producer()
        await cluster.send(1)
        cluster.servers[A].broker.members.removal.remove_topic(TOPIC, SystemClock().wall_ms())
        await asyncio.to_thread(
            reader.reachable_max_offsets, [queue for queue in queues if queue.broker_name == A]
        )
        since = reader.topics_since()
        assert since[TOPIC, A] > 0 == since[TOPIC, B]
    finally:
        reader.close()
