"""The asked groups: those whose members ask which queues they read, at the broker where they live.

    all members ask                         the group's sticky assignment, over all its topics and all brokers
    some allocate for themselves            what the strategy gives that the request names: theirs, too
    members or queues are not known yet     no answer: who asked keeps what it has

What is decided is returned: the answer, whom to tell to ask again, and what the other brokers are to remember
(`GivenUpdate`), so that one of them can go on from there. Times are monotonic.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from libramq.balance import strategy_named
from libramq.clock import MonotonicMs
from libramq.groups.assignment_tables import GivenQueues, GivenTables, GivenUpdate
from libramq.groups.broker_assignment import BrokerAssignment
from libramq.groups.roster import AskedMembers
from libramq.message.queue import MessageQueue


class Decision(NamedTuple):
    """queues: of the topic that was asked for; None: keep what there is. word: for the other brokers."""

    queues: Sequence[MessageQueue] | None = None
    word: GivenUpdate | None = None


#: Keep what there is.
KEEP = Decision()


class AskedGroups:
    """The groups that live here, and what is remembered of all.

    members: who is in a group, None if nobody is. queues: all of a topic, wherever, sorted; None while they
    are not known.
    """

    def __init__(
        self,
        broker_name: str,
        *,
        members: Callable[[str], AskedMembers | None],
        queues: Callable[[str], Sequence[MessageQueue] | None],
    ) -> None:
        self._own = broker_name
        self._members = members
        self._queues = queues
        self._assignments: dict[str, BrokerAssignment] = {}
        self._mixed: set[str] = set()
        self.tables = GivenTables()

    def __iter__(self) -> Iterator[str]:
        return iter(self._assignments)

    def __contains__(self, group: str) -> bool:
        return group in self._assignments

    def topics(self) -> set[str]:
        """The topics of all groups: which queues they have matters."""
        return {topic for group in self._assignments for topic in self.topics_of(group)}

    def topics_of(self, group: str) -> frozenset[str]:
        """The topics of a group."""
        members = self._members(group)
        return frozenset().union(*members.topics.values()) if members is not None else frozenset()

    def fresh_until_ms(self, group: str) -> MonotonicMs:
        """Until when a large group's target stands."""
        return self._assignments[group].fresh_until_ms

    def ask(self, group: str, client_id: str, topic: str, strategy: str, *, now_ms: MonotonicMs) -> Decision:
        """A member asks; ConfigError for a strategy that is not known or needs more."""
        members = self._members(group)
        queues = self._queues(topic)
        if members is None or client_id not in members.topics:
            return KEEP  # Its heartbeat is on its way; upstream's strategies would take everything from it.
        assignment = self._assignments.get(group)
        if assignment is None:
            assignment = self._assignments[group] = BrokerAssignment(self.tables.given(group))
        if not queues:
            return KEEP
        if members.allocates:
            share = strategy_named(strategy)(client_id, queues, sorted(members.topics))
            assignment.give(client_id, topic, share, now_ms=now_ms)
            return Decision(share, self._word(group, client_id, topic, share))
        gone: list[str] | None = []
        if not assignment.is_current(members.version, {topic: queues}, now_ms=now_ms):
            gone = self._update(assignment, members, now_ms)
        answer = assignment.ask(client_id, topic, now_ms=now_ms) if gone is not None else None
        if answer is None or gone is None:
            return KEEP
        word = self._word(group, client_id, topic, answer.queues, gone=gone, ask_again=answer.ask_again)
        return Decision(answer.queues, word)

    def review(self, group: str, *, now_ms: MonotonicMs) -> GivenUpdate | None:
        """Members or queues of a group have changed: who is to ask again."""
        members = self._members(group)
        if members is None:
            return self.forget(group)
        assignment = self._assignments.get(group)
        if assignment is None:
            if not self.tables.given(group):
                return None  # Nobody has asked yet.
            assignment = self._assignments[group] = BrokerAssignment(self.tables.given(group))
        was_mixed = group in self._mixed
        if members.allocates or was_mixed:
            (self._mixed.add if members.allocates else self._mixed.discard)(group)
            return self._word(group, ask_again=dict.fromkeys(members.topics, 1))
        gone = self._update(assignment, members, now_ms)
        if gone is None:
            return None
        return self._word(group, gone=gone, ask_again=assignment.waiting(now_ms=now_ms))

    def adopt(self, group: str) -> GivenUpdate:
        """A group has come to live here, and the newest table is known: our word of it, whole."""
        (known,) = self.tables.updates(lambda name: name == group)
        update = GivenUpdate(
            broker_name=self._own, group=group, version=known.version + 1, given=known.given, is_whole=True
        )
        self.tables.take(update)
        return update

    def leave(self, group: str) -> None:
        """A group lives elsewhere now."""
        self._assignments.pop(group, None)
        self._mixed.discard(group)

    def forget(self, group: str) -> GivenUpdate | None:
        """A group has no members any more."""
        self.leave(group)
        if not self.tables.version(group):
            return None
        update = GivenUpdate(
            broker_name=self._own, group=group, version=self.tables.version(group) + 1, is_over=True
        )
        self.tables.take(update)
        return update

    def _update(
        self, assignment: BrokerAssignment, members: AskedMembers, now_ms: MonotonicMs
    ) -> list[str] | None:
        """Compute the target; returns who is gone, None while the queues of a topic are not known."""
        everything: dict[str, Sequence[MessageQueue]] = {}
        for topic in sorted(frozenset().union(*members.topics.values())):
            queues = self._queues(topic)
            if queues is None:
                return None
            everything[topic] = queues
        if assignment.is_current(members.version, everything, now_ms=now_ms):
            return []
        lots = [queue for lot in everything.values() for queue in lot]
        return assignment.update(members.version, members.topics, lots, now_ms=now_ms)

    def _word(
        self,
        group: str,
        client_id: str = "",
        topic: str = "",
        queues: Sequence[MessageQueue] = (),
        *,
        gone: Sequence[str] = (),
        ask_again: Mapping[str, int] | None = None,
    ) -> GivenUpdate | None:
        """Return the update for the other brokers, if there is one."""
        given = []
        if client_id and not self.tables.has(group, client_id, topic, queues):
            given = [GivenQueues(client_id, topic, queues)]
        if not (given or gone or ask_again):
            return None
        version = self.tables.version(group) + (1 if given or gone else 0)
        update = GivenUpdate(
            broker_name=self._own,
            group=group,
            version=version,
            given=given,
            gone=gone,
            ask_again=ask_again or {},
        )
        self.tables.take(update)
        return update
