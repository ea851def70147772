"""The history of a simulation: a log of all observations, passed on to the invariants, and its checksum.

The simulated processes report facts, and invariants (`Watcher`) check them at once. The log's lines are for
people; its checksum shows whether two runs were the same.
"""

import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.clock import MonotonicMs
from libramq.fencing import Claim
from libramq.groups.modern.values import Partition, Partitions
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.message.queue import MessageQueue
from libramq.testing.happening import Happening
from libramq.testing.machine.virtual_time import VirtualTime

if TYPE_CHECKING:
    from libramq.broker.broker import Broker


#: The epoch of a joining member's heartbeat.
JOINS: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaGroupPlan:
    """The settings of a Kafka group. static_chance: the chance that a member has an instance id.

    rebalance_ms: the time a member may take to revoke; revoke_ms_max: the longest time one really takes.
    """

    name: str
    topics: tuple[str, ...]
    members: int = 3
    assignor: str | None = None
    static_chance: float = 0.0
    rebalance_ms: int = 5_000
    revoke_ms_max: int = 50
    commit_ms: int = 1_000


class KafkaBeat(NamedTuple):
    """A heartbeat. life: counts the member's joins; owned: None if unchanged."""

    group: str
    member: str
    life: int
    broker: str
    epoch: int
    owned: Partitions | None
    sent_ms: MonotonicMs


class KafkaCommit(NamedTuple):
    """A commit. number: counts the member's commits.

    is_stale: it deliberately has an earlier epoch of the member, and must be refused.
    """

    group: str
    member: str
    life: int
    broker: str
    epoch: int
    number: int
    offsets: Mapping[Partition, int]
    is_stale: bool
    sent_ms: MonotonicMs


class KafkaPosition(NamedTuple):
    """A member begins to read a partition at its group's committed offset, as read from a broker."""

    group: str
    member: str
    broker: str
    partition: Partition
    position: int
    sent_ms: MonotonicMs


class HandlingMember(Protocol):
    """A member whose handlers are watched. retries_max: redeliveries before a message is a dead letter."""

    name: str
    group: str
    topics: tuple[str, ...]
    is_broadcasting: bool
    is_orderly: bool
    retries_max: int
    session_ms: int

    @property
    def audience(self) -> str:
        """Return the name under which messages are shared: its group, or its own if it broadcasts."""
        ...


#: Lines of the log kept for the report of a failure.
LINES_KEPT: Final = 60


class Violation(Exception):
    """An invariant is violated."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(invariant, what)  # Both, so that it can be unpickled.
        self.invariant = invariant
        self.what = what

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what}"


def fail_the_simulation(what: str, error: Exception) -> None:
    """Raise an error that an engine did not handle: in a simulation that is always a finding."""
    if isinstance(error, Violation):
        raise error
    raise AssertionError(what) from error


class Commit:
    """One commit of a member, perhaps acknowledged. claim: in coordinated groups."""

    __slots__ = ("answered_ms", "claim", "may_be_lost", "offset", "requested_ms")

    def __init__(self, offset: int, requested_ms: MonotonicMs, claim: Claim | None = None) -> None:
        self.offset = offset
        self.requested_ms = requested_ms
        self.claim = claim
        #: When it was acknowledged; None if it is unknown whether it has been or will be applied.
        self.answered_ms: MonotonicMs | None = None
        #: Whether the broker's machine has lost power since the request; the response may still arrive.
        self.may_be_lost = False


class StoredMessage(NamedTuple):
    """An acknowledged message of a producer. requested_ms: when the send began."""

    queue: MessageQueue
    offset: int
    physical_offset: int
    message_id: str
    requested_ms: MonotonicMs


class Watcher:
    """Receives all facts. An invariant overrides the methods it needs."""

    def stored(self, message: StoredMessage) -> None:
        """A producer's message was acknowledged."""

    def deferred(self, broker: str, topic: str, message_id: str, requested_ms: MonotonicMs) -> None:
        """A producer's delayed message was acknowledged."""

    def popped(self, group: str, topic: str, broker: str, message_id: str, arrived_ms: MonotonicMs) -> None:
        """A handler gets a popped message, which arrived from a broker at `arrived_ms`."""

    def acknowledged(self, group: str, topic: str, message_id: str, by: str | None = None) -> None:
        """A member has acknowledged a popped message. by: the process that accepted it in time, if any."""

    def pops_set_back(
        self, group: str, topic: str, broker: str, queues: Collection[MessageQueue] | None
    ) -> None:
        """A popping group is reset in a topic. queues: None at the request, then those of the response."""

    def slave_ended(self, name: str, durable_to: int | None) -> None:
        """A slave ended; see `broker_died`."""

    def rolled_back(self, message_id: str) -> None:
        """A producer begins a transaction that it will roll back."""

    def broker_died(self, name: str, durable_to: int | None) -> None:
        """A broker ended. durable_to: everything before it surely survives; None: everything written."""

    def broker_recovered(self, name: str, broker: "Broker") -> None:
        """A broker runs again."""

    def topic_deleted(self, name: str, topic: str) -> None:
        """A topic is being or has been deleted at a broker; `Cluster.was_deleted` tells which messages."""

    def commit_requested(self, group: str, queue: MessageQueue, commit: Commit) -> None:
        """A member commits."""

    def commit_acknowledged(self, group: str, queue: MessageQueue, commit: Commit) -> None:
        """A broker has applied a commit."""

    def offset_read(
        self, group: str, queue: MessageQueue, offset: int | None, requested_ms: MonotonicMs
    ) -> None:
        """A member got the committed offset that it queried."""

    def session_renewed(self, member: str, requested_ms: MonotonicMs) -> None:
        """A coordinator answered a request that a member sent at `requested_ms`."""

    def opened(self, group: str, queue: MessageQueue, claim: Claim, requested_ms: MonotonicMs) -> None:
        """A fence let a member open a queue."""

    def pulled(self, group: str, queue: MessageQueue, claim: Claim, requested_ms: MonotonicMs) -> None:
        """A broker returned messages of an open queue to a member."""

    def changed_at_slave(self, group: str, queue: MessageQueue, what: str, claim: Claim | None) -> None:
        """A slave let a member open a queue or accepted its commit. claim: in coordinated groups."""

    def delivered(self, member: HandlingMember, delivery: Delivery) -> None:
        """A member's core passed messages to handlers."""

    def handling_began(self, member: HandlingMember, delivery: Delivery) -> None:
        """A handler began."""

    def handled(self, member: HandlingMember, delivery: Delivery, outcome: HandlerOutcome) -> None:
        """A handler ended."""

    def owners_changed(self, member: str, what: str, queues: Sequence[MessageQueue]) -> None:
        """A member's listener was notified that queues were assigned, revoked or lost."""

    def rebalance_recorded(self, broker: str, event: RebalanceEvent) -> None:
        """A broker has recorded its view of a rebalance."""

    def disturbed(self, what: str) -> None:
        """A fault or another event happened after which messages may be redelivered."""

    # Members of Kafka's groups.

    def kafka_beat(self, beat: KafkaBeat) -> None:
        """A member sends a heartbeat."""

    def kafka_answered(self, beat: KafkaBeat, code: int, epoch: int, assigned: Partitions | None) -> None:
        """A member's heartbeat was answered. assigned: None if unchanged."""

    def kafka_owns(self, group: str, member: str, partitions: Partitions) -> None:
        """A member has these partitions now: from their assignment until it reports giving them up."""

    def kafka_position(self, begin: KafkaPosition) -> None:
        """A member begins to read a partition at its group's committed offset."""

    def kafka_handled(self, group: str, broker: str, partition: Partition, begin: int, end: int) -> None:
        """A member has read a range of a partition from its broker."""

    def kafka_out_of_range(self, member: str, broker: str, partition: Partition, offset: int) -> None:
        """A broker has no records at a member's offset."""

    def kafka_commit(self, commit: KafkaCommit) -> None:
        """A member commits."""

    def kafka_committed(self, commit: KafkaCommit, codes: Mapping[Partition, int]) -> None:
        """A member's commit was answered, or timed out (`codes` is empty)."""


class Log(Watcher):
    """The log: lines for the facts that help to explain a violation, and counts of events."""

    def __init__(self, time: VirtualTime, lines_kept: int | None) -> None:
        self.lines: deque[str] = deque(maxlen=lines_kept)
        self.checksum = 0
        self.stored_count = 0
        self.handled_count = 0
        #: Counts of each kind of event.
        self.happenings: Counter[Happening] = Counter()
        self._time = time

    def note(self, who: str, what: str) -> None:
        """Add a line."""
        line = f"{self._time.elapsed_ms:>7} {who}: {what}"
        self.lines.append(line)
        self.checksum = zlib.crc32(line.encode(), self.checksum)

    def happened(self, what: Happening, about: str = "") -> None:
        """Count an event. about: its subject."""
        if not self.happenings[what]:
            self.note("first", f"{what}: {about}" if about else what)
        self.happenings[what] += 1

    def stored(self, message: StoredMessage) -> None:
        queue, offset, _, message_id, _ = message
        self.stored_count += 1
        self.note(queue.broker_name, f"stored {message_id} at {_named(queue)}:{offset}")

    def deferred(self, broker: str, topic: str, message_id: str, requested_ms: MonotonicMs) -> None:
        self.stored_count += 1
        self.note(broker, f"keeps {message_id} of {topic} for later")

    def pops_set_back(
        self, group: str, topic: str, broker: str, queues: Collection[MessageQueue] | None
    ) -> None:
        if queues is not None:
            self.note(group, f"is set back in {len(queues)} queues of {topic}@{broker}")

    def slave_ended(self, name: str, durable_to: int | None) -> None:
        self.note(name, "killed" if durable_to is None else "power cut")

    def broker_died(self, name: str, durable_to: int | None) -> None:
        self.note(name, "killed" if durable_to is None else f"power cut, durable to {durable_to}")

    def broker_recovered(self, name: str, broker: "Broker") -> None:
        self.note(name, f"runs, log ends at {broker.store.visible_offset}")

    def topic_deleted(self, name: str, topic: str) -> None:
        self.note(name, f"{topic} is deleted")

    def commit_requested(self, group: str, queue: MessageQueue, commit: Commit) -> None:
        self.note(group, f"commit {_named(queue)}:{commit.offset}")

    def commit_acknowledged(self, group: str, queue: MessageQueue, commit: Commit) -> None:
        commit.answered_ms = self._time.now_ms

    def offset_read(
        self, group: str, queue: MessageQueue, offset: int | None, requested_ms: MonotonicMs
    ) -> None:
        self.note(group, f"offset of {_named(queue)} is {offset}")

    def opened(self, group: str, queue: MessageQueue, claim: Claim, requested_ms: MonotonicMs) -> None:
        self.note(claim.member, f"opened {_named(queue)} under {claim.epoch}")

    def handled(self, member: HandlingMember, delivery: Delivery, outcome: HandlerOutcome) -> None:
        self.handled_count += len(delivery.messages)
        offsets = ",".join(str(message.queue_offset) for message in delivery.messages)
        self.note(member.name, f"{outcome.value} {_named(delivery.owned.queue)}:{offsets}")

    def disturbed(self, what: str) -> None:
        self.note("fault", what)

    def kafka_beat(self, beat: KafkaBeat) -> None:
        owned = "" if beat.owned is None else f" with {_numbered(beat.owned)}"
        self.note(beat.member, f"{beat.group} heartbeat {beat.epoch} to {beat.broker}{owned}")

    def kafka_answered(self, beat: KafkaBeat, code: int, epoch: int, assigned: Partitions | None) -> None:
        what = "" if assigned is None else f", {_numbered(assigned)}"
        self.note(beat.broker, f"{beat.group} answers {beat.member}: {code or epoch}{what}")

    def kafka_owns(self, group: str, member: str, partitions: Partitions) -> None:
        self.note(member, f"has {_numbered(partitions)}")

    def kafka_position(self, begin: KafkaPosition) -> None:
        self.note(begin.member, f"reads {_numbered([begin.partition])} from {begin.position} on")

    def kafka_handled(self, group: str, broker: str, partition: Partition, begin: int, end: int) -> None:
        self.handled_count += end - begin
        self.note(group, f"read {partition.topic}-{partition.number}:{begin}-{end} at {broker}")

    def kafka_out_of_range(self, member: str, broker: str, partition: Partition, offset: int) -> None:
        self.note(broker, f"has nothing at {partition.topic}-{partition.number}:{offset}")

    def kafka_commit(self, commit: KafkaCommit) -> None:
        offsets = " ".join(f"{each.topic}-{each.number}:{at}" for each, at in commit.offsets.items())
        self.note(commit.member, f"commits {offsets} to {commit.broker} under {commit.epoch}")

    def kafka_committed(self, commit: KafkaCommit, codes: Mapping[Partition, int]) -> None:
        wrong = sorted({code for code in codes.values() if code})
        if wrong:
            self.note(commit.broker, f"refuses the commit of {commit.member} under {commit.epoch}: {wrong}")

    def owners_changed(self, member: str, what: str, queues: Sequence[MessageQueue]) -> None:
        self.note(member, f"{what} {' '.join(_named(queue) for queue in queues)}")


class History(Log):
    """The log and its watchers: each fact is logged, then passed to the watchers that handle it."""

    def __init__(self, time: VirtualTime, lines_kept: int | None) -> None:
        super().__init__(time, lines_kept)
        self.watchers: list[Watcher] = []
        self._by_fact: dict[str, list[Callable[..., None]]] = {}
        self._watcher_count = 0

    def _watching(self, fact: str) -> list[Callable[..., None]]:
        """Return the watchers' methods that handle a fact; most watchers handle only a few."""
        if len(self.watchers) != self._watcher_count:  # Brokers start before the invariants exist.
            self._watcher_count = len(self.watchers)
            self._by_fact.clear()
        found = self._by_fact.get(fact)
        if found is None:
            ignored = getattr(Watcher, fact)
            takers = [one for one in self.watchers if getattr(type(one), fact) is not ignored]
            found = self._by_fact[fact] = [getattr(one, fact) for one in takers]
        return found


def _passed_on(fact: str) -> Callable[..., None]:
    log = getattr(Log, fact)

    def happen(self: History, *arguments: Any, **named: Any) -> None:
        log(self, *arguments, **named)
        for notify in self._watching(fact):
            notify(*arguments, **named)

    return happen


for _fact in vars(Watcher):
    if not _fact.startswith("_"):
        setattr(History, _fact, _passed_on(_fact))


def _named(queue: MessageQueue) -> str:
    return f"{queue.topic}@{queue.broker_name}/{queue.queue_id}"


def _numbered(partitions: Iterable[Partition]) -> str:
    return " ".join(f"{each.topic}-{each.number}" for each in sorted(partitions)) or "nothing"
