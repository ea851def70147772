"""The push consumer's core: one method per event; each returns the effects to perform.

    start ─► routes ─► heartbeats ─┬► rebalance ────┬► owned queues ─► pulls ─► deliveries ─► commits
                                   └► coordination ─┘

Time is an argument; `next_due_ms` is when `tick` has something to do.
Upstream: DefaultMQPushConsumerImpl.java, MQClientInstance.java, RebalanceService.java.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import LEAVE_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.effects import Effects
from libramq.client.consuming.fetching.fetching import FetchRequest
from libramq.client.consuming.handling.handler_result import Ending
from libramq.client.consuming.life import Phase
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.owned_queue import Delivery, OwnedQueue
from libramq.client.consuming.parts import Parts
from libramq.clock import MonotonicMs, Now
from libramq.errors import Fenced, LibraError, NotYetGranted
from libramq.fencing import Claim, Opened
from libramq.filter.subscription import Selector
from libramq.formats.route import TopicRouteData
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import GroupAssignment
from libramq.rpc.broker_calls import PullReply
from libramq.rpc.group_calls import Joined


class PushConsumerCore:
    """Makes the decisions; its shell performs them."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        monotonic_ms: Callable[[], MonotonicMs],
        failed: Callable[[str, Exception], None],
    ) -> None:
        """monotonic_ms: the clock that the times of events come from; handler threads read it, too.

        failed: called with failures that are bugs of ours.
        """
        parts = Parts.of(settings, subscriptions, monotonic_ms, failed)
        self._settings = settings
        self._failed = failed
        self._timers = parts.timers
        self._offsets = parts.offsets
        self.routes = parts.routes
        self._presence = parts.presence
        self._table = parts.table
        self._pulling = parts.own.pulling
        self._locking = parts.locking
        self._own = parts.own
        self._claims = parts.claims
        self._persistence = parts.persistence
        self._consumption = parts.consumption
        self._deadlines = parts.deadlines
        self._rebalancing = parts.rebalancing
        self._coordination = parts.coordination
        self._fetching = parts.fetching
        self._troubles = parts.troubles
        self._stop_due = parts.timers.new(self._stop_now)
        self._phase = Phase.NEW

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return when `tick` has to be called."""
        return self._timers.next_due_ms

    @property
    def phase(self) -> Phase:
        """Return the phase of its life."""
        return self._phase

    @property
    def begins_handlers(self) -> bool:
        """Return whether handlers may begin: the consumer is neither paused nor stopping."""
        return self._phase is Phase.RUNNING and not self._table.is_all_paused

    def owned(self) -> list[MessageQueue]:
        """Return our queues, sorted."""
        return self._table.ours()

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset that a program that fetches messages gets next; None while it is not settled."""
        return self._fetching.position(queue)

    def process_queues(self) -> list[OwnedQueue]:
        """Return the queues that are ours or being given up, with what is left of each."""
        return self._table.each()

    # Start and time.

    def start(self, now: Now) -> Effects:
        """Start by fetching the routes."""
        self._phase = Phase.RUNNING
        self._persistence.start(now.monotonic_ms)
        self._locking.renew(now.monotonic_ms)
        if not self._settings.fetches:
            self._deadlines.watch(now.monotonic_ms)
        return self._presence.start(now)

    def began(self, since_ms: Mapping[str, int]) -> None:
        """Note from when queues without an offset are read, by topic; 0, or without one: by Apache's rule."""
        self._own.since_ms = since_ms

    def tick(self, now_ms: MonotonicMs) -> Effects:
        """Perform everything that is due."""
        return self._settled(self._timers.run(now_ms), now_ms)

    # Routes and heartbeats.

    def routes_fetched(self, found: Mapping[str, TopicRouteData | None], now_ms: MonotonicMs) -> Effects:
        """Handle fetched routes; None for a topic that the name server does not know."""
        if self._phase is not Phase.RUNNING:
            return []
        if not self._presence.routes_fetched(found, now_ms):
            return []
        effects = self._presence.meet()
        # The last broker that did not may be gone: no answer will show it.
        if self._presence.all_named_offer:
            effects += self._coordination.look(now_ms)
        if self._presence.alive:
            effects += self._rebalance(now_ms)
        return self._settled(effects, now_ms)

    def heartbeat_answered(
        self, address: str, now_ms: MonotonicMs, *, ok: bool, offers: bool = False
    ) -> Effects:
        """Handle the result of a heartbeat. offers: the broker has coordinators for groups."""
        if self._phase is not Phase.RUNNING:
            return []
        if not self._presence.answered(address, now_ms, ok=ok, offers=offers):
            return []
        steps = self._coordination.look(now_ms) + self._pulling.reachable(address, now_ms)
        self._locking.confirm(address)
        return self._settled(steps + self._rebalance(now_ms), now_ms)

    @property
    def subscription_version(self) -> int:
        """Return how new a broker's idea of the subscriptions must be at least."""
        return self._presence.first_version

    def answered(self, about: str, outcome: object, *, keeps_out: bool = False) -> Effects:
        """Report to the user if a request was denied."""
        self._troubles.answered(about, outcome, keeps_out=keeps_out)
        return self._troubles.take()

    def connection_lost(self, address: str, now_ms: MonotonicMs) -> Effects:
        """Handle the end of a connection: the broker has dropped us, or has died."""
        if self._phase is Phase.RUNNING:
            self._presence.lost(address, now_ms)
        return self._locking.doubt(address, now_ms)

    # Rebalance.

    def members_changed(self, now_ms: MonotonicMs) -> Effects:
        """Handle a broker's notification that the group's members have changed (request code 40)."""
        return self._settled(self._rebalance(now_ms), now_ms)

    def consumer_list_fetched(
        self, address: str, topics: Sequence[str], client_ids: Sequence[str] | None, now_ms: MonotonicMs
    ) -> Effects:
        """Handle the group's member list; None if the broker did not answer."""
        if self._phase is not Phase.RUNNING or not self._coordination.allocates:
            self._rebalancing.abandon()
            return []
        effects: Effects = []
        if client_ids and self._settings.client_id not in client_ids:
            effects += self._presence.heartbeats([address])
        effects += self._rebalancing.list_fetched(address, topics, client_ids, now_ms)
        return self._settled(effects + self._rebalancing.end(now_ms), now_ms)

    def locks_answered(
        self, request: fx.LockQueues, outcome: Collection[MessageQueue] | LibraError, now_ms: MonotonicMs
    ) -> Effects:
        """Handle the answer to a lock request."""
        return self._settled(self._locking.answered(request, outcome, now_ms), now_ms)

    def _rebalance(self, now_ms: MonotonicMs) -> Effects:
        """Begin a round, unless a coordinator allocates, or the consumer stops."""
        if self._phase is not Phase.RUNNING:
            return []
        if self._coordination.allocates:
            return self._rebalancing.begin(now_ms)
        self._rebalancing.abandon()
        return []

    # Coordination.

    def group_found(self, request: fx.FindGroup, outcome: str | LibraError, now_ms: MonotonicMs) -> Effects:
        """Handle a broker's answer to where the coordinator of our group is."""
        return self._settled(self._coordination.found(request, outcome, now_ms), now_ms)

    def group_joined(
        self, request: fx.JoinGroup, outcome: Joined | LibraError, now_ms: MonotonicMs
    ) -> Effects:
        """Handle the coordinator's answer to a join."""
        return self._settled(self._coordination.joined(request, outcome, now_ms), now_ms)

    def group_polled(
        self, request: fx.PollGroup, outcome: GroupAssignment | LibraError, now_ms: MonotonicMs
    ) -> Effects:
        """Handle the coordinator's answer to a poll."""
        return self._settled(self._coordination.polled(request, outcome, now_ms), now_ms)

    def group_left(self) -> Effects:
        """Handle the end of leaving: the coordinator has answered or cannot be reached."""
        return self._unregister() if self._phase is Phase.LEAVING else []

    def opened(self, request: fx.OpenQueue, outcome: Opened | LibraError, now_ms: MonotonicMs) -> Effects:
        """Handle the answer to an opening."""
        return self._settled(self._claims.opened(request, outcome, now_ms), now_ms)

    # Queues and messages.

    def committed_offset_answered(
        self, queue: MessageQueue, generation: int, outcome: int | LibraError | None, now_ms: MonotonicMs
    ) -> Effects:
        """Handle the committed offset of a queue (None: nothing is committed)."""
        return self._happened(queue, generation, ev.OffsetAnswered(outcome), now_ms)

    def start_offset_answered(
        self, queue: MessageQueue, generation: int, outcome: int | LibraError, now_ms: MonotonicMs
    ) -> Effects:
        """Handle the offset of a queue's end, or of a time."""
        return self._happened(queue, generation, ev.StartAnswered(outcome), now_ms)

    def pulled(
        self,
        queue: MessageQueue,
        generation: int,
        outcome: PullReply | LibraError,
        messages: Sequence[MessageExt],
        now_ms: MonotonicMs,
        *,
        claim: Claim | None = None,
        number: int | None = None,
    ) -> Effects:
        """Handle the result of a pull. claim: the claim under which it was sent."""
        if self._pulling.is_late(queue, generation, number):
            return []
        if claim is not None and isinstance(outcome, Fenced | NotYetGranted):
            return self._happened(queue, generation, ev.PullRefused(claim, outcome), now_ms)
        return self._happened(queue, generation, ev.Pulled(outcome, messages), now_ms)

    def offsets_set(self, topic: str, offsets: Mapping[MessageQueue, int], now_ms: MonotonicMs) -> Effects:
        """Handle an operator's reset of the group's offsets (request code 220)."""
        steps: Effects = []
        for queue, offset in offsets.items():
            if queue.topic == topic:
                steps += self._own.handle_queue(queue, ev.OffsetSet(offset), now_ms)
        return self._settled(steps, now_ms)

    def handled(self, results: Iterable[tuple[Delivery, Ending]], now_ms: MonotonicMs) -> Effects:
        """Handle the results of handlers."""
        return self._settled(self._deadlines.handled(results, now_ms), now_ms)

    def fetch(self, request: FetchRequest, now_ms: MonotonicMs) -> Effects:
        """Handle a request of a program that fetches messages itself; raises LocalProtocolError."""
        return self._settled(self._fetching.handle(request, now_ms), now_ms)

    def assigned_hook_done(self, queues: Iterable[MessageQueue], now_ms: MonotonicMs) -> Effects:
        """Read queues for which the listener has returned."""
        steps: Effects = []
        for queue in queues:
            self._table.hook_ended(queue)
            steps += self._own.handle_queue(queue, ev.Resumed(), now_ms)
        return self._settled(steps, now_ms)

    def revoke_hook_done(self, queues: Iterable[MessageQueue], now_ms: MonotonicMs) -> Effects:
        """Note that the listener has finished with revoked queues."""
        steps: Effects = []
        for queue in queues:
            steps += self._own.handle_queue(queue, ev.ListenerDone(), now_ms)
        return self._settled(steps, now_ms)

    def pause(self, queues: Iterable[MessageQueue] | None, now_ms: MonotonicMs) -> Effects:
        """Start no more handlers and pulls for queues (None: for any); they stay ours."""
        self._table.pause(queues)
        return self._settled(self._own.handle_each(ev.Paused(), now_ms), now_ms)

    def resume(self, queues: Iterable[MessageQueue] | None, now_ms: MonotonicMs) -> Effects:
        """Continue queues (None: all)."""
        self._table.resume(queues)
        return self._settled(self._own.handle_each(ev.Resumed(), now_ms), now_ms)

    def sent_back(self, sent: fx.SendBack, now_ms: MonotonicMs, *, ok: bool) -> Effects:
        """Handle the result of a send-back."""
        return self._settled(self._consumption.sent_back(sent, now_ms, ok=ok), now_ms)

    def copy_sent(self, sent: fx.SendCopy, now_ms: MonotonicMs, *, ok: bool) -> Effects:
        """Handle the result of sending a copy to the retry topic."""
        return self._settled(self._consumption.copy_sent(sent, now_ms, ok=ok), now_ms)

    def committed(self, commit: fx.CommitOffset, outcome: LibraError | None, now_ms: MonotonicMs) -> Effects:
        """Handle the result of a commit."""
        self._fetching.commit_answered(commit, outcome)
        return self._settled(self._own.committed(commit, outcome, now_ms), now_ms)

    # Stop.

    def stop(self, now_ms: MonotonicMs, *, timeout_ms: int) -> Effects:
        """Let running handlers finish, commit, unregister; takes little longer than the timeout."""
        if self._phase is Phase.NEW:
            self._phase = Phase.STOPPED
            return [fx.Stopped()]
        if self._phase is not Phase.RUNNING:
            return []
        self._phase = Phase.DRAINING
        self._own.closing = True
        self._timers.clear()
        self._stop_due.at(now_ms + timeout_ms)
        self._coordination.rearm(now_ms)
        self._coordination.begin_leaving()
        return self._settled(self._own.handle_each(ev.Revoked(timeout_ms), now_ms), now_ms)

    def unregistered(self) -> Effects:
        """Handle the end of unregistering: the brokers have answered or cannot be reached."""
        self._phase = Phase.STOPPED
        self._timers.clear()
        return [fx.Stopped()]

    def _stop_now(self, now_ms: MonotonicMs) -> Effects:
        if self._phase is not Phase.DRAINING:
            return []
        steps = self._own.handle_each(ev.Revoked(drain_ms=0), now_ms)
        if len(self._table):
            self._stop_due.at(now_ms + LEAVE_TIMEOUT_MS)
        return steps

    def _unregister(self) -> Effects:
        return [fx.Unregister(tuple(sorted(self._presence.alive)))]

    # What follows from an event.

    def _happened(
        self, queue: MessageQueue, generation: int, event: ev.Event, now_ms: MonotonicMs
    ) -> Effects:
        return self._settled(self._own.handle_same(queue, generation, event, now_ms), now_ms)

    def _settled(self, effects: Effects, now_ms: MonotonicMs) -> Effects:
        """Add what follows from an event. Each part sees what those before it changed."""
        try:
            if self._own.locks_wanted or self._locking.to_give_back:
                effects += self._locking.requests(now_ms)
            if self._fetching.commits.waiting:
                effects += self._fetching.commits.settle()
            if self._phase is Phase.DRAINING and not len(self._table):
                self._phase = Phase.LEAVING
                effects += self._coordination.leave() or self._unregister()
            elif self._phase in (Phase.RUNNING, Phase.DRAINING):
                effects += self._coordination.requests(now_ms)
            if self._troubles.reports:
                effects += self._troubles.take()
            if self._persistence.rests and self._phase is Phase.RUNNING:
                self._persistence.settle(now_ms)
        except Exception as error:  # What was decided before it is done all the same.
            self._failed("what follows from an event could not be done", error)
        return fx.merged(effects) if len(effects) > 1 else effects
