"""Drafts: a message, or a batch, in the form in which protocols pass it to `Sending`; the messages that no
batch may contain, and how a batch is cut into runs.

The messages of a batch are built some at a time, as often as they are needed. In queues of batches
(`queue.type=BatchCQ`) a batch is one record, with its messages unchanged.

Upstream: SendMessageProcessor.sendBatchMessage.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

import msgspec

from libramq.broker.transactions import half
from libramq.clock import WallMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.message import names, stored_properties
from libramq.message import properties as p
from libramq.message.batch import BatchColumns, decode_columns, decode_properties
from libramq.message.inner_batch import INNER_NUM_MAX
from libramq.message.stored_properties import BrokerProperties
from libramq.message.sys_flag import MULTI_TAGS, TRANSACTION_MASK, WRAPPED
from libramq.message.tags import tag_code
from libramq.store.log.append import MessageRun, StoreMessage

#: Ours: messages of a batch per append if their properties must be examined one by one; each takes 5 to 20
#: µs. A batch of at most this many is stored as a whole or not at all.
RUN_ITEMS_MAX: Final = 128
#: Ours: messages per append otherwise; each takes 1 to 2 µs. A batch of our producer's has 1,000.
PLAIN_RUN_ITEMS_MAX: Final = 1_024
#: Ours: bytes per append, which take 1 to 2 ms.
PLAIN_RUN_BYTES_MAX: Final = 5 * 256 * 1024

_MARK: Final = p.KAFKA_PRODUCER.encode()

#: Steps that build a record, or none.
Making = Generator[None, None, StoreMessage | None]


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message in its protocol's form. A Struct, because every incoming message needs one.

    queue_id: below 0: any. properties: the stored text (`message.properties`), with a separator after each.
    born_ms: when its producer made it; None: now. body: as stored, so compressed if sys_flag says so.
    reconsume_times, reconsume_times_max: attempts of a retried message, and their limit; None: its group's.
    template: the topic from which a missing topic is created, with `template_queues` queues; empty: it must
    exist.
    is_batch: the body has several messages (`message.batch`), which queues of batches may store as one record
    if they have one id, or need no others (has_one_id).
    record_count: the body has this many messages in the protocol's own form (`message.inner_batch`).
    """

    topic: str
    queue_id: int
    body: bytes
    properties: str = ""
    born_ms: int | None = None
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    reconsume_times_max: int | None = None
    template: str = ""
    template_queues: int = 0
    is_unit: bool = False
    is_batch: bool = False
    has_one_id: bool = False
    record_count: int = 0


class SentBatch:
    """A draft of several messages; iterating raises BrokerError for a bad one.

    completed: returns the properties to be stored, and the unique key (`Sending.completed`).
    """

    def __init__(
        self,
        draft: Draft,
        queue_id: int,
        born_host: bytes,
        properties: BrokerProperties,
        completed: Callable[[str], tuple[str, str]],
        wall_ms: WallMs,
    ) -> None:
        if draft.topic.startswith(names.RETRY_PREFIX):
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group")
        if len(draft.topic) > names.TOPIC_LENGTH_MAX:
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL, f"message topic length over {names.TOPIC_LENGTH_MAX}"
            )
        self.data = draft.body
        self._draft = draft
        self._queue_id = queue_id
        self._born_host = born_host
        self._born_ms = int(wall_ms) if draft.born_ms is None else draft.born_ms
        self._properties = properties
        self._text_completed = completed
        self._may_have_marks = _MARK in draft.body or p.KAFKA_PRODUCER in draft.properties

    def __iter__(self) -> Iterator[MessageRun]:
        """Build the messages anew, some at a time: a large batch is iterated twice rather than held."""
        data, start = self.data, 0
        while start < len(data):
            columns, start = decode_columns(data, start, PLAIN_RUN_ITEMS_MAX, PLAIN_RUN_BYTES_MAX)
            yield from self._runs(columns)

    def at_once(self) -> list[MessageRun]:
        """Build the messages of a batch of at most RUN_ITEMS_MAX: one run, stored entirely or not at all."""
        data, start = self.data, 0
        flags: list[int] = []
        bodies: list[bytes] = []
        properties: list[bytes] = []
        while start < len(data):  # Repeats if smaller messages follow an even run.
            columns, start = decode_columns(data, start, RUN_ITEMS_MAX, len(data))
            flags += columns.flags
            bodies += columns.bodies
            properties += columns.properties
        return list(self._runs(BatchColumns(flags, bodies, properties))) if flags else []

    def whole(self) -> Making:
        """Build one record of all messages, checking some at a time; RemoteProtocolError if one is cut off.

        None if they must be stored one by one: there are too many for a record, or none; or one of them, or
        the batch itself, has a property that the broker acts on or refuses.
        """
        draft, data = self._draft, self.data
        text = draft.properties
        if (
            draft.sys_flag & ~MULTI_TAGS  # Compressed, for example: each message or all of them?
            or draft.reconsume_times
            or self._may_have_marks
            or not stored_properties.are_without_effect([text.encode("utf-8", "replace")])
        ):
            return None
        count = start = 0
        while start < len(data):
            if start:
                yield
            properties, start = decode_properties(data, start, PLAIN_RUN_ITEMS_MAX)
            count += len(properties)
            if count > INNER_NUM_MAX or not stored_properties.are_without_effect(properties):
                return None
        if not count:
            return None
        number = f"{p.INNER_NUM}{p.NAME_VALUE_SEPARATOR}{count}{p.PROPERTY_SEPARATOR}"
        return StoreMessage(
            draft.topic,
            self._queue_id,
            data,
            (number + self._text_completed(text)[0]).encode("utf-8", "replace"),
            _tag_code(text),
            draft.flag,
            draft.sys_flag | WRAPPED,
            self._born_ms,
            self._born_host,
            count=count,
        )

    def _runs(self, columns: BatchColumns) -> Iterator[MessageRun]:
        """Build messages in stored form.

        Ordinary properties, as in nearly all messages, are completed without being decoded, and for all
        messages together if possible.
        """
        flags, bodies, properties = columns
        is_plain = not self._draft.sys_flag & TRANSACTION_MASK
        if self._may_have_marks:  # Only Kafka producers may set marks, as in `Sending`.
            properties = [_without_mark(each) for each in properties]
        plain = self._properties.suffix_of_all_plain(properties) if is_plain else None
        if plain is not None and max(map(len, properties)) + len(plain[0]) <= p.PROPERTIES_BYTES_MAX:
            suffix, has_tags = plain
            codes = [_tag_code(each.decode()) for each in properties] if has_tags else [0] * len(flags)
            yield self._run(bodies, properties, codes, flags, suffix)
            return
        for first in range(0, len(flags), RUN_ITEMS_MAX):
            step = slice(first, first + RUN_ITEMS_MAX)
            looked_at = [self._completed(each, is_plain) for each in properties[step]]
            completed, tag_codes = zip(*looked_at, strict=True)
            yield self._run(bodies[step], completed, tag_codes, flags[step])

    def _run(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        codes: Sequence[int],
        flags: Sequence[int],
        suffix: bytes = b"",
    ) -> MessageRun:
        draft = self._draft
        times = max(draft.reconsume_times, 0)  # Attempts are counted until the dead letters.
        return MessageRun(
            draft.topic, self._queue_id, bodies, properties, codes, flags, suffix, draft.sys_flag,
            self._born_ms, self._born_host, times,
        )  # fmt: skip

    def _completed(self, properties: bytes, is_plain: bool) -> tuple[bytes, int]:
        plain = self._properties.added_to_plain(properties) if is_plain else None
        if plain is None or len(plain[0]) > p.PROPERTIES_BYTES_MAX:
            return self._checked(properties)
        return plain[0], _tag_code(properties.decode()) if plain[1] else 0

    def _checked(self, encoded: bytes) -> tuple[bytes, int]:
        """Return a message's properties in stored form, and its tag code; raises BrokerError."""
        text = encoded.decode("utf-8", "replace")
        if half.is_marked(text, 0):
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be part of a transaction")
        half.require_queued(text, self._draft.sys_flag, 0)
        if "TIMER_D" in text and any(
            stored_properties.find(text, name) is not None for name in p.TIMER_REQUESTS
        ):
            # Apache's broker delivers it at once (asyncPutMessages looks at the batch's own properties).
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, "a timer message cannot be sent in a batch")
        properties = self._text_completed(text)[0].encode("utf-8", "replace")
        if len(properties) > p.PROPERTIES_BYTES_MAX:  # A batch is stored as a whole or not at all.
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{len(properties)} bytes of properties in a batch; at most {p.PROPERTIES_BYTES_MAX} fit",
            )
        return properties, _tag_code(text)


def _tag_code(text: str) -> int:
    return tag_code(stored_properties.storable_tags(text))


def _without_mark(encoded: bytes) -> bytes:
    if _MARK not in encoded:
        return encoded
    return stored_properties.without(encoded.decode("utf-8", "replace"), p.KAFKA_PRODUCER).encode()
