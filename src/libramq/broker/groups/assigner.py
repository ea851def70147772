"""The assigner: which broker decides a QUERY_ASSIGNMENT, what it must know first, and which members must
query again.

        a member ──► any broker (edge) ──► the group's broker                   PEER_ASSIGN
                                      └──► all brokers: its assignment,
                                           and who should query again           PEER_ASSIGNMENTS

Java queries another broker each time, so one broker decides: the group's. After a group has moved to another
broker, that broker decides once all brokers have reported their members and the assignments they remember.
While no broker can decide, members keep their queues; Java's query again a second later.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError
from libramq.groups.assignment_tables import AssignmentUpdate
from libramq.groups.broker_assignment import BrokerTarget, TargetWork
from libramq.groups.cluster_view import ClusterView
from libramq.groups.roster import ServerAssignedMembers
from libramq.groups.server_assigned_groups import KEEP, ServerAssignedGroups
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Parked, Waiter
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)


class QueueQuestion(NamedTuple):
    """A member's query for its queues of a topic. strategy: of members that allocate for themselves."""

    group: str
    client_id: str
    topic: str
    strategy: str = ""


#: A member's queues of a topic; None: it should keep its queues.
Queues = Sequence[MessageQueue] | None


class AssignerPeers(Protocol):
    """The brokers of the cluster, including this one."""

    def server_assigned_members(self, group: str) -> ServerAssignedMembers | None:
        """Return the members of a group that is coordinated here, as all brokers reported them."""

    def has_all_reports(self) -> bool:
        """Return whether every broker has reported its members and assignments, or has been given up on."""

    def assign(
        self, coordinator: str, question: QueueQuestion, answered: Callable[[Queues | LibraError], None]
    ) -> None:
        """Relay the query to the group's coordinator."""

    def send_assignments(self, update: AssignmentUpdate) -> None:
        """Send all other brokers the members' assignments."""


class Assigner:
    """The assigner of this broker. queues: returns all queues of a topic."""

    def __init__(
        self,
        *,
        consumers: ConsumerClients,
        queues: Callable[[str], Sequence[MessageQueue] | None],
        kernel: Kernel,
        view: ClusterView,
        peers: AssignerPeers,
    ) -> None:
        self._view = view
        self._peers = peers
        self._own = view.own_name
        self._consumers = consumers
        self._now_ms = kernel.clock.monotonic_ms
        self._purgatory = kernel.purgatory
        self._run = kernel.effects.run
        self._groups = ServerAssignedGroups(
            self._own, members=peers.server_assigned_members, queues=queues, compute=self._compute
        )
        self._is_ready = True
        self._due: dict[str, MonotonicMs] = {}
        # By group: members to which another broker has assigned other queues.
        self._misled: dict[str, set[str]] = {}
        self._review = kernel.deadlines.new(self.tick, "reviews of assignments")
        consumers.observe_members(self._own_changed)

    # Members' queries.

    def ask(self, question: QueueQuestion, waiter: Waiter[Queues], *, cost_bytes: int = 0) -> None:
        """Answer one of our members, at once or when the group's broker has decided.

        cost_bytes: memory of the request. Raises ConfigError for a strategy that is unknown or needs more
        input.
        """
        coordinator = self._view.coordinator_of(question.group)
        if coordinator == self._own:
            waiter.answer(self.decide(question))
            return
        if coordinator is None:
            waiter.answer(None)
            return
        parked = Parked(waiter.connection, cost_bytes=cost_bytes)

        def answered(outcome: Queues | LibraError) -> None:
            if self._purgatory.release(parked):
                _relay(outcome, coordinator, waiter)

        self._purgatory.park(parked)
        self._peers.assign(coordinator, question, answered)

    def decide(self, question: QueueQuestion) -> Queues:
        """Return the queues of a member connected here or elsewhere; raises ConfigError as `ask` does."""
        decision = KEEP
        if self._view.coordinator_of(question.group) == self._own and self._settle():
            decision = self._groups.ask(
                question.group,
                question.client_id,
                question.topic,
                question.strategy,
                now_ms=self._now_ms(),
            )
        self._say(decision.update)
        return decision.queues

    # Events.

    def assignments_updated(self, update: AssignmentUpdate) -> None:
        """Receive an update from a group's coordinator: assignments, and members that should query again."""
        if self._view.coordinator_of(update.group) != self._own:
            self._groups.tables.take(update)
        self._ask_again(update)

    def receive_tables(self, tables: Iterable[AssignmentUpdate]) -> None:
        """Take another broker's tables of groups coordinated here.

        While cut off from this broker, it may have coordinated a group itself: members to which it assigned
        other queues must query again.
        """
        for table in tables:
            if table.group not in self._groups:
                self._groups.tables.offer(table)
            elif misled := self._groups.reassigned_members(table):
                self._misled.setdefault(table.group, set()).update(misled)
                self.changed(table.group)

    def tables_for(self, coordinator: str) -> list[AssignmentUpdate]:
        """Return our tables of the groups that a broker coordinates, so that it can continue."""
        return self._groups.tables.updates(lambda group: self._view.coordinator_of(group) == coordinator)

    def full_state(self) -> list[AssignmentUpdate]:
        """Return the tables of groups coordinated here, for another broker."""
        if not self._is_ready:
            return []
        for group in self._groups:
            self.changed(group)
        return self.tables_for(self._own)

    def changed(self, group: str) -> None:
        """Handle a change of a group's members, here or elsewhere."""
        if self._view.coordinator_of(group) != self._own:
            return
        fresh_until_ms = self._groups.fresh_until_ms(group) if group in self._groups else None
        now_ms = self._now_ms()
        due_ms = self._due[group] = now_ms if fresh_until_ms is None else max(now_ms, fresh_until_ms)
        if self._is_ready:
            self._review.by(due_ms)

    def _own_changed(self, group: str) -> None:
        """Review a group whose last member at this broker has gone: it may have been the last of all."""
        if self._consumers.group(group) is None:
            self.changed(group)

    def topic_changed(self, topic: str) -> None:
        """Handle a change of a topic's queues, here or elsewhere."""
        for group in self._groups:
            if topic in self._groups.topics_of(group):
                self.changed(group)

    def brokers_changed(self) -> None:
        """Handle a change of the cluster's brokers, which changes coordinators of groups."""
        self._is_ready = False
        for group in list(self._groups):
            if self._view.coordinator_of(group) != self._own:
                self._groups.leave(group)
        self._due.clear()
        self._review.cancel()

    def topics(self) -> set[str]:
        """Return the topics that members of groups coordinated here have queried."""
        return self._groups.topics()

    # Time.

    def tick(self, now_ms: MonotonicMs) -> None:
        """Review the groups that are due, once all brokers have reported; see `Cluster.tick`."""
        if not self._settle():
            return
        try:
            for group in [group for group, due_ms in self._due.items() if due_ms <= now_ms]:
                del self._due[group]
                self._say(self._groups.review(group, now_ms=now_ms))
                if misled := self._misled.pop(group, None):
                    self._say(self._groups.have_query(group, sorted(misled)))
        finally:
            self._review.at(min(self._due.values(), default=None))

    def _settle(self) -> bool:
        """Continue other brokers' assignments once all have reported; return whether that is done."""
        if self._is_ready:
            return True
        if not self._peers.has_all_reports():
            return False
        self._is_ready = True
        self._review.at(min(self._due.values(), default=None))
        for group in list(self._groups.tables):
            if self._view.coordinator_of(group) == self._own:
                self._peers.send_assignments(self._groups.adopt(group))
                self.changed(group)
        return True

    def _compute(self, group: str, work: TargetWork) -> None:
        self._run(Thread.ASSIGN, work.compute, partial(self._computed, group, work))

    def _computed(self, group: str, work: TargetWork, target: BrokerTarget | Exception) -> None:
        """Take a large group's target, and review changes that happened meanwhile."""
        self._say(self._groups.computed(group, work, target, now_ms=self._now_ms()))
        if group in self._groups:
            self.changed(group)

    # Updates.

    def _say(self, update: AssignmentUpdate | None) -> None:
        if update is None:
            return
        self._ask_again(update)
        self._peers.send_assignments(update)

    def _ask_again(self, update: AssignmentUpdate) -> None:
        group = self._consumers.group(update.group)
        if group is not None:
            self._consumers.notifications.again(group, update.ask_again)


def _relay(outcome: Queues | LibraError, coordinator: str, waiter: Waiter[Queues]) -> None:
    """Pass on the answer of the group's broker."""
    if isinstance(outcome, BrokerError) and outcome.response_code == ResponseCode.INVALID_PARAMETER:
        waiter.refuse(outcome)
    elif isinstance(outcome, LibraError):
        log.info(
            "assignment not available; members keep their queues", broker=coordinator, reason=str(outcome)
        )
        waiter.answer(None)
    else:
        waiter.answer(outcome)
