"""The run of a producer, from `start` to `stop`: what it refuses before, after and on another loop, and how a
stop lets sends end.
"""

import asyncio
import contextlib
import os
import random
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from libramq.client.awaiting import answer_of, to_the_end
from libramq.client.identity import Identity
from libramq.client.options import whole_number
from libramq.client.producing.producer_network import ProducerNetwork
from libramq.client.producing.producer_settings import ProducerSettings
from libramq.client.producing.transactions import CheckTransaction, TransactionChecks, Transactions
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.client.routing.routes import look_up
from libramq.clock import Clock, MonotonicMs
from libramq.errors import InvalidState
from libramq.message.ids import UniqueIdGenerator
from libramq.runtime.asyncio_seams import LoopTimers
from libramq.transport.access import Access
from libramq.transport.asyncio_remotes import SocketDialer, other_loop, running_loop

#: Kept as they are in a child of a fork: what forgets a socket may end its parent's reading.
_parents: Final[list[ProducerNetwork]] = []
_NOT_RUNNING: Final = "this producer does not run; use `async with` or await start()"


class AwaitedSends:
    """Counts the sends whose callers await them: a stop lets them end.

    One costs a sixth of a microsecond, as `contextlib.contextmanager` does not.
    """

    __slots__ = ("_count", "_none_left")

    def __init__(self) -> None:
        self._count = 0
        self._none_left: asyncio.Event | None = None

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count and self._none_left is not None:
            self._none_left.set()

    async def wait_none(self, timeout_ms: int) -> None:
        """Wait until none is awaited, or the time is over."""
        if self._count:
            self._none_left = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._none_left.wait()


class ProducerRun:
    """Starts and stops a producer's network side, and refuses what is asked of it at another time or loop."""

    network: ProducerNetwork
    message_ids: UniqueIdGenerator
    transactions: Transactions

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        name_server_addresses: Sequence[str],
        identity: Identity,
        access: Access,
        clock: Clock,
        randomness: random.Random | None,
        check: CheckTransaction | None,
    ) -> None:
        self._settings = settings
        self._name_server_addresses = name_server_addresses
        self._identity = identity
        self._access = access
        self._clock = clock
        self._random = randomness
        self._check = check
        self._checks: TransactionChecks | None = None
        #: Whether it was started and not stopped yet.
        self.is_running = self.was_started = self._stopping = False
        self.awaited = AwaitedSends()
        _runs.add(self)

    async def start(self) -> None:
        """Start; brokers are contacted when there is something to send."""
        await look_up(self._name_server_addresses)
        if self.is_running or self._stopping:
            state = "is being stopped" if self._stopping else "runs already"
            raise InvalidState(f"this producer {state}")
        self._loop = asyncio.get_running_loop()
        self._dialer = SocketDialer(self._access.tls)
        randomness = self._random or random.Random()  # Not sooner: children of a fork would have copies.
        self._checks = None if self._check is None else TransactionChecks(self._check)
        self.message_ids = UniqueIdGenerator(self._identity.ip, os.getpid(), self._clock, randomness)
        self.network = ProducerNetwork(
            replace(self._settings, client_id=self._identity.client_id),
            name_server_addresses=self._name_server_addresses,
            dialer=self._dialer,
            timers=LoopTimers(),
            clock=self._clock,
            randomness=randomness,
            ids=self.message_ids,
            access=self._access,
            check=self._checks.ask if self._checks is not None else None,
        )
        self.transactions = Transactions(
            self.network.half_messages,
            can_be_checked=self._checks is not None,
            timeout_ms=self._settings.send_timeout_ms,
        )
        self.network.start()
        self.is_running = self.was_started = True

    async def stop(self) -> None:
        """Send the buffered messages, wait for the sends that are awaited, unregister, and close."""
        if not self.is_running:
            return
        self.require_loop()
        self.is_running, self._stopping = False, True
        flushed = asyncio.ensure_future(self._flush())
        await to_the_end(self._end_after(flushed), flushed.cancel)

    async def _flush(self) -> None:
        """Wait until all that was sent has been answered, for awaited sends as long as one may take."""
        _, error = await asyncio.gather(
            self.awaited.wait_none(self._settings.send_timeout_ms),
            answer_of(self.network.pipeline.flush),
            return_exceptions=True,
        )
        if error is not None:
            raise error

    async def _end_after(self, flushed: asyncio.Future[None]) -> None:
        try:
            await flushed
        finally:
            try:
                if self._checks is not None:
                    await self._checks.stop()
                await answer_of(self.network.stop)
                await self._dialer.wait_closed()
            finally:
                self._stopping = False

    async def publish_info(self, topic: str) -> TopicPublishInfo:
        """Return the queues of a topic to send to, fetched on first use."""
        self.require_loop()
        info = self.network.routes.table.published.get(topic)
        if info is not None and info.queues:
            return info
        return await answer_of(partial(self.network.routes.publish_info, topic))

    def left_ms(self, timeout_ms: int | None, began_ms: MonotonicMs) -> int:
        """Return how much time is left for a send, at least 1 ms."""
        if timeout_ms is not None:
            whole_number("timeout_ms", timeout_ms, 1)
        budget_ms = self._settings.send_timeout_ms if timeout_ms is None else timeout_ms
        return max(1, budget_ms - (self._clock.monotonic_ms() - began_ms))

    def require_running(self) -> None:
        """Raise LocalProtocolError unless it runs."""
        if not self.is_running:
            raise InvalidState(_NOT_RUNNING)

    def require_loop(self) -> None:
        """Raise LocalProtocolError unless it runs, and on this event loop."""
        if not self.is_running:
            raise InvalidState(_NOT_RUNNING)
        if running_loop() is not self._loop:
            raise InvalidState(other_loop("producer"))


_runs: Final[weakref.WeakSet[ProducerRun]] = weakref.WeakSet()


def _forked() -> None:
    """Have no producer run in the child: a message would wait for a batch that only the parent sends."""
    for run in list(_runs):
        if run.is_running:
            _parents.append(run.network)
        run.is_running = False


if hasattr(os, "register_at_fork"):  # Not on platforms without fork.
    os.register_at_fork(after_in_child=_forked)
