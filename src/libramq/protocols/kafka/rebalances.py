"""Rebalances of Kafka's groups for the history: the readers of queues, the causes of a rebalance, and when it
has settled.

A request is first applied to its group, then noted here:

    classic   join, sync ─► readers                   members come and go ─► causes ─┬► events, as
    modern    answers, revocations ─► readers         changes of the group ─► causes ┘  RocketMQ's groups

    a member joins          it keeps reading the queues that it claims to own; its others have stopped
    a member is gone        its queues have stopped, at its last request
    a member has synced     it reads its assignment, and nothing else
    all queues are read, or nothing has moved for a while      the rebalance has settled

Fetches do not name members. So a queue's pause is measured at the coordinator, without the member's own
delays, and redeliveries are unknown.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic

from libramq.clock import MonotonicMs, Now, read_clock
from libramq.groups.classic.group import ClassicGroup
from libramq.groups.classic.state import ClassicMember, Status
from libramq.groups.modern.group import ModernGroup
from libramq.groups.modern.values import NO_PARTITIONS, Partitions
from libramq.groups.protocol_groups import ForeignGroup, ForeignGroups, ForeignMember, Groups
from libramq.groups.rebalance_event import EventWriter, Reason, RebalanceEvent, named
from libramq.groups.unsettled import Move, minimum_moves
from libramq.kernel.deadlines import Deadline
from libramq.kernel.parts import Kernel
from libramq.message.queue import MessageQueue
from libramq.protocols.kafka.broker_groups import PROTOCOL, G
from libramq.protocols.kafka.node import KafkaNodes
from libramq.wire.kafka.subscription import assigned_partitions, owned_partitions, subscribed_topics

#: As in LibraMQ's coordinator: members that join within this time are one event.
COLLECT_MS: Final = 20
#: Ours: queues whose readers are known, of all groups of a protocol; about 25 MB. Over the limit, a group's
#: history has members and causes, but no queues.
READERS_MAX: Final = 100_000
#: Ours: cooperative members that give up queues join again at their next poll, rarely later than this.
QUIET_MS: Final = 3_000


@dataclass(slots=True)
class _Reader:
    """The last reader of a queue. stopped_ms: when it stopped; None while it reads."""

    name: str
    stopped_ms: MonotonicMs | None = None


@dataclass(slots=True)
class _Rebalance:
    """A rebalance under way. stopped_ms: when each queue first stopped; resumed_ms: when it last resumed."""

    started_ms: MonotonicMs
    changed_ms: MonotonicMs
    before: dict[MessageQueue, str]
    stopped_ms: dict[MessageQueue, MonotonicMs] = field(default_factory=dict)
    resumed_ms: dict[MessageQueue, MonotonicMs] = field(default_factory=dict)
    worst_pause_ms: int = 0


class ObservedGroup:
    """One group's readers and its rebalance. A member's name is its instance's id, or else its member id."""

    def __init__(self, group: str) -> None:
        self._write = EventWriter(group)
        self._readers: dict[MessageQueue, _Reader] = {}
        #: The queues of each member's name, in the order of assignment: a group may have a thousand members.
        self._queues: dict[str, dict[MessageQueue, None]] = {}
        self._rebalance: _Rebalance | None = None

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def is_settled(self) -> bool:
        """Return whether no rebalance is under way."""
        return self._rebalance is None

    @property
    def quiet_at_ms(self) -> MonotonicMs | None:
        """Return when a rebalance settles even if queues lack a reader."""
        return self._rebalance.changed_ms + QUIET_MS if self._rebalance is not None else None

    def queues(self, name: str) -> list[MessageQueue]:
        """Return the queues of which a member is the last reader."""
        return list(self._queues.get(name, ()))

    def begin(self, now_ms: MonotonicMs) -> None:
        """Begin a rebalance, unless one is under way."""
        if self._rebalance is None:
            before = {queue: reader.name for queue, reader in self._readers.items()}
            self._rebalance = _Rebalance(now_ms, now_ms, before)

    def started(
        self, reason: Reason, who: str | None, members: Collection[str], generation: int, now: Now
    ) -> RebalanceEvent:
        """Return the event of a change that began a rebalance or occurred during one."""
        self._write.epoch = generation
        return self._write.started(reason, who, members, now)

    def reads_only(self, name: str, queues: Collection[MessageQueue], at_ms: MonotonicMs) -> None:
        """Note that a member has stopped reading all its queues except these."""
        for queue in self._queues.get(name, ()):
            reader = self._readers[queue]
            if queue not in queues and reader.stopped_ms is None:
                reader.stopped_ms = at_ms
                if self._rebalance is not None:
                    self._rebalance.stopped_ms.setdefault(queue, at_ms)

    def reads_on(self, name: str) -> None:
        """Note that a member which seemed lost has never stopped reading its queues."""
        for queue in self._queues.get(name, ()):
            self._readers[queue].stopped_ms = None
            if self._rebalance is not None:
                self._rebalance.stopped_ms.pop(queue, None)

    def assigned(self, name: str, queues: Collection[MessageQueue], now_ms: MonotonicMs) -> None:
        """Note a member's assignment: it reads these queues, and no others."""
        self.reads_only(name, queues, now_ms)
        for queue in queues:
            reader = self._readers.get(queue)
            if reader is not None and reader.name == name and reader.stopped_ms is None:
                continue
            self._remove(queue)
            self._readers[queue] = _Reader(name)
            self._queues.setdefault(name, {})[queue] = None
            if self._rebalance is not None:
                self._resumed(self._rebalance, queue, reader, now_ms)

    def _remove(self, queue: MessageQueue) -> None:
        former = self._readers.pop(queue, None)
        if former is None:
            return
        queues = self._queues[former.name]
        del queues[queue]
        if not queues:
            del self._queues[former.name]

    def _resumed(
        self, rebalance: _Rebalance, queue: MessageQueue, former: _Reader | None, now_ms: MonotonicMs
    ) -> None:
        rebalance.changed_ms = now_ms
        rebalance.resumed_ms[queue] = now_ms
        if former is not None:
            stopped_ms = now_ms if former.stopped_ms is None else former.stopped_ms
            rebalance.stopped_ms.setdefault(queue, stopped_ms)
            rebalance.worst_pause_ms = max(rebalance.worst_pause_ms, now_ms - stopped_ms)

    def settle(
        self, members: Collection[str], wanted: Iterable[MessageQueue], generation: int, now: Now
    ) -> list[RebalanceEvent]:
        """Return the final events of a rebalance if it has settled; call once all members have synced.

        wanted: the queues that the group should read; empty if it has no members.
        """
        rebalance = self._rebalance
        if rebalance is None:
            return []
        wanted = set(wanted)
        owned = {
            queue: reader.name
            for queue, reader in self._readers.items()
            if reader.stopped_ms is None and reader.name in members and queue in wanted
        }
        is_quiet = now.monotonic_ms - rebalance.changed_ms >= QUIET_MS
        if len(owned) < len(wanted) and not is_quiet:
            return []
        self._rebalance = None
        self._write.epoch = generation
        for queue in [each for each in self._readers if not members or each not in wanted]:
            self._remove(queue)
        return self._settled(rebalance, owned, members, len(wanted), now)

    def _settled(
        self,
        rebalance: _Rebalance,
        owned: dict[MessageQueue, str],
        members: Collection[str],
        wanted_count: int,
        now: Now,
    ) -> list[RebalanceEvent]:
        moves = [
            Move(
                from_=rebalance.before.get(queue),
                to=name,
                stopped_ms=rebalance.stopped_ms.get(queue),
                resumed_ms=rebalance.resumed_ms[queue],
                redelivered=None if queue in rebalance.before else 0,
            ).record(queue, None, now)
            for queue, name in sorted(owned.items())
            if rebalance.before.get(queue) != name
        ]
        loads = Counter(dict.fromkeys(members, 0))
        loads.update(owned.values())
        before = {queue: name for queue, name in rebalance.before.items() if queue in owned}
        last_ms = max(rebalance.resumed_ms.values(), default=rebalance.changed_ms)
        return self._write.settled(
            moves,
            members,
            loads,
            now,
            minimum=minimum_moves(before, loads),
            time_to_stable_ms=max(0, last_ms - rebalance.started_ms),
            worst_pause_ms=rebalance.worst_pause_ms,
            redelivered_upper_bound=None if any(move.from_ for move in moves) else 0,
            unowned=wanted_count - len(owned),
        )


@dataclass(slots=True)
class _Known:
    """The state of a group at the last check.

    names: its members' names. causes: unrecorded ones, with their members. Of a classic group, members: by
    name; with_share: ids of those whose assignment of this generation was noted. Of a modern one, noted:
    the members' partitions.
    """

    observed: ObservedGroup
    deadline: Deadline
    names: Collection[str] = ()
    topics: Collection[str] = ()
    causes: dict[Reason, list[str]] = field(default_factory=dict)
    record_at_ms: MonotonicMs | None = None
    generation: int = 0
    members: dict[str, ClassicMember] = field(default_factory=dict)
    with_share: set[str] = field(default_factory=set)
    queue_count: int = 0
    noted: dict[str, Partitions] = field(default_factory=dict)


class Rebalances(ABC, Generic[G]):
    """The rebalances of one protocol's groups, and descriptions of the groups. record: takes the events."""

    def __init__(
        self,
        groups: Groups[G],
        nodes: KafkaNodes,
        foreign: ForeignGroups,
        kernel: Kernel,
        record: Callable[[RebalanceEvent], None],
    ) -> None:
        self._groups: Groups[G] = groups
        self._nodes = nodes
        self._record = record
        self._clock = kernel.clock
        self._deadlines = kernel.deadlines
        self._known: dict[str, _Known] = {}
        self._readers = 0
        foreign.add(self.group)

    @abstractmethod
    def restored(self, name: str, group: G) -> None:
        """Take a group that continues here: its members keep reading their queues."""

    @abstractmethod
    def _is_complete(self, group: G | None) -> bool:
        """Return whether every member has its target assignment."""

    @abstractmethod
    def _is_over(self, known: _Known, group: G | None) -> bool:
        """Return whether a group whose rebalance has settled can be forgotten."""

    @abstractmethod
    def _described(self, known: _Known, group: G) -> tuple[int, str | None, Iterable[str]]:
        """Return the generation of a group, its strategy and its topics."""

    def _of(self, name: str) -> _Known:
        known = self._known.get(name)
        if known is None:
            deadline = self._deadlines.new(partial(self._due, name), "rebalance of a Kafka group")
            known = self._known[name] = _Known(ObservedGroup(name), deadline)
        return known

    def _reads(self, known: _Known, member: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Note that a member reads these partitions, and no others."""
        queues = self._queues(partitions)
        self._readers -= len(known.observed)
        if self._readers + len(known.observed) + len(queues) <= READERS_MAX:
            known.observed.assigned(member, queues, self._clock.monotonic_ms())
        self._readers += len(known.observed)

    def _go_on(self, name: str, known: _Known, group: G | None, now: Now) -> None:
        """Record due events, and set the next deadline."""
        if known.causes and known.record_at_ms is None:
            known.observed.begin(now.monotonic_ms)
            known.record_at_ms = now.monotonic_ms + COLLECT_MS
        is_complete = self._is_complete(group)
        is_due = known.record_at_ms is not None and now.monotonic_ms >= known.record_at_ms
        if known.causes and (is_complete or is_due):
            for reason, who in known.causes.items():
                self._record(known.observed.started(reason, named(who), known.names, known.generation, now))
            known.causes, known.record_at_ms = {}, None
        if is_complete and not known.observed.is_settled:
            self._settle(known, now)
        if known.observed.is_settled and not known.causes and self._is_over(known, group):
            self._forget(name, known)
            return
        known.deadline.at(known.record_at_ms or (known.observed.quiet_at_ms if is_complete else None))

    def _settle(self, known: _Known, now: Now) -> None:
        before = len(known.observed)
        wanted = self._wanted(known.topics) if known.names else ()
        events = known.observed.settle(known.names, wanted, known.generation, now)
        self._readers += len(known.observed) - before
        for event in events:
            self._record(event)

    def _forget(self, name: str, known: _Known) -> None:
        self._readers -= len(known.observed)
        known.deadline.cancel()
        del self._known[name]

    def _due(self, name: str, now_ms: MonotonicMs) -> None:
        known = self._known.get(name)
        if known is not None:
            self._go_on(name, known, self._groups.get(name), read_clock(self._clock))

    def _wanted(self, topics: Iterable[str]) -> Collection[MessageQueue]:
        counts = {topic: self._nodes.partitions(topic) for topic in sorted(topics)}
        if sum(counts.values()) > READERS_MAX:
            return ()
        return self._queues((topic, index) for topic, count in counts.items() for index in range(count))

    def _queues(self, partitions: Iterable[tuple[str, int]]) -> set[MessageQueue]:
        """Return the queues of those partitions that exist."""
        places = (
            self._nodes.place(topic, index)
            for topic, index in partitions
            if 0 <= index < self._nodes.partitions(topic)
        )
        return {queue for queue in places if queue is not None}

    # For tools.

    def group(self, name: str) -> ForeignGroup | None:
        """Return the description of a group with members, for tools."""
        group, known = self._groups.get(name), self._known.get(name)
        if group is None or known is None or not group.members:
            return None
        members = [
            ForeignMember(
                member.member_id,
                member.client_host.removeprefix("/"),
                member.instance_id,
                known.observed.queues(member.name),
            )
            for member in group.members.values()
        ]
        generation, strategy, topics = self._described(known, group)
        return ForeignGroup(PROTOCOL, generation, strategy, sorted(topics), members)


class ClassicRebalances(Rebalances[ClassicGroup]):
    """The rebalances of classic groups: joins and syncs show the readers of queues."""

    def restored(self, name: str, group: ClassicGroup) -> None:
        """Take a group that continues here: its members keep reading their queues."""
        known = self._of(name)
        known.members = {each.name: each for each in group.members.values()}
        known.names = known.members.keys()
        known.generation, known.topics = group.generation, _topics(group)
        known.queue_count = self._count(known.topics)
        self._take_shares(known, group)

    def moved(self, name: str) -> None:
        """Note that another broker coordinates a group: its members keep reading their queues."""
        known = self._known.get(name)
        if known is None or known.causes or not known.observed.is_settled:
            self.look(name)  # A rebalance that began here ends here.
        else:
            self._forget(name, known)

    def joined(self, name: str, member_id: str) -> None:
        """Note a join: the member has stopped reading all queues that it does not claim to own."""
        group, known = self._groups.get(name), self._known.get(name)
        member = group.members.get(member_id) if group is not None else None
        # A static member that is back and keeps its assignment has never stopped.
        if known is not None and member is not None and not (group and group.reads_share(member)):
            kept = self._queues(owned_partitions(member.protocols[0].metadata))
            known.observed.reads_only(member.name, kept, self._clock.monotonic_ms())
        self.look(name, rejoined=member_id)

    def lost(self, name: str, member: ClassicMember) -> None:
        """Note that a member's connection has ended: it has stopped reading, unless it returns."""
        known = self._known.get(name)
        if known is not None:
            known.observed.reads_only(member.name, (), self._clock.monotonic_ms())
            known.with_share.discard(member.member_id)

    def returned(self, name: str, member: ClassicMember | None) -> None:
        """Note that a lost member's client has returned in time."""
        group, known = self._groups.get(name), self._known.get(name)
        if known is not None and member is not None and group is not None and group.reads_share(member):
            known.observed.reads_on(member.name)

    def look(self, name: str, *, left: Collection[str] = (), rejoined: str | None = None) -> None:
        """Compare a group with its known state, and record the changes."""
        group, known = self._groups.get(name), self._known.get(name)
        if known is None:
            if group is None or not group.members:
                return
            known = self._of(name)
        now = read_clock(self._clock)
        self._note_members(known, group, left, now)
        if group is not None:
            self._note_change(known, group, rejoined)
            if not known.observed.is_settled or known.causes:
                self._take_shares(known, group)
        self._go_on(name, known, group, now)

    def _note_members(
        self, known: _Known, group: ClassicGroup | None, left: Collection[str], now: Now
    ) -> None:
        current = {each.name: each for each in group.members.values()} if group is not None else {}
        for name, member in known.members.items():
            if name not in current:
                reason = _why_gone(member, left, now.monotonic_ms)
                at_ms = member.last_seen_ms if reason is Reason.SESSION_EXPIRED else now.monotonic_ms
                known.observed.reads_only(name, (), at_ms)
                known.causes.setdefault(reason, []).append(name)
        newcomers = [name for name in current if name not in known.members]
        if newcomers:
            known.causes.setdefault(Reason.MEMBER_JOINED, []).extend(newcomers)
        known.members, known.names = current, current.keys()

    def _note_change(self, known: _Known, group: ClassicGroup, rejoined: str | None) -> None:
        """Note the cause of a rebalance in which no member came or went.

        Parsing the subscriptions of a thousand members takes a while, so that is done once when a rebalance
        begins, and once when all have joined.
        """
        is_next = group.generation != known.generation
        if is_next:
            known.generation = group.generation
            known.with_share.clear()
        member = group.members.get(rejoined or "")
        begins = group.status is Status.PREPARING_REBALANCE or is_next
        has_no_cause = begins and not known.causes and known.observed.is_settled and member is not None
        if not is_next and not has_no_cause:
            return
        topics, count = known.topics, known.queue_count
        known.topics = _topics(group)
        known.queue_count = self._count(known.topics)
        if not has_no_cause or member is None:
            return
        reason = Reason.MEMBER_JOINED
        if known.topics != topics:
            reason = Reason.SUBSCRIPTION_CHANGED
        elif known.queue_count != count:
            reason = Reason.QUEUE_COUNT_CHANGED
        known.causes[reason] = [member.name]

    def _take_shares(self, known: _Known, group: ClassicGroup) -> None:
        """Note the assignments that members have received since the rebalance began."""
        for member in group.members.values():
            if group.reads_share(member) and member.member_id not in known.with_share:
                known.with_share.add(member.member_id)
                self._reads(known, member.name, assigned_partitions(member.assignment))

    def _count(self, topics: Iterable[str]) -> int:
        return sum(map(self._nodes.partitions, topics))

    def _is_complete(self, group: ClassicGroup | None) -> bool:
        return group is None or group.has_synced

    def _is_over(self, known: _Known, group: ClassicGroup | None) -> bool:
        return group is None

    def _described(self, known: _Known, group: ClassicGroup) -> tuple[int, str | None, Iterable[str]]:
        return group.generation, group.protocol_name, known.topics


class ModernRebalances(Rebalances[ModernGroup]):
    """The rebalances of KIP-848's groups: answers and revocations show the readers of queues."""

    def restored(self, name: str, group: ModernGroup) -> None:
        """Take a group that continues here: its members keep reading their queues."""
        self._of(name).names = {member.name for member in group.members.values()}
        for member_id in group.members:
            self.reads(name, member_id)

    def reads(self, name: str, member_id: str) -> None:
        """Note a member's queues, after an answer to it or a revocation."""
        group = self._groups.get(name)
        member = group.members.get(member_id) if group is not None else None
        if member is None:
            return
        known = self._of(name)
        if known.noted.get(member.name, NO_PARTITIONS) != member.holds:  # Keeps most heartbeats cheap.
            known.noted[member.name] = member.holds
            self._reads(known, member.name, member.holds)

    def look(self, name: str, group: ModernGroup) -> None:
        """Record a group's changes. A group without members is processed once more."""
        known = self._known.get(name)
        is_quiet = known is None or (known.observed.is_settled and not known.causes)
        has_moved = known is not None and not group.members  # To another broker, without a change.
        if not group.changes and is_quiet and not has_moved:
            return
        known = known or self._of(name)
        now = read_clock(self._clock)
        changes, group.changes = group.changes, []
        for reason, who in changes:
            known.causes.setdefault(reason, []).append(who)
        names = {member.name for member in group.members.values()}
        for gone in set(known.names) - names:
            known.noted.pop(gone, None)
            known.observed.reads_only(gone, (), now.monotonic_ms)
        known.names = names
        self._go_on(name, known, group, now)

    def _go_on(self, name: str, known: _Known, group: ModernGroup | None, now: Now) -> None:
        known.generation, known.topics = (group.epoch, group.topics) if group is not None else (0, ())
        super()._go_on(name, known, group, now)

    def _is_complete(self, group: ModernGroup | None) -> bool:
        return group is None or group.is_unused or group.is_settled

    def _is_over(self, known: _Known, group: ModernGroup | None) -> bool:
        return not known.names

    def _described(self, known: _Known, group: ModernGroup) -> tuple[int, str | None, Iterable[str]]:
        return group.target_epoch, group.assignor, group.topics


def _topics(group: ClassicGroup) -> frozenset[str]:
    """Return the topics to which a group's members subscribe; most send the same bytes."""
    distinct = {member.protocols[0].metadata for member in group.members.values()}
    return frozenset().union(*map(subscribed_topics, distinct))


def _why_gone(member: ClassicMember, left: Collection[str], now_ms: MonotonicMs) -> Reason:
    if member.member_id in left or (member.instance_id is not None and member.instance_id in left):
        return Reason.MEMBER_LEFT
    if member.is_lost:
        return Reason.CONNECTION_CLOSED
    return Reason.SESSION_EXPIRED if member.expires_ms <= now_ms else Reason.PROCESSING_TIMEOUT
