"""The blocking consumer: the asyncio one, with its event loop on a separate thread.

Buffered messages are taken on the caller's thread; only waiting for more needs the loop.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar, Unpack

from libramq.client.blocking_client import BlockingClient, anytime, blocking
from libramq.client.consuming import consumer as asynchronous_consumer
from libramq.client.consuming.consumer import FETCH_IN_HOOK, POLL_TIMEOUT_MS, check_offsets
from libramq.client.consuming.fetching.fetch_buffer import FetchBuffer, FetchedMessages
from libramq.client.consuming.fetching.fetched_batch import BlockingDecodedMessages, Value
from libramq.client.consuming.group_consumer import STOP_TIMEOUT_MS, GroupConsumer, Joined
from libramq.client.consuming.handling.queue_listener import HOOKS, on_thread
from libramq.client.consuming.pulling.pulled_records import record_batch
from libramq.client.options import ConsumerOptions, whole_number
from libramq.errors import InvalidState, LocalProtocolError
from libramq.filter.subscription import Sql
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
P = ParamSpec("P")
G = TypeVar("G", bound=GroupConsumer)


def joining(
    subscribe: Callable[Concatenate[G, P], Joined],
) -> Callable[Concatenate[BlockingClient[G], P], None]:
    """Return a blocking `subscribe`; the first call on a running consumer waits until it has joined."""

    @wraps(subscribe)
    def call(self: BlockingClient[G], /, *args: P.args, **kwargs: P.kwargs) -> None:
        is_first, thread = not self._client.is_subscribed, self._thread
        self._call("subscribe", lambda: subscribe(self._client, *args, **kwargs))
        if is_first and thread is not None and not thread.is_current:
            self._wait("subscribe", self._client.wait_joined())

    return call


class Consumer(BlockingClient[asynchronous_consumer.Consumer]):
    """Returns messages to programs that fetch them; see libramq.client.Consumer.

    One thread fetches at a time; others wait for it. Its last messages are in progress: a stop by another
    thread waits for them. Plain hooks run on threads, and may call the consumer's methods, except those that
    fetch.
    """

    _advice = "make the hook a plain function: it runs on a thread that may wait"

    def __init__(self, **options: Unpack[ConsumerOptions]) -> None:
        super().__init__("consumer")
        #: Identifiers of the threads that are running hooks.
        self._hook_threads: set[int] = set()
        for name in HOOKS:
            hook = options.get(name)
            if hook is not None:
                options[name] = on_thread(hook, self._hook_threads)
        self._client = asynchronous_consumer.Consumer(**options)
        self._stop_timeout_ms = STOP_TIMEOUT_MS
        self._lock = threading.RLock()
        #: The thread that fetched last; its messages are in progress.
        self._fetcher: threading.Thread | None = None

    @property
    def client_id(self) -> str:
        """Return the client id by which brokers know this consumer."""
        return self._client.client_id

    subscribe = joining(asynchronous_consumer.Consumer.subscribe)

    # Messages.

    def getmany(
        self, *, timeout_ms: int = POLL_TIMEOUT_MS, max_records: int | None = None
    ) -> FetchedMessages:
        """Return messages by queue, in order; an empty dict if none arrives within the timeout."""
        whole_number("timeout_ms", timeout_ms, 0)
        if max_records is not None:
            whole_number("max_records", max_records, 1)
        count_max = asynchronous_consumer.ALL if max_records is None else max_records
        return self._fetch("getmany", lambda buffer: buffer.take(count_max), timeout_ms / 1000) or {}

    def getone(self) -> MessageExt:
        """Wait for the next message and return it. The previous one is done."""
        message = self._fetch("getone", FetchBuffer.take_one, None)
        assert message is not None, "it waits without end"
        return message

    def __iter__(self) -> Self:
        """Return itself: an iterator of messages that ends when the consumer is stopped."""
        return self

    def __next__(self) -> MessageExt:
        """Return the next message, like `getone`."""
        try:
            return self.getone()
        except LocalProtocolError:
            if not self._client.is_over:
                raise
            raise StopIteration from None

    def decoded(self, deserializer: Callable[[bytes], Value]) -> BlockingDecodedMessages[Value]:
        """Return an iterator of each message with its value; see libramq.client.Consumer.decoded."""
        return BlockingDecodedMessages(self, deserializer)

    def batches(
        self, columns: Sequence[str] | None = None, *, max_records: int | None = None
    ) -> Iterator["pa.RecordBatch"]:
        """Return an iterator of Arrow record batches; see libramq.client.Consumer.batches."""
        schema = self._wait("batches", self._client.read_records(columns, max_records))
        count_max = asynchronous_consumer.ALL if max_records is None else max_records
        while True:
            try:
                taken = self._fetch("batches", lambda buffer: buffer.take_batch(count_max), None)
            except LocalProtocolError:
                if not self._client.is_over:
                    raise
                return
            assert taken is not None, "it waits without end"
            yield record_batch(*taken, schema)

    def _fetch(self, what: str, take: Callable[[FetchBuffer], T], seconds: float | None) -> T | None:
        if self._hook_threads and threading.get_ident() in self._hook_threads:
            raise InvalidState(FETCH_IN_HOOK)
        until = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            self._running(what)
            while True:
                if not self._client.is_joining:
                    waiting = self._client.source()
                    self._fetcher = threading.current_thread()
                    taken = take(waiting.buffer)
                    if taken:
                        return taken
                    self._client.require_topics()
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._wait_for_messages(what, left)

    def _wait_for_messages(self, what: str, seconds: float | None) -> None:
        async def wait() -> None:
            if self._client.is_joining:
                self._client.finish_returned()
                await self._client.wait_joined()
                return
            waiting = self._client.source()
            await waiting.wait(None if seconds is None else waiting.now() + seconds)

        waiting = self._running(what).begin(wait())
        try:
            waiting.result()
        except asyncio.CancelledError:
            raise InvalidState("this consumer was stopped") from None
        except BaseException:  # Ctrl-C: the caller stops waiting.
            waiting.cancel()
            raise

    def _finish(self, *, is_done: bool) -> None:
        """Mark the returned messages as done or not, unless another thread is still working on them."""
        fetcher = self._fetcher
        if fetcher is threading.current_thread() or (fetcher is not None and not fetcher.is_alive()):
            self._note(lambda buffer: buffer.finish(is_done=is_done))

    def _note(self, note: Callable[[FetchBuffer], None]) -> None:
        """Mark messages as done, unless a thread is fetching: that marks earlier ones itself."""
        if self._lock.acquire(blocking=False):
            try:
                waiting = self._client._waiting
                if waiting is not None:
                    note(waiting.buffer)
            finally:
                self._lock.release()

    # Start and stop.

    def stop(self, *, timeout_ms: int = STOP_TIMEOUT_MS) -> None:
        """Commit, unless auto_commit is off, leave the group, and close.

        Messages that this thread fetched count as done; those of a thread that has ended do not.
        """
        whole_number("timeout_ms", timeout_ms, 0)
        self._finish(is_done=self._fetcher is threading.current_thread())
        self._stop_timeout_ms = timeout_ms
        super().stop()

    def __exit__(self, *raised: object) -> None:
        self._finish(is_done=raised[0] is None)
        self._stop_timeout_ms = STOP_TIMEOUT_MS
        super().stop()

    async def _start(self) -> None:
        self._fetcher = None
        await self._client.start()

    async def _stop(self) -> None:
        await self._client.stop(timeout_ms=self._stop_timeout_ms)

    # Queues and offsets; see libramq.client.Consumer.

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit all returned messages, or these offsets; wait until the brokers have acknowledged them."""
        if offsets is None:
            self._finish(is_done=True)
        else:
            check_offsets(offsets)
            named = dict(offsets)
            self._note(lambda buffer: buffer.finish_before(named))
        self._wait("commit", self._client.commit(offsets))

    statistics = anytime(asynchronous_consumer.Consumer.statistics)
    seek = blocking(asynchronous_consumer.Consumer.seek)
    seek_to_beginning = blocking(asynchronous_consumer.Consumer.seek_to_beginning)
    seek_to_end = blocking(asynchronous_consumer.Consumer.seek_to_end)
    seek_to_time = blocking(asynchronous_consumer.Consumer.seek_to_time)
    position = blocking(asynchronous_consumer.Consumer.position)
    committed = blocking(asynchronous_consumer.Consumer.committed)
    lag = blocking(asynchronous_consumer.Consumer.lag)
    queues = blocking(asynchronous_consumer.Consumer.queues)
    pause = blocking(asynchronous_consumer.Consumer.pause)
    resume = blocking(asynchronous_consumer.Consumer.resume)

    def assign(self, queues: Iterable[MessageQueue], expression: str | Sql = "*") -> None:
        """Read these queues and no others; before the start, or while the consumer runs."""
        if self._thread is None:
            self._client.assign_later(queues, expression)
        else:
            self._wait("assign", self._client.assign(queues, expression))

    assignment = anytime(asynchronous_consumer.Consumer.assignment)
