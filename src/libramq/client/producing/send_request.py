"""The send request: how a message or batch is prepared for a broker (copied, compressed if large, with its
id), and which messages are never batched (delayed, with a priority, for light queues, too large).

Upstream: DefaultMQProducerImpl.sendKernelImpl, MessageBatch.java, MessageClientIDSetter.java.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from libramq.client.options import Within
from libramq.client.producing.accumulator import (
    BATCH_BYTES_MAX,
    WAIT_VALUE,
    Content,
    Encoded,
    content_bytes,
    encode_contents,
    plain_body,
)
from libramq.clock import WallMs
from libramq.errors import InvalidMessage
from libramq.message import properties as names
from libramq.message.batch import decode_batch, encode_batch_item
from libramq.message.compression import compress_body
from libramq.message.message import BODY_BYTES_MAX, Message
from libramq.message.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from libramq.message.properties import properties_to_text
from libramq.message.queue import MessageQueue
from libramq.message.sys_flag import COMPRESSED, COMPRESSION_ZLIB, TRANSACTION_PREPARED
from libramq.remoting.headers import SendMessageHeaderV2
from libramq.rpc.broker_calls import SendReply, send_message
from libramq.rpc.call import Call

NONE_ADDED: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """The fields that all requests of a producer share."""

    group: str
    default_topic_queue_nums: Annotated[int, Within(1)] = 4
    compress_over_bytes: Annotated[int, Within(0)] = 4096
    body_bytes_max: Annotated[int, Within(1)] = BODY_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Messages in wire format. ids: one unique id per message. is_timed: it needs a broker with timers."""

    topic: str
    ids: tuple[str, ...]
    properties: str
    body: bytes
    sys_flag: int = 0
    flag: int = 0
    is_batch: bool = False
    is_reply: bool = False
    is_timed: bool = False
    reconsume_times: int | None = None
    max_reconsume_times: int | None = None


def prepare_one(
    message: Message,
    next_id: Callable[[], str],
    *,
    compress_over_bytes: int,
    half_of: str | None = None,
    added: Mapping[str, str] = NONE_ADDED,
    is_reply: bool = False,
) -> Prepared:
    """Prepare one message; its body is compressed if it is large and that helps.

    half_of: the producer group whose transaction it belongs to, if any. added: further properties.
    """
    properties, unique_id = _properties(message, next_id)
    properties |= added
    body, sys_flag = bytes(message.body), 0
    if len(body) >= compress_over_bytes:
        compressed = compress_body(body)
        if len(compressed) < len(body):
            body, sys_flag = compressed, COMPRESSED | COMPRESSION_ZLIB
    if half_of is not None:
        properties |= {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: half_of}
        sys_flag |= TRANSACTION_PREPARED
    return Prepared(
        topic=message.topic,
        ids=(unique_id,),
        properties=properties_to_text(properties),
        body=body,
        sys_flag=sys_flag,
        flag=message.flag,
        is_reply=is_reply,
        is_timed=names.TIMER_DELIVER_MS in properties
        or names.TIMER_DELAY_MS in properties
        or names.TIMER_DELAY_SEC in properties,
    )


def content_of(message: Message, next_id: Callable[[], str]) -> Content:
    """Return a valid message as part of a batch."""
    body = plain_body(message)
    if body is not None:
        return body
    properties, unique_id = _properties(message, next_id)
    text = properties_to_text(properties).encode()
    return Encoded(unique_id, encode_batch_item(message.flag, bytes(message.body), text))


def prepare_batch(topic: str, contents: Sequence[Content], ids: Sequence[str]) -> Prepared:
    """Prepare messages of one topic as one request; they are stored together or not at all.

    A message larger than a batch is sent without one, whose overhead might exceed maxMessageSize. Unlike
    upstream's, a batch itself has no unique id: Apache's 5.3 brokers append the properties of the batch to
    those of its messages, and its id would hide theirs. LibraMQ's brokers do not need it to store a batch as
    one record, in topics with queue.type=BatchCQ (`lb_inner`).
    """
    if len(contents) == 1 and content_bytes(contents[0]) > BATCH_BYTES_MAX:
        return _alone(topic, contents[0], ids[0])
    return Prepared(
        topic=topic,
        ids=tuple(ids),
        properties=properties_to_text({names.WAIT: WAIT_VALUE}),
        body=encode_contents(contents, ids),
        is_batch=True,
    )


def _alone(topic: str, content: Content, unique_id: str) -> Prepared:
    if isinstance(content, bytes):
        text = properties_to_text({names.UNIQ_KEY: unique_id, names.WAIT: WAIT_VALUE})
        return Prepared(topic=topic, ids=(unique_id,), properties=text, body=content)
    (item,) = decode_batch(content.item)
    text = item.properties.decode()
    return Prepared(topic=topic, ids=(unique_id,), properties=text, body=item.body, flag=item.flag)


def why_not_in_batch(message: Message) -> str | None:
    """Return why a message cannot join a batch; None when it can."""
    if message.is_delayed:
        return "a delayed message cannot be part of a batch"
    if message.topic.startswith(RETRY_PREFIX):
        return "a message of a retry topic cannot be part of a batch"
    if message.properties and message.properties.get(names.WAIT, WAIT_VALUE) != WAIT_VALUE:
        return "a message that does not wait to be stored cannot be part of a batch"
    if message.properties and names.PRIORITY in message.properties:
        return "a message with a priority cannot be part of a batch, which has one queue"
    return None


def travels_alone(message: Message) -> bool:
    """Return whether a message must not join an automatic batch.

    Apache's brokers do not put batched messages into light queues.
    """
    return names.INNER_MULTI_DISPATCH in message.properties or why_not_in_batch(message) is not None


def check_batch(messages: Sequence[Message]) -> None:
    """Raise InvalidMessage for messages that cannot form a batch."""
    if isinstance(messages, Message | str | bytes) or not isinstance(messages, Sequence):
        raise InvalidMessage(f"a batch is a list of messages, not a {type(messages).__name__}")
    if not messages:
        raise InvalidMessage("a batch holds at least one message")
    for message in messages:
        if not isinstance(message, Message):
            raise InvalidMessage(f"what is sent is a Message, not a {type(message).__name__}")
        if message.topic != messages[0].topic:
            raise InvalidMessage(
                f"a batch goes to one topic; this one has {messages[0].topic} and {message.topic}"
            )
        reason = why_not_in_batch(message)
        if reason is not None:
            raise InvalidMessage(f"{reason}; send it by itself")


def send_call(
    prepared: Prepared, queue: MessageQueue, settings: SendSettings, *, born_ms: WallMs, oneway: bool = False
) -> Call[SendReply]:
    """Return the request that sends prepared messages to a queue."""
    header = SendMessageHeaderV2(
        producer_group=settings.group,
        topic=prepared.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=settings.default_topic_queue_nums,
        queue_id=queue.queue_id,
        sys_flag=prepared.sys_flag,
        born_timestamp=int(born_ms),
        flag=prepared.flag,
        properties=prepared.properties,
        reconsume_times=prepared.reconsume_times or 0,
        unit_mode=False,
        max_reconsume_times=prepared.max_reconsume_times,
        batch=prepared.is_batch,
        lb_inner=prepared.is_batch or None,
    )
    return send_message(header, prepared.body, oneway=oneway, is_reply=prepared.is_reply)


def _properties(message: Message, next_id: Callable[[], str]) -> tuple[dict[str, str], str]:
    properties = message.all_properties()
    unique_id = properties.get(names.UNIQ_KEY)
    if unique_id is None:
        properties[names.UNIQ_KEY] = unique_id = next_id()
    properties.setdefault(names.WAIT, WAIT_VALUE)
    return properties, unique_id
