"""The sent batch: the messages of one send of several, made some at a time, as often as they are needed.

In queues of batches (`queue.type=BatchCQ`) it is one record, with its messages as they came.

Upstream: SendMessageProcessor.sendBatchMessage.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import Final

from libramq.broker.messages import stored_properties as text_properties
from libramq.broker.messages.appending import Appending
from libramq.broker.transactions import half
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.message import names
from libramq.message import properties as p
from libramq.message.batch import BatchColumns, decode_columns, decode_properties
from libramq.message.ids import born_host
from libramq.message.inner_batch import INNER_NUM_MAX
from libramq.message.sys_flag import MULTI_TAGS, TRANSACTION_MASK, WRAPPED
from libramq.message.tags import tag_code
from libramq.remoting.headers import SendMessageHeader
from libramq.rpc.request import Request
from libramq.store.log.append import StoreMessage
from libramq.store.log.message_run import MessageRun

#: Ours: messages of a batch that are decoded, or stored, before others are served, where their properties
#: must be looked at one by one; one takes 5 to 20 µs.
BATCH_ITEMS_PER_STEP: Final = 128
#: Ours: where they need not; one takes 1 to 2 µs. A batch of our producer's has 1,000.
PLAIN_ITEMS_PER_STEP: Final = 1_024
#: Ours: messages of a batch that is stored as it came, checked before others are served; one takes 0.1 to
#: 0.3 µs.
WHOLE_ITEMS_PER_STEP: Final = 4_096
#: Ours: and at most so many bytes, which takes 1 to 2 ms.
PLAIN_BYTES_PER_STEP: Final = 5 * 256 * 1024

#: Steps that make a record, or none.
Making = Generator[None, None, StoreMessage | None]


class SentBatch:
    """A request with several messages for one queue; iterating raises BrokerError for a bad one."""

    def __init__(
        self, request: Request, header: SendMessageHeader, topic: str, queue_id: int, appending: Appending
    ) -> None:
        if topic.startswith(names.RETRY_PREFIX):
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group")
        if len(topic) > names.TOPIC_LENGTH_MAX:
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL, f"message topic length over {names.TOPIC_LENGTH_MAX}"
            )
        self.data = request.command.body
        self._request = request
        self._header = header
        self._topic = topic
        self._queue_id = queue_id
        self._appending = appending

    def __iter__(self) -> Iterator[MessageRun]:
        """Make the messages again, some at a time: a large batch is iterated twice rather than held."""
        data, start = self.data, 0
        while start < len(data):
            columns, start = decode_columns(data, start, PLAIN_ITEMS_PER_STEP, PLAIN_BYTES_PER_STEP)
            yield from self._runs(columns)

    def at_once(self) -> list[MessageRun]:
        """Make the messages of a batch of at most BATCH_ITEMS_PER_STEP: one run, stored as a whole or not."""
        data, start = self.data, 0
        flags: list[int] = []
        bodies: list[bytes] = []
        properties: list[bytes] = []
        while start < len(data):  # Twice where smaller messages follow an even run.
            columns, start = decode_columns(data, start, BATCH_ITEMS_PER_STEP, len(data))
            flags += columns.flags
            bodies += columns.bodies
            properties += columns.properties
        return list(self._runs(BatchColumns(flags, bodies, properties))) if flags else []

    def whole(self) -> Making:
        """Make one record of all messages, checked some at a time; RemoteProtocolError if one is cut off.

        None if they must be stored one by one: they are too many for a record, or none, or one of them has
        a property by which the broker acts or which it refuses, or the batch itself has.
        """
        header, data = self._header, self.data
        text = header.properties or ""
        if (
            header.sys_flag & ~MULTI_TAGS  # Compressed, for example: each message or all of them?
            or header.reconsume_times
            or not text_properties.are_without_effect([text.encode("utf-8", "replace")])
        ):
            return None
        count = start = 0
        while start < len(data):
            if start:
                yield
            properties, start = decode_properties(data, start, WHOLE_ITEMS_PER_STEP)
            count += len(properties)
            if count > INNER_NUM_MAX or not text_properties.are_without_effect(properties):
                return None
        if not count:
            return None
        number = f"{p.INNER_NUM}{p.NAME_VALUE_SEPARATOR}{count}{p.PROPERTY_SEPARATOR}"
        return StoreMessage(
            self._topic,
            self._queue_id,
            data,
            (number + self._appending.completed(text)[0]).encode("utf-8", "replace"),
            _tag_code(text),
            header.flag,
            header.sys_flag | WRAPPED,
            header.born_timestamp,
            born_host(self._request.peer.address),
            count=count,
        )

    def _runs(self, columns: BatchColumns) -> Iterator[MessageRun]:
        """Make messages as they are stored.

        Properties in which nothing is special, as nearly all are, are completed without being decoded, those
        of all messages together if possible.
        """
        flags, bodies, properties = columns
        is_plain = not self._header.sys_flag & TRANSACTION_MASK
        plain = self._appending.suffix_of_all_plain(properties) if is_plain else None
        if plain is not None and max(map(len, properties)) + len(plain[0]) <= p.PROPERTIES_BYTES_MAX:
            suffix, has_tags = plain
            codes = [_tag_code(each.decode()) for each in properties] if has_tags else [0] * len(flags)
            yield self._run(bodies, properties, codes, flags, suffix)
            return
        for first in range(0, len(flags), BATCH_ITEMS_PER_STEP):
            step = slice(first, first + BATCH_ITEMS_PER_STEP)
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
        header, born = self._header, born_host(self._request.peer.address)
        times = max(header.reconsume_times or 0, 0)  # Attempts are counted from here to the dead letters.
        return MessageRun(
            self._topic, self._queue_id, bodies, properties, codes, flags, suffix, header.sys_flag,
            header.born_timestamp, born, times,
        )  # fmt: skip

    def _completed(self, properties: bytes, is_plain: bool) -> tuple[bytes, int]:
        plain = self._appending.completed_plain(properties) if is_plain else None
        if plain is None or len(plain[0]) > p.PROPERTIES_BYTES_MAX:
            return self._checked(properties)
        return plain[0], _tag_code(properties.decode()) if plain[1] else 0

    def _checked(self, encoded: bytes) -> tuple[bytes, int]:
        """Return a message's properties as they are stored, and its tag code; raises BrokerError."""
        text = encoded.decode("utf-8", "replace")
        if half.is_marked(text, 0):
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be part of a transaction")
        half.require_queued(text, self._header.sys_flag, 0)
        if "TIMER_D" in text and any(
            text_properties.find(text, name) is not None for name in p.TIMER_REQUESTS
        ):
            # Apache's broker delivers it at once (asyncPutMessages looks at the batch's own properties).
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL, "a message that waits until a time cannot be sent in a batch"
            )
        properties = self._appending.completed(text)[0].encode("utf-8", "replace")
        if len(properties) > p.PROPERTIES_BYTES_MAX:  # A batch is stored as a whole or not at all.
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{len(properties)} bytes of properties in a batch; at most {p.PROPERTIES_BYTES_MAX} fit",
            )
        return properties, _tag_code(text)


def _tag_code(text: str) -> int:
    return tag_code(text_properties.find(text, p.TAGS))
