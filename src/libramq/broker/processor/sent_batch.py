"""The sent batch: the messages of one send of several, made one by one, as often as they are asked for."""

from collections.abc import Iterator

from libramq.broker.messages import stored_properties as text_properties
from libramq.broker.messages.appending import Appending
from libramq.broker.transactions import half
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.message import names
from libramq.message import properties as p
from libramq.message.batch import BatchItem, iterate_batch
from libramq.message.ids import born_host
from libramq.message.tags import tag_code
from libramq.remoting.headers import SendMessageHeader
from libramq.rpc.request import Request
from libramq.store.append import StoreMessage


class SentBatch:
    """A request with several messages for one queue; iterating raises BrokerError at the first bad one."""

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

    def __iter__(self) -> Iterator[StoreMessage]:
        """Make the messages anew: a large batch is iterated twice rather than held."""
        return map(self._message, iterate_batch(self._request.command.body))

    def _message(self, item: BatchItem) -> StoreMessage:
        header = self._header
        text = item.properties.decode("utf-8", "replace")
        if half.is_marked(text, 0):
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be part of a transaction")
        half.require_queued(text, header.sys_flag, 0)
        if "TIMER_D" in text and any(
            text_properties.find(text, name) is not None for name in p.TIMER_REQUESTS
        ):
            # Apache's broker delivers it at once (asyncPutMessages looks at the batch's own properties).
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL, "a message that waits until a time cannot be sent in a batch"
            )
        properties = self._appending.completed(text_properties.without_handle(text))[0].encode(
            "utf-8", "replace"
        )
        if len(properties) > p.PROPERTIES_BYTES_MAX:  # A batch is stored as a whole or not at all.
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{len(properties)} bytes of properties in a batch; at most {p.PROPERTIES_BYTES_MAX} fit",
            )
        return StoreMessage(
            self._topic,
            self._queue_id,
            item.body,
            properties,
            tag_code(text_properties.find(text, p.TAGS)),
            item.flag,
            header.sys_flag,
            header.born_timestamp,
            born_host(self._request.peer.address),
            max(header.reconsume_times or 0, 0),  # Attempts are counted from here to the dead letters.
        )
