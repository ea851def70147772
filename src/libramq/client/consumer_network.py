"""The network side of a push consumer: performs what its core decides, on a thread and loop of its own.

    core ─► effects ─► requests ─► answers ─► core
                  └──► deliveries ─► handlers (other threads) ─► results, collected ─► core

Upstream: impl/MQClientInstance.java, MQClientAPIImpl.java, PullMessageService.java.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from libramq.client.consumer_requests import ConsumerRequests
from libramq.client.core import effects as fx
from libramq.client.core.consumer_settings import ConsumerSettings
from libramq.client.core.handler_result import Ending
from libramq.client.core.process_queue import Delivery
from libramq.client.core.push_consumer_core import FAREWELL_MS, PushConsumerCore
from libramq.client.local_offset_store import LocalOffsetStore
from libramq.client.member_requests import MemberRequests
from libramq.client.name_servers import NameServers
from libramq.clock import Clock, MonotonicMs, read_clock
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import LibraError, NameServerUnavailable, RemoteError, RouteNotFound
from libramq.filter.tag import TagFilter
from libramq.formats.document import decode_body
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ResetOffsetBody
from libramq.remoting.body.route import TopicRouteData
from libramq.remoting.command import Command, reply_to
from libramq.rpc import broker_calls as calls
from libramq.rpc.call import Call
from libramq.transport.access import OPEN, Access
from libramq.transport.asyncio_remotes import AsyncioRemotes

log = get_logger(__name__)
T = TypeVar("T")

#: Ours: after the time to drain, for the listener, for last commits, for goodbyes (the coordinator's, the
#: brokers'), and one to spare.
STOP_ROUNDS: Final = 5


class Run(Protocol):
    """What the network hands its deliveries and changes to."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Have handlers run."""

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Let others run in the place of handlers that do not end."""

    def tell(self, change: fx.Assigned | fx.Revoked | fx.Lost) -> None:
        """Have the hooks called."""

    def begin_trouble(self, trouble: fx.Trouble) -> None:
        """Tell the user what keeps messages from us."""

    def end_trouble(self, recovered: fx.Recovered) -> None:
        """Nothing keeps us out any more."""


class ConsumerNetwork:
    """Everything here happens on one loop, but for `report`."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, TagFilter],
        *,
        name_server_addresses: Sequence[str],
        clock: Clock,
        randomness: random.Random,
        run: Run,
        stored_offsets: LocalOffsetStore | None = None,
        access: Access = OPEN,
    ) -> None:
        self._settings = settings
        self._core = PushConsumerCore(settings, subscriptions, clock.monotonic_ms)
        self._name_server_addresses = name_server_addresses
        self._clock = clock
        self._random = randomness
        self._local_offsets = stored_offsets
        self._access = access
        self._results: deque[tuple[Delivery, Ending]] = deque()
        self._results_announced = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = MonotonicMs(0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False
        self._perform_one: dict[type[Any], Callable[[Any], None]] = {
            fx.FetchRoutes: self._fetch_routes,
            fx.Deliver: lambda effect: run.deliver(effect.deliveries),
            fx.GiveUp: lambda effect: run.give_up(effect.deliveries),
            fx.ReadOffset: self._read_offset,
            fx.StoreOffsets: lambda effect: self._stored_offsets().write(effect.offsets),
            fx.Assigned: run.tell,
            fx.Revoked: run.tell,
            fx.Lost: run.tell,
            fx.Trouble: run.begin_trouble,
            fx.Recovered: run.end_trouble,
            fx.Unregister: self._unregister,
            fx.Stopped: lambda _: self._stopped.set(),
        }
        requests = ConsumerRequests(settings, self._core, clock, self._ask)
        member_requests = MemberRequests(settings.group, self._core, self._ask)
        self._perform_one |= requests.by_effect() | member_requests.by_effect()

    @property
    def core(self) -> PushConsumerCore:
        """The core, for a look at it."""
        return self._core

    async def start(self) -> None:
        """Find the routes and begin; raises NameServerUnavailable."""
        if self._local_offsets is not None:
            self._local_offsets.load()
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._remotes = AsyncioRemotes(
            self._clock.monotonic_ms, asked=self._asked, lost=self._lost, access=self._access
        )
        self._name_servers = NameServers(self._remotes, self._name_server_addresses, self._random)
        try:
            for effect in self._core.start(read_clock(self._clock)):
                assert isinstance(effect, fx.FetchRoutes), "a consumer starts with its routes"
                found = await self._routes_of(effect.topics, must_answer=True)
        except BaseException:
            await self._remotes.aclose()
            raise
        self._running = True
        self._perform(self._core.routes_fetched(found, self._clock.monotonic_ms()))

    async def stop(self, timeout_ms: int) -> None:
        """Let handlers end, commit, say goodbye."""
        if not self._running:
            return
        self._perform(self._core.stop(self._clock.monotonic_ms(), timeout_ms=timeout_ms))
        try:
            async with asyncio.timeout((timeout_ms + STOP_ROUNDS * FAREWELL_MS) / 1000):
                await self._stopped.wait()
        except TimeoutError:
            log.warning("the consumer could not say goodbye in time", group=self._settings.group)
        finally:
            self._running = False
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._remotes.aclose()

    def report(self, delivery: Delivery, ending: Ending) -> None:
        """A handler has ended. Called from any thread; results are taken in together."""
        self._results.append((delivery, ending))
        if not self._results_announced:
            self._results_announced = True
            try:
                self._loop.call_soon_threadsafe(self._take_results)
            except RuntimeError:  # The loop is closed: the consumer has stopped without this handler.
                log.warning("a handler ended after its consumer", messages=len(delivery.messages))

    def revoke_heard(self, queues: Sequence[MessageQueue]) -> None:
        """The listener is done with revoked queues. Called from any thread."""

        def heard() -> None:
            if self._running:
                self._perform(self._core.revoke_heard(queues, self._clock.monotonic_ms()))

        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            self._loop.call_soon_threadsafe(heard)

    def pause(self, queues: Sequence[MessageQueue] | None) -> None:
        """Begin nothing more of queues."""
        self._core.pause(queues)

    def resume(self, queues: Sequence[MessageQueue] | None) -> None:
        """Go on with queues."""
        self._perform(self._core.resume(queues, self._clock.monotonic_ms()))

    def _take_results(self) -> None:
        # In this order: a result that comes after the last one was taken announces itself again.
        self._results_announced = False
        results = []
        while self._results:
            results.append(self._results.popleft())
        self._perform(self._core.handled(results, self._clock.monotonic_ms()))

    def _perform(self, effects: Sequence[fx.Effect]) -> None:
        for effect in effects:
            try:
                self._perform_one[type(effect)](effect)
            except Exception:  # One effect that fails must not keep the others from happening.
                log.exception("an effect failed", effect=type(effect).__name__)
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the core's next due time."""
        due_ms = self._core.next_due_ms
        if due_ms is None or not self._running:
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        delay_ms = max(0, due_ms - self._clock.monotonic_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._running:
            self._perform(self._core.tick(self._clock.monotonic_ms()))

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ask(
        self,
        address: str,
        call: Call[T],
        answered: Callable[[T | LibraError, MonotonicMs], Any],
        timeout_ms: int,
    ) -> None:
        """Make a request; its answer, or what went wrong, goes to the core with the time."""

        def done(outcome: Command | RemoteError) -> None:
            if not self._running:
                return
            result: T | LibraError
            if isinstance(outcome, RemoteError):
                result = outcome
            else:
                try:
                    result = call.result(outcome, where=f"broker {address}")
                except LibraError as error:
                    result = error
                except (KeyError, ValueError) as error:
                    result = RemoteError(f"the answer of {address} cannot be read: {error!r}")
            try:
                self._perform(answered(result, self._clock.monotonic_ms()))
            except Exception:  # What goes wrong with one answer must not end the connection of all.
                log.exception("an answer could not be worked off", broker=address)

        self._remotes.send(address, call.command(), done, timeout_ms=timeout_ms)

    def _asked(self, address: str, request: Command, answer: Callable[[Command], None]) -> None:
        """A broker asks us something."""
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            if self._running and request.ext.get("consumerGroup") == self._settings.group:
                self._perform(self._core.members_changed(self._clock.monotonic_ms()))
        elif request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self._offsets_set(request)
        elif not request.is_oneway:
            remark = f"request type {request.code} is not supported by this client"
            answer(reply_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))

    def _offsets_set(self, request: Command) -> None:
        if self._running and request.ext.get("group") == self._settings.group:
            try:
                offsets = decode_body(request.body, ResetOffsetBody).offset_table
            except LibraError as error:
                log.warning("offsets that an operator set cannot be read", reason=str(error))
                return
            topic, now_ms = request.ext.get("topic", ""), self._clock.monotonic_ms()
            self._perform(self._core.offsets_set(topic, offsets, now_ms))

    def _lost(self, address: str) -> None:
        if self._running:
            self._perform(self._core.connection_lost(address, self._clock.monotonic_ms()))

    # Effects

    def _fetch_routes(self, effect: fx.FetchRoutes) -> None:
        async def fetch() -> None:
            found: dict[str, TopicRouteData | None] = {}
            try:
                found = await self._routes_of(effect.topics, must_answer=False)
            except Exception:  # The core looks again only when this look has ended.
                log.exception("routes not refreshed")
            self._perform(self._core.routes_fetched(found, self._clock.monotonic_ms()))

        self._spawn(fetch())

    async def _routes_of(
        self, topics: Sequence[str], *, must_answer: bool
    ) -> dict[str, TopicRouteData | None]:
        found: dict[str, TopicRouteData | None] = dict.fromkeys(topics)
        for topic in topics:
            try:
                found[topic] = await self._name_servers.route(topic)
            except RouteNotFound as error:
                log.debug("no route", topic=topic, reason=str(error))
            except NameServerUnavailable as error:
                if must_answer:
                    raise
                log.warning("routes not refreshed", reason=str(error))
                break
            except LibraError as error:
                log.warning("route not refreshed", topic=topic, reason=str(error))
        return found

    def _read_offset(self, effect: fx.ReadOffset) -> None:
        offset = self._stored_offsets().read(effect.queue)
        now_ms = self._clock.monotonic_ms()
        self._perform(self._core.committed_offset_answered(effect.queue, effect.generation, offset, now_ms))

    def _stored_offsets(self) -> LocalOffsetStore:
        assert self._local_offsets is not None, "who broadcasts has a local offset store"
        return self._local_offsets

    def _unregister(self, effect: fx.Unregister) -> None:
        async def unregister() -> None:
            call = calls.unregister_client(
                self._settings.client_id, producer_group=None, consumer_group=self._settings.group
            )
            await asyncio.gather(
                *(
                    self._remotes.call(address, call.command(), timeout_ms=FAREWELL_MS)
                    for address in effect.addresses
                ),
                return_exceptions=True,
            )
            self._perform(self._core.unregistered())

        self._spawn(unregister())
