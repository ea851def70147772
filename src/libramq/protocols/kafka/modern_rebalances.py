"""Rebalances of KIP-848's groups, for the history that all groups have.

changes of the group ─► why it rebalances      answers and revocations ─► who reads what      ─► events
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from libramq.clock import MonotonicMs, Now, read_clock
from libramq.groups.modern.group import ModernGroup
from libramq.groups.modern.values import NO_PARTITIONS, Partition, Partitions
from libramq.groups.observed_group import ObservedGroup
from libramq.groups.protocol_groups import ForeignGroup, ForeignGroups, ForeignMember, Groups
from libramq.groups.rebalance_event import Reason, RebalanceEvent, named
from libramq.kernel.deadlines import Deadline
from libramq.kernel.parts import Kernel
from libramq.message.queue import MessageQueue
from libramq.protocols.kafka.broker_groups import PROTOCOL
from libramq.protocols.kafka.node import KafkaNodes
from libramq.protocols.kafka.rebalances import COLLECT_MS, READERS_MAX


@dataclass(slots=True)
class _Known:
    """The state of a group when it was looked at last.

    noted: the partitions of members, by their names. causes: those that are not recorded yet.
    """

    observed: ObservedGroup
    deadline: Deadline
    members: set[str] = field(default_factory=set)
    noted: dict[str, Partitions] = field(default_factory=dict)
    causes: dict[Reason, list[str]] = field(default_factory=dict)
    record_at_ms: MonotonicMs | None = None


class ModernRebalances:
    """The rebalances of these groups, and the groups as tools see them. record: takes their events."""

    def __init__(
        self,
        groups: Groups[ModernGroup],
        nodes: KafkaNodes,
        foreign: ForeignGroups,
        kernel: Kernel,
        record: Callable[[RebalanceEvent], None],
    ) -> None:
        self._groups = groups
        self._nodes = nodes
        self._clock = kernel.clock
        self._deadlines = kernel.deadlines
        self._record = record
        self._known: dict[str, _Known] = {}
        self._readers = 0
        foreign.add(self.group)

    def restored(self, name: str, group: ModernGroup) -> None:
        """Take a group that continues after a restart: its members read on what they had."""
        known = self._of(name)
        known.members = {member.name for member in group.members.values()}
        for member_id in group.members:
            self.reads(name, member_id)

    def reads(self, name: str, member_id: str) -> None:
        """Note what a member reads: its answer has left, or it has revoked something."""
        group = self._groups.get(name)
        member = group.members.get(member_id) if group is not None else None
        if member is None:
            return
        known = self._of(name)
        holds = member.holds
        if known.noted.get(member.name, NO_PARTITIONS) == holds:  # A heartbeat costs no more.
            return
        known.noted[member.name] = holds
        queues = self._queues(holds)
        self._readers -= len(known.observed)
        if self._readers + len(known.observed) + len(queues) <= READERS_MAX:
            known.observed.assigned(member.name, queues, self._clock.monotonic_ms())
        self._readers += len(known.observed)

    def look(self, name: str, group: ModernGroup) -> None:
        """Take a group's changes; record what they mean. A group without members is looked at once more."""
        known = self._known.get(name)
        is_quiet = known is None or (known.observed.is_settled and not known.causes)
        has_moved = known is not None and not group.members  # To another broker: nothing has changed.
        if not group.changes and is_quiet and not has_moved:
            return
        known = known or self._of(name)
        now = read_clock(self._clock)
        changes, group.changes = group.changes, []
        for reason, who in changes:
            known.causes.setdefault(reason, []).append(who)
        members = {member.name for member in group.members.values()}
        for gone in known.members - members:
            known.noted.pop(gone, None)
            known.observed.reads_only(gone, (), now.monotonic_ms)
        known.members = members
        if known.causes:
            known.observed.begin(now.monotonic_ms)
            known.record_at_ms = known.record_at_ms or now.monotonic_ms + COLLECT_MS
        self._go_on(name, known, group, now)

    def _of(self, name: str) -> _Known:
        known = self._known.get(name)
        if known is None:
            deadline = self._deadlines.new(partial(self._due, name), "rebalance of a modern group")
            known = self._known[name] = _Known(ObservedGroup(name), deadline)
        return known

    def _go_on(self, name: str, known: _Known, group: ModernGroup | None, now: Now) -> None:
        """Record what is due, and set the next time."""
        is_settled = group is None or group.is_unused or group.is_settled
        epoch = group.epoch if group is not None else 0
        if (
            known.causes
            and known.record_at_ms is not None
            and (is_settled or now.monotonic_ms >= known.record_at_ms)
        ):
            for reason, who in known.causes.items():
                self._record(known.observed.started(reason, named(who), known.members, epoch, now))
            known.causes, known.record_at_ms = {}, None
        if is_settled and not known.observed.is_settled:
            topics = group.topics if group is not None else ()
            before = len(known.observed)
            events = known.observed.settle(known.members, self._wanted(topics), epoch, now)
            self._readers += len(known.observed) - before
            for event in events:
                self._record(event)
        if not known.members and known.observed.is_settled and not known.causes:
            self._readers -= len(known.observed)
            known.deadline.cancel()
            del self._known[name]
            return
        known.deadline.at(known.record_at_ms or (known.observed.quiet_at_ms if is_settled else None))

    def _due(self, name: str, now_ms: MonotonicMs) -> None:
        known = self._known.get(name)
        if known is not None:
            self._go_on(name, known, self._groups.get(name), read_clock(self._clock))

    def _wanted(self, topics: Iterable[str]) -> list[MessageQueue]:
        counts = {topic: self._nodes.partitions(topic) for topic in sorted(topics)}
        if sum(counts.values()) > READERS_MAX:
            return []
        wanted = (Partition(topic, index) for topic, count in counts.items() for index in range(count))
        return sorted(self._queues(wanted))

    def _queues(self, partitions: Iterable[Partition]) -> set[MessageQueue]:
        places = (self._nodes.place(*each) for each in partitions)
        return {queue for queue in places if queue is not None}

    # For tools.

    def group(self, name: str) -> ForeignGroup | None:
        """Return a group with members, as tools see it."""
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
        return ForeignGroup(PROTOCOL, group.target_epoch, group.assignor, sorted(group.topics), members)
