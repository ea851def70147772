"""Groups with server-side assignment: answers a member's query with a sticky assignment or by the member's
own strategy, and tells members to query again.

        all members query                       the group's sticky assignment, across all topics and brokers
        some allocate for themselves            the result of the request's strategy, which they use as well
        members or queues are not known yet     no answer: the member keeps its queues

A decision has the answer, the members that should query again, and the `AssignmentUpdate` for the other
brokers, from which one of them can continue. Times are monotonic.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from libramq.balance import strategy_named
from libramq.clock import MonotonicMs
from libramq.groups.assignment_tables import AssignmentTables, AssignmentUpdate, TopicAssignment
from libramq.groups.broker_assignment import BrokerAssignment, BrokerTarget, TargetWork
from libramq.groups.roster import ServerAssignedMembers
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)


class Decision(NamedTuple):
    """A decision. queues: the requested topic's; None: keep the current ones. update: for other brokers."""

    queues: Sequence[MessageQueue] | None = None
    update: AssignmentUpdate | None = None


#: Keep the current queues.
KEEP = Decision()


class ServerAssignedGroups:
    """The groups coordinated here, and the assignment tables of all groups.

    members: returns the members of a group; None if there are none. queues: returns the sorted queues of a
    topic at all brokers; None while they are unknown. compute: lets a thread compute a large group's target,
    which `computed` takes.
    """

    def __init__(
        self,
        broker_name: str,
        *,
        members: Callable[[str], ServerAssignedMembers | None],
        queues: Callable[[str], Sequence[MessageQueue] | None],
        compute: Callable[[str, TargetWork], None] | None = None,
    ) -> None:
        self._own = broker_name
        self._members = members
        self._queues = queues
        self._compute = compute
        self._assignments: dict[str, BrokerAssignment] = {}
        self._mixed: set[str] = set()
        self.tables = AssignmentTables()

    def __iter__(self) -> Iterator[str]:
        return iter(self._assignments)

    def __contains__(self, group: str) -> bool:
        return group in self._assignments

    def topics(self) -> set[str]:
        """Return the topics of all groups."""
        return {topic for group in self._assignments for topic in self.topics_of(group)}

    def topics_of(self, group: str) -> frozenset[str]:
        """Return the topics of a group."""
        members = self._members(group)
        return frozenset().union(*members.topics.values()) if members is not None else frozenset()

    def fresh_until_ms(self, group: str) -> MonotonicMs:
        """Return the time until which a large group's target is fixed."""
        return self._assignments[group].fresh_until_ms

    def ask(self, group: str, client_id: str, topic: str, strategy: str, *, now_ms: MonotonicMs) -> Decision:
        """Answer a member's request; raises ConfigError if the strategy is unknown or needs more input."""
        members = self._members(group)
        queues = self._queues(topic)
        if members is None or client_id not in members.topics:
            return KEEP  # Its heartbeat is under way; upstream's strategies would take all its queues.
        assignment = self._assignments.get(group)
        if assignment is None:
            assignment = self._assignments[group] = self._new_assignment(group)
        if not queues:
            return KEEP
        if members.allocates:
            share = strategy_named(strategy)(client_id, queues, sorted(members.topics))
            assignment.give(client_id, topic, share, now_ms=now_ms)
            return Decision(share, self._record_update(group, client_id, topic, share))
        gone: list[str] | None = []
        # Check all topics: if the target changed between two queries of a member, a queue could move to
        # another member and back without a further query.
        known = {name: lot for name in assignment.topics if (lot := self._queues(name)) is not None}
        if not assignment.is_current(members.version, {**known, topic: queues}, now_ms=now_ms):
            gone = self._update(group, assignment, members, now_ms)
        answer = assignment.ask(client_id, topic, now_ms=now_ms) if gone is not None else None
        if answer is None or gone is None:
            return KEEP
        update = self._record_update(
            group, client_id, topic, answer.queues, gone=gone, ask_again=answer.ask_again
        )
        return Decision(answer.queues, update)

    def review(self, group: str, *, now_ms: MonotonicMs) -> AssignmentUpdate | None:
        """Review a group whose members or queues have changed; return the members that should query again."""
        members = self._members(group)
        if members is None:
            return self.forget(group)
        assignment = self._assignments.get(group)
        if assignment is None:
            if not self.tables.assignments(group):
                return None  # No member has asked yet.
            assignment = self._assignments[group] = self._new_assignment(group)
        was_mixed = group in self._mixed
        if members.allocates or was_mixed:
            (self._mixed.add if members.allocates else self._mixed.discard)(group)
            return self._record_update(group, ask_again=dict.fromkeys(members.topics, 1))
        gone = self._update(group, assignment, members, now_ms)
        if gone is None:
            return None
        return self._record_update(group, gone=gone, ask_again=assignment.waiting(now_ms=now_ms))

    def computed(
        self, group: str, work: TargetWork, target: BrokerTarget | Exception, *, now_ms: MonotonicMs
    ) -> AssignmentUpdate | None:
        """Take a large group's target if it is awaited; return the members that should query again."""
        assignment, members = self._assignments.get(group), self._members(group)
        if assignment is None or assignment.awaited is not work or members is None:
            return None
        if isinstance(target, Exception):
            log.error("queues could not be assigned", group=group, exc_info=target)
        made = None if isinstance(target, Exception) else target
        gone = assignment.take(work, made, members.topics, now_ms=now_ms)
        return self._record_update(group, gone=gone, ask_again=assignment.waiting(now_ms=now_ms))

    def adopt(self, group: str) -> AssignmentUpdate:
        """Take over a group with its newest table; return the table as this broker's update."""
        (known,) = self.tables.updates(lambda name: name == group)
        update = AssignmentUpdate(
            broker_name=self._own,
            group=group,
            version=known.version + 1,
            assignments=known.assignments,
            is_whole=True,
        )
        self.tables.take(update)
        return update

    def reassigned_members(self, table: AssignmentUpdate) -> set[str]:
        """Return the members of a group coordinated here to which another broker assigned other queues."""
        if table.broker_name == self._own:
            return set()  # An older copy of this broker's table.
        here = self.tables.assignments(table.group)
        return {
            each.client_id
            for each in table.assignments
            if here.get(each.client_id, {}).get(each.topic, ()) != each.lot()
        }

    def have_query(self, group: str, client_ids: Sequence[str]) -> AssignmentUpdate | None:
        """Return the update that makes these members query again."""
        return self._record_update(group, ask_again=dict.fromkeys(client_ids, 1))

    def leave(self, group: str) -> None:
        """Give up a group that is now coordinated elsewhere."""
        self._assignments.pop(group, None)
        self._mixed.discard(group)

    def forget(self, group: str) -> AssignmentUpdate | None:
        """Remove a group without members."""
        self.leave(group)
        if not self.tables.version(group):
            return None
        update = AssignmentUpdate(
            broker_name=self._own, group=group, version=self.tables.version(group) + 1, is_over=True
        )
        self.tables.take(update)
        return update

    def _new_assignment(self, group: str) -> BrokerAssignment:
        return BrokerAssignment(partial(self.tables.assignments, group))

    def _update(
        self, group: str, assignment: BrokerAssignment, members: ServerAssignedMembers, now_ms: MonotonicMs
    ) -> list[str] | None:
        """Compute the target; return the departed members, or None while a topic's queues are unknown.

        While a thread computes it, the previous target stays in use; None if there is none.
        """
        if assignment.awaited is not None:
            return [] if assignment.has_target else None
        everything: dict[str, Sequence[MessageQueue]] = {}
        for topic in sorted(frozenset().union(*members.topics.values())):
            queues = self._queues(topic)
            if queues is None:
                return None
            everything[topic] = queues
        if assignment.is_current(members.version, everything, now_ms=now_ms):
            return []
        lots = [queue for lot in everything.values() for queue in lot]
        work = assignment.work(members.version, members.topics, lots)
        if work.is_large and self._compute is not None:
            assignment.awaited = work
            self._compute(group, work)
            return [] if assignment.has_target else None
        return assignment.take(work, work.compute(), members.topics, now_ms=now_ms)

    def _record_update(
        self,
        group: str,
        client_id: str = "",
        topic: str = "",
        queues: Sequence[MessageQueue] = (),
        *,
        gone: Sequence[str] = (),
        ask_again: Mapping[str, int] | None = None,
    ) -> AssignmentUpdate | None:
        """Record a change in the table; return the update for the other brokers, or None without a change."""
        assignments = []
        if client_id and not self.tables.has(group, client_id, topic, queues):
            assignments = [TopicAssignment.of(client_id, topic, queues)]
        if not (assignments or gone or ask_again):
            return None
        version = self.tables.version(group) + (1 if assignments or gone else 0)
        update = AssignmentUpdate(
            broker_name=self._own,
            group=group,
            version=version,
            assignments=assignments,
            gone=list(gone),
            ask_again=dict(ask_again or {}),
        )
        self.tables.take(update)
        return update
