"""Invariants of Kafka's groups (KIP-848): owners, epochs, moves, commits and consumption."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.groups.modern.values import Partition, Partitions
from libramq.message.queue import MessageQueue
from libramq.testing.happening import Happening
from libramq.testing.history import JOINS, KafkaBeat, KafkaCommit, KafkaPosition
from libramq.testing.invariants.invariant import Invariant
from libramq.wire.kafka.error_code import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libramq.testing.cluster import Cluster
    from libramq.testing.history import KafkaGroupPlan


_FENCED: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class _Taken(NamedTuple):
    """An owned partition that a coordinator assigned to another member."""

    partition: Partition
    by: str
    broker: str
    at_ms: MonotonicMs


class OneKafkaOwner(Invariant):
    """Check that a coordinator reassigns a partition only after its owner gave it up or was fenced.

    A coordinator may have fenced an owner whose session expired or whose revocation took too long, and the
    owner learns this later. So once another member has the partition, the coordinator must accept neither
    heartbeats nor commits from the old owner until it joins again. After that coordinator's death no other
    one may accept its heartbeats either. The latter is checked only while nothing fails except members and
    brokers, because brokers that cannot reach each other may all coordinate the group.
    """

    name = "a partition of a Kafka group has one owner, and others are fenced"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._owned: dict[str, dict[str, Partitions]] = {}
        self._lives: dict[str, int] = {}
        self._answering: dict[str, KafkaBeat] = {}
        #: By member and life.
        self._taken: dict[tuple[str, int], dict[Partition, _Taken]] = {}
        self._expecting: set[tuple[str, int]] = set()
        self._died_ms: dict[str, MonotonicMs] = {}
        self._is_whole = True

    def disturbed(self, what: str) -> None:
        self._is_whole &= _is_end(self.cluster, what)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        self._died_ms[name] = self.cluster.now_ms
        if durable_to is not None and not self.cluster.is_sync:
            self._taken.clear()  # The last responses may have been lost.

    def kafka_beat(self, beat: KafkaBeat) -> None:
        self._lives[beat.member] = beat.life

    def kafka_answered(self, beat: KafkaBeat, code: int, epoch: int, assigned: Partitions | None) -> None:
        self._answering[beat.member] = beat
        if code or beat.epoch == JOINS:
            return
        for taken in self._taken.get((beat.member, beat.life), {}).values():
            has_died = self._died_ms.get(taken.broker, MonotonicMs(0)) > taken.at_ms
            is_judged = beat.broker == taken.broker or (has_died and self._is_whole)
            if is_judged and beat.sent_ms > taken.at_ms:
                self._broken(beat.group, beat.member, taken, f"sends heartbeats to {beat.broker}")

    def kafka_owns(self, group: str, member: str, partitions: Partitions) -> None:
        owned = self._owned.setdefault(group, {})
        gained = partitions - owned.get(member, frozenset())
        owned[member] = partitions
        beat = self._answering.get(member)
        if beat is None or self.cluster.may_have_lost(beat.broker, beat.sent_ms):
            return  # A power cut may have lost the record behind the response.
        for other, theirs in owned.items():
            for each in sorted(theirs & gained) if other != member else ():
                taken = _Taken(each, member, beat.broker, self.cluster.now_ms)
                self._taken.setdefault((other, self._lives.get(other, 0)), {})[each] = taken

    def kafka_commit(self, commit: KafkaCommit) -> None:
        node = self.cluster.brokers[commit.broker].kafka
        if node is None or node.expects_members:
            self._expecting.add((commit.member, commit.number))

    def kafka_committed(self, commit: KafkaCommit, codes: "Mapping[Partition, int]") -> None:
        was_expecting = (commit.member, commit.number) in self._expecting
        self._expecting.discard((commit.member, commit.number))
        node = self.cluster.brokers[commit.broker].kafka
        if was_expecting or node is None or node.expects_members:
            return
        accepted = [each for each, code in codes.items() if code == ErrorCode.NONE]
        if commit.is_stale and accepted:
            self.broken(f"{commit.member} commits under {commit.epoch}, which it left behind")
        for each in accepted:
            taken = self._taken.get((commit.member, commit.life), {}).get(each)
            if taken is not None and commit.broker == taken.broker and commit.sent_ms > taken.at_ms:
                self._broken(commit.group, commit.member, taken, "commits")

    def _broken(self, group: str, member: str, taken: _Taken, what: str) -> None:
        which = f"{taken.partition.topic}-{taken.partition.number}"
        self.broken(f"{group}: {taken.by} got {which} from {taken.broker}, where {member} has it and {what}")


class KafkaEpochsGoForward(Invariant):
    """Check that a group's epoch never decreases at a broker, even over restarts, unless records were lost.

    Another coordinator continues with later epochs if it knows the members; otherwise they have to join
    there, and it starts its own epochs.
    """

    name = "the epochs of Kafka's groups go forward"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._group_epochs: dict[tuple[str, str], int] = {}
        self._answered: dict[tuple[str, str], int] = {}
        self._at_join: dict[tuple[str, int], int] = {}
        self._died_ms: dict[str, MonotonicMs] = {}
        #: The last response in each life of a member: from which broker, and when.
        self._last: dict[tuple[str, int], tuple[str, MonotonicMs]] = {}

    def broker_died(self, name: str, durable_to: int | None) -> None:
        self._died_ms[name] = self.cluster.now_ms
        if durable_to is not None and not self.cluster.is_sync:
            # A new group may be lost entirely.
            self._group_epochs = {key: epoch for key, epoch in self._group_epochs.items() if key[0] != name}
            self._answered = {key: epoch for key, epoch in self._answered.items() if key[0] != name}

    def step(self) -> None:
        for plan in self.cluster.kafka.plans:
            for name, node in self.cluster.brokers.items():
                epoch = node.kafka.group_epoch(plan.name) if node.kafka is not None else None
                before = self._group_epochs.get((name, plan.name), 0)
                if epoch is not None and epoch < before:
                    self.broken(f"{plan.name} had epoch {before} at {name}, and has {epoch}")
                self._group_epochs[name, plan.name] = epoch or before

    def kafka_beat(self, beat: KafkaBeat) -> None:
        if beat.epoch == JOINS:
            self._at_join[beat.member, beat.life] = self._answered.get((beat.broker, beat.group), 0)

    def kafka_answered(self, beat: KafkaBeat, code: int, epoch: int, assigned: Partitions | None) -> None:
        if code:
            return
        before = self._at_join[beat.member, beat.life] if beat.epoch == JOINS else beat.epoch
        if epoch < before:
            self.broken(f"{beat.group}: {beat.broker} answers {beat.member} {epoch}, after {before}")
        key = (beat.broker, beat.group)
        self._answered[key] = max(epoch, self._answered.get(key, 0))
        self._note_coordinator(beat)

    def _note_coordinator(self, beat: KafkaBeat) -> None:
        """Count coordinator restarts and changes that a member survives."""
        life = (beat.member, beat.life)
        broker, since_ms = self._last.get(life, (beat.broker, self.cluster.now_ms))
        if broker == beat.broker and since_ms < self._died_ms.get(broker, MonotonicMs(0)):
            self.cluster.world.history.happened(Happening.KAFKA_KEPT, beat.group)
        if broker != beat.broker:
            self.cluster.world.history.happened(Happening.KAFKA_TAKEN_OVER, beat.group)
        self._last[life] = (beat.broker, self.cluster.now_ms)


class KafkaPartitionsOwned(Invariant):
    """Check that every partition has one owner at the group's epoch once faults have ended."""

    name = "every partition of a Kafka group is owned by one member soon after faults end"
    #: The session (45 s) of a static member that does not return, and the next rebalance.
    within_ms = 60_000

    def unmet(self) -> Iterator[str]:
        for plan in self.cluster.kafka.plans:
            wrong = wrong_of(self.cluster, plan)
            if wrong:
                yield f"{plan.name}: {wrong}"


class KafkaMovesHaveCauses(Invariant):
    """Check that members of a balanced group keep their partitions until members or topics change.

    Checked only while nothing fails except members and brokers. A single broker continues after a restart as
    if nothing had happened. Of several, another takes over from a dead coordinator without moving partitions,
    and hands the groups back when it returns. Not checked after a second broker dies.
    """

    name = "nothing moves in a Kafka group that is balanced"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._is_judged = True
        self._dead: str | None = None
        #: The members and queue counts of balanced groups.
        self._balanced: dict[str, object] = {}

    def disturbed(self, what: str) -> None:
        self._is_judged &= _is_end(self.cluster, what)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if len(self.cluster.brokers) > 1:
            self._is_judged &= self._dead is None
            self._dead = name
        elif durable_to is not None and not self.cluster.is_sync:
            self._balanced.clear()

    def step(self) -> None:
        for plan in self.cluster.kafka.plans if self._is_judged else ():
            now = self._state(plan.name)
            if self._balanced.get(plan.name) != now:
                self._balanced.pop(plan.name, None)
                if not wrong_of(self.cluster, plan):
                    self._balanced[plan.name] = now

    def kafka_answered(self, beat: KafkaBeat, code: int, epoch: int, assigned: Partitions | None) -> None:
        state = self._balanced.get(beat.group)
        if not self._is_judged or state is None or state != self._state(beat.group):
            return
        member = next(each for each in self.cluster.kafka.all if each.name == beat.member)
        if not member.is_alive or beat.epoch == JOINS:
            return
        if code in _FENCED:
            self.broken(f"{beat.group}: {beat.broker} fences {beat.member}")
        if assigned is not None and assigned != member.owned:
            self.broken(f"{beat.group}: {beat.broker} gives {beat.member} other partitions")

    def _state(self, group: str) -> object:
        names = [each.name for each in self.cluster.kafka.alive(group)]
        return names, dict(self.cluster.topics)


def _is_end(cluster: "Cluster", what: str) -> bool:
    """Return whether a fault is the end of a Kafka member or broker, or any fault of a RocketMQ member."""
    name, _, how = what.partition(" ")
    is_end = how.startswith(("is killed", "loses power", "restarts"))
    is_process = name.startswith("kafka-") or name in cluster.brokers
    return name.startswith("member-") or (is_end and is_process)


def wrong_of(cluster: "Cluster", plan: "KafkaGroupPlan") -> str:
    """Return what is wrong with the owners of a group's partitions, or an empty string."""
    members = cluster.kafka.alive(plan.name)
    for member in members:
        node = cluster.brokers[member.coordinator] if member.coordinator is not None else None
        epoch = node.kafka.group_epoch(plan.name) if node is not None and node.kafka is not None else None
        if not member.is_in or member.epoch != epoch:
            return f"{member.name} is in epoch {member.epoch} at {member.coordinator}, which has {epoch}"
    owners: dict[Partition, str] = {}
    for member in members:
        for each in member.owned:
            if each in owners:
                return f"{each.topic}-{each.number} is owned by {owners[each]} and {member.name}"
            owners[each] = member.name
    for topic in plan.topics if members else ():
        for number in range(cluster.topics[topic] * len(cluster.brokers)):
            if Partition(topic, number) not in owners:
                return f"{topic}-{number} is owned by nobody"
    return ""


_Key = tuple[str, MessageQueue]


class _Pending(NamedTuple):
    """A commit in flight: its queues, the number of faults before it, and the queues at reachable brokers.

    offsets: the offsets it will set; brokers lower an offset beyond the queue's end to that end.
    """

    queues: Mapping[Partition, MessageQueue]
    offsets: Mapping[Partition, int]
    faults: int
    reachable: frozenset[MessageQueue]


class KafkaCommitsAreKept(Invariant):
    """Check that an acknowledged commit is at the queue's broker, and never goes back there.

    An unanswered commit may take effect at any time. A power cut may lose commits and messages, after which a
    member may commit an offset beyond the queue's end. If the queue's broker is unreachable, the coordinator
    keeps the commit in memory.
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

    def kafka_committed(self, commit: KafkaCommit, codes: Mapping[Partition, int]) -> None:
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

    def kafka_position(self, begin: KafkaPosition) -> None:
        group, member, broker, partition, position, sent_ms = begin
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
        """Return an offset limited to the queue's end; unchanged while the queue's broker is down."""
        broker = self.cluster.brokers[queue.broker_name].broker
        return offset if broker is None else min(offset, broker.store.max_offset(queue.topic, queue.queue_id))

    def _reaches(self, broker: str, queue: MessageQueue) -> bool:
        """Return whether a coordinator can reach the queue's broker."""
        node, other = self.cluster.brokers[broker].broker, queue.broker_name
        if broker == other:
            return node is not None
        blocked = self.cluster.world.network.blocked
        is_open = (broker, other) not in blocked and (other, broker) not in blocked
        is_running = node is not None and self.cluster.brokers[other].broker is not None
        return is_open and is_running and node is not None and node.cluster.nodes.is_linked(other)


class KafkaConsumedAtLeastOnce(Invariant):
    """Check that a Kafka group eventually reads every message of its topics."""

    name = "a Kafka group reads every message at least once"
    #: As for KafkaPartitionsOwned, and time to read.
    within_ms = 70_000

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        #: The ranges that were read, as (begin, end), sorted and without overlaps.
        self._read: dict[_Key, list[tuple[int, int]]] = defaultdict(list)
        #: The partitions' queues at each broker, because a response may arrive after the broker has died.
        self._queues: dict[tuple[str, Partition], MessageQueue] = {}
        self._lossy: set[str] = set()

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:
            self._lossy.add(name)  # New messages may get the offsets of lost ones.

    def kafka_out_of_range(self, member: str, broker: str, partition: Partition, offset: int) -> None:
        if broker not in self._lossy:
            self.broken(f"{member} read up to {offset} of {partition}, which {broker} does not have")

    def kafka_handled(self, group: str, broker: str, partition: Partition, begin: int, end: int) -> None:
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

    def kafka_position(self, begin: KafkaPosition) -> None:
        self._queue(begin.broker, begin.partition)

    def _queue(self, broker: str, partition: Partition) -> MessageQueue | None:
        kafka = self.cluster.brokers[broker].kafka
        queue = kafka.queue(*partition) if kafka is not None else None
        if queue is not None:
            self._queues[broker, partition] = queue
        return self._queues.get((broker, partition))

    def unmet(self) -> Iterator[str]:
        for plan in self.cluster.kafka.plans:
            for queue in self.cluster.queues(plan.topics):
                broker = self.cluster.brokers[queue.broker_name].broker
                if queue.broker_name in self._lossy:
                    continue
                end = broker.store.max_offset(queue.topic, queue.queue_id) if broker is not None else -1
                found = self._read.get((plan.name, queue), [])
                if end and found != [(0, end)]:
                    yield f"{plan.name} has read {found} of {queue}, which ends at {end}"
