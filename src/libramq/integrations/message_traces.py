"""RocketMQ's message traces: records of sends and handler calls.

producer = traced(Producer())
consumer.subscribe("Orders", "*", traced_handler(handle, group="kitchen", producer=producer))

The same producer sends the records in batches as messages of RMQ_SYS_TRACE_TOPIC. Nothing waits for them, and
records for which the producer has no room are dropped. `libra pipeline run rebalance_report` also reads them.

Upstream: SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl, AsyncTraceDispatcher.
"""

import functools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, TypeVar, cast

from libramq.client.consuming.handling.handler_result import HandlerOutcome, ending_of
from libramq.client.consuming.handling.handlers import Handler, is_async
from libramq.client.producing.send_result import SendResult
from libramq.clock import SystemClock
from libramq.errors import ConfigError, LibraError, RemoteProtocolError
from libramq.integrations.wrappers import Sending, WrappedProducer, is_asyncio, wrapped_handler
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.ids import UniqueIdGenerator, decode_offset_id
from libramq.message.message import Message, MessageExt
from libramq.message.names import TRACE_TOPIC
from libramq.message.trace import Pub, SubAfter, SubBefore, TraceRecord, encode_trace

log = get_logger(__name__)

P = TypeVar("P", bound=AbstractAsyncContextManager[Any] | AbstractContextManager[Any])

#: AsyncTraceDispatcher's batchNum: recorded messages in one trace message.
RECORDED_MAX: Final = 100
#: MixAll.DEFAULT_TRACE_REGION_ID.
REGION: Final = "DefaultRegion"
#: MessageType.java, by number.
NORMAL_MESSAGE: Final = 0
DELAY_MESSAGE: Final = 3
#: ConsumeReturnType.java, by number.
SUCCESS: Final = 0
EXCEPTION: Final = 2
FAILED: Final = 4

_clock: Final = SystemClock()


def traced(producer: P) -> P:
    """Return a producer, asyncio's or the blocking one, that records its sends.

    It records `send`, `send_batch`, and `send_nowait` with a callback once they are answered or have failed.
    Sends without a response are not recorded. All other methods are the producer's own.
    """
    return cast(P, _RecordingProducer(producer))


def traced_handler(handler: Handler, *, group: str, producer: Any) -> Handler:
    """Return a handler whose calls are recorded with start, duration and result.

    group: the consumer group. producer: sends the records; start it before the consumer and stop it after the
    consumer. Raises ConfigError for a plain handler, which runs on a thread, with asyncio's producer.
    """
    records = producer.records if isinstance(producer, _RecordingProducer) else _Records(producer)
    if records.is_asyncio and not is_async(handler):
        raise ConfigError(
            "traced_handler: a plain handler runs on a thread, where asyncio's producer may not be used; "
            "give it a libramq.sync.Producer, or make the handler a coroutine function"
        )
    return wrapped_handler(handler, functools.partial(_Call, records, group))


class _Records:
    """Writes records to the trace topic through a producer."""

    def __init__(self, producer: Any) -> None:
        self.is_asyncio = is_asyncio(producer)
        self._producer = producer
        self._has_lost = False

    def write(self, records: Iterable[TraceRecord]) -> None:
        """Send records in batches without waiting for them.

        Records are created here, under the error handling: this may fail for a message the producer has
        refused.
        """
        try:
            made = list(records)
            for start in range(0, len(made), RECORDED_MAX):
                some = made[start : start + RECORDED_MAX]
                # Only unique ids: users search by these, and the keys of a message are limited.
                keys = [record.unique_id for record in some if record.unique_id]
                self._producer.send_nowait(Message(TRACE_TOPIC, encode_trace(some), keys=keys), self._sent)
        except (LibraError, TypeError, ValueError) as error:
            self._lost(error)

    def _sent(self, outcome: SendResult | LibraError) -> None:
        if isinstance(outcome, LibraError):
            self._lost(outcome)
        else:
            self._has_lost = False

    def _lost(self, error: Exception) -> None:
        if not self._has_lost:  # Only once, until a record is stored again.
            log.warning(
                "message traces are not stored; messages are still sent and handled", error=str(error)
            )
        self._has_lost = True


class _RecordingProducer(WrappedProducer):
    """A producer that records its sends."""

    def __init__(self, producer: Any) -> None:
        super().__init__(producer)
        self.records = _Records(producer)

    @contextmanager
    def sending(self, sent: Message | list[Message]) -> Iterator[Sending]:
        sending = _Sending(self, sent)
        try:
            yield sent, sending.ended
        except LibraError:
            sending.ended(None)
            raise

    def send_nowait(
        self,
        message: Message,
        callback: Callable[[SendResult | LibraError], object] | None = None,
        **options: Any,
    ) -> None:
        if callback is None:  # The next flush raises its error, which a callback would prevent.
            self.producer.send_nowait(message, **options)
            return
        sending = _Sending(self, message)

        def answered(outcome: SendResult | LibraError) -> None:
            sending.ended(None if isinstance(outcome, LibraError) else outcome)
            callback(outcome)

        self.producer.send_nowait(message, answered, **options)


class _Sending:
    """A send of one or more messages, until it is answered."""

    def __init__(self, producer: _RecordingProducer, sent: Message | list[Message]) -> None:
        self._producer = producer
        self._messages = sent if isinstance(sent, list) else [sent]
        self._at_ms = int(_clock.wall_ms())
        self._began_ms = _clock.monotonic_ms()

    def ended(self, results: SendResult | list[SendResult] | None) -> None:
        """Record the messages. results: None if they were not stored as far as is known."""
        if results is None:
            each: Iterable[SendResult | None] = [None] * len(self._messages)
        else:
            each = [results] if isinstance(results, SendResult) else results
        cost_ms = _clock.monotonic_ms() - self._began_ms
        self._producer.records.write(
            self._record(message, result, cost_ms)
            for message, result in zip(self._messages, each, strict=False)
            if isinstance(message, Message) and message.topic != TRACE_TOPIC
        )

    def _record(self, message: Message, result: SendResult | None, cost_ms: int) -> Pub:
        return Pub(
            at_ms=self._at_ms,
            region=REGION,
            group=self._producer.group,
            topic=message.topic,
            unique_id=result.message_id if result else None,
            tags=message.tags or "",
            keys=_keys_text(message.keys),
            store_host=_store_host(result.offset_message_id) if result else None,
            body_size=len(message.body),
            cost_ms=cost_ms,
            message_type=DELAY_MESSAGE if message.is_delayed else NORMAL_MESSAGE,
            offset_id=result.offset_message_id if result else None,
            is_success=result is not None,
            client_host=self._producer.client_id.partition("@")[0],
        )


class _Call:
    """A handler call: records its messages before and after it."""

    def __init__(self, records: _Records, group: str, messages: Sequence[MessageExt]) -> None:
        self._records = records
        self._group = group
        self._messages = [each for each in messages if each.topic != TRACE_TOPIC]
        self._request_id = _request_ids(os.getpid())()
        self._began_ms = _clock.monotonic_ms()
        at_ms = int(_clock.wall_ms())
        records.write([
            SubBefore(
                at_ms, each.properties.get(p.MSG_REGION), group, self._request_id, each.message_id,
                each.reconsume_times, _keys_text(each.keys),
            )
            for each in self._messages
        ])  # fmt: skip

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()

    def failed(self) -> None:
        """Record that the handler raised."""
        self._ended(dict.fromkeys(map(id, self._messages), EXCEPTION))

    def returned(self, result: object) -> None:
        """Record what the handler decided about each message."""
        if not self._messages:
            return
        try:
            ending = ending_of(result, self._messages)
        except LibraError:  # The consumer reports the error.
            self.failed()
            return
        if isinstance(ending, HandlerOutcome):
            done = self._messages if ending is HandlerOutcome.SUCCESS else []
        else:
            done = ending.done(self._messages)
        codes = dict.fromkeys(map(id, self._messages), FAILED)
        self._ended(codes | dict.fromkeys(map(id, done), SUCCESS))

    def _ended(self, codes: dict[int, int]) -> None:
        cost_ms = (_clock.monotonic_ms() - self._began_ms) // max(1, len(self._messages))
        at_ms = int(_clock.wall_ms())
        self._records.write([
            SubAfter(
                self._request_id, each.message_id, cost_ms, codes[id(each)] == SUCCESS, _keys_text(each.keys),
                codes[id(each)], at_ms, self._group,
            )
            for each in self._messages
        ])  # fmt: skip


@functools.cache
def _request_ids(process_id: int) -> UniqueIdGenerator:
    return UniqueIdGenerator("127.0.0.1", process_id, _clock, random.Random())


def _keys_text(keys: Any) -> str:
    """Return keys as in their property, separated by spaces."""
    if not keys:
        return ""
    return keys if isinstance(keys, str) else " ".join(map(str, keys))


def _store_host(offset_id: str) -> str | None:
    try:
        host, port = decode_offset_id(offset_id).host
    except RemoteProtocolError:
        return None
    return f"{host}:{port}"
