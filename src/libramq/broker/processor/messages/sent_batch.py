"""The sent batch: the messages of one send of several, made some at a time, as often as they are needed."""

from collections.abc import Iterator
from typing import Final

from libramq.broker.messages import stored_properties as text_properties
from libramq.broker.messages.appending import Appending
from libramq.broker.transactions import half
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.message import names
from libramq.message import properties as p
from libramq.message.batch import decode_items
from libramq.message.ids import born_host
from libramq.message.sys_flag import TRANSACTION_MASK
from libramq.message.tags import tag_code
from libramq.remoting.headers import SendMessageHeader
from libramq.rpc.request import Request
from libramq.store.log.message_run import MessageRun, RunItem

#: Ours: messages of a batch that are decoded, or stored, before others are served; one takes 5 to 20 µs.
BATCH_ITEMS_PER_STEP: Final = 128


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
        self._request = request
        self._header = header
        self._topic = topic
        self._queue_id = queue_id
        self._appending = appending

    def __iter__(self) -> Iterator[MessageRun]:
        """Make the messages again, some at a time: a large batch is iterated twice rather than held."""
        header, data = self._header, self._request.command.body
        born, start = born_host(self._request.peer.address), 0
        times = max(header.reconsume_times or 0, 0)  # Attempts are counted from here to the dead letters.
        while start < len(data):
            decoded, start = decode_items(data, start, BATCH_ITEMS_PER_STEP)
            items = self._stored(decoded)
            yield MessageRun(
                self._topic, self._queue_id, items, header.sys_flag, header.born_timestamp, born, times
            )

    def _stored(self, decoded: list[tuple[int, bytes, bytes]]) -> list[RunItem]:
        """Return messages as they are stored.

        Properties in which nothing is special, as nearly all are, are completed without being decoded, those
        of all messages together if possible.
        """
        is_plain = not self._header.sys_flag & TRANSACTION_MASK
        sent = [properties for _, _, properties in decoded]
        plain = self._appending.completed_all_plain(sent) if is_plain else None
        if plain is not None and max(map(len, plain[0])) <= p.PROPERTIES_BYTES_MAX:
            completed, has_tags = plain
            if not has_tags:
                return [
                    (item[0], item[1], stored, 0) for item, stored in zip(decoded, completed, strict=True)
                ]
            return [
                (flag, body, stored, _tag_code(properties.decode()))
                for (flag, body, properties), stored in zip(decoded, completed, strict=True)
            ]
        return [(flag, body, *self._completed(properties, is_plain)) for flag, body, properties in decoded]

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
