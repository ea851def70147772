"""The broker's assignment (QUERY_ASSIGNMENT): tracks the holder and the target of each queue, the rest period
of a queue between two members, and pauses of large groups.

    members, queues ──► target: sticky, over all topics
        a member asks   ──► its target, without queues that another member still holds

A moving queue stays with its old owner until an answer to that owner lacks it or the owner is gone. Then it
rests for a moment, because Java's client commits one-way after dropping a queue. The new owner is notified to
query again. Times are monotonic.

Upstream: QueryAssignmentProcessor.java, which recomputes each topic from the present members.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from libramq.balance import Group, Member, balanced_sticky
from libramq.clock import MonotonicMs
from libramq.groups.limits import is_large
from libramq.groups.queue_holdings import Holding, QueueHoldings
from libramq.message.queue import MessageQueue

#: Ours: the commit that follows an answer arrives within this time, unless the machine itself is in trouble.
REST_MS: Final = 100
#: Ours: larger groups pause between assignments, so that a thousand joins do not cause a thousand of them.
LARGE_GROUP: Final = 50
#: Ours: a client that was not notified queries again a second later.
LARGE_GROUP_PAUSE_MS: Final = 500

#: The queues that members were assigned, by client id and topic.
Assignments = Mapping[str, Mapping[str, Sequence[MessageQueue]]]


@dataclass(frozen=True, slots=True)
class AssignmentAnswer:
    """A member's queues of one topic.

    ask_again: clients that will get more queues, with the milliseconds after which they should query.
    """

    queues: Sequence[MessageQueue]
    ask_again: Mapping[str, int]


#: A member's queues by topic, in their order.
Lots = dict[str, list[MessageQueue]]


class BrokerTarget(NamedTuple):
    """A target. members: the target member of each queue; lots: by member; topics: all queues by topic."""

    members: dict[MessageQueue, str]
    lots: dict[str, Lots]
    topics: Lots


class TargetWork(NamedTuple):
    """The input of a target. topics, owned: each member's topics and queues. version: the group's."""

    version: Hashable
    topics: Mapping[str, frozenset[str]]
    owned: Mapping[str, Sequence[MessageQueue]]
    queues: Sequence[MessageQueue]

    @property
    def is_large(self) -> bool:
        """Return whether the computation takes more than some milliseconds."""
        return is_large(self.topics.values(), len(self.queues))

    def compute(self) -> BrokerTarget:
        """Compute the target."""
        members = (
            Member(client_id=client_id, topics=topics, owned=self.owned[client_id])
            for client_id, topics in self.topics.items()
        )
        group = Group.of(members, self.queues)
        assignment = balanced_sticky(group)
        by_queue = {queue: client_id for client_id, lot in assignment.items() for queue in lot}
        lots: dict[str, Lots] = {client_id: {} for client_id in self.topics}
        for queue, client_id in sorted(by_queue.items()):
            lots[client_id].setdefault(queue.topic, []).append(queue)
        return BrokerTarget(by_queue, lots, {topic: list(lot) for topic, lot in group.queues.items()})


class BrokerAssignment:
    """One group's target, and the holders of its queues.

    assigned: returns the members' last assignments, by any broker. The caller maintains them and informs
    other brokers: it records every answer before the next call, and removes former members.
    """

    def __init__(self, assigned: Callable[[], Assignments]) -> None:
        self._target: dict[str, Lots] = {}
        self._queues: Lots = {}
        #: The input from which a thread is computing the next target.
        self.awaited: TargetWork | None = None
        self._assigned = assigned
        self._holdings = QueueHoldings(rest_ms=REST_MS)
        for client_id, lots in assigned().items():
            for lot in lots.values():
                self._hand(lot, client_id)
        self._version: Hashable = None
        self._computed_at_ms: MonotonicMs | None = None

    @property
    def topics(self) -> Iterable[str]:
        """Return the topics of the target."""
        return self._queues.keys()

    def is_current(
        self, version: Hashable, queues: Mapping[str, Sequence[MessageQueue]], *, now_ms: MonotonicMs
    ) -> bool:
        """Return whether the target is up to date for this version of the group and its topics' queues.

        The target of a large group counts as up to date until `fresh_until_ms`, despite any changes.
        """
        if self._version == version and all(
            self._queues.get(topic, []) == list(lot) for topic, lot in queues.items()
        ):
            return True
        return now_ms < self.fresh_until_ms

    @property
    def fresh_until_ms(self) -> MonotonicMs:
        """Return the time until which a large group's target is fixed; 0 for a small group."""
        if self._computed_at_ms is None or len(self._target) <= LARGE_GROUP:
            return MonotonicMs(0)
        return self._computed_at_ms + LARGE_GROUP_PAUSE_MS

    def work(
        self, version: Hashable, members: Mapping[str, frozenset[str]], queues: Iterable[MessageQueue]
    ) -> TargetWork:
        """Return the input of the next target; `take` takes the result."""
        owned = {client_id: self._held_by(client_id) for client_id in members}
        return TargetWork(version, dict(members), owned, list(queues))

    def take(
        self,
        work: TargetWork,
        target: BrokerTarget | None,
        members: Mapping[str, frozenset[str]],
        *,
        now_ms: MonotonicMs,
    ) -> list[str]:
        """Take a target; None keeps the previous one. members: the current ones; return the departed."""
        gone = [
            client_id
            for client_id in self._assigned()
            if client_id not in members and client_id not in work.topics
        ]
        for client_id in gone:
            self._free(self._held_by(client_id), now_ms)
        if target is not None:
            self._holdings.target, self._target, self._queues = target
        self._holdings.forget_rested(now_ms)
        self.awaited = None
        self._version, self._computed_at_ms = work.version, now_ms
        return gone

    @property
    def has_target(self) -> bool:
        """Return whether a target has been computed."""
        return self._computed_at_ms is not None

    def waiting(self, *, now_ms: MonotonicMs) -> dict[str, int]:
        """Return the members whose next answer will differ, with the milliseconds until then."""
        waiting: dict[str, int] = {}
        for client_id, target in self._target.items():
            assigned = self._assigned().get(client_id, {})
            wanted = {queue for lot in target.values() for queue in lot}
            if not wanted.issuperset(queue for lot in assigned.values() for queue in lot):
                waiting[client_id] = 1
                continue
            rests_ms = [
                max(self._holdings.rest_ms(queue, now_ms), 1)
                for queue in wanted
                if self._holdings.holder(queue) is None
            ]
            if rests_ms:
                waiting[client_id] = max(rests_ms)
        return waiting

    def ask(self, client_id: str, topic: str, *, now_ms: MonotonicMs) -> AssignmentAnswer | None:
        """Return a member's queues of a topic; None if the target lacks it, so that it keeps its queues."""
        target = self._target.get(client_id)
        if target is None:
            return None
        free: list[MessageQueue] = []
        ask_again: dict[str, int] = {}
        for queue in target.get(topic, ()):
            rest_ms = self._holdings.rest_ms(queue, now_ms)
            if self._holdings.holder(queue) not in (client_id, None):
                continue
            if rest_ms > 0:
                ask_again[client_id] = max(rest_ms, ask_again.get(client_id, 0))
            else:
                free.append(queue)
        for queue in self.give(client_id, topic, free, now_ms=now_ms):
            taker = self._holdings.target.get(queue)
            if taker is not None and taker != client_id:
                ask_again[taker] = REST_MS
        return AssignmentAnswer(free, ask_again)

    def give(
        self, client_id: str, topic: str, queues: Sequence[MessageQueue], *, now_ms: MonotonicMs
    ) -> list[MessageQueue]:
        """Record a member's answer; return the queues of the topic that the member thereby gives up."""
        wanted = set(queues)
        freed = [
            queue
            for queue in self._assigned().get(client_id, {}).get(topic, ())
            if queue not in wanted and self._holdings.holder(queue) == client_id
        ]
        self._free(freed, now_ms)
        self._hand(queues, client_id)
        return freed

    def _hand(self, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Record a member as the holder of queues, replacing any other."""
        for queue in queues:
            if self._holdings.holder(queue) is not None:
                self._holdings.drop(queue)
            self._holdings.hold(queue, Holding(client_id))

    def _held_by(self, client_id: str) -> list[MessageQueue]:
        lots = self._assigned().get(client_id, {}).values()
        return [queue for lot in lots for queue in lot if self._holdings.holder(queue) == client_id]

    def _free(self, queues: Iterable[MessageQueue], now_ms: MonotonicMs) -> None:
        for queue in queues:
            if self._holdings.holder(queue) is not None:  # Other brokers' tables may list a queue twice.
                self._holdings.free(queue, now_ms)
