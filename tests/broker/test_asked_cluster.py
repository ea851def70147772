"""Members that query their assignment over several real brokers, with clients that act as Java's does."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from libramq.clock import SystemClock
from libramq.codes import RequestCode
from libramq.errors import LibraError
from libramq.formats.document import decode_body, encode_body
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import QueryAssignmentBody, QueryAssignmentReply
from libramq.rpc import broker_calls
from libramq.rpc.call import Call
from libramq.transport.asyncio_remotes import AsyncioRemotes
from tests.broker.brokers import heartbeat, subscription
from tests.broker.clusters import TOPIC, Cluster, group_at
from tests.transport.loops import until

A, B, C = "broker-a", "broker-b", "broker-c"


class Asker:
    """A member that queries a random broker, a different one each time, when it is notified.

    Without a notification it does not query again; Java's client would do so 20 s later.
    """

    def __init__(self, group: "Group", name: str) -> None:
        self.name = name
        self.queues: frozenset[MessageQueue] = frozenset()
        self.history: list[frozenset[MessageQueue]] = []
        self._group = group
        self._random = random.Random(name)
        self._remotes = AsyncioRemotes(SystemClock().monotonic_ms, on_request=self._asked)
        self._is_told = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.beat()
        self._task = asyncio.create_task(self._rounds())

    async def beat(self) -> None:
        wants = [subscription(TOPIC), subscription(f"%RETRY%{self._group.name}")]
        data = heartbeat(self.name, self._group.name, subscriptions=wants)
        for address in self._group.addresses():
            await self._call(address, broker_calls.heartbeat(data))

    async def stop(self) -> None:
        """Stop as SIGKILL does."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._remotes.aclose()
        self._group.askers.remove(self)

    def _asked(self, address: str, command, answer) -> None:
        assert command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        self._is_told.set()

    async def _rounds(self) -> None:
        is_whole = False
        while True:
            if is_whole:
                await self._is_told.wait()
            self._is_told.clear()
            is_whole = True
            for topic in (TOPIC, f"%RETRY%{self._group.name}"):
                is_whole = await self._ask(topic) and is_whole
            await asyncio.sleep(0.02)  # Java's minInterval, 1 s there.

    async def ask_once(self) -> None:
        """Query once, without a notification."""
        await self._ask(TOPIC)

    async def _ask(self, topic: str) -> bool:
        address = self._random.choice(self._group.addresses())
        body = QueryAssignmentBody(
            topic=topic, consumer_group=self._group.name, client_id=self.name, strategy_name="AVG"
        )
        call = Call(RequestCode.QUERY_ASSIGNMENT, lambda reply: reply.body, body=encode_body(body))
        try:
            answer = decode_body(await self._call(address, call), QueryAssignmentReply)
        except LibraError:
            return False
        if answer.message_queue_assignments is None:
            return False
        if topic == TOPIC:
            self._hold(frozenset(one.message_queue.queue for one in answer.message_queue_assignments))
        return True

    def _hold(self, queues: frozenset[MessageQueue]) -> None:
        self.queues = queues
        if self.history[-1:] != [queues]:
            self.history.append(queues)
        for other in self._group.askers:
            if other is not self and other.queues & queues:
                self._group.read_by_two.append((self.name, other.name, other.queues & queues))

    async def _call(self, address: str, call):
        reply = await self._remotes.call(address, call.command(), timeout_ms=3_000)
        return call.result(reply, where=address)


class Group:
    """A group whose members query assignments; it lives at a broker. read_by_two: queues two held at once."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.askers: list[Asker] = []
        self.read_by_two: list[object] = []

    def addresses(self) -> list[str]:
        """Return the addresses that members know: those of the brokers that have the topic."""
        return [
            self.cluster.servers[name].address for name in self.cluster.names if self.cluster.queues(name)
        ]

    async def join(self, name: str) -> Asker:
        asker = Asker(self, name)
        self.askers.append(asker)
        await asker.start()
        return asker

    async def stop(self) -> None:
        for asker in list(self.askers):
            await asker.stop()

    async def even(self) -> None:
        """Wait until all queues of all running brokers are held, with loads within one."""

        def is_even() -> bool:
            held = sorted(queue for asker in self.askers for queue in asker.queues)
            loads = [len(asker.queues) for asker in self.askers]
            return held == sorted(self.cluster.queues()) and max(loads) - min(loads) <= 1

        await until(is_even)


@pytest.fixture
async def cluster(tmp_path) -> AsyncIterator[Cluster]:
    async with asyncio.timeout(60), Cluster(tmp_path, {A: 4, B: 4, C: 0}) as cluster:
        yield cluster


@pytest.fixture(params=[A, B, C])
async def group(cluster, request) -> AsyncIterator[Group]:
    """A group that lives, by parameter, at a broker with queues, at the other, or at one without any."""
    group = Group(cluster, group_at(request.param, cluster.names))
    yield group
    await group.stop()
    assert group.read_by_two == []


def held(group: Group) -> dict[str, frozenset[MessageQueue]]:
    return {asker.name: asker.queues for asker in group.askers}


def gained(before: dict[str, frozenset[MessageQueue]], group: Group) -> int:
    """Return how many queues have changed owners."""
    return sum(len(asker.queues - before.get(asker.name, frozenset())) for asker in group.askers)


async def test_joins_and_departures_move_the_minimum(group):
    """Loads are 4 and 4, then 3, 3 and 2, then one member dies; each answer has the queues that stay."""
    one, two = await group.join("one"), await group.join("two")
    await group.even()
    before = held(group)
    first_answers = len(one.history), len(two.history)
    await group.join("three")
    await group.even()
    assert gained(before, group) == 2
    for asker, count in zip((one, two), first_answers, strict=True):
        stays = before[asker.name] & asker.queues
        assert all(stays <= answer for answer in asker.history[count:])
    before = held(group)
    lost = len(two.queues)
    await two.stop()
    await group.even()
    assert gained(before, group) == lost


async def test_queues_of_a_broker_that_dies_are_shared_again_when_it_returns(group):
    """Other queues stay with their owners as far as even loads allow, whichever broker coordinates."""
    for name in ("one", "two"):
        await group.join(name)
    await group.even()
    await group.cluster.kill(A)
    alive = {name: frozenset(q for q in lot if q.broker_name != A) for name, lot in held(group).items()}
    await group.even()
    excess = max(len(lot) for lot in alive.values()) - 2
    assert gained(alive, group) == excess
    before = held(group)
    await group.cluster.start(A)
    for asker in group.askers:
        await asker.beat()
    await group.even()
    assert all(before[asker.name] <= asker.queues for asker in group.askers)


async def test_a_new_broker_becomes_coordinator_and_nothing_moves(cluster):
    group = Group(cluster, group_at(A, cluster.names, besides="broker-d"))
    one = await group.join("one")
    await group.even()
    two = await group.join("two")
    await group.even()
    before = held(group)
    answers = len(one.history), len(two.history)
    await cluster.add("broker-d", 0)
    await until(cluster.sees_all)
    assert cluster.servers["broker-d"].broker.cluster.others.view.coordinator_of(group.name) == "broker-d"
    three = await group.join("three")
    await group.even()
    assert gained(before, group) == len(three.queues) == 2
    assert (len(one.history), len(two.history)) <= (answers[0] + 1, answers[1] + 1)
    await group.stop()
    assert group.read_by_two == []


async def test_members_keep_their_queues_while_the_assigning_broker_hangs(cluster):
    """No other broker takes the hanging one's place, and nothing moves until it continues."""
    group = Group(cluster, group_at(C, cluster.names))
    one = await group.join("one")
    await group.even()
    for name in (A, B):
        link = cluster.servers[name].broker.cluster.others.peers.links[C]
        link.is_linked = False
        link.is_asking = True  # No heartbeat discovers it.
    two = await group.join("two")
    await one.ask_once()
    assert (len(one.queues), two.queues) == (8, frozenset())
    for name in (A, B):
        cluster.servers[name].broker.cluster.others.peers.links[C].is_asking = False
    await group.even()
    await group.stop()
    assert group.read_by_two == []
