"""The push consumer's core: one method an event, each returns what is to be done about it.

    start ─► routes ─► heartbeats ─► rebalance ─► owned queues ─► pulls ─► deliveries ─► offsets ─► commits

Time comes in as an argument; `next_due_ms` says when `tick` has something to do.
Upstream: DefaultMQPushConsumerImpl.java, MQClientInstance.java, RebalanceService.java.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from libramq.client.core import due
from libramq.client.core import effects as fx
from libramq.client.core.broker_contacts import BrokerContacts
from libramq.client.core.consumer_settings import ConsumerSettings
from libramq.client.core.consumption import Consumption, Outcome
from libramq.client.core.delivering import Delivering
from libramq.client.core.offset_store import OffsetStore
from libramq.client.core.orderly_consumption import OrderlyConsumption
from libramq.client.core.owned_queues import OwnedQueues
from libramq.client.core.process_queue import Delivery, QueueState
from libramq.client.core.pulling import Pulling
from libramq.client.core.queue_locking import QueueLocking
from libramq.client.core.queue_table import QueueTable
from libramq.client.core.rebalancing import Rebalancing
from libramq.client.core.route_table import RouteTable
from libramq.client.core.subscription import heartbeat_data, with_retry_topic
from libramq.client.core.timers import Timers
from libramq.errors import LibraError
from libramq.filter.tag import TagFilter
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.remoting.body.route import TopicRouteData
from libramq.rpc.broker_calls import PullReply

log = get_logger(__name__)

#: Ours: a topic without route is asked for so soon, then half as often each time.
ROUTE_MISSING_MS: Final = 1_000
#: ClientConfig.persistConsumerOffsetInterval: so often even unchanged offsets are committed, in case
#: the last owner's commit came after our first.
PERSIST_ALL_MS: Final = 5_000
#: Ours: how long commits and goodbyes may take after the time to drain.
FAREWELL_MS: Final = 1_000


class Phase(Enum):
    """The life of a consumer."""

    NEW = "new"
    RUNNING = "running"
    DRAINING = "draining"
    LEAVING = "leaving"
    STOPPED = "stopped"


class PushConsumerCore:
    """Decides; its shell does."""

    def __init__(self, settings: ConsumerSettings, subscriptions: Mapping[str, TagFilter]) -> None:
        self._settings = settings
        self._subscriptions = (
            dict(subscriptions) if settings.broadcasting else with_retry_topic(settings.group, subscriptions)
        )
        self._timers: Timers[due.Due] = Timers()
        self._offsets = OffsetStore()
        self.routes = RouteTable()
        self._contacts = BrokerContacts(self.routes, self._timers)
        self._table = table = QueueTable()
        routes, offsets, timers = self.routes, self._offsets, self._timers
        self._delivering = Delivering(settings)
        self._pulling = Pulling(
            settings, self._subscriptions, routes, offsets, timers, table, self._delivering
        )
        self._locking = QueueLocking(settings, routes, timers, table)
        self._owned = OwnedQueues(settings, routes, offsets, timers, table, self._pulling, self._locking)
        self._consumption = (OrderlyConsumption if settings.orderly else Consumption)(
            settings, routes, offsets, timers, table, self._delivering, self._owned, self._pulling
        )
        self._rebalancing = Rebalancing(
            settings, self._subscriptions, routes, self._contacts, timers, table, self._owned
        )
        self._phase = Phase.NEW
        self._wall_minus_monotonic_ms = 0
        self._version = 0
        self._route_missing_ms = ROUTE_MISSING_MS
        self._persist_all_due_ms = 0
        self._commits_awaited = 0

    @property
    def next_due_ms(self) -> int | None:
        """When `tick` is to be called."""
        return self._timers.next_ms

    @property
    def phase(self) -> Phase:
        """How far its life is."""
        return self._phase

    def owned(self) -> list[MessageQueue]:
        """The queues that are ours, sorted."""
        return sorted(queue for queue in self._table.all() if self._is_ours(queue))

    def _is_ours(self, queue: MessageQueue) -> bool:
        owned = self._table.get(queue)
        return owned is not None and not owned.dropped and owned.state is not QueueState.LOCKING

    def lag_of(self, queue: MessageQueue) -> int:
        """How many messages of a queue were pulled and are not done with."""
        owned = self._table.get(queue)
        return 0 if owned is None else owned.count

    # Starting and time

    def start(self, now_ms: int, wall_ms: int) -> list[fx.Effect]:
        """Begin with the routes."""
        self._phase = Phase.RUNNING
        self._wall_minus_monotonic_ms = wall_ms - now_ms
        self._version = wall_ms
        self._timers.at(now_ms + self._settings.heartbeat_ms, due.HeartbeatDue())
        self._timers.at(now_ms + self._settings.persist_ms, due.PersistDue())
        self._persist_all_due_ms = now_ms + PERSIST_ALL_MS
        self._locking.renew(now_ms)
        return [fx.FetchRoutes(tuple(self._subscriptions))]

    def tick(self, now_ms: int) -> list[fx.Effect]:
        """Do what is due."""
        found: list[fx.Effect] = []
        while (item := self._timers.take_due(now_ms)) is not None:
            found += self._do(item, now_ms)
        return self._settled(found, now_ms)

    def _do(self, item: due.Due, now_ms: int) -> list[fx.Effect]:
        match item:
            case due.PullDue(queue, generation):
                return self._pulling.due(queue, generation, now_ms)
            case due.PersistDue():
                return self._persist(now_ms)
            case due.LoadDue(queue, generation):
                return self._owned.load(queue, generation)
            case due.DrainOver(queue, generation):
                return self._owned.drain_over(queue, generation, now_ms)
            case due.RedeliverDue(delivery):
                return self._consumption.redeliver(delivery)
            case due.RebalanceDue():
                return self._rebalancing.due(now_ms) + self._tell_of_change(now_ms)
            case due.LocksDue():
                self._locking.renew(now_ms)
                return []
            case due.LockDue(queue, generation):
                self._locking.due(queue, generation)
                return []
            case due.SuspendOver(queue, generation):
                assert isinstance(self._consumption, OrderlyConsumption), "nothing else suspends queues"
                return self._consumption.suspend_over(queue, generation)
            case due.RevokeOver(queue, generation):
                return self._owned.revoke_over(queue, generation, now_ms)
            case due.RoutesDue():
                return [fx.FetchRoutes(tuple(self._subscriptions))]
            case due.HeartbeatDue():
                self._timers.at(now_ms + self._settings.heartbeat_ms, due.HeartbeatDue())
                return self._heartbeats(self._contacts.regular())
            case due.ReconnectDue(address):
                return self._heartbeats([address]) if self._contacts.reconnect(address) else []
            case due.StopDue():
                return self._stop_now(now_ms)

    # Routes and heartbeats

    def routes_fetched(self, found: Mapping[str, TopicRouteData | None], now_ms: int) -> list[fx.Effect]:
        """A name server answered; None for a topic that it does not know."""
        if self._phase is not Phase.RUNNING:
            return []
        changed = [topic for topic, route in found.items() if route and self._update(topic, route)]
        missing = [topic for topic in self._subscriptions if self.routes.publish_info(topic) is None]
        if missing:
            delay_ms = min(self._route_missing_ms, self._settings.route_refresh_ms)
            self._route_missing_ms *= 2
        else:
            delay_ms = self._settings.route_refresh_ms
        self._timers.at(now_ms + delay_ms, due.RoutesDue())
        if not changed:
            return []
        effects = self._heartbeats(self._contacts.take_new())
        if self._contacts.alive:
            effects += self._rebalance(now_ms)
        return self._settled(effects, now_ms)

    def heartbeat_answered(self, address: str, now_ms: int, *, ok: bool) -> list[fx.Effect]:
        """A broker knows us now, or did not answer."""
        if self._phase is not Phase.RUNNING:
            return []
        if not self._contacts.answered(address, now_ms, ok=ok):
            return []
        self._locking.confirm(address)
        return self._settled(self._rebalance(now_ms), now_ms)

    def connection_lost(self, address: str, now_ms: int) -> list[fx.Effect]:
        """A connection ended: the broker has forgotten us, or is gone."""
        self._locking.doubt(address)
        if self._phase is Phase.RUNNING:
            self._contacts.lost(address, now_ms)
        return []

    def _update(self, topic: str, route: TopicRouteData) -> bool:
        try:
            return self.routes.update(topic, route)
        except LibraError as error:
            log.warning("route ignored", topic=topic, reason=str(error))
            return False

    def _heartbeats(self, addresses: Iterable[str]) -> list[fx.Effect]:
        data = heartbeat_data(self._settings, self._subscriptions, self._version)
        return [fx.SendHeartbeat(address, data) for address in sorted(addresses)]

    # Rebalance

    def members_changed(self, now_ms: int) -> list[fx.Effect]:
        """A broker says that members of our group came or went (request code 40)."""
        return self._settled(self._rebalance(now_ms), now_ms)

    def consumer_list_fetched(
        self, address: str, topics: Sequence[str], client_ids: Sequence[str] | None, now_ms: int
    ) -> list[fx.Effect]:
        """Who is in the group; None when the broker could not say."""
        if self._phase is not Phase.RUNNING:
            return []
        effects: list[fx.Effect] = []
        if client_ids and self._settings.client_id not in client_ids:
            effects += self._heartbeats([address])
        effects += self._rebalancing.list_fetched(address, topics, client_ids, now_ms)
        effects += self._tell_of_change(now_ms)
        effects += self._rebalancing.end(now_ms)
        return self._settled(effects, now_ms)

    def locks_answered(
        self, request: fx.LockQueues, outcome: Collection[MessageQueue] | LibraError, now_ms: int
    ) -> list[fx.Effect]:
        """Which queues of a request are locked for us."""
        return self._settled(self._owned.locks_answered(request, outcome, now_ms), now_ms)

    def _rebalance(self, now_ms: int) -> list[fx.Effect]:
        if self._phase is not Phase.RUNNING:
            return []
        return self._rebalancing.begin(now_ms) + self._tell_of_change(now_ms)

    def _tell_of_change(self, now_ms: int) -> list[fx.Effect]:
        if not self._rebalancing.changed:
            return []
        self._rebalancing.changed = False
        # Brokers take a subscription for newer only when its version is higher.
        self._version = max(self._version + 1, now_ms + self._wall_minus_monotonic_ms)
        return self._heartbeats(self._contacts.alive)

    # Queues and messages

    def committed_offset_answered(
        self, queue: MessageQueue, generation: int, outcome: int | LibraError | None, now_ms: int
    ) -> list[fx.Effect]:
        """What is committed for a queue (None: nothing)."""
        return self._settled(
            self._owned.committed_offset_answered(queue, generation, outcome, now_ms), now_ms
        )

    def start_offset_answered(
        self, queue: MessageQueue, generation: int, outcome: int | LibraError, now_ms: int
    ) -> list[fx.Effect]:
        """Where a queue ends, or where a time is in it."""
        return self._settled(self._owned.start_offset_answered(queue, generation, outcome, now_ms), now_ms)

    def pulled(
        self,
        queue: MessageQueue,
        generation: int,
        outcome: PullReply | LibraError,
        messages: Sequence[MessageExt],
        now_ms: int,
    ) -> list[fx.Effect]:
        """What a pull brought."""
        return self._settled(self._owned.pulled(queue, generation, outcome, messages, now_ms), now_ms)

    def handled(self, results: Iterable[tuple[Delivery, Outcome]], now_ms: int) -> list[fx.Effect]:
        """Handlers have returned."""
        return self._settled(self._consumption.handled(results, now_ms), now_ms)

    def revoke_heard(self, queues: Iterable[MessageQueue], now_ms: int) -> list[fx.Effect]:
        """The listener has had its say about revoked queues."""
        return self._settled(self._owned.revoke_heard(queues, now_ms), now_ms)

    def pause(self, queues: Iterable[MessageQueue] | None) -> None:
        """Begin no more handlers and pulls of queues (None: of any); they stay ours."""
        self._table.pause(queues)

    def resume(self, queues: Iterable[MessageQueue] | None, now_ms: int) -> list[fx.Effect]:
        """Go on with queues (None: with all)."""
        effects: list[fx.Effect] = []
        for owned in self._table.resume(queues, now_ms):
            effects += self._pulling.go_on(owned, now_ms)
        return self._settled(effects, now_ms)

    def sent_back(self, delivery: Delivery, message: MessageExt, now_ms: int, *, ok: bool) -> list[fx.Effect]:
        """The broker took a message back, or did not."""
        return self._settled(self._consumption.sent_back(delivery, message, now_ms, ok=ok), now_ms)

    def copy_sent(self, delivery: Delivery, message: MessageExt, now_ms: int, *, ok: bool) -> list[fx.Effect]:
        """The retry topic took a copy, or did not."""
        return self._settled(self._consumption.copy_sent(delivery, message, now_ms, ok=ok), now_ms)

    def committed(self, queue: MessageQueue, offset: int, now_ms: int, *, ok: bool) -> list[fx.Effect]:
        """A commit was acknowledged, or was not."""
        self._commits_awaited -= 1
        if ok:
            self._offsets.persisted(queue, offset)
        return self._settled(self._owned.committed(queue, now_ms), now_ms)

    def _persist(self, now_ms: int) -> list[fx.Effect]:
        self._timers.at(now_ms + self._settings.persist_ms, due.PersistDue())
        all_of_them = now_ms >= self._persist_all_due_ms
        if all_of_them:
            self._persist_all_due_ms = now_ms + PERSIST_ALL_MS
        return self._owned.commit(self._table.all(), all_of_them=all_of_them)

    # Stopping

    def stop(self, now_ms: int, *, timeout_ms: int) -> list[fx.Effect]:
        """Let running handlers end, commit, say goodbye; at most about so long."""
        if self._phase is Phase.NEW:
            self._phase = Phase.STOPPED
            return [fx.Stopped()]
        if self._phase is not Phase.RUNNING:
            return []
        self._phase = Phase.DRAINING
        self._owned.closing = True
        self._timers.clear()
        self._timers.at(now_ms + timeout_ms, due.StopDue())
        effects: list[fx.Effect] = []
        for queue in self._table.all():
            effects += self._owned.give_up(queue, now_ms, drain_ms=timeout_ms)
        return self._settled(effects, now_ms)

    def unregistered(self) -> list[fx.Effect]:
        """The brokers know, or were asked in vain."""
        self._phase = Phase.STOPPED
        self._timers.clear()
        return [fx.Stopped()]

    def _stop_now(self, now_ms: int) -> list[fx.Effect]:
        if self._phase is not Phase.DRAINING:
            return []
        effects: list[fx.Effect] = []
        if len(self._table):
            for queue in self._table.all():
                effects += self._owned.give_up(queue, now_ms, drain_ms=0)
            self._timers.at(now_ms + FAREWELL_MS, due.StopDue())
            return effects
        self._commits_awaited = 0
        return effects

    def _settled(self, effects: list[fx.Effect], now_ms: int) -> list[fx.Effect]:
        """What follows from an event besides its own effects."""
        effects += self._locking.requests(now_ms)
        if self._pulling.strangers:
            effects += self._heartbeats(self._pulling.strangers)
            self._pulling.strangers.clear()
        if self._table.needs_rebalance:
            self._table.needs_rebalance = False
            if self._phase is Phase.RUNNING:
                self._rebalancing.soon(now_ms)
        self._commits_awaited += sum(isinstance(effect, fx.CommitOffset) for effect in effects)
        effects = fx.merged(effects)
        if self._phase is Phase.DRAINING and not len(self._table) and self._commits_awaited <= 0:
            self._phase = Phase.LEAVING
            effects.append(fx.Unregister(tuple(sorted(self._contacts.alive))))
        return effects
