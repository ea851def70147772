"""Popped messages: the messages in a pop's answer (including damaged ones), their handles, and the requests
that acknowledge or postpone them.

Redelivered messages bring their handles along; the handles of others are built from the reply's numbers.
Upstream: MQClientAPIImpl.processPopResponse, ExtraInfoUtil.java.
"""

import base64
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from libramq.codes import ResponseCode
from libramq.errors import BodyDamaged, ConfigError, RemoteError, RemoteProtocolError
from libramq.filter.subscription import Selector, Sql, kind_of
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt, name_popped_together, popped_offsets, popped_together
from libramq.message.record import damaged_records, decode_records
from libramq.pop.handle import Handle, decode_handle, encode_handle
from libramq.remoting.body.pop import BatchAckText
from libramq.remoting.headers import AckMessageHeader, ChangeInvisibleTimeHeader, PopMessageHeader
from libramq.rpc import pop_calls
from libramq.rpc.call import Call
from libramq.rpc.pop_calls import Changed, PopReply

log = get_logger(__name__)

#: The kind of an ordinary topic (`names.pop_kind`).
ORDINARY: Final = "0"
#: The kind of a retry topic of the first version.
REDELIVERED: Final = "1"
#: ConsumeInitMode.java.
_INIT_MIN: Final = 0
_INIT_MAX: Final = 1
#: DefaultMQPushConsumer.popBatchNums; Apache's broker returns no more per request (PopMessageProcessor).
POP_MESSAGES_MAX: Final = 32
#: Ours: how far a message may be behind the first one of its check point. A pop takes 32 messages, and skips
#: some thousands that its filter does not match.
POPPED_TOGETHER_MAX: Final = 1 << 20
#: AckMessageProcessor: the refusals of a message that is not in its queue, or no longer locked.
NOT_POPPED: Final = frozenset({ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL})
#: Ours: how many decoded handles of check points are cached; enough for 16,384 messages.
CHECK_POINTS_KEPT: Final = 512


class Place(NamedTuple):
    """A topic at a broker."""

    topic: str
    broker_name: str


def messages_of(reply: PopReply, broker_name: str, topic: str) -> list[MessageExt]:
    """Return the messages of a pop, each with its handle in the property POP_CK; RemoteError if it has none.

    The handles of a queue differ only in the offset, which is their last part. topic: the popped topic.
    """
    try:
        messages = _decoded(reply.body, broker_name)
    except RemoteProtocolError as error:
        raise RemoteError(f"a pop's answer of broker {broker_name} cannot be read: {error}") from None
    if reply.counts:
        _name_together(messages, reply, reply.counts, broker_name)
        return messages
    redelivered = any(not key.startswith(ORDINARY) for key in reply.starts)
    beginnings: dict[int, str] = {}
    for message in messages:
        if redelivered:
            if _brings_handle(message):
                continue
            if message.topic != topic and message.topic.startswith(names.RETRY_PREFIX):
                # Apache's 5.0 brokers return it under the retry topic.
                message.topic = topic
                message.name_popped(_beginning(reply, REDELIVERED, message, broker_name))
                continue
        queue_id = message.queue_id
        beginning = beginnings.get(queue_id)
        if beginning is None:
            beginning = beginnings[queue_id] = _beginning(reply, ORDINARY, message, broker_name)
        message.name_popped(beginning)
    return messages


def count_of(reply: PopReply) -> int:
    """Return how many messages an answer has, without decoding them."""
    if reply.counts:
        return sum(count for _, _, count in reply.counts)
    count, at = 0, 0
    while at + 4 <= len(reply.body):
        count += 1
        at += max(4, int.from_bytes(reply.body[at : at + 4]))
    return count


def _name_together(
    messages: list[MessageExt], reply: PopReply, counts: Sequence[tuple[str, int, int]], broker_name: str
) -> None:
    """Set handles by check points in the order of the answer. Redelivered messages have theirs already."""
    end = 0
    for kind_and_queue, start, count in counts:
        first, end = end, end + count
        kind, _, queue_id = kind_and_queue.partition(" ")
        if kind == ORDINARY and 0 < count <= len(messages) - first:
            beginning = _check_point(reply, (kind, int(queue_id), start), messages[first], broker_name)
            name_popped_together(messages[first:end], beginning)
    if end != len(messages):
        raise RemoteError(f"a pop's answer of broker {broker_name} names {end} of {len(messages)} messages")


def _beginning(reply: PopReply, kind: str, message: MessageExt, broker_name: str) -> str:
    """Return the common beginning of the handles of a queue that has one check point."""
    queue_id = message.queue_id
    start = reply.starts.get(f"{kind} {queue_id}")
    if start is None:
        raise RemoteError(f"a pop's answer of broker {broker_name} has no start of queue {queue_id}")
    return _check_point(reply, (kind, queue_id, start), message, broker_name)


def _check_point(reply: PopReply, point: tuple[str, int, int], message: MessageExt, broker_name: str) -> str:
    """Return the common beginning of the handles of a check point.

    point: its kind of topic, queue and first offset. message: its first message.
    """
    kind, queue_id, start = point
    handle = Handle(
        start, reply.pop_time_ms, reply.invisible_ms, reply.revive_queue, kind, broker_name, queue_id
    )
    beginning = encode_handle(handle)
    try:  # A handle that could not be sent back would never be acknowledged.
        _require_together(message.queue_offset, _check_point_of(beginning).start_offset)
    except ConfigError as error:
        raise RemoteError(f"a pop's answer of broker {broker_name} has impossible numbers: {error}") from None
    return beginning


#: Cached: a handle is decoded on receipt, and again when the messages of its check point are acknowledged.
_check_point_of: Final = lru_cache(CHECK_POINTS_KEPT)(decode_handle)


def _brings_handle(message: MessageExt) -> bool:
    """Return whether a message has a valid handle: Apache's brokers keep a producer's own POP_CK."""
    text = message.find_property(p.POP_CK)
    if text is None:
        return False
    try:
        decode_handle(text)
    except ConfigError:
        return False
    return True


def _decoded(body: bytes, broker_name: str) -> list[MessageExt]:
    """Return the messages of an answer, including those with damaged bodies, which are logged as errors.

    They cannot be pulled again, and a broker never redelivers a message that it stored damaged.
    """
    try:
        return decode_records(body, check_crc=True, broker_name=broker_name)
    except BodyDamaged:
        for head in damaged_records(body):
            log.error(
                "a message is received as it came: its body does not match its checksum",
                topic=head.topic,
                queue_id=head.queue_id,
                offset=head.queue_offset,
            )
    return decode_records(body, broker_name=broker_name)


def handle_of(message: MessageExt) -> Handle:
    """Return a message's handle; ConfigError for a message that was not popped."""
    return decode_handle(_handle_text(message))


def _handle_text(message: MessageExt) -> str:
    if not isinstance(message, MessageExt):
        raise ConfigError(f"only a received message can be acknowledged, not {message!r}")
    text = message.find_property(p.POP_CK)
    if text is None:
        raise ConfigError(f"message {message.message_id} did not come from receive()")
    return text


def pop_call(
    group: str,
    place: Place,
    selected: Selector,
    *,
    invisible_ms: int,
    hold_ms: int,
    from_end: bool,
    wide_max: int | None = None,
) -> Call[PopReply]:
    """Return the call that pops at a place. wide_max: how many messages a LibraMQ broker may return."""
    header = PopMessageHeader(
        consumer_group=group,
        topic=place.topic,
        queue_id=-1,
        max_msg_nums=min(wide_max or POP_MESSAGES_MAX, POP_MESSAGES_MAX),
        invisible_time=invisible_ms,
        poll_time=hold_ms,
        init_mode=_INIT_MAX if from_end else _INIT_MIN,
        exp_type=kind_of(selected),
        exp=selected.expression,
        order=False,
        lb_max_msg_nums=wide_max,
    )
    return pop_calls.pop_message(header)


def is_wanted(message: MessageExt, selected: Selector) -> bool:
    """Return whether a message has a tag that is subscribed to: brokers compare hashes of tags only."""
    return isinstance(selected, Sql) or not selected.tags or message.tags in selected.tags


def ack_call(group: str, message: MessageExt) -> Call[None]:
    """Return the call that acknowledges a message."""
    handle = handle_of(message)
    header = AckMessageHeader(
        consumer_group=group,
        topic=_real_topic(group, message, handle),
        queue_id=handle.queue_id,
        extra_info=message.properties[p.POP_CK],
        offset=_offset(message, handle),
    )
    return pop_calls.ack_message(header)


def change_call(
    group: str, message: MessageExt, invisible_ms: int, *, is_unseen: bool = False
) -> Call[Changed]:
    """Return the call that changes a message's invisible time. is_unseen: no program has seen it."""
    handle = handle_of(message)
    header = ChangeInvisibleTimeHeader(
        consumer_group=group,
        topic=_real_topic(group, message, handle),
        queue_id=handle.queue_id,
        extra_info=message.properties[p.POP_CK],
        offset=_offset(message, handle),
        invisible_time=invisible_ms,
        lb_unseen=True if is_unseen else None,
    )
    return pop_calls.change_invisible_time(header)


def note_change(message: MessageExt, changed: Changed) -> None:
    """Set the new handle of a message, whose old one is no longer valid."""
    handle = handle_of(message)
    offset = _offset(message, handle)
    new = handle._replace(
        start_offset=offset,
        pop_time_ms=changed.pop_time_ms,
        invisible_ms=changed.invisible_ms,
        revive_queue=changed.revive_queue,
        offset=offset,
    )
    message.properties[p.POP_CK] = encode_handle(new)


def batch_acks(group: str, messages: Iterable[MessageExt]) -> dict[str, list[BatchAckText]]:
    """Return the acknowledgements of messages by broker, one for each check point."""
    acks: dict[str, list[BatchAckText]] = {}
    for (topic, handle), offsets in _check_points(messages).items():
        ack = BatchAckText(
            consumer_group=group,
            topic=topic,
            retry=handle.kind,
            start_offset=handle.start_offset,
            queue_id=handle.queue_id,
            revive_queue=handle.revive_queue,
            pop_time=handle.pop_time_ms,
            invisible_time=handle.invisible_ms,
            bit_set=_bit_set(offsets, handle.start_offset),
        )
        acks.setdefault(handle.broker_name, []).append(ack)
    return acks


def _check_points(messages: Iterable[MessageExt]) -> dict[tuple[str, Handle], list[int]]:
    """Return the offsets of messages by topic and check point, which is a handle without an offset."""
    offsets: dict[tuple[str, Handle], list[int]] = {}
    messages = list(messages)
    for kind in {*map(type, messages)}:
        if not issubclass(kind, MessageExt):
            raise ConfigError(f"only received messages can be acknowledged, not a {kind.__name__}")
    for popped_as, together in popped_together(messages):
        if popped_as is None:
            _add_singly(together, offsets)
            continue
        check_point = (together[0].topic, _check_point_of(popped_as))
        offsets.setdefault(check_point, []).extend(popped_offsets(together))
    return offsets


def _add_singly(messages: Sequence[MessageExt], offsets: dict[tuple[str, Handle], list[int]]) -> None:
    """Add messages by their individual handles."""
    # Handles of messages that were popped together begin alike, and each beginning is decoded once.
    together: dict[tuple[str, str], list[int]] = {}
    for message in messages:
        text = _handle_text(message)
        beginning, _, offset = text.rpartition(" ")
        found = together.get((message.topic, beginning))
        if found is None or not offset.isdecimal():
            handle = decode_handle(text)
            found = offsets.setdefault((message.topic, handle._replace(offset=None)), [])
            if handle.offset is not None:
                together[message.topic, beginning] = found
            found.append(_offset(message, handle))
        else:
            found.append(int(offset))


def _real_topic(group: str, message: MessageExt, handle: Handle) -> str:
    if handle.kind == ORDINARY:
        return message.topic
    return names.pop_retry_topic(message.topic, group, is_new=handle.kind == "2")


def _offset(message: MessageExt, handle: Handle) -> int:
    return message.queue_offset if handle.offset is None else handle.offset


def _require_together(offset: int, start: int) -> None:
    """Raise ConfigError for a message that is too far from the first one of its check point."""
    if not 0 <= offset - start < POPPED_TOGETHER_MAX:
        raise ConfigError(f"POP_CK names message {offset - start} of its pop: leave the property as it came")


def _bit_set(offsets: Sequence[int], start: int) -> str:
    """Return a Java BitSet in Base64: the least significant bit of each byte first."""
    first, count = offsets[0], len(offsets)
    if offsets == [*range(first, first + count)]:  # Most often, all messages of one pop.
        _require_together(first, start)
        _require_together(offsets[-1], start)
        return _base64((1 << count) - 1 << first - start)
    bits = 0
    for offset in offsets:
        _require_together(offset, start)
        bits |= 1 << offset - start
    return _base64(bits)


def _base64(bits: int) -> str:
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()
