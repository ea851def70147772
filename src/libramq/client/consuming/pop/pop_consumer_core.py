"""The core of a push consumer over POP: one method per event; each returns the effects to perform.

    start ─► routes ─┬► heartbeats
                     └► places ─► pops ─► deliveries ─► settling ─► room for pops

It owns no queues: any member of the group takes the next messages of any queue, and the broker hides what one
took from the others. Nothing is rebalanced and no offset committed. Time is an argument.
Upstream: DefaultMQPushConsumerImpl.popMessage, ConsumeMessagePopConcurrentlyService.java.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import LEAVE_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.handling.handler_result import Ending
from libramq.client.consuming.known_brokers import KnownBrokers
from libramq.client.consuming.life import Phase, Troubles
from libramq.client.consuming.pop.effect import Acknowledge, MakeDeadLetter, Pop, PopEffect, Postpone
from libramq.client.consuming.pop.held_message import HeldMessage, Outcome
from libramq.client.consuming.pop.holding import Holding
from libramq.client.consuming.pop.places import Places
from libramq.client.consuming.pop.settling import Settling
from libramq.client.consuming.queues.owned_queue import Delivery, OwnedQueue
from libramq.client.consuming.timers import Timers
from libramq.client.popping.popped import NOT_POPPED, note_change
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs, Now
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError, RequestCodeNotSupported
from libramq.filter.subscription import Selector, Sql
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.rpc.pop_calls import Changed

log = get_logger(__name__)

#: How a broker says that others may have a message, or that nobody will.
GONE: Final = NOT_POPPED | {ResponseCode.TOPIC_NOT_EXIST}


class PopConsumerCore:
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
        self._failed = failed
        self._subscriptions = subscriptions
        self._invisible_ms = settings.invisible_ms
        self.routes = RouteTable()
        self._timers = Timers(failed)
        self._stop_due = self._timers.new(self._stop_now)
        self.troubles = Troubles()
        self._known_brokers = KnownBrokers(settings, subscriptions, self.routes, self._timers, self.troubles)
        self._known_brokers.routes_changed = self._routes_changed
        self._known_brokers.met = self._met
        self._places = Places(settings, subscriptions, self.routes)
        self._settling = Settling(self.routes, self._places.release)
        self.holding = Holding(settings, self.routes, self._settling, self._places.release, monotonic_ms)
        self._pause_over_ms: MonotonicMs | None = None
        self._phase = Phase.NEW
        self._is_drained = False  # Handlers are not waited for any more.

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return when `tick` has to be called."""
        due_ms = (
            self._timers.next_due_ms,
            self._settling.next_due_ms,
            self.holding.next_due_ms,
            self._pause_over_ms,
        )
        return min((each for each in due_ms if each is not None), default=None)

    @property
    def begins_handlers(self) -> bool:
        """Return whether handlers may begin: the consumer is neither paused nor stopping."""
        return self._phase is Phase.RUNNING and not self.holding.is_paused

    # Start and time.

    def start(self, now: Now) -> list[PopEffect]:
        """Start by fetching the routes."""
        self._phase = Phase.RUNNING
        return _shared(self._known_brokers.start(now))

    def tick(self, now_ms: MonotonicMs) -> list[PopEffect]:
        """Perform everything that is due."""
        found: list[PopEffect] = self._timers.run(now_ms)
        try:
            postponed, abandoned = self.holding.check(now_ms)
            found += postponed
            if abandoned:
                found.append(fx.Abandon(tuple(abandoned)))
        except Exception as error:
            self._failed("the messages that are held could not be looked at", error)
        if again := self.holding.take_due(now_ms):
            found.append(fx.Deliver(again))
        return found

    # Routes and heartbeats.

    def _routes_changed(self, _: MonotonicMs) -> fx.Effects:
        self._places.routes_changed()
        return []

    def _met(self, address: str, now_ms: MonotonicMs) -> fx.Effects:
        self._places.reachable(address, now_ms)
        return []

    def connection_lost(self, address: str, now_ms: MonotonicMs) -> list[PopEffect]:
        """Handle the end of a connection: the broker has dropped us, or has died."""
        self._known_brokers.lost(address, now_ms)
        return []

    def pop_answered(self, topic: str, address: str, outcome: object) -> None:
        """Report to the user if a pop was denied, or is not known: brokers before 5.0 have no POP.

        The broker has none for any topic, and whether others have does not change that.
        """
        about = f"POP at {address}"
        if isinstance(outcome, RequestCodeNotSupported):
            self.troubles.begin(about, outcome)
        elif not isinstance(outcome, LibraError):
            self.troubles.over(about)
        self.troubles.answered(f"topic {topic}", outcome)

    def members_changed(self, now_ms: MonotonicMs) -> list[PopEffect]:
        """Handle a change of the group's members: it concerns nothing here."""
        return []

    def offsets_set(
        self, topic: str, offsets: Mapping[MessageQueue, int], now_ms: MonotonicMs
    ) -> list[PopEffect]:
        """Handle an operator's reset: the broker pops from there."""
        return []

    def process_queues(self) -> Sequence[OwnedQueue]:
        """Return its queues: none."""
        return []

    # Messages.

    def popped(
        self, pop: Pop, outcome: LibraError | int, messages: Sequence[MessageExt], now_ms: MonotonicMs
    ) -> list[PopEffect]:
        """Handle the answer to a pop. outcome: how long ago the broker popped the messages."""
        if isinstance(outcome, LibraError):
            self._places.failed(pop, now_ms)
            return []
        self._places.popped(pop, now_ms, found=bool(messages))
        popped_ms = now_ms - min(max(0, outcome), now_ms - pop.sent_ms)
        until_ms = popped_ms + self._invisible_ms
        wanted = []
        for message in messages:
            held = HeldMessage(message, pop.place, until_ms)
            self._places.hold(held)
            if self._is_wanted(pop.place.topic, message):
                wanted.append(held)
            else:  # Brokers compare hashes of tags only, and no other member would take it.
                self._settling.settle(held, Outcome.DONE, now_ms)
        deliveries = self.holding.arrived(wanted, popped_ms, now_ms)
        return [fx.Deliver(deliveries)] if deliveries else []

    def handled(self, results: Iterable[tuple[Delivery, Ending]], now_ms: MonotonicMs) -> list[PopEffect]:
        """Handle the results of handlers."""
        again = [
            delivery
            for result, ending in results
            for delivery in self.holding.handled(result, ending, now_ms)
        ]
        return [fx.Deliver(again)] if again else []

    def acknowledged(
        self, sent: Acknowledge, error: LibraError | None, now_ms: MonotonicMs
    ) -> list[PopEffect]:
        """Handle the answer to an acknowledgement."""
        self._settling.acknowledged(sent, error, now_ms)
        return []

    def postponed(
        self, sent: Postpone, outcome: Changed | LibraError, now_ms: MonotonicMs
    ) -> list[PopEffect]:
        """Handle the answer to a change of an invisible time."""
        held = sent.held
        error = outcome if isinstance(outcome, LibraError) else None
        if not isinstance(outcome, LibraError):
            note_change(held.message, outcome)
        if not sent.is_extension:
            self._settling.postponed(held, error, now_ms)
            return []
        if error is None:
            held.until_ms = sent.sent_ms + sent.invisible_ms
        elif isinstance(error, BrokerError):
            held.until_ms = now_ms
            held.is_gone = error.response_code in GONE
            log.warning("a message could not be kept from others any longer", reason=str(error))
        self._settling.extended(held)
        again = self.holding.take_lapsed(now_ms)
        return [fx.Deliver(again)] if again else []

    def dead_letter_made(
        self, sent: MakeDeadLetter, error: LibraError | None, now_ms: MonotonicMs
    ) -> list[PopEffect]:
        """Handle the answer about a dead letter."""
        self._settling.dead_letter_made(sent, error, now_ms)
        return []

    def pause(self, now_ms: MonotonicMs) -> list[PopEffect]:
        """Start no more handlers and pops."""
        self.holding.pause()
        return []

    def resume(self, now_ms: MonotonicMs) -> list[PopEffect]:
        """Continue."""
        kept = self.holding.resume()
        return [fx.Deliver(kept)] if kept else []

    # Stop.

    def stop(self, now_ms: MonotonicMs, *, timeout_ms: int) -> list[PopEffect]:
        """Let running handlers finish, settle, unregister; takes little longer than the timeout."""
        if self._phase is Phase.NEW:
            self._phase = Phase.STOPPED
            return [fx.Stopped()]
        if self._phase is not Phase.RUNNING:
            return []
        self._phase = Phase.DRAINING
        self._known_brokers.close()
        self._timers.clear()
        self._stop_due.at(now_ms + timeout_ms)
        self.holding.close()
        return []

    def unregistered(self) -> list[PopEffect]:
        """Handle the end of unregistering: the brokers have answered or cannot be reached."""
        self._phase = Phase.STOPPED
        return [fx.Stopped()]

    def _stop_now(self, now_ms: MonotonicMs) -> list[PopEffect]:
        if self._is_drained:
            return self._unregister()
        self._is_drained = True
        self._stop_due.at(now_ms + LEAVE_TIMEOUT_MS)
        return []

    def _unregister(self) -> list[PopEffect]:
        self._phase = Phase.LEAVING
        self._timers.clear()
        return [fx.Unregister(tuple(sorted(self._known_brokers.alive)))]

    def settled(self, effects: list[Any], now_ms: MonotonicMs) -> list[PopEffect]:
        """Add what follows from an event."""
        found: list[PopEffect] = effects
        if self._phase is Phase.DRAINING and not self._settling.count and self._is_idle:
            self.holding.give_back(now_ms)
        found += self._settling.requests(now_ms)
        if self._phase is Phase.DRAINING and not self._settling.count and self._is_idle:
            found += self._unregister()
        if self._phase is Phase.RUNNING and not self.holding.is_paused:
            found += self._places.pops(now_ms)
            self._pause_over_ms = self._places.next_due_ms(now_ms)
        if self.troubles.reports:
            found += _shared(self.troubles.take())
        return found

    @property
    def _is_idle(self) -> bool:
        """Return whether no handler is waited for."""
        return self._is_drained or not self.holding.runs

    def _is_wanted(self, topic: str, message: MessageExt) -> bool:
        selected = self._subscriptions[topic]
        return isinstance(selected, Sql) or not selected.tags or message.tags in selected.tags


def _shared(effects: fx.Effects) -> list[PopEffect]:
    """Return the effects of parts that consumers of queues have, too."""
    return cast("list[PopEffect]", effects)
