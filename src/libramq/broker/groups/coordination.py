"""Coordination: performs the coordinator's decisions in order, once they are durable; withdraws them when
another broker coordinates the group; answers members.

    requests, ends of connections, topics, time  →  coordinator  →  effects  →  answers, fences, events

    decided ─► recorded ─► on the disk ─► performed: granted, answered, reported
                                      └─► withdrawn, if another broker coordinates the group by then

Grants for our own queues go straight to our fences, those for others through `peers`. Each pending request is
answered through its own waiter.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from libramq.broker.files.tables import Tables
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.clock import MonotonicMs, Now
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.fencing import MODE_CLIENT, FenceGrant, FenceReport
from libramq.groups.cluster_view import ClusterView
from libramq.groups.consumer_group import SILENCE_MS_MAX
from libramq.groups.coordinator import effect as fx
from libramq.groups.coordinator import event as ev
from libramq.groups.coordinator import request as rq
from libramq.groups.coordinator.coordinator import Coordinator
from libramq.groups.coordinator.target_assignment import Made
from libramq.groups.queue_lock import QueueLocks
from libramq.groups.rebalance_event import Reason, named
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Parked, Waiter
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.secret_bits import SecretBits

log = get_logger(__name__)

#: Ours: a pause of this broker after which others may take over its groups; they do so after 2.5 s.
FROZEN_MS: Final = 2_000

#: A member that waits for the coordinator's answer.
MemberWaiter = Waiter[fx.Answer[Any]]


@dataclass(eq=False, slots=True)
class Ticket(Parked):
    """A request that the coordinator answers, and its group."""

    waiter: MemberWaiter
    group: str


Effect = fx.Effect[Ticket]
#: Called with a grant that a fence refused, and the higher epoch that the fence has seen.
Refused = Callable[[FenceGrant, int], None]
#: Called with a group, the reports of all fences including ours, and the members that allocate for
#: themselves, wherever they are connected.
Gathered = Callable[[str, Sequence[FenceReport], Sequence[str]], None]


class GroupPeers(Protocol):
    """The other brokers of the cluster, as a coordinator addresses them. view: the known brokers.

    `PeerBrokers` is the only implementation; at a lone broker it queries nobody.
    """

    view: ClusterView

    def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """Return a topic's queues at other brokers; None if unknown: `topic_changed` will follow."""

    def grant(self, broker_name: str, grant: FenceGrant, refused: Refused) -> None:
        """Send another broker's fence the owners of its queues."""

    def change_mode(self, grant: FenceGrant, refused: Refused) -> None:
        """Send all other fences a group's new mode."""

    def gather(self, group: str, own: FenceReport, gathered: Gathered) -> None:
        """Query all other fences about a group."""

    def started(self, started: fx.Started, who: str | None) -> None:
        """Report the start of a group's rebalance to all others. who: its cause, in short."""

    def settled(self, effect: fx.Settled) -> None:
        """Report to all others that every queue of a group is granted to its target."""

    def replaced(self, effect: fx.Replaced) -> None:
        """Report to all others that a client has taken another's place in a group."""

    def removed(self, *, topic: str = "", group: str = "") -> None:
        """Report a deletion of a topic or group to all others; both: the group's offsets were reset."""


class Coordination:
    """The coordinator of the groups coordinated here, connected to its broker."""

    def __init__(
        self,
        *,
        tables: Tables,
        consumers: ConsumerClients,
        locks: QueueLocks,
        kernel: Kernel,
        secret_bits: SecretBits,
        peers: GroupPeers,
    ) -> None:
        view = self._view = peers.view
        self._peers = peers
        self._topics = tables.topics
        self._fences, self._journals = tables.fences, tables.journals
        self._locks, self._consumers = locks, consumers
        self._now_ms = kernel.clock.monotonic_ms
        self._purgatory = kernel.purgatory
        self._deadline = kernel.deadlines.new(self._tick, "Coordination")
        self._run = kernel.effects.run
        # Effects, each with the number of recorded changes that must be durable first.
        self._waiting: deque[tuple[int, Effect]] = deque()
        self._is_performing = self._waits_for_disk = False
        #: Takes requests and events through the methods below; also answers direct queries.
        self.coordinator: Coordinator[Connection, Ticket] = Coordinator(
            secret_bits=secret_bits,
            record=tables.group_states.put,
            queues=self.queues,
            must_gather=self._must_gather,
            fence_epoch=lambda group: self._fences.epoch(group) if group in self._fences else None,
            due_by=self._deadline.by,
        )
        self.coordinator.restore(tables.group_states.by_name, now_ms=self._now_ms())
        self.group, self.profiles = self.coordinator.group, self.coordinator.profiles
        # Restored groups whose members allocate for themselves; their stock members should report soon.
        self._unreported = dict.fromkeys(
            name for name, state in tables.group_states.by_name.items() if state.mode == MODE_CLIENT
        )
        self._unreported_until_ms = self._now_ms() + SILENCE_MS_MAX
        #: When this process last resumed after a pause so long that others may have taken over its groups.
        self.thawed_ms = MonotonicMs(-FROZEN_MS)
        consumers.observe_stock(self.stock_changed)
        tables.topics.observe(self.topic_changed)
        # Continue with the restored state before any request.
        self._perform(self.coordinator.grants_for(view.own_name))
        for topic in self.coordinator.topics():
            self.topic_changed(topic)
        if self._unreported:
            self._deadline.by(self._unreported_until_ms)

    # The groups' coordinators.

    def address_of(self, group: str) -> str:
        """Return the address of a group's coordinator; raises NotCoordinator while it is unknown."""
        address = self._view.coordinator_address(group)
        if address is None:
            raise broker_error(ResponseCode.NOT_COORDINATOR, "")
        return address

    def require_here(self, group: str) -> None:
        """Raise NotCoordinator, with the right address if known, if another broker coordinates the group."""
        if self._view.coordinator_of(group) != self._view.own_name:
            raise broker_error(ResponseCode.NOT_COORDINATOR, self.address_of(group))

    def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return all queues of a topic at all brokers, sorted; None while the others' are unknown."""
        elsewhere = self._peers.queues(topic)
        return sorted([*self._topics.queues(topic), *elsewhere]) if elsewhere is not None else None

    def has_clients(self, name: str) -> bool:
        """Return whether a group has members of RocketMQ's protocol, coordinated or not, known here."""
        clients, view = self._consumers.group(name), self.coordinator.group(name)
        return bool(clients is not None and self._consumers.client_ids(clients)) or bool(
            view is not None and view.members
        )

    def instances(self, group: str) -> dict[str, str]:
        """Return the names of a group's static members, by client id."""
        view = self.coordinator.group(group)
        members = view.members if view is not None else ()
        return {member.client_id: member.instance for member in members if member.instance is not None}

    # Requests and events.

    def ask(self, waiter: MemberWaiter, request: rq.Request, *, cost_bytes: int = 0) -> None:
        """Hand a member's or an operator's request to the coordinator; the waiter is answered now or later.

        cost_bytes: memory of the pending request. Raises BrokerError if there is no room, or if the group is
        coordinated elsewhere.
        """
        group, peer = request.group, waiter.connection
        if isinstance(request, rq.Leave):
            # The group's present coordinator need not wait for this member.
            self.coordinator.forget_former(request)
        self.require_here(group)
        ticket = Ticket(peer, waiter, group, cost_bytes=cost_bytes)
        if not self._purgatory.has_room(peer, cost_bytes):
            raise broker_error(ResponseCode.SYSTEM_BUSY, "too many requests wait for an answer; try again")
        self._purgatory.park(ticket)
        # Clients send a heartbeat before they join, so clients that start together are known by now.
        clients = self._consumers.group(group) if isinstance(request, rq.Join) else None
        is_alone = clients is not None and clients.members.keys() == {peer}
        now_ms = self._now_ms()
        self._perform(self.coordinator.ask(ticket, peer, request, is_alone=is_alone, now_ms=now_ms))

    def happened(self, event: ev.Event, *groups: str) -> None:
        """Hand an event of these groups to the coordinator."""
        self._perform(self.coordinator.happened(event, *groups, now_ms=self._now_ms()))

    def closed(self, peer: Connection) -> None:
        """Handle the end of a connection; its held polls are dropped."""
        self._perform(self.coordinator.closed(peer, now_ms=self._now_ms()))

    def topic_changed(self, topic: str) -> None:
        """Handle a change of a topic's queues, here or elsewhere, or that they became unknown."""
        if not self.coordinator.subscribers(topic):
            return  # Subscribers query later; name servers do not know the other brokers' queues yet.
        self._perform(self.coordinator.queues_changed(topic, self.queues(topic), now_ms=self._now_ms()))

    def stock_changed(self, group: str, client_ids: Sequence[str]) -> None:
        """Handle a change among our own connections of the clients that allocate for themselves."""
        self._unreported.pop(group, None)
        if self._view.is_alone:  # Otherwise the relay passes on those of all brokers, once all have reported.
            self.stock_members(group, client_ids)

    def offsets_reset(self, group: str, topic: str) -> None:
        """Handle a reset of a group's offsets here; our fence has closed its queues of that topic."""
        self.happened(ev.QueuesRemoved(topic, self._view.own_name, Reason.OPERATOR), group)
        self._peers.removed(topic=topic, group=group)

    def topic_removed(self, topic: str) -> None:
        """Handle the deletion of a topic here; it may be created again at once."""
        self._fences.remove_topic(topic)
        self.queues_removed(topic, self._view.own_name)
        self._peers.removed(topic=topic)

    def queues_removed(self, topic: str, broker_name: str) -> None:
        """Handle the deletion of a topic at a broker, whose fence has lost its state as well."""
        event = ev.QueuesRemoved(topic, broker_name, Reason.QUEUE_COUNT_CHANGED)
        self.happened(event, *self.coordinator.subscribers(topic))

    def group_removed(self, group: str, *, may_return: bool) -> None:
        """Handle the deletion of a group here. may_return: live members create it again by using it."""
        self._fences.remove_group(group)
        self._perform(self.coordinator.removed(group, may_return=may_return, now_ms=self._now_ms()))
        self._peers.removed(group=group)

    def relocate(self, *, keeps_own: bool, has_new: bool) -> None:
        """Handle a change of the cluster's brokers: drop groups that others coordinate now.

        keeps_own: our state of groups coordinated here is valid; otherwise they begin again from the state of
        fences and members. has_new: some other brokers are new; they may have coordinated our groups.
        """
        for group in self.coordinator.names():
            address = self._view.coordinator_address(group)
            if address != self._view.own_address or not keeps_own:
                self._unreported.pop(group, None)
                self._withdraw(group, address or "")
                self._perform(self.coordinator.drop(group, address or "", now_ms=self._now_ms()))
            elif has_new:
                self.happened(ev.FencesInDoubt(), group)

    def known_of(self, group: str) -> FenceReport:
        """Return a report for a new coordinator: the state of our fence and of our coordinator, if any."""
        return self._report(group, *self.coordinator.members_of(group))

    def stock_members(self, group: str, client_ids: Sequence[str]) -> None:
        """Take all clients, wherever connected, that allocate for themselves in a group coordinated here."""
        self._perform(self.coordinator.stock_members(group, client_ids, now_ms=self._now_ms()))

    def refused(self, grant: FenceGrant, epoch: int) -> None:
        """Handle a fence's refusal of our grant: the fence has seen a higher epoch."""
        self._perform(self.coordinator.refused(grant, epoch, now_ms=self._now_ms()))

    def granted(self, grant: FenceGrant) -> int:
        """Apply a coordinator's grant of our queues; return the highest epoch that our fence has seen."""
        epoch = self._fences.grant(grant)
        if epoch == grant.epoch and grant.client_ids:
            readers = {
                queue: grant.client_ids[member]
                for queue, member in self._fences.readers(grant.group).items()
                if member in grant.client_ids
            }
            self._locks.reserve(grant.group, readers, now_ms=self._now_ms())
        return epoch

    # Time.

    def _tick(self, now_ms: MonotonicMs) -> None:
        """Perform everything that is due at a monotonic time."""
        try:
            if self._unreported and now_ms >= self._unreported_until_ms:
                for group in list(self._unreported):
                    self.stock_changed(group, ())
            self._perform(self.coordinator.tick(now_ms))
        finally:
            if self._unreported:
                self._deadline.by(self._unreported_until_ms)

    def stalled(self, stall_ms: int, now_ms: MonotonicMs) -> None:
        """Extend deadlines after a stall of this process, during which no requests of members were read."""
        self._unreported_until_ms = self._unreported_until_ms + stall_ms
        if stall_ms >= FROZEN_MS:
            self.thawed_ms = now_ms
        self.happened(ev.Stalled(stall_ms), *self.coordinator.names())

    # Effects.

    def _perform(self, effects: Iterable[Effect]) -> None:
        """Perform effects and their consequences, in order, once the changes recorded before are durable.

        A failing effect does not stop the others.
        """
        self._waiting.extend((self._journals.written, effect) for effect in effects)
        if self._is_performing or self._waits_for_disk:
            return
        self._is_performing = True
        while self._waiting:
            recorded, effect = self._waiting[0]
            if recorded > self._journals.synced:
                self._waits_for_disk = True
                self._journals.when_synced(self._go_on, through=recorded)
                break
            self._waiting.popleft()
            try:
                self._perform_one(effect)
            except Exception:
                log.exception("effect of coordination failed", effect=type(effect).__name__)
        self._is_performing = False

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case fx.Answer():
                if self._purgatory.release(effect.ticket):
                    effect.ticket.waiter.answer(effect)
            case fx.Grant():
                self._grant(effect.broker_name, effect.grant)
            case fx.Gather():
                own = self._report(effect.group, *self.coordinator.former(effect.group))
                self._peers.gather(effect.group, own, self._gathered)
            case fx.Assign():
                self._run(Thread.ASSIGN, effect.work.made, partial(self._assigned, effect))
            case fx.Started() | fx.Settled():
                self._consumers.rebalances.note_later(partial(self._note, effect))
            case fx.Replaced():
                self._consumers.rebalances.replaced(
                    effect.group, effect.former, effect.client_id, effect.instance
                )
                self._peers.replaced(effect)
            case fx.ModeChanged():
                self._change_mode(effect)

    def _go_on(self, is_synced: bool) -> None:
        """Perform effects whose records are now on the disk; if the disk failed, they are held forever."""
        if is_synced:
            self._waits_for_disk = False
            self._perform(())

    def _withdraw(self, group: str, address: str) -> None:
        """Withdraw grants and assignments of a group that the broker at that address coordinates now.

        That broker queries our fence for the owners. A later grant would create owners unknown to it.
        """
        waiting, self._waiting = self._waiting, deque()
        for recorded, effect in waiting:
            match effect:
                case fx.Grant(grant=grant) if grant.group == group:
                    continue
                case fx.ModeChanged() if effect.group == group:
                    continue
                case fx.Answer(ticket=ticket) if ticket.group == group and effect.assignment is not None:
                    refused = fx.Answer(ticket, ResponseCode.NOT_COORDINATOR, address)
                    self._waiting.append((recorded, refused))
                case _:
                    self._waiting.append((recorded, effect))

    def _assigned(self, assign: fx.Assign, made: Made | Exception) -> None:
        self.happened(ev.Assigned(assign.work, made), assign.group)

    def _grant(self, broker_name: str, grant: FenceGrant) -> None:
        if broker_name == self._view.own_name:
            epoch = self.granted(grant)
            if epoch > grant.epoch:
                self.refused(grant, epoch)
        else:
            self._peers.grant(broker_name, grant, self.refused)

    def _change_mode(self, change: fx.ModeChanged) -> None:
        """Send the new mode to all fences, even those whose topics no longer have subscribers."""
        group = change.group
        log.info("group mode changed", group=group, mode=change.mode, epoch=change.epoch)
        view = self.group(group) if change.mode == MODE_CLIENT else None
        names = {member.member: member.client_id for member in view.members} if view is not None else {}
        grant = FenceGrant(group=group, epoch=change.epoch, mode=change.mode, client_ids=names)
        self._grant(self._view.own_name, grant)
        self._peers.change_mode(grant, self.refused)

    def _gathered(self, group: str, reports: Sequence[FenceReport], stock: Sequence[str]) -> None:
        """Take all fences' reports on a group. stock: members that allocate for themselves."""
        self.stock_members(group, stock)
        self.happened(ev.FencesReported(reports), group)

    def _report(self, group: str, epoch: int, members: list[str] | None) -> FenceReport:
        return replace(self._fences.report(group), members=members, members_epoch=epoch)

    def _must_gather(self, group: str) -> bool:
        """Return whether a group that is new here may be known to another broker, or to our fence.

        Gathering from no broker would find the same, at the cost of an inquiry in each first join.
        """
        return not self._view.is_alone or self._fences.epoch(group) > 0

    def _note(self, effect: fx.Started | fx.Settled, now: Now) -> None:
        """Record the start or the end of a rebalance, here and at the other brokers. now: when it happened.

        Settled: the minimum of moves is passed only if other brokers have queues, too. If all are here, the
        observed moves tell how many were needed.
        """
        rebalances, group = self._consumers.rebalances, effect.group
        if isinstance(effect, fx.Started):
            who = named(effect.who)
            rebalances.started(group, effect.reason, who, effect.members, epoch=effect.epoch, now=now)
            self._peers.started(effect, who)
            return
        observed = rebalances.observed(group)
        if observed is not None:
            holders, here = effect.holders, self._view.own_name
            own = {queue: client_id for queue, client_id in holders.items() if queue.broker_name == here}
            observed.completed(
                effect.members,
                holders=own,
                uncommitted=effect.uncommitted,
                duplicates=effect.duplicates,
                minimum=effect.minimum if len(own) < len(holders) else None,
            )
        self._peers.settled(effect)
