"""The half message: which sends become one, and the forms in which it is stored.

    prepared    in the half topic, with its real topic and queue as properties
    renewed     copied to the end of the half topic, each time its producer is asked
    committed   in its real topic, with its half message's place in the log
    ended       an operation message in the op topic: the offset of the half message, "12,"
    discarded   in TRANS_CHECK_MAX_TIME_TOPIC, when no producer has ended it

Upstream: TransactionalMessageBridge.java, EndTransactionProcessor.endMessageTransaction.
"""

from collections.abc import Iterable
from typing import Final

from libramq.clock import WallMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.message import names, stored_properties
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK, is_queued
from libramq.message.tags import tag_code
from libramq.store.log.append import StoreMessage, stored_again

#: Its committed offsets are the progress in both topics.
TRANSACTION_GROUP: Final = names.TRANSACTION_GROUP
#: TransactionalMessageUtil.REMOVE_TAG.
ENDED_TAG: Final = "d"
QUEUE_ID: Final = names.TRANS_QUEUE_ID
#: Ours: room for the properties that a copy or delayed commit of a half message adds.
COPY_PROPERTIES_BYTES: Final = len(
    p.properties_to_text({
        p.TRANSACTION_PREPARED_QUEUE_OFFSET: str(2**63 - 1),
        p.TRANSACTION_CHECK_TIMES: "9" * 9,
    })
)  # fmt: skip


def is_marked(text: str, reconsume_times: int) -> bool:
    """Return whether a send must wait for its producer's commit, by its properties.

    Clients before 4.6.1 leave the mark in messages that a consumer sends back for a retry.
    """
    if p.TRANSACTION_PREPARED not in text or is_redelivered(text, reconsume_times):
        return False
    return stored_properties.find(text, p.TRANSACTION_PREPARED) == "true"


def is_redelivered(text: str, reconsume_times: int) -> bool:
    """Return whether a send is a retry of a message."""
    return reconsume_times > 0 and stored_properties.find(text, p.DELAY) is not None


def require_queued(text: str, sys_flag: int, reconsume_times: int) -> None:
    """Raise BrokerError for a transactional message, by its flag, that would reach no queue."""
    if sys_flag & TRANSACTION_MASK and not is_queued(sys_flag) and not is_redelivered(text, reconsume_times):
        reason = "a transaction message without its property TRAN_MSG would be read by nobody"
        raise broker_error(ResponseCode.NO_PERMISSION, reason)


def prepare(message: StoreMessage, unique_key: str) -> None:
    """Turn a message that is about to be stored into a half message.

    Raises BrokerError if its properties leave no room for those of a copy: it could not be checked.
    """
    text = message.properties_text.decode()
    for name, value in (
        (p.TRANSACTION_ID, unique_key),
        (p.REAL_TOPIC, message.topic),
        (p.REAL_QUEUE_ID, str(message.queue_id)),
    ):
        text = stored_properties.with_property(text, name, value)
    message.properties_text = text.encode("utf-8", "replace")
    if len(message.properties_text) > p.PROPERTIES_BYTES_MAX - COPY_PROPERTIES_BYTES:
        raise broker_error(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{len(message.properties_text)} bytes of properties in a transaction; at most"
            f" {p.PROPERTIES_BYTES_MAX - COPY_PROPERTIES_BYTES} leave room for the broker's checks",
        )
    message.sys_flag &= ~TRANSACTION_MASK
    message.topic, message.queue_id = names.TRANS_HALF_TOPIC, QUEUE_ID


def first_offset(message: MessageExt) -> int:
    """Return a half message's original offset in its topic, which its copies carry."""
    text = message.properties.get(p.TRANSACTION_PREPARED_QUEUE_OFFSET, "")
    offset = p.whole_number(text)
    return message.queue_offset if offset is None else offset


def is_half(message: MessageExt) -> bool:
    """Return whether a message is a half message, complete enough to be committed."""
    return is_half_of(message, names.TRANS_HALF_TOPIC)


def is_half_of(message: MessageExt, topic: str) -> bool:
    """Return whether a message of a topic is complete enough to be committed as a half message."""
    return (
        message.topic == topic
        and bool(message.properties.get(p.REAL_TOPIC))
        and real_queue_id(message) is not None
    )


def real_queue_id(message: MessageExt) -> int | None:
    """Return the destination queue of a half message."""
    return p.whole_number(message.properties.get(p.REAL_QUEUE_ID, ""), digits_max=9)


def committed(message: MessageExt) -> StoreMessage:
    """Return the committed message of a half message, for its destination queue."""
    properties = dict(message.properties)
    topic, queue_id = properties[p.REAL_TOPIC], real_queue_id(message)
    assert queue_id is not None
    for name in (p.REAL_TOPIC, p.REAL_QUEUE_ID, p.TRANSACTION_PREPARED, p.TRANSACTION_PREPARED_QUEUE_OFFSET):
        properties.pop(name, None)
    copy = stored_again(message, topic, queue_id, properties)
    copy.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    copy.prepared_transaction_offset = message.physical_offset
    return copy


def is_committed_as(message: MessageExt, stored: MessageExt) -> bool:
    """Return whether a stored message is the committed message of a half message."""
    return (
        is_half(message)
        and stored.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
        and stored.prepared_transaction_offset == message.physical_offset
        and stored.properties.get(p.UNIQ_KEY) == message.properties.get(p.UNIQ_KEY)
        and stored.born_timestamp_ms == message.born_timestamp_ms
        and stored.body == message.body
    )


def renewed_properties(message: MessageExt, times_checked: int) -> dict[str, str]:
    """Return the properties of a half message's next copy, including its original offset."""
    return message.properties | {
        p.TRANSACTION_PREPARED_QUEUE_OFFSET: str(first_offset(message)),
        p.TRANSACTION_CHECK_TIMES: str(times_checked),
    }


def renewed(message: MessageExt, properties: dict[str, str]) -> StoreMessage:
    """Return the copy of a half message for the end of its topic."""
    return stored_again(message, message.topic, QUEUE_ID, properties)


def discarded(message: MessageExt) -> StoreMessage:
    """Return the copy of a half message for the topic of discarded ones."""
    return stored_again(message, names.TRANS_CHECK_MAX_TIME_TOPIC, QUEUE_ID, message.properties)


def resumed(message: MessageExt) -> StoreMessage:
    """Return an unchecked copy of a discarded half message for the end of the half topic."""
    properties = message.properties | {p.TRANSACTION_CHECK_TIMES: "0"}
    return stored_again(message, names.TRANS_HALF_TOPIC, QUEUE_ID, properties)


def ended(half_offsets: Iterable[int], unique_key: str, born_host: bytes, wall_ms: WallMs) -> StoreMessage:
    """Return the operation message for a committed or rolled-back half message and its copies."""
    properties = p.encode_properties({p.TAGS: ENDED_TAG, p.UNIQ_KEY: unique_key})
    return StoreMessage(
        names.TRANS_OP_HALF_TOPIC,
        QUEUE_ID,
        b"".join([b"%d," % half_offset for half_offset in half_offsets]),
        properties,
        tag_code(ENDED_TAG),
        born_timestamp_ms=int(wall_ms),
        born_host=born_host,
    )


def ended_offsets(message: MessageExt) -> list[int]:
    """Return the half messages that an operation message ends; Apache's brokers name several in one."""
    if message.tags != ENDED_TAG:
        return []
    texts = message.body.decode("utf-8", "replace").split(",")
    return [offset for text in texts if (offset := p.whole_number(text)) is not None]
