"""The network side of a consumer that owns queues: the effects that only its core has.

Upstream: impl/MQClientInstance.java, MQClientAPIImpl.java, PullMessageService.java.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar, Unpack, get_args, get_origin

from libramq.client.beginning import Begun, GroupBeginning, QueuesAtBroker, Steps
from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.local_offset_store import LocalOffsetStore
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.fetching.fetching import FetchRequest
from libramq.client.consuming.member_network import MemberNetwork, Seams, log_failure
from libramq.client.consuming.push_consumer_core import PushConsumerCore
from libramq.client.consuming.work import WorkInHand
from libramq.client.routing.publish_info import subscribe_queues
from libramq.clock import MonotonicMs
from libramq.errors import ConfigError, LibraError, NameServerUnavailable, RouteNotFound
from libramq.filter.subscription import Selector
from libramq.formats.route import TopicRouteData
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.rpc.call import Call
from libramq.runtime.seams import Timer

log = get_logger(__name__)
T = TypeVar("T")

#: Ours: a member that is restarted waits for the one before it to stop (STOP_TIMEOUT_MS), and how often it
#: looks.
OWNER_WAIT_MS: Final = 10_000
OWNER_LOOK_MS: Final = 100


class ConsumerNetwork(MemberNetwork):
    """The membership of a consumer that owns queues."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        *,
        stored_offsets: LocalOffsetStore | None = None,
        **seams: Unpack[Seams],
    ) -> None:
        clock, run, failed = seams["clock"], seams["run"], seams.get("failed", log_failure)
        self.core = core = PushConsumerCore(settings, subscriptions, clock, failed)
        super().__init__(settings, subscriptions, core, **seams)
        self._local_offsets = stored_offsets
        self._owner_timer: Timer | None = None
        self._performers |= {
            fx.Assigned: run.notify,
            fx.Revoked: run.notify,
            fx.Lost: run.notify,
            fx.CommitsEnded: _end_commits,
            fx.ReadOffset: self._read_offset,
            fx.StoreOffsets: self._store_offsets,
        }
        kinds = {get_origin(each) or each for each in get_args(fx.Effect)}
        assert self._performers.keys() == kinds, "each effect has a performer"

    def start(self, started: Callable[[LibraError | None], None]) -> None:
        """Fetch the routes and start; after NameServerUnavailable everything is closed.

        A broadcasting member first waits until its file has no other owner.
        """
        if self._local_offsets is None:
            super().start(started)
        else:
            self._start_as_owner(self._local_offsets, self._clock.monotonic_ms() + OWNER_WAIT_MS, started)

    def _start_as_owner(
        self, store: LocalOffsetStore, until_ms: MonotonicMs, started: Callable[[LibraError | None], None]
    ) -> None:
        if not store.lock():
            if self._clock.monotonic_ms() < until_ms:
                look_again = partial(self._start_as_owner, store, until_ms, started)
                self._owner_timer = self._timers.after(OWNER_LOOK_MS, look_again)
                return
            started(
                ConfigError(
                    f"another member of group {self._settings.group} on this machine keeps its offsets in "
                    f"{store.path}; give each member an instance_name of its own"
                )
            )
            return
        try:
            store.load()
        except LibraError as error:
            started(error)
            return
        super().start(started)

    def _steps_to_begin(
        self, beginning: GroupBeginning, places: Sequence[QueuesAtBroker], wall_ms: int
    ) -> Steps:
        store = self._local_offsets
        if store is None:
            return super()._steps_to_begin(beginning, places, wall_ms)
        return beginning.begin_locally(
            self._subscriptions, places, wall_ms, read=store.read, write=store.write
        )

    def _began(self, begun: Begun) -> None:
        self.core.began(begun.since_ms)

    def _close(self) -> None:
        super()._close()
        if self._owner_timer is not None:
            self._owner_timer.cancel()
        if self._local_offsets is not None:
            self._local_offsets.release()

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are this member's, sorted."""
        return self.core.owned()

    def work(self) -> WorkInHand:
        """Return what the consumer has in hand."""
        return WorkInHand.of_queues(self.core.process_queues())

    # Events.

    def hook_done(self, change: fx.QueueChange) -> None:
        """Note that the listener has finished with queues."""
        if not self._is_running:
            return
        now_ms = self._clock.monotonic_ms()
        if isinstance(change, fx.Revoked):
            self._perform(self.core.revoke_hook_done(change.queues, now_ms))
        elif isinstance(change, fx.Assigned):
            self._perform(self.core.assigned_hook_done(change.queues, now_ms))

    def pause(self, queues: Sequence[MessageQueue] | None) -> None:
        """Start no more handlers for queues."""
        self._perform(self.core.pause(queues, self._clock.monotonic_ms()))

    def resume(self, queues: Sequence[MessageQueue] | None) -> None:
        """Continue queues."""
        self._perform(self.core.resume(queues, self._clock.monotonic_ms()))

    # Requests of a program that fetches messages itself.

    def fetch(self, request: FetchRequest) -> None:
        """Seek, commit or assign; raises LocalProtocolError for a queue that is not ours."""
        self._perform(self.core.fetching.handle(request, self._clock.monotonic_ms()))

    def look_up(self, topics: Sequence[str], known: Callable[[LibraError | None], None]) -> None:
        """Fetch the routes of topics; RouteNotFound if one has none."""

        def found(
            routes: Mapping[str, TopicRouteData | None], unavailable: NameServerUnavailable | None
        ) -> None:
            if unavailable is None and self._is_running:
                self._perform(self.core.routes_fetched(routes, self._clock.monotonic_ms()))
            missing = [topic for topic in topics if self.core.routes.published.get(topic) is None]
            if missing and unavailable is None:
                self._name_servers.route(missing[0], named)
            else:
                known(unavailable)

        def named(outcome: TopicRouteData | LibraError) -> None:
            """Report a missing topic, with the nearest name there is."""
            appeared = RouteNotFound("a topic appeared just now, or has no usable route; try again")
            known(outcome if isinstance(outcome, LibraError) else appeared)

        self._name_servers.routes(topics, found)

    def queues_of(self, topic: str, answered: Callable[[Sequence[MessageQueue] | LibraError], None]) -> None:
        """Fetch the queues of a topic, whether it is subscribed or not."""

        def routed(route: TopicRouteData | LibraError) -> None:
            if isinstance(route, TopicRouteData) and route.lb_absent_brokers:
                log.warning(
                    "brokers that had a topic are away, and their queues are not listed",
                    topic=topic,
                    brokers=route.lb_absent_brokers,
                )
            try:
                answered(route if isinstance(route, LibraError) else subscribe_queues(topic, route))
            except LibraError as error:
                answered(error)

        self._name_servers.route(topic, routed)

    def ask_master(
        self, queue: MessageQueue, call: Call[T], answered: Callable[[T | LibraError], None]
    ) -> None:
        """Make a request about a queue to the broker that stores it."""
        address = self.core.routes.master(queue.broker_name)
        if address is None:
            answered(RouteNotFound(f"no master of broker {queue.broker_name} is known; its queue is {queue}"))
            return

        def passed_on(outcome: T | LibraError, _: MonotonicMs) -> fx.Effects:
            answered(outcome)
            return []

        self.ask(fx.Ask(address, call, passed_on))

    # Effects.

    def _read_offset(self, effect: fx.ReadOffset) -> None:
        stored = self._stored_offsets().read(effect.queue)
        self._perform(effect.done(stored, self._clock.monotonic_ms()))

    def _store_offsets(self, effect: fx.StoreOffsets) -> None:
        self._stored_offsets().write(effect.offsets)

    def _stored_offsets(self) -> LocalOffsetStore:
        assert self._local_offsets is not None, "a broadcasting consumer has a local offset store"
        return self._local_offsets


def _end_commits(effect: fx.CommitsEnded) -> None:
    effect.ended(effect.error)
