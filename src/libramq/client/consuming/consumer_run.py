"""One run of a consumer: its stages from start to end, its share of the network thread, and its end when the
loop that it was started on is closed.

    STARTING ─► RUNNING ─► STOPPING ─► ENDED
                                      └──► ENDED: the loop that it was started on was closed

A run uses two loops: the user's, where handlers and hooks run, and the network's, which the consumers of the
process share. `ended` is resolved when everything is closed, with the reason unless that was `stop`.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from libramq.client.awaiting import answer_of, to_the_end
from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_network import ConsumerNetwork
from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome, NotDone
from libramq.client.consuming.handling.handlers import Receiver
from libramq.client.consuming.handling.queue_listener import Hooks, QueueListener
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.client.network_thread import NetworkShare, run_on_thread
from libramq.client.statistics import ConsumerStatistics
from libramq.clock import MonotonicMs
from libramq.errors import InvalidState, LibraError, LocalProtocolError, LoopClosed, RouteNotFound
from libramq.logs import get_logger
from libramq.runtime.seams import Dialer
from libramq.transport.asyncio_remotes import FORKED, SocketDialer
from libramq.transport.tls import Tls

log = get_logger(__name__)
T = TypeVar("T")

#: Ours: how long handlers on threads may take after the user's loop was closed.
LOOP_CLOSED_DRAIN_MS: Final = 1_000
#: Ours: how often to check for a closed loop: nothing reports it if all handlers are plain functions.
LOOP_CHECK_SECONDS: Final = 1.0

STOPPED_IN_HANDLER: Final = (
    "stop() in a handler would wait for the handler itself; have another task (or thread) stop the consumer, "
    "for example the main one, which the handler notifies"
)


class Stage(Enum):
    """The stages of a run."""

    STARTING = "is being started"
    RUNNING = "runs already"
    STOPPING = "is being stopped"
    ENDED = "has ended"


class HandlerCounts:
    """Counts the outcomes of deliveries, over the runs of a consumer. Written on the network thread."""

    def __init__(self) -> None:
        self.handled = self.retried = self.rejected = self.calls = self.milliseconds = 0

    def add(self, delivery: Delivery, ending: Ending, now_ms: MonotonicMs) -> None:
        """Count a finished delivery."""
        count = delivery.handled_count
        if ending in (HandlerOutcome.SKIPPED, HandlerOutcome.FOREIGN) or not count:
            return
        if delivery.is_call:
            self.calls += 1
            self.milliseconds += max(0, now_ms - delivery.began_ms)
        if isinstance(ending, NotDone):
            self.retried += len(ending.retries)
            self.rejected += len(ending.rejects)
            self.handled += count - len(ending.retries) - len(ending.rejects) - len(ending.busy)
        elif ending is HandlerOutcome.SUCCESS:
            self.handled += count
        else:
            self.retried += count

    def snapshot(self, work: ConsumerStatistics) -> ConsumerStatistics:
        """Return the statistics. work: the current work."""
        return replace(
            work,
            handled=self.handled + work.handled,
            retried=self.retried,
            rejected=self.rejected,
            handler_calls=self.calls,
            handler_ms=self.milliseconds,
        )


class ConsumerRun:
    """One run of a consumer, created on the user's loop, which it keeps using."""

    def __init__(
        self,
        group: str,
        hooks: Hooks,
        *,
        receiver: Callable[["ConsumerRun"], Receiver],
        network: Callable[["ConsumerRun", Dialer], ConsumerNetwork],
        tls: Tls | None,
        counts: HandlerCounts,
        monotonic_ms: Callable[[], MonotonicMs],
    ) -> None:
        """Set up the run; raises ConfigError for unusable TLS files."""
        self.problem: LibraError | None = None
        self._group = group
        self._counts, self._monotonic_ms = counts, monotonic_ms
        self.loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._stage = Stage.STARTING
        self._started: Future[None] = Future()
        #: Resolved when everything is closed; with an exception unless `stop` was the reason.
        self.ended: Future[None] = Future()
        self._kept_out: Future[None] = Future()  # Holds the reason while there is one.
        self._dialer = SocketDialer(tls)
        self._results: deque[tuple[Delivery, Ending]] = deque()
        self._results_announced = False
        self.listener = QueueListener(hooks, loop=self.loop, hook_done=self._hook_done)
        self.notify = self.listener.notify
        self._receiver = receiver(self)
        # Called on the network thread.
        self.deliver, self.give_up = self._receiver.deliver, self._receiver.give_up
        self._network = network(self, self._dialer)
        _runs.add(self)
        self._thread = NetworkShare()  # Last: it would leak if one of the others failed.

    @property
    def stage(self) -> Stage:
        """Return the stage of the run."""
        return self._stage

    @property
    def is_undisturbed(self) -> bool:
        """Return whether the run is active, and nothing keeps it out of its group."""
        return self._stage is Stage.RUNNING and self.problem is None

    async def start(self) -> None:
        """Join the group; raises NameServerUnavailable, after which everything is closed."""
        try:
            await asyncio.wrap_future(self._thread.run(answer_of(self._network.start)))
        except BaseException:  # If cancelled just after it joined, it leaves again.
            await self._leave(0)
            raise
        self._stage = Stage.RUNNING
        self._started.set_result(None)
        self._thread.run(self._watch_loop())

    async def stop(self, timeout_ms: int) -> None:
        """Leave the group. A second call waits for the first; a call during the start waits for that.

        In a forked child this does nothing: the consumer belongs to the parent.
        """
        if self._thread.is_parents:
            return
        self.refuse_in_handler(STOPPED_IN_HANDLER)
        if self._stage is Stage.STARTING:
            await _outcome(self._started)
        self.listener.let_others_go_first()
        if self._enter(Stage.STOPPING):
            await self._leave(timeout_ms)
        else:
            await _outcome(self.ended)

    def refuse_in_handler(self, why: str) -> None:
        """Raise InvalidState if the caller is a handler, which has to return first."""
        if self._receiver.is_current():
            raise InvalidState(why)

    def begin_trouble(self, trouble: fx.Trouble) -> None:
        """Report a problem that stops deliveries to the user; called on the network thread."""
        if isinstance(trouble.error, RouteNotFound):  # Its first message may create the topic.
            log.warning("the consumer waits for a topic", group=self._group, reason=str(trouble.error))
        else:
            log.error("the consumer has a problem", group=self._group, reason=str(trouble.error))
        if trouble.keeps_out and not self._kept_out.done():
            self.problem = trouble.error
            self._kept_out.set_exception(trouble.error)
            self._receiver.kept_out()
        self.listener.notify(trouble)

    def end_trouble(self, recovered: fx.Recovered) -> None:
        """Report that the problem is over."""
        log.warning("the consumer has joined its group again", group=self._group)
        self.problem = None
        if self._kept_out.done():
            self._kept_out = Future()

    async def wait_closed(self) -> None:
        """Wait until the run has ended or cannot continue; raises the reason unless that was `stop`."""
        ended, kept_out = asyncio.wrap_future(self.ended), asyncio.wrap_future(self._kept_out)
        await asyncio.wait([ended, kept_out], return_when=asyncio.FIRST_COMPLETED)
        first = ended if ended.done() else kept_out
        first.result()

    async def call(self, function: Callable[[ConsumerNetwork], T]) -> T:
        """Call a function with the network, on its thread."""

        async def call() -> T:
            return function(self._network)

        return await asyncio.wrap_future(self._thread.run(call()))

    async def answer(self, ask: Callable[[ConsumerNetwork, Callable[[T | LibraError], None]], object]) -> T:
        """Make a request on the network thread; return the answer, or raise the error."""
        return await asyncio.wrap_future(self._thread.run(answer_of(partial(ask, self._network))))

    def loop_closed(self) -> None:
        """The user's loop was closed without `stop`: end the run. Called from any thread."""
        if self._enter(Stage.STOPPING):
            error = LoopClosed(
                f"the event loop that the consumer of group {self._group} was started on was closed while it "
                "ran; it has left its group (await stop(), or use `async with`, before the loop ends)"
            )
            log.error(str(error))
            self._thread.run(self._end(error))

    async def _leave(self, timeout_ms: int) -> None:
        """Leave the group and end; a cancelled caller makes it end at once."""
        leaving = self._thread.run(self._stop_network(timeout_ms))
        await to_the_end(self._end_after(leaving), leaving.cancel)

    async def _end_after(self, leaving: Future[None]) -> None:
        try:
            await asyncio.wrap_future(leaving)
        finally:
            try:
                await self.listener.close()
            finally:  # Completes even if the loop ends first or handlers fill its executor.
                await run_on_thread(self._end_threads)

    def _end_threads(self) -> None:
        self._receiver.close()
        self._thread.stop()
        self._stage = Stage.ENDED
        if not self._started.done():
            self._started.set_result(None)
        self.ended.set_result(None)

    async def _stop_network(self, timeout_ms: int) -> None:
        try:
            await answer_of(partial(self._network.stop, timeout_ms))
        except asyncio.CancelledError:  # The caller gave up; no connection may stay open.
            self._network.end()
            raise
        finally:
            await self._dialer.wait_closed()

    def report(self, delivery: Delivery, ending: Ending) -> None:
        """Take a handler's result. Called from any thread; results are passed on in batches."""
        self._results.append((delivery, ending))
        if not self._results_announced:
            self._results_announced = True
            try:
                self._thread.call_soon(self._take_results)
            except LocalProtocolError:  # The consumer has stopped without this handler.
                if ending is not HandlerOutcome.SKIPPED:
                    count = len(delivery.messages)
                    log.warning("a handler returned after its consumer had stopped", messages=count)

    def _take_results(self) -> None:
        # In this order: a result that arrives after the last one was taken announces itself again.
        self._results_announced = False
        results = []
        now_ms = self._monotonic_ms()
        while self._results:
            results.append(self._results.popleft())
            self._counts.add(*results[-1], now_ms)
        self._network.handled(results)

    def _hook_done(self, change: fx.QueueChange) -> None:
        """Note that the listener has finished with queues. Called from any thread."""
        with contextlib.suppress(LocalProtocolError):  # The network has stopped: nothing waits for this.
            self._thread.call_soon(lambda: self._network.hook_done(change))

    async def _watch_loop(self) -> None:
        while not self.loop.is_closed():  # noqa: ASYNC110 # No event reports it.
            await asyncio.sleep(LOOP_CHECK_SECONDS)
        self.loop_closed()

    async def _end(self, error: LibraError) -> None:
        try:
            await self._stop_network(LOOP_CLOSED_DRAIN_MS)
        finally:
            self._receiver.close()
            self._stage = Stage.ENDED
            self.ended.set_exception(error)
            self._thread.end()

    def forked(self) -> None:
        """Start nothing more, in a forked child."""
        self.problem = InvalidState(FORKED)
        self._receiver.forked()

    def _enter(self, stage: Stage) -> bool:
        """Change from RUNNING to another stage; return False if another thread did so first."""
        with self._lock:
            if self._stage is not Stage.RUNNING:
                return False
            self._stage = stage
            return True


async def _outcome(future: Future[None]) -> None:
    """Wait until a future is done, with any result; cancelling the wait does not cancel it."""
    waiting = asyncio.wrap_future(future)
    await asyncio.wait([waiting])
    waiting.exception()


_runs: Final[weakref.WeakSet[ConsumerRun]] = weakref.WeakSet()


def _forked() -> None:
    """Hide the messages that the parent has pulled: a forked child would handle them a second time."""
    for run in list(_runs):
        run.forked()


if hasattr(os, "register_at_fork"):  # Not on platforms without fork.
    os.register_at_fork(after_in_child=_forked)
