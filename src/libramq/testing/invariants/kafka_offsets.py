"""Invariants of what Kafka's groups commit and read."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from libramq.clock import MonotonicMs
from libramq.message.queue import MessageQueue
from libramq.testing.invariants.invariant import Invariant
from libramq.testing.nodes.kafka_facts import KafkaCommit, KafkaPartition

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster

_Key = tuple[str, MessageQueue]


class _Pending(NamedTuple):
    """A commit under way: its queues, and how many faults there had been; those at reachable brokers.

    offsets: what it will have set, as brokers bring an offset that is beyond its queue's end back to that.
    """

    queues: Mapping[KafkaPartition, MessageQueue]
    offsets: Mapping[KafkaPartition, int]
    faults: int
    reachable: frozenset[MessageQueue]


class KafkaCommitsAreKept(Invariant):
    """Check that an acknowledged commit is at the queue's broker, and that it never goes back there.

    A commit without an answer may take effect at any time. A power cut may take what was committed before
    it, and messages too: whoever does not know yet commits an offset beyond the queue's end. And where the
    queue's broker could not be reached the coordinator keeps the commit in memory.
    """

    name = "an acknowledged commit of a Kafka group does not go back"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._floors: dict[_Key, tuple[int, MonotonicMs]] = {}
        self._open: dict[_Key, Counter[int]] = defaultdict(Counter)
        self._pending: dict[tuple[str, int], _Pending] = {}
        self._faults = 0

    def disturbed(self, what: str) -> None:
        self._faults += 1

    def broker_died(self, name: str, durable_to: int | None) -> None:
        self._faults += 1
        if durable_to is not None:
            for key in [key for key in self._floors if key[1].broker_name == name]:
                del self._floors[key]

    def kafka_commit(self, commit: KafkaCommit) -> None:
        kafka = self.cluster.brokers[commit.broker].kafka
        found = {each: kafka.queue(*each) if kafka is not None else None for each in commit.offsets}
        queues = {each: queue for each, queue in found.items() if queue is not None}
        reachable = frozenset(each for each in queues.values() if self._reaches(commit.broker, each))
        offsets = {each: self._within(queue, commit.offsets[each]) for each, queue in queues.items()}
        self._pending[commit.member, commit.number] = _Pending(queues, offsets, self._faults, reachable)
        for each, queue in queues.items():
            self._open[commit.group, queue][offsets[each]] += 1

    def kafka_committed(self, commit: KafkaCommit, codes: Mapping[KafkaPartition, int]) -> None:
        queues, offsets, faults, reachable = self._pending.pop((commit.member, commit.number))
        for each, code in codes.items():
            queue = queues.get(each)
            if queue is None:
                continue
            offset = offsets[each]
            key = (commit.group, queue)
            if code:
                self._open[key][offset] -= 1
            elif faults == self._faults and queue in reachable and self._reaches(commit.broker, queue):
                self._open[key][offset] -= 1
                self._floors[key] = (offset, self.cluster.now_ms)

    def kafka_position(
        self,
        group: str,
        member: str,
        broker: str,
        partition: KafkaPartition,
        position: int,
        sent_ms: MonotonicMs,
    ) -> None:
        kafka = self.cluster.brokers[broker].kafka
        queue = kafka.queue(*partition) if kafka is not None else None
        if queue is None or (group, queue) not in self._floors or not self._reaches(broker, queue):
            return
        floor, since_ms = self._floors[group, queue]
        is_open = self._open[group, queue][position] > 0
        if position < floor and since_ms < sent_ms and not is_open and not self._faults:
            self.broken(f"{group} committed {floor} in {queue}; {member} begins at {position}")

    def step(self) -> None:
        for key, (floor, _) in self._floors.items():
            group, queue = key
            broker = self.cluster.brokers[queue.broker_name].broker
            if broker is None:
                continue
            offset = broker.offsets.query(group, queue.topic, queue.queue_id)
            if offset is not None and self._open[key][offset] > 0:
                self._floors[key] = (offset, self.cluster.now_ms)
            elif offset is None or offset < floor:
                self.broken(f"{group} committed {floor} in {queue}, which has {offset}")

    def _within(self, queue: MessageQueue, offset: int) -> int:
        """Return an offset, or the queue's end if that is before it; the offset while its broker is down."""
        broker = self.cluster.brokers[queue.broker_name].broker
        return offset if broker is None else min(offset, broker.store.max_offset(queue.topic, queue.queue_id))

    def _reaches(self, broker: str, queue: MessageQueue) -> bool:
        """Return whether a coordinator reaches the queue's broker."""
        node, other = self.cluster.brokers[broker].broker, queue.broker_name
        if broker == other:
            return node is not None
        blocked = self.cluster.world.network.blocked
        is_open = (broker, other) not in blocked and (other, broker) not in blocked
        is_running = node is not None and self.cluster.brokers[other].broker is not None
        return is_open and is_running and node is not None and node.cluster.nodes.is_linked(other)


class KafkaConsumedAtLeastOnce(Invariant):
    """Check that a Kafka group reads every message of its topics in the end."""

    name = "a Kafka group reads every message at least once"
    #: A session, as for owners, and what they read then.
    within_ms = 70_000

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        #: What was read, as ends by beginnings, without overlaps.
        self._read: dict[_Key, list[tuple[int, int]]] = defaultdict(list)
        #: The partitions' queues at each broker; an answer may come after its broker has died.
        self._queues: dict[tuple[str, KafkaPartition], MessageQueue] = {}
        self._lossy: set[str] = set()

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:
            self._lossy.add(name)  # Others take the offsets of messages that are lost.

    def kafka_out_of_range(self, member: str, broker: str, partition: KafkaPartition, offset: int) -> None:
        if broker not in self._lossy:
            self.broken(f"{member} read up to {offset} of {partition}, which {broker} does not have")

    def kafka_handled(self, group: str, broker: str, partition: KafkaPartition, begin: int, end: int) -> None:
        self.progressed_ms = self.cluster.now_ms
        queue = self._queue(broker, partition)
        if queue is None:
            return
        known = self._read[group, queue]
        apart = [each for each in known if each[1] < begin or end < each[0]]
        joined = [each for each in known if each not in apart]
        first = min([begin, *(each[0] for each in joined)])
        last = max([end, *(each[1] for each in joined)])
        self._read[group, queue] = sorted([*apart, (first, last)])

    def kafka_position(
        self,
        group: str,
        member: str,
        broker: str,
        partition: KafkaPartition,
        position: int,
        sent_ms: MonotonicMs,
    ) -> None:
        self._queue(broker, partition)

    def _queue(self, broker: str, partition: KafkaPartition) -> MessageQueue | None:
        kafka = self.cluster.brokers[broker].kafka
        queue = kafka.queue(*partition) if kafka is not None else None
        if queue is not None:
            self._queues[broker, partition] = queue
        return self._queues.get((broker, partition))

    def is_met(self) -> bool:
        return not any(self._unread())

    def finish(self) -> None:
        for what in self._unread():
            self.broken(what)

    def _unread(self) -> Iterator[str]:
        for plan in self.cluster.kafka.plans:
            for queue in self.cluster.queues(plan.topics):
                broker = self.cluster.brokers[queue.broker_name].broker
                if queue.broker_name in self._lossy:
                    continue
                end = broker.store.max_offset(queue.topic, queue.queue_id) if broker is not None else -1
                found = self._read.get((plan.name, queue), [])
                if end and found != [(0, end)]:
                    yield f"{plan.name} has read {found} of {queue}, which ends at {end}"
