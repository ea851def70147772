"""Coordination: coordinated groups as this broker carries them.

    requests, ends of connections, topics, time  →  coordinator  →  effects  →  answers, fences, events

Grants for our own queues go straight to our fences. What concerns other brokers goes through `peers`, and
comes back by the methods below; without peers this broker is alone and everything lives here. Whoever waits
for an answer is answered by its own waiter.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from libramq.broker.consumer_clients import ConsumerClients
from libramq.broker.group_peers import GroupPeers
from libramq.broker.rebalance_reports import RebalanceReports
from libramq.broker.tables import Tables
from libramq.clock import Clock, MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.fencing import MODE_CLIENT, FenceGrant, FenceReport
from libramq.groups.coordinator import effect as fx
from libramq.groups.coordinator import group_request as rq
from libramq.groups.coordinator.coordinator import Coordinator
from libramq.groups.coordinator.group_view import GroupView
from libramq.groups.queue_lock import QueueLocks
from libramq.groups.session import SILENCE_MS_MAX
from libramq.kernel.connection import Connection
from libramq.kernel.purgatory import Purgatory
from libramq.kernel.waiter import ParkedWaiter, Waiter
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.secret_bits import SecretBits

log = get_logger(__name__)

#: A member that waits for what its coordinator answers.
MemberWaiter = Waiter[fx.Answer[Any]]
Ticket = ParkedWaiter[fx.Answer[Any]]
Effect = fx.Effect[Ticket]


class Coordination:
    """The coordinator of the groups that live here, and all that it needs of its broker."""

    def __init__(
        self,
        *,
        broker_name: str,
        address: str,
        tables: Tables,
        consumers: ConsumerClients,
        locks: QueueLocks,
        clock: Clock,
        secret_bits: SecretBits,
        purgatory: Purgatory,
        peers: GroupPeers | None,
    ) -> None:
        self._peers = peers
        self._broker_name = broker_name
        self._address = address
        self._topics = tables.topics
        self._fences = tables.fences
        self._locks = locks
        self._clock = clock
        self._reports = RebalanceReports(
            broker_name=broker_name, consumers=consumers, peers=peers, clock=clock
        )
        self._purgatory = purgatory
        self._effects: deque[tuple[int, Effect]] = deque()  # After how many recorded changes.
        # Of groups that were left to other brokers: the last epoch here, and the members then.
        self._former: dict[str, tuple[int, list[str] | None]] = {}
        self._is_performing = self._waits_for_disk = False
        self._journals = tables.journals
        self._coordinator: Coordinator[Connection, Ticket] = Coordinator(
            secret_bits=secret_bits,
            record=tables.record_group,
            restored=tables.group_states,
            must_gather=self._must_gather,
        )
        # Groups that allocate for themselves, as they were left: their stock members should soon be heard of.
        self._unheard = dict.fromkeys(
            name for name, state in tables.group_states.items() if state.mode == MODE_CLIENT
        )
        self._unheard_until_ms = clock.monotonic_ms() + SILENCE_MS_MAX
        consumers.observe_stock(self.stock_changed)
        tables.topics.observe(self.topic_changed)
        # Go on with what was left, before anything else is asked.
        self._perform(self._coordinator.grants_for(broker_name))
        for topic in self._coordinator.topics():
            self.topic_changed(topic)

    # Where groups live.

    def address_of(self, group: str) -> str:
        """The address of a group's coordinator; raises NotCoordinator while nobody knows it."""
        address = self._address if self._peers is None else self._peers.coordinator_of(group)
        if address is None:
            raise broker_error(ResponseCode.NOT_COORDINATOR, "")
        return address

    def require_here(self, group: str) -> None:
        """Raises NotCoordinator, with the right address if it is known, where a group lives elsewhere."""
        address = self.address_of(group)
        if address != self._address:
            raise broker_error(ResponseCode.NOT_COORDINATOR, address)

    def queues(self, topic: str) -> list[MessageQueue] | None:
        """All queues of a topic, here and at other brokers, sorted; None while the others' are not known."""
        elsewhere = self._peers.queues(topic) if self._peers is not None else ()
        return sorted([*self._topics.queues(topic), *elsewhere]) if elsewhere is not None else None

    def group(self, name: str) -> GroupView | None:
        """A group as it is now; None if it does not live here."""
        return self._coordinator.group(name)

    def instances(self, group: str) -> dict[str, str]:
        """Return the names of a group's static members, by client id."""
        view = self._coordinator.group(group)
        members = view.members if view is not None else ()
        return {member.client_id: member.instance for member in members if member.instance is not None}

    def topics(self) -> list[str]:
        """The topics of groups that live here: their queues at other brokers matter."""
        return self._coordinator.topics()

    # Requests of members: waiters are answered, now or later. cost_bytes: what a request takes meanwhile.

    def join(self, waiter: MemberWaiter, join: rq.Join, *, cost_bytes: int = 0) -> None:
        """Have a client join its group, which lives here; raises BrokerError where it does not."""
        ticket = self._park(waiter, join.group, cost_bytes)
        now_ms = self._clock.monotonic_ms()
        self._perform(self._coordinator.join(ticket, waiter.connection, join, now_ms=now_ms))

    def poll(self, waiter: MemberWaiter, poll: rq.Poll, *, cost_bytes: int = 0) -> None:
        """Have a member wait for another assignment."""
        ticket = self._park(waiter, poll.group, cost_bytes)
        now_ms = self._clock.monotonic_ms()
        self._perform(self._coordinator.poll(ticket, waiter.connection, poll, now_ms=now_ms))

    def release(self, waiter: MemberWaiter, release: rq.Release, *, cost_bytes: int = 0) -> None:
        """Take back what a member gives up."""
        ticket = self._park(waiter, release.group, cost_bytes)
        now_ms = self._clock.monotonic_ms()
        self._perform(self._coordinator.release(ticket, waiter.connection, release, now_ms=now_ms))

    def leave(self, waiter: MemberWaiter, leave: rq.Leave, *, cost_bytes: int = 0) -> None:
        """Have a member leave."""
        ticket = self._park(waiter, leave.group, cost_bytes)
        self._perform(self._coordinator.leave(ticket, leave, now_ms=self._clock.monotonic_ms()))

    def remove(self, waiter: MemberWaiter, remove: rq.Remove) -> None:
        """Remove a member, as an operator asks."""
        ticket = self._park(waiter, remove.group, 0)
        self._perform(self._coordinator.remove(ticket, remove, now_ms=self._clock.monotonic_ms()))

    def _park(self, waiter: MemberWaiter, group: str, cost_bytes: int) -> Ticket:
        """Park a request until the coordinator answers; raises BrokerError where there is no room, or where
        the group lives elsewhere.
        """
        self.require_here(group)
        parked = Ticket(waiter, cost_bytes=cost_bytes)
        if not self._purgatory.has_room(parked.connection, cost_bytes):
            raise broker_error(ResponseCode.SYSTEM_BUSY, "too many requests wait for an answer; try again")
        self._purgatory.park(parked)
        return parked

    # What happens here.

    def closed(self, peer: Connection) -> None:
        """A connection ended; polls that it held are dropped."""
        self._perform(self._coordinator.closed(peer, now_ms=self._now_ms()))

    def topic_changed(self, topic: str) -> None:
        """A topic has other queues, here or at another broker, or nobody knows any more which it has."""
        if not self._coordinator.watches(topic):
            return  # Whoever subscribes to it will ask; name servers do not know yet what others have of it.
        self._perform(self._coordinator.queues_changed(topic, self.queues(topic), now_ms=self._now_ms()))

    def stock_changed(self, group: str, client_ids: Sequence[str]) -> None:
        """Other clients than before, of our own connections, allocate for themselves."""
        self._unheard.pop(group, None)
        if self._peers is None or self._peers.is_alone:  # Else the relay has those of all brokers.
            self.stock_members(group, client_ids)

    def offsets_reset(self, group: str, topic: str) -> None:
        """A group's offsets were set here, and our fence has closed its queues of that topic."""
        self.queues_reset(group, topic, self._broker_name)
        if self._peers is not None:
            self._peers.removed(topic=topic, group=group)

    def topic_removed(self, topic: str) -> None:
        """A topic was deleted here; it may be made again at once."""
        self._fences.remove_topic(topic)
        self.queues_removed(topic, self._broker_name)
        if self._peers is not None:
            self._peers.removed(topic=topic)

    def group_removed(self, group: str, *, may_return: bool) -> None:
        """A group was deleted here. may_return: members that live make it again by using it."""
        self._former.pop(group, None)
        self._fences.remove_group(group)
        self._perform(self._coordinator.removed(group, may_return=may_return, now_ms=self._now_ms()))
        if self._peers is not None:
            self._peers.removed(group=group)

    def relocate(self, *, keeps_own: bool, has_new: bool) -> None:
        """There are other brokers than before: groups that live elsewhere now are left to them.

        keeps_own: what is known here of groups that live here is true; else they begin anew, with what fences
        and members know. has_new: some of the others were not there before; they may have had our groups.
        """
        for group in self._coordinator.names():
            address = self._peers.coordinator_of(group) if self._peers is not None else self._address
            if address != self._address or not keeps_own:
                self._former[group] = self._members_of(group)
                self._unheard.pop(group, None)
                self._perform(self._coordinator.drop(group, address or "", now_ms=self._now_ms()))
            elif has_new:
                self._perform(self._coordinator.gather_again(group, now_ms=self._now_ms()))

    def known_of(self, group: str) -> FenceReport:
        """Return what a new coordinator needs: the state of our fence and of our own coordinator, if any."""
        epoch, members = self._members_of(group)
        return self._known_of(group, *((epoch, members) if epoch else self._former.get(group, (0, None))))

    # What peers say.

    def stock_members(self, group: str, client_ids: Sequence[str]) -> None:
        """All clients of a group that lives here, wherever connected, that allocate for themselves."""
        self._perform(self._coordinator.stock_members(group, client_ids, now_ms=self._now_ms()))
        if client_ids and group not in self._coordinator and group in self._fences:
            # A fence is left from a life of the group that nobody else remembers.
            self._change_mode(fx.ModeChanged(group, MODE_CLIENT, self._fences.epoch(group)))

    def queues_removed(self, topic: str, broker_name: str) -> None:
        """A topic was deleted at a broker, and with it what its fence knew."""
        self._perform(self._coordinator.queues_removed(topic, broker_name, now_ms=self._now_ms()))

    def fence_removed(self, group: str) -> None:
        """A group was deleted at another broker, and with it what its fence knew."""
        self._perform(self._coordinator.gather_again(group, now_ms=self._now_ms()))

    def queues_reset(self, group: str, topic: str, broker_name: str) -> None:
        """A group's offsets were set at a broker, whose fence has closed the queues of that topic."""
        self._perform(self._coordinator.queues_reset(group, topic, broker_name, now_ms=self._now_ms()))

    def gathered(
        self, group: str, reports: Sequence[FenceReport], stock: Sequence[str] | None = None
    ) -> None:
        """Take what all fences know of a group. stock: who allocates for itself; None: as before."""
        if stock is not None:
            self.stock_members(group, stock)
        self._perform(self._coordinator.gathered(group, reports, now_ms=self._now_ms()))

    def refused(self, grant: FenceGrant, epoch: int) -> None:
        """A fence has not taken our grant, as it has seen a higher epoch."""
        effects = self._coordinator.refused(grant.group, grant.epoch, epoch, now_ms=self._now_ms())
        self._perform(effects)

    def granted(self, grant: FenceGrant) -> int:
        """Take a coordinator's grant of our queues; returns the highest epoch that our fence has seen."""
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
        """All that another broker's fence is to know; for a link that is new."""
        return [grant.grant for grant in self._coordinator.grants_for(broker_name)]

    # Time.

    def tick(self, now_ms: MonotonicMs) -> None:
        """Time has passed (monotonic)."""
        if self._unheard and now_ms >= self._unheard_until_ms:
            for group in list(self._unheard):
                self.stock_changed(group, ())
        self._perform(self._coordinator.tick(now_ms))

    def stood_still(self, stood_ms: int, now_ms: MonotonicMs) -> None:
        """This process did nothing for so long: what members sent meanwhile has not been read yet."""
        self._unheard_until_ms = self._unheard_until_ms + stood_ms
        self._perform(self._coordinator.stood_still(stood_ms, now_ms=now_ms))

    @property
    def has_members(self) -> bool:
        """Return whether a coordinated group that lives here has a member."""
        return self._coordinator.has_members

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """When `tick` has something to do next, at the earliest (monotonic)."""
        due_ms = self._coordinator.next_due_ms
        if not self._unheard:
            return due_ms
        return self._unheard_until_ms if due_ms is None else min(due_ms, self._unheard_until_ms)

    # Effects.

    def _perform(self, effects: Iterable[Effect]) -> None:
        """Do these and what follows from them, in their order, once what was recorded before is durable.

        One that fails keeps none of the others.
        """
        self._effects.extend((self._journals.written, effect) for effect in effects)
        if self._is_performing or self._waits_for_disk:
            return
        self._is_performing = True
        while self._effects:
            recorded, effect = self._effects[0]
            if recorded > self._journals.synced:
                self._waits_for_disk = True
                self._journals.when_synced(self._go_on, through=recorded)
                break
            self._effects.popleft()
            try:
                self._do(effect)
            except Exception:
                log.exception("effect of coordination failed", effect=type(effect).__name__)
        self._is_performing = False

    def _go_on(self, is_synced: bool) -> None:
        """The disk has what was recorded; where it failed, nobody may ever hear of that."""
        if is_synced:
            self._waits_for_disk = False
            self._perform(())

    def _do(self, effect: Effect) -> None:
        match effect:
            case fx.Answer():
                if self._purgatory.release(effect.ticket):
                    effect.ticket.waiter.answer(effect)
            case fx.Grant():
                self._grant(effect.broker_name, effect.grant)
            case fx.WatchTopic():
                self.topic_changed(effect.topic)
            case fx.Gather():
                own = self._known_of(effect.group, *self._former.get(effect.group, (0, None)))
                if self._peers is not None:
                    self._peers.gather(effect.group, own, self.gathered)
                else:
                    self.gathered(effect.group, [own])
            case fx.Started():
                self._reports.started(effect)
            case fx.Settled():
                self._reports.settled(effect, is_elsewhere_too=self._is_elsewhere_too(effect.group))
            case fx.Replaced():
                self._reports.replaced(effect)
            case fx.ModeChanged():
                self._change_mode(effect)

    def _grant(self, broker_name: str, grant: FenceGrant) -> None:
        if broker_name == self._broker_name:
            epoch = self.granted(grant)
            if epoch > grant.epoch:
                self.refused(grant, epoch)
        elif self._peers is not None:
            self._peers.grant(broker_name, grant, self.refused)

    def _change_mode(self, change: fx.ModeChanged) -> None:
        """Fences hear of it even where nobody subscribes to their topics any more."""
        log.info("group mode changed", group=change.group, mode=change.mode, epoch=change.epoch)
        grant = FenceGrant(
            group=change.group, epoch=change.epoch, mode=change.mode, client_ids=self._client_ids(change)
        )
        self._grant(self._broker_name, grant)
        if self._peers is not None:
            self._peers.change_mode(grant, self.refused)

    def _client_ids(self, change: fx.ModeChanged) -> dict[str, str]:
        view = self._coordinator.group(change.group) if change.mode == MODE_CLIENT else None
        return {member.member: member.client_id for member in view.members} if view is not None else {}

    def _known_of(self, group: str, epoch: int, members: list[str] | None) -> FenceReport:
        return replace(self._fences.report(group), members=members, members_epoch=epoch)

    def _members_of(self, group: str) -> tuple[int, list[str] | None]:
        view = self._coordinator.group(group)
        return (view.epoch, [member.member for member in view.members]) if view is not None else (0, None)

    def _is_elsewhere_too(self, group: str) -> bool:
        view = self._coordinator.group(group)
        return view is not None and any(queue.broker_name != self._broker_name for queue in view.owners)

    def _must_gather(self, group: str) -> bool:
        return self._peers is not None or self._fences.epoch(group) > 0

    def _now_ms(self) -> MonotonicMs:
        return self._clock.monotonic_ms()
