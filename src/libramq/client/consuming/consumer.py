"""The consumer for programs that fetch messages themselves instead of registering handlers: when a message
counts as done, how often offsets are committed, and how long a fetch or commit waits.

    async with Consumer(group="billing", namesrv="127.0.0.1:9876") as consumer:
        await consumer.assign(await consumer.queues("Orders"))
        async for message in consumer:
            ...

Its network side runs on its own thread, so a program that blocks cannot delay its heartbeats.
Upstream: client/consumer/DefaultLitePullConsumer.java.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Self, TypeVar, Unpack

from libramq.client.consuming.consumer_network import ConsumerNetwork
from libramq.client.consuming.consumer_run import ConsumerRun, Stage
from libramq.client.consuming.fetching.fetch_buffer import FetchBuffer, FetchedMessages
from libramq.client.consuming.fetching.fetched_batch import DecodedMessages, Value
from libramq.client.consuming.fetching.fetching import Fetching
from libramq.client.consuming.group_consumer import STOP_TIMEOUT_MS, GroupConsumer, Joined, message_queues
from libramq.client.consuming.handling.handlers import Receiver
from libramq.client.consuming.pulling.pulled_records import PulledRecords, record_batch, schema_of
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.client.options import (
    ConsumerOptions,
    check_names,
    instance_of,
    whole_number,
)
from libramq.clock import MonotonicMs
from libramq.errors import ConfigError, InvalidState, LibraError, LocalProtocolError, RequestTimeout
from libramq.filter.subscription import Selector, Sql, selector
from libramq.message.message import Deserializer, MessageExt, set_deserializer
from libramq.message.names import validate_topic
from libramq.message.queue import MessageQueue
from libramq.rpc import broker_calls as calls
from libramq.rpc.call import Call

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")


def check_offsets(offsets: Mapping[MessageQueue, int]) -> None:
    """Raise ConfigError unless the keys are queues and the values offsets."""
    for queue, offset in offsets.items():
        if not isinstance(queue, MessageQueue):
            raise ConfigError(f"offsets are set by MessageQueue, not by {queue!r}")
        whole_number(f"the offset of {queue}", offset, 0)


#: DefaultLitePullConsumer.autoCommitIntervalMillis.
AUTO_COMMIT_INTERVAL_MS: Final = 5_000
#: DefaultLitePullConsumer.pollTimeoutMillis.
POLL_TIMEOUT_MS: Final = 5_000
#: DefaultLitePullConsumer.pullThresholdForAll.
PULL_THRESHOLD_FOR_ALL: Final = 10_000
#: Ours: how long `commit` waits for the brokers. Java's client waits this long for each request.
COMMIT_TIMEOUT_MS: Final = 5_000
FETCH_IN_HOOK: Final = (
    "a hook cannot fetch: messages wait until it has returned; it may use seek(), pause(), position() and "
    "commit(); fetch messages outside of the hook"
)
#: No limit on the messages of one call: the buffer is bounded anyway.
ALL: Final = 1 << 31
#: Ours: after this many messages returned without waiting, the loop's other tasks get a turn.
MESSAGES_A_TURN: Final = 64


class FetchWaiting(Receiver):
    """Connects the fetch buffer, which the network thread fills, with the user's loop.

    network thread ─► deliver ─► buffer ─► wake ─► the task that waits on the user's loop
    """

    def __init__(self, run: ConsumerRun, deserializer: Deserializer | None) -> None:
        self.buffer = FetchBuffer(run.report, self._wake_soon)
        self._deserializer = deserializer
        self._run, self._loop = run, run.loop
        self._waiter: asyncio.Future[None] | None = None
        self._has_changed = False

    # Called on the network thread.

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Buffer pulled messages."""
        if self._deserializer is not None:
            for delivery in deliveries:
                if not isinstance(delivery.messages, PulledRecords):
                    set_deserializer(delivery.messages, self._deserializer)
        self.buffer.put(deliveries)

    def kept_out(self) -> None:
        """Wake the program, which then checks for the problem."""
        self._has_changed = True
        self._wake_soon()

    # Called by the program.

    @property
    def is_awaited(self) -> bool:
        """Return whether a task waits for messages."""
        return self._waiter is not None

    def now(self) -> float:
        """Return the time of the user's loop, in seconds."""
        return self._loop.time()

    async def wait(self, until: float | None) -> bool:
        """Wait until something has arrived or changed; return False when the time is over."""
        self._waiter = waiter = self._loop.create_future()
        try:
            if self.buffer.has_arrivals or self._has_changed:  # Before the waiter was set.
                return True
            async with asyncio.timeout_at(until):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiter = None
            self._has_changed = False
        return True

    def close(self) -> None:
        """Wake the program: no more messages will come. Called from any thread."""
        self._has_changed = True
        self._wake_soon()

    def _wake_soon(self) -> None:
        if self._waiter is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # The loop is closed.
            self._run.loop_closed()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            with contextlib.suppress(asyncio.InvalidStateError):  # Woken already.
                waiter.set_result(None)


class Consumer(GroupConsumer):
    """Reads topics as a member of a group (`subscribe`), or queues that the program chooses (`assign`).

    Messages come with `getmany`, `getone` or `async for`. Returned messages are in progress until they are
    done:
    - when any task asks for more messages,
    - when `commit` is called with an offset after them,
    - when `commit()` is called by the task that fetched them, or by any task once that one has ended,
    - when the task that fetched them awaits `subscribe` while the consumer joins,
    - at the end of `async with`, unless an exception ends the block.

    `stop` marks messages as done only for the task that fetched them; it waits for those of another task.
    With auto_commit, done messages are committed within auto_commit_interval_ms (every 100 ms in coordinated
    groups), when their queue is handed over, and when the consumer stops. Without it only `commit` commits.

    When a queue moves to another member,
    - messages not returned yet are dropped here, and the next member gets them;
    - if the last returned messages are in progress, the hand-over waits until the next call (or `commit`): in
      a coordinated group up to revoke_timeout_ms (10 s), else revoke_drain_ms (75 ms). Then on_revoked is
      called, which may `commit`, and done messages are committed before the queue is released. Messages still
      in progress after that time are delivered again, to the next member;
    - messages that were returned but never committed, because auto_commit is off or this process was killed,
      are delivered again. No message is lost as long as messages are handled before the next call.

    group: the consumer group that owns the offsets, with `subscribe` and `assign` alike. Consumers that
    `assign` need a separate group: a coordinated group refuses them. consume_from, consume_timestamp_ms:
    where to begin in a queue without a committed offset. max_processing_ms: a member that keeps messages
    longer than this (5 min) loses its queues to others until its next call. deserializer: turns the body of a
    message into its `value`, when that is read. broadcasting, strategy, instance_id, the hooks and all
    other options: as for PushConsumer. The broker does not redeliver failed messages, as it does for a
    PushConsumer: seek back, or do not commit.
    """

    def __init__(self, **options: Unpack[ConsumerOptions]) -> None:
        check_names(options, ConsumerOptions.__annotations__, "Consumer")
        interval_ms = options.get("auto_commit_interval_ms", AUTO_COMMIT_INTERVAL_MS)
        whole_number("auto_commit_interval_ms", interval_ms, 10, 600_000)
        options.setdefault("pull_threshold_for_all", PULL_THRESHOLD_FOR_ALL)
        super().__init__(options, fetches=True, persist_ms=interval_ms)
        self._assigned: tuple[MessageQueue, ...] = ()
        self._waiting: FetchWaiting | None = None
        #: The task that fetched last; its messages are in progress.
        self._task: asyncio.Task[object] | None = None
        self._taken_at_once = 0

    # Before the start.

    def subscribe(self, topic: str, expression: str | Sql = "*") -> Joined:
        """Read a topic with the group: "*" for all, "tagA || tagB", or Sql("a > 3") by properties.

        Call it before the start or while the consumer runs; see PushConsumer.subscribe.
        """
        if self._assigned:
            raise InvalidState("a consumer subscribes or assigns, and this one has assigned queues")
        validate_topic(topic)
        return self._subscribed(topic, selector(expression))

    async def start(self) -> None:
        """Join the group, if there are subscriptions; raises NameServerUnavailable."""
        self._task = None
        await super().start()
        if self._assigned:
            try:
                await self._assign(self._assigned)
            except BaseException:
                await super().stop(timeout_ms=0)
                raise

    def _receiver(self, run: ConsumerRun) -> FetchWaiting:
        self._waiting = FetchWaiting(run, self._deserializer)
        return self._waiting

    async def stop(self, *, timeout_ms: int = STOP_TIMEOUT_MS) -> None:
        """Commit, unless auto_commit is off, leave the group, and close.

        Messages that the calling task fetched count as done. If another task fetches, `stop` waits for its
        next call, up to the timeout; that call marks its messages as done and ends its `async for`. Messages
        of a fetching task that has ended, as in `create_task(consumer.getmany())`, are delivered again unless
        they were committed.
        """
        whole_number("timeout_ms", timeout_ms, 0)
        self._finish(is_done=self._task is asyncio.current_task())
        self._finish_with_task()
        await super().stop(timeout_ms=timeout_ms)

    async def __aexit__(self, *raised: object) -> None:
        self._finish(is_done=raised[0] is None)
        self._finish_with_task()
        await super().stop()

    # Messages.

    async def getmany(
        self, *, timeout_ms: int = POLL_TIMEOUT_MS, max_records: int | None = None
    ) -> FetchedMessages:
        """Return messages by queue, in order; an empty dict if none arrives within the timeout.

        Messages of earlier calls are done. All buffered messages are returned, at most max_records. Raises
        MemberReplaced or NoPermission while one of these keeps the consumer out of its group, and
        LocalProtocolError after it was stopped.
        """
        whole_number("timeout_ms", timeout_ms, 0)
        if max_records is not None:
            whole_number("max_records", max_records, 1)
        waiting = await self._source_now()
        waiting.buffer.finish()  # First: a call cancelled in the next line has asked for more as well.
        await asyncio.sleep(0)  # Hooks are tasks of this loop, and must have their turn.
        deadline = waiting.now() + timeout_ms / 1000
        while True:
            taken = waiting.buffer.take(ALL if max_records is None else max_records)
            if taken:
                return taken
            self.require_topics()
            if not await waiting.wait(deadline):
                return {}
            waiting = await self._source_now()

    async def getone(self) -> MessageExt:
        """Wait for the next message and return it. The previous one is done."""
        self._taken_at_once += 1
        if self._taken_at_once > MESSAGES_A_TURN:  # Before the take, so that a cancellation loses no message.
            self._taken_at_once = 0
            await asyncio.sleep(0)
        while True:
            waiting = self._fetching() if self._joining is None else await self._source_now()
            message = waiting.buffer.take_one()
            if message is not None:
                return message
            self._taken_at_once = 0
            self.require_topics()
            await waiting.wait(None)

    def __aiter__(self) -> Self:
        """Return itself: an iterator of messages that ends when the consumer is stopped."""
        return self

    async def __anext__(self) -> MessageExt:
        """Return the next message, like `getone`."""
        try:
            return await self.getone()
        except LocalProtocolError:
            if self._run is None or not self.is_over:
                raise
            raise StopAsyncIteration from None

    def decoded(self, deserializer: Callable[[bytes], Value]) -> DecodedMessages[Value]:
        """Return an iterator of each message with the value of its body: `decoded(json.loads)`.

        If the deserializer fails, the error names the message, and the next step continues after it.
        """
        return DecodedMessages(self, deserializer)

    @property
    def is_over(self) -> bool:
        """Return whether the consumer is stopping or has stopped."""
        is_ending = self._run is not None and self._run.stage in (Stage.STOPPING, Stage.ENDED)
        return is_ending and self._joining is None and self._failure is None

    async def wait_joined(self) -> None:
        """Wait until it has joined; what this task has fetched is done, as the join would wait for it."""
        if self._joining is not None and self._task is asyncio.current_task():
            self.finish_returned()
        await super().wait_joined()

    async def _source_now(self) -> FetchWaiting:
        """Return the source of messages, after joining with any new subscriptions."""
        if self._joining is not None:
            self.finish_returned()
            await self.wait_joined()
        return self._fetching()

    def finish_returned(self) -> None:
        """Mark the returned messages as done: the program asks for more."""
        if self._waiting is not None:
            self._waiting.buffer.finish()

    def _fetching(self) -> FetchWaiting:
        """Return the source of messages for the current task; raises the problem that stops deliveries."""
        waiting = self.source()
        task = asyncio.current_task()
        if self._run is not None and self._run.listener.task is task:
            raise InvalidState(FETCH_IN_HOOK)
        if waiting.is_awaited:
            raise InvalidState("another task waits for messages of this consumer; one at a time fetches")
        self._task = task
        return waiting

    def source(self) -> FetchWaiting:
        """Return the source of messages; raises the problem that stops deliveries. For `libramq.sync`."""
        if self._run is not None and self._run.is_undisturbed:  # For nearly every message.
            assert self._waiting is not None, "a run has a receiver"
            return self._waiting
        waiting = self._waiting
        if self.is_over and waiting is not None:
            waiting.buffer.finish()
            raise InvalidState("this consumer was stopped")
        run = self._running()
        assert waiting is not None, "a run has a receiver"
        problem = run.problem  # Read once: the network thread may clear it.
        if problem is not None:
            waiting.buffer.finish()
            raise problem
        return waiting

    def _finish(self, *, is_done: bool) -> None:
        """Mark the returned messages as done or not, unless another task is still working on them."""
        waiting, task = self._waiting, self._task
        if waiting is None or task is None:
            return
        if task is not asyncio.current_task():
            if not task.done():
                return
            is_done = is_done and not task.cancelled() and task.exception() is None
        waiting.buffer.finish(is_done=is_done)

    def _finish_with_task(self) -> None:
        """Let a stop proceed if the task that fetched last ends without another call."""
        waiting, task = self._waiting, self._task
        if waiting is not None and task is not None and task is not asyncio.current_task():
            task.add_done_callback(lambda _: waiting.buffer.finish(is_done=False))

    async def batches(
        self, columns: Sequence[str] | None = None, *, max_records: int | None = None
    ) -> AsyncIterator["pa.RecordBatch"]:
        """Return an iterator of Arrow record batches, which ends when the consumer is stopped.

        A batch has at most max_records messages, all of one queue, and the columns of Spark's
        format("rocketmq") or the named ones: fewer are faster. No message objects are created. The previous
        batch is done, as with `getmany`. Raises ConfigError without the extra `arrow` or for an unknown
        column.
        """
        schema = await self.read_records(columns, max_records)
        count_max = ALL if max_records is None else max_records
        while True:
            await asyncio.sleep(0)
            try:
                waiting = await self._source_now()
            except LocalProtocolError:
                if not self.is_over:
                    raise
                return
            taken = waiting.buffer.take_batch(count_max)
            if taken is None:
                await waiting.wait(None)
            else:
                yield record_batch(*taken, schema)

    async def read_records(self, columns: Sequence[str] | None, max_records: int | None) -> "pa.Schema":
        """Pull messages as record batches from now on; return their schema. For `libramq.sync`."""
        if max_records is not None:
            whole_number("max_records", max_records, 1)
        schema = schema_of(columns)
        await self._call(lambda network: network.fetching.read_records())
        return schema

    # Offsets.

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit, and wait until the brokers have acknowledged it.

        Without offsets, all returned messages are done and committed, except those that another task, still
        running, fetched last. An offset is that of the next message to read: earlier messages of its queue
        are done. With auto_commit, later commits advance it to that of done messages. Raises CommitFailed if
        a queue has moved to another member, LocalProtocolError if one is not assigned, and the error of a
        commit that failed.
        """
        if offsets is None:
            self._finish(is_done=True)
        else:
            check_offsets(offsets)
            offsets = dict(offsets)
            if self._task is not None:
                assert self._waiting is not None, "a task has fetched"
                self._waiting.buffer.finish_before(offsets)

        def begin(network: ConsumerNetwork, ended: Callable[[LibraError | None], None]) -> None:
            try:
                network.fetch(lambda fetching, _: fetching.commit(offsets, ended))
            except LibraError as error:
                ended(error)

        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_MS / 1000):
                await self._answer(begin)
        except TimeoutError:
            raise RequestTimeout(
                f"the offsets were not acknowledged within {COMMIT_TIMEOUT_MS} ms; they may be "
                "committed later"
            ) from None

    # Positions.

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset of a queue; raises ConfigError unless the queue holds it or ends there.

        Pulled messages of the queue that were not returned yet are dropped. With auto_commit the offset is
        committed, even if it is lower than before.
        """
        check_offsets({queue: offset})
        first = await self._ask(queue, calls.min_offset(queue))
        end = await self._ask(queue, calls.max_offset(queue))
        if not first <= offset <= end:
            raise ConfigError(f"{queue} has the offsets {first} to {end}; it cannot be read from {offset}")
        await self._seek({queue: offset})

    async def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Continue at the oldest messages of these queues, or of all assigned ones."""
        await self._seek_by(queues, calls.min_offset)

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Continue with messages that arrive from now on."""
        await self._seek_by(queues, calls.max_offset)

    async def seek_to_time(self, time: datetime | int, *queues: MessageQueue) -> None:
        """Continue at the first messages stored at or after a time (a datetime with a zone, or epoch ms)."""
        if isinstance(time, datetime) and time.tzinfo is None:
            raise ConfigError(f"the time to seek has no time zone: {time!r}")
        time_ms = int(time.timestamp() * 1000) if isinstance(time, datetime) else time
        whole_number("the time to seek", time_ms, 0)
        await self._seek_by(queues, lambda queue: calls.search_offset(queue, time_ms))

    async def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message to be returned; None while the queue is being opened."""
        return await self._call(lambda network: network.fetching.position(queue))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset from its broker or, broadcasting, from the local file."""
        instance_of("the queue of committed()", queue, MessageQueue, "a MessageQueue")
        store = self._local_offsets
        if store is not None:
            return await self._call(lambda network: store.read(queue))
        return await self._ask(queue, calls.query_consumer_offset(self.group, queue))

    async def lag(self, queue: MessageQueue) -> int | None:
        """Return how many messages the position is behind the queue's end; None without a position."""
        position = await self.position(queue)
        return (
            None if position is None else max(0, await self._ask(queue, calls.max_offset(queue)) - position)
        )

    # Queues.

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic, sorted; raises RouteNotFound.

        Queues of offline brokers are missing; this is logged if LibraMQ's name servers know of them.
        """
        validate_topic(topic)

        queues: Sequence[MessageQueue] = await self._answer(
            lambda network, found: network.queues_of(topic, found)
        )
        return sorted(queues)

    async def assign(self, queues: Iterable[MessageQueue], expression: str | Sql = "*") -> None:
        """Read these queues and no others, from their committed offsets on.

        Call it before the start or while the consumer runs; earlier queues are released as at a hand-over.
        """
        if self._run is None or self.is_over:
            self.assign_later(queues, expression)
            return
        chosen, filters = self._chosen(queues, expression)
        await self._call(lambda network: self._filters.update(filters))
        await self._assign(chosen)
        self._assigned = chosen

    def assign_later(self, queues: Iterable[MessageQueue], expression: str | Sql = "*") -> None:
        """Read these queues after the start. For `libramq.sync`."""
        self._assigned, self._filters = self._chosen(queues, expression)

    def _chosen(
        self, queues: Iterable[MessageQueue], expression: str | Sql
    ) -> tuple[tuple[MessageQueue, ...], dict[str, Selector]]:
        if self.is_subscribed:
            raise InvalidState("a consumer subscribes or assigns, and this one has subscriptions")
        chosen = tuple(dict.fromkeys(message_queues("assign()", queues)))
        self._has_chosen = True
        return chosen, dict.fromkeys((queue.topic for queue in chosen), selector(expression))

    async def _assign(self, queues: Sequence[MessageQueue]) -> None:
        topics = sorted({queue.topic for queue in queues})

        def look_up(network: ConsumerNetwork, known: Callable[[LibraError | None], None]) -> None:
            network.look_up(topics, known)

        await self._answer(look_up)
        await self._fetch(lambda fetching, now_ms: fetching.assign(queues, now_ms))

    async def _seek_by(
        self, queues: Sequence[MessageQueue], call: Callable[[MessageQueue], Call[int]]
    ) -> None:
        chosen = message_queues("seek_to_…()", queues) or await self.assignment()
        found = await asyncio.gather(*(self._ask(queue, call(queue)) for queue in chosen))
        await self._seek(dict(zip(chosen, found, strict=True)))

    async def _seek(self, offsets: Mapping[MessageQueue, int]) -> None:
        await self._fetch(lambda fetching, now_ms: fetching.seek(offsets, now_ms))

    async def _fetch(self, request: Callable[[Fetching, MonotonicMs], None]) -> None:
        await self._call(lambda network: network.fetch(request))

    async def _ask(self, queue: MessageQueue, call: Call[T]) -> T:
        return await self._answer(lambda network, answered: network.ask_master(queue, call, answered))

    async def _answer(self, ask: Callable[[ConsumerNetwork, Callable[[T | LibraError], None]], object]) -> T:
        try:
            return await (await self._settled_run()).answer(ask)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise InvalidState("this consumer was stopped before the answer came") from None
