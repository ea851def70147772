"""Coordination: the coordinated groups of this broker.

    requests, ends of connections, topics, time  →  coordinator  →  effects  →  answers, fences, events

Grants for our own queues go straight to our fences. Requests to other brokers go through `peers`, and their
answers arrive by the methods below. Each pending request is answered by its own waiter.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from libramq.broker.files.tables import Tables
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.group_peers import GroupPeers
from libramq.broker.groups.rebalance_reports import RebalanceReports
from libramq.broker.groups.recorded_effects import Effect, MemberWaiter, RecordedEffects, Ticket
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.fencing import MODE_CLIENT, FenceGrant, FenceReport
from libramq.groups.coordinator import effect as fx
from libramq.groups.coordinator.coordinator import Coordinator
from libramq.groups.coordinator.group import request as rq
from libramq.groups.coordinator.group.assigning import Assigning, Made
from libramq.groups.coordinator.group.view import GroupView
from libramq.groups.queue_lock import QueueLocks
from libramq.groups.session import SILENCE_MS_MAX
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.secret_bits import SecretBits

log = get_logger(__name__)


class Coordination:
    """The coordinator of the groups that are coordinated here, connected to its broker."""

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
        self._broker_name = view.own_name
        self._address = view.own_address
        self._topics = tables.topics
        self._fences = tables.fences
        self._locks, self._consumers = locks, consumers
        self._now_ms = kernel.clock.monotonic_ms
        self._reports = RebalanceReports(broker_name=view.own_name, consumers=consumers, peers=peers)
        self._purgatory = kernel.purgatory
        self._deadline = kernel.deadlines.new(self._tick, "Coordination")
        self._run = kernel.effects.run
        self._effects = RecordedEffects(tables.journals, self._do)
        self._perform = self._effects.perform
        # Of groups that were left to other brokers: the last epoch here, and the members then.
        self._former: dict[str, tuple[int, list[str] | None]] = {}
        self._coordinator: Coordinator[Connection, Ticket] = Coordinator(
            secret_bits=secret_bits,
            record=tables.record_group,
            queues=self.queues,
            must_gather=self._must_gather,
            due_by=self._deadline.by,
        )
        self._coordinator.restore(tables.group_states, now_ms=self._now_ms())
        self.client_of = self._coordinator.client_of
        self.opened = self._coordinator.opened
        # Restored groups that allocate for themselves: their stock members should report soon.
        self._unreported = dict.fromkeys(
            name for name, state in tables.group_states.items() if state.mode == MODE_CLIENT
        )
        self._unreported_until_ms = self._now_ms() + SILENCE_MS_MAX
        consumers.observe_stock(self.stock_changed)
        tables.topics.observe(self.topic_changed)
        # Continue with the restored state before any request.
        self._perform(self._coordinator.grants_for(view.own_name))
        for topic in self._coordinator.topics():
            self.topic_changed(topic)
        self._await_due()

    # The groups' coordinators.

    def address_of(self, group: str) -> str:
        """Return the address of a group's coordinator; raises NotCoordinator while it is unknown."""
        address = self._view.coordinator_address(group)
        if address is None:
            raise broker_error(ResponseCode.NOT_COORDINATOR, "")
        return address

    def require_here(self, group: str) -> None:
        """Raise NotCoordinator, with the right address if known, if another broker coordinates the group."""
        if self._view.coordinator_of(group) != self._broker_name:
            raise broker_error(ResponseCode.NOT_COORDINATOR, self.address_of(group))

    def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return all queues of a topic at all brokers, sorted; None while the others' are unknown."""
        elsewhere = self._peers.queues(topic)
        return sorted([*self._topics.queues(topic), *elsewhere]) if elsewhere is not None else None

    def group(self, name: str) -> GroupView | None:
        """Return a view of a group; None if it is not coordinated here."""
        return self._coordinator.group(name)

    def has_clients(self, name: str) -> bool:
        """Return whether a group has members of RocketMQ's protocol, coordinated or not, known here."""
        clients, view = self._consumers.group(name), self._coordinator.group(name)
        return bool(clients is not None and self._consumers.client_ids(clients)) or bool(
            view is not None and view.members
        )

    def instances(self, group: str) -> dict[str, str]:
        """Return the names of a group's static members, by client id."""
        view = self._coordinator.group(group)
        members = view.members if view is not None else ()
        return {member.client_id: member.instance for member in members if member.instance is not None}

    def topics(self) -> list[str]:
        """Return the topics of groups coordinated here: their queues at other brokers matter."""
        return self._coordinator.topics()

    # Requests of members, answered by waiters, now or later. cost_bytes: memory of the pending request.

    def join(self, waiter: MemberWaiter, join: rq.Join, *, cost_bytes: int = 0) -> None:
        """Admit a client to its group; raises BrokerError if the group is coordinated elsewhere."""
        ticket, peer = self._park(waiter, join.group, cost_bytes), waiter.connection
        # Clients send a heartbeat before they join: of those that start together, each knows of others.
        clients = self._consumers.group(join.group)
        is_alone = clients is not None and clients.members.keys() == {peer}
        self._perform(self._coordinator.join(ticket, peer, join, is_alone=is_alone, now_ms=self._now_ms()))

    def poll(self, waiter: MemberWaiter, poll: rq.Poll, *, cost_bytes: int = 0) -> None:
        """Hold a member's poll until its assignment changes."""
        ticket = self._park(waiter, poll.group, cost_bytes)
        now_ms = self._now_ms()
        self._perform(self._coordinator.poll(ticket, waiter.connection, poll, now_ms=now_ms))

    def release(self, waiter: MemberWaiter, release: rq.Release, *, cost_bytes: int = 0) -> None:
        """Free the queues that a member releases."""
        ticket = self._park(waiter, release.group, cost_bytes)
        now_ms = self._now_ms()
        self._perform(self._coordinator.release(ticket, waiter.connection, release, now_ms=now_ms))

    def leave(self, waiter: MemberWaiter, leave: rq.Leave, *, cost_bytes: int = 0) -> None:
        """Remove a member that leaves; of a group that was left to another broker, that need not await it."""
        _, members = self._former.get(leave.group, (0, None))
        if members is not None and leave.member in members:
            members.remove(leave.member)
        ticket = self._park(waiter, leave.group, cost_bytes)
        self._perform(self._coordinator.leave(ticket, leave, now_ms=self._now_ms()))

    def remove(self, waiter: MemberWaiter, remove: rq.Remove) -> None:
        """Remove a member for an operator."""
        ticket = self._park(waiter, remove.group, 0)
        self._perform(self._coordinator.remove(ticket, remove, now_ms=self._now_ms()))

    def _park(self, waiter: MemberWaiter, group: str, cost_bytes: int) -> Ticket:
        """Park a request until the coordinator answers; raises BrokerError if there is no room, or if the
        group is coordinated elsewhere.
        """
        self.require_here(group)
        parked = Ticket(waiter, group, cost_bytes=cost_bytes)
        if not self._purgatory.has_room(parked.connection, cost_bytes):
            raise broker_error(ResponseCode.SYSTEM_BUSY, "too many requests wait for an answer; try again")
        self._purgatory.park(parked)
        return parked

    # Events at this broker.

    def closed(self, peer: Connection) -> None:
        """Handle the end of a connection; its held polls are dropped."""
        self._perform(self._coordinator.closed(peer, now_ms=self._now_ms()))

    def topic_changed(self, topic: str) -> None:
        """Handle a change of a topic's queues, here or at another broker, or that they became unknown."""
        if not self._coordinator.watches(topic):
            return  # Subscribers will ask; name servers do not know the other brokers' queues yet.
        self._perform(self._coordinator.queues_changed(topic, self.queues(topic), now_ms=self._now_ms()))

    def stock_changed(self, group: str, client_ids: Sequence[str]) -> None:
        """Handle a change of the clients that allocate for themselves, among our own connections."""
        self._unreported.pop(group, None)
        if self._view.is_alone:  # Otherwise the relay has those of all brokers, once they have reported.
            self.stock_members(group, client_ids)

    def offsets_reset(self, group: str, topic: str) -> None:
        """Handle a reset of a group's offsets here; our fence has closed its queues of that topic."""
        self.queues_reset(group, topic, self._broker_name)
        self._peers.removed(topic=topic, group=group)

    def topic_removed(self, topic: str) -> None:
        """Handle the deletion of a topic here; it may be created again at once."""
        self._fences.remove_topic(topic)
        self.queues_removed(topic, self._broker_name)
        self._peers.removed(topic=topic)

    def group_removed(self, group: str, *, may_return: bool) -> None:
        """Handle the deletion of a group here. may_return: live members create it again by using it."""
        self._former.pop(group, None)
        self._fences.remove_group(group)
        self._perform(self._coordinator.removed(group, may_return=may_return, now_ms=self._now_ms()))
        self._peers.removed(group=group)

    def masters_absent(self, broker_names: frozenset[str]) -> None:
        """Take the brokers whose master is gone while a slave serves their queues."""
        self._coordinator.masters_absent(broker_names)

    def relocate(self, *, keeps_own: bool, has_new: bool) -> None:
        """Handle a change of the cluster's brokers: groups with other coordinators now are left to them.

        keeps_own: our state of groups coordinated here is valid; otherwise they begin again, from what fences
        and members know. has_new: some of the others are new; they may have coordinated our groups.
        """
        for group in self._coordinator.names():
            address = self._view.coordinator_address(group)
            if address != self._address or not keeps_own:
                self._former[group] = self._members_of(group)
                self._unreported.pop(group, None)
                self._effects.withdraw(group, address or "")
                self._perform(self._coordinator.drop(group, address or "", now_ms=self._now_ms()))
            elif has_new:
                self._perform(self._coordinator.gather_again(group, now_ms=self._now_ms()))

    def known_of(self, group: str) -> FenceReport:
        """Return a report for a new coordinator: the state of our fence and our coordinator, if any."""
        epoch, members = self._members_of(group)
        return self._known_of(group, *((epoch, members) if epoch else self._former.get(group, (0, None))))

    # Reports of peers.

    def stock_members(self, group: str, client_ids: Sequence[str]) -> None:
        """Take all clients, wherever connected, that allocate for themselves in a group coordinated here."""
        if client_ids and self._coordinator.stock(group) == tuple(client_ids):
            return
        self._perform(self._coordinator.stock_members(group, client_ids, now_ms=self._now_ms()))
        if client_ids and group not in self._coordinator and group in self._fences:
            # A fence is left from an earlier life of the group that no other broker remembers.
            self._change_mode(fx.ModeChanged(group, MODE_CLIENT, self._fences.epoch(group)))

    def queues_removed(self, topic: str, broker_name: str) -> None:
        """Handle the deletion of a topic at a broker, whose fence has lost its state with it."""
        self._perform(self._coordinator.queues_removed(topic, broker_name, now_ms=self._now_ms()))

    def fence_removed(self, group: str) -> None:
        """Handle the deletion of a group at another broker, whose fence has lost its state with it."""
        self._perform(self._coordinator.gather_again(group, now_ms=self._now_ms()))

    def queues_reset(self, group: str, topic: str, broker_name: str) -> None:
        """Handle a reset of a group's offsets at a broker, whose fence has closed the topic's queues."""
        self._perform(self._coordinator.queues_reset(group, topic, broker_name, now_ms=self._now_ms()))

    def gathered(
        self, group: str, reports: Sequence[FenceReport], stock: Sequence[str] | None = None
    ) -> None:
        """Take all fences' reports on a group. stock: members that allocate themselves; None: no change."""
        if stock is not None:
            self.stock_members(group, stock)
        self._perform(self._coordinator.gathered(group, reports, now_ms=self._now_ms()))

    def refused(self, grant: FenceGrant, epoch: int) -> None:
        """Handle a fence's refusal of our grant: it has seen a higher epoch."""
        group = grant.group
        self._perform(self._coordinator.refused(group, grant.epoch, epoch, now_ms=self._now_ms()))
        if grant.mode == MODE_CLIENT and group not in self._coordinator and self._coordinator.stock(group):
            # A fence is left, too, of a coordinator that had the group when ours did not hear of it.
            self._change_mode(fx.ModeChanged(group, MODE_CLIENT, epoch))

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

    def grants_for(self, broker_name: str) -> list[FenceGrant]:
        """Return the full state for another broker's fence, over a new link."""
        return [grant.grant for grant in self._coordinator.grants_for(broker_name)]

    # Time.

    def _tick(self, now_ms: MonotonicMs) -> None:
        """Perform everything that is due at a monotonic time."""
        try:
            if self._unreported and now_ms >= self._unreported_until_ms:
                for group in list(self._unreported):
                    self.stock_changed(group, ())
            self._perform(self._coordinator.tick(now_ms))
        finally:
            self._await_due()

    def _await_due(self) -> None:
        """Set the deadline to what is due next."""
        due_ms = self._coordinator.next_due_ms
        if due_ms is not None:
            self._deadline.by(due_ms)
        if self._unreported:
            self._deadline.by(self._unreported_until_ms)

    def stalled(self, stall_ms: int, now_ms: MonotonicMs) -> None:
        """Extend deadlines after a stall of this process: requests of members have not been read yet."""
        self._unreported_until_ms = self._unreported_until_ms + stall_ms
        self._perform(self._coordinator.stalled(stall_ms, now_ms=now_ms))

    @property
    def has_members(self) -> bool:
        """Return whether a group coordinated here has a member."""
        return self._coordinator.has_members

    # Effects.

    def _do(self, effect: Effect) -> None:
        match effect:
            case fx.Answer():
                if self._purgatory.release(effect.ticket):
                    effect.ticket.waiter.answer(effect)
            case fx.Grant():
                self._grant(effect.broker_name, effect.grant)
            case fx.Gather():
                own = self._known_of(effect.group, *self._former.get(effect.group, (0, None)))
                self._peers.gather(effect.group, own, self.gathered)
            case fx.Assign():
                assigned = partial(self._assigned, effect.group, effect.work)
                self._run(Thread.ASSIGN, effect.work.made, assigned)
            case fx.Started() | fx.Settled():
                self._consumers.rebalances.note_later(partial(self._reports.record, effect))
            case fx.Replaced():
                self._reports.replaced(effect)
            case fx.ModeChanged():
                self._change_mode(effect)

    def _assigned(self, group: str, work: Assigning, made: Made | Exception) -> None:
        self._perform(self._coordinator.assigned(group, work, made, now_ms=self._now_ms()))

    def _grant(self, broker_name: str, grant: FenceGrant) -> None:
        if broker_name == self._broker_name:
            epoch = self.granted(grant)
            if epoch > grant.epoch:
                self.refused(grant, epoch)
        else:
            self._peers.grant(broker_name, grant, self.refused)

    def _change_mode(self, change: fx.ModeChanged) -> None:
        """Send the new mode to all fences, even those whose topics have no subscribers any more."""
        log.info("group mode changed", group=change.group, mode=change.mode, epoch=change.epoch)
        grant = FenceGrant(
            group=change.group, epoch=change.epoch, mode=change.mode, client_ids=self._client_ids(change)
        )
        self._grant(self._broker_name, grant)
        self._peers.change_mode(grant, self.refused)

    def _client_ids(self, change: fx.ModeChanged) -> dict[str, str]:
        view = self._coordinator.group(change.group) if change.mode == MODE_CLIENT else None
        return {member.member: member.client_id for member in view.members} if view is not None else {}

    def _known_of(self, group: str, epoch: int, members: list[str] | None) -> FenceReport:
        return replace(self._fences.report(group), members=members, members_epoch=epoch)

    def _members_of(self, group: str) -> tuple[int, list[str] | None]:
        view = self._coordinator.group(group)
        return (view.epoch, [member.member for member in view.members]) if view is not None else (0, None)

    def _must_gather(self, group: str) -> bool:
        """Return whether a group that is new here may be known: by another broker, or by us from before.

        To gather from nobody would end with the same group, after an inquiry in each first join.
        """
        return not self._view.is_alone or group in self._former or self._fences.epoch(group) > 0
