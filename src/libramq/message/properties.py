"""The properties of a message: their names, their stored text, and how large they may be.

    name 0x01 value 0x02 name 0x01 value 0x02 …

Names and values are never empty and contain no separator; the last 0x02 may be missing in old data. A pair
with an empty value is lost on reading (upstream's parser requires at least one character), so it is not
written either.

Upstream: common/message/MessageConst.java, MessageDecoder.messageProperties2String and its reverse.
"""

from collections.abc import Mapping
from typing import Final

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
#: Forbidden in properties: in the log, NULs mark a range that never reached the disk.
NUL: Final = "\0"
PROPERTIES_BYTES_MAX: Final = 32767  # Their length is stored as an i16.

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
BUYER_ID: Final = "BUYER_ID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
DUP_INFO: Final = "DUP_INFO"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CLUSTER: Final = "CLUSTER"
MESSAGE_TYPE: Final = "MSG_TYPE"
POP_CK: Final = "POP_CK"
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
SHARDING_KEY: Final = "__SHARDINGKEY"
FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT: Final = "REDIRECT"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
#: Ours: the mark of Kafka's idempotent producers (`protocols/kafka`); RocketMQ's producers must not set it.
KAFKA_PRODUCER: Final = "__KAFKA_PRODUCER"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
CRC32: Final = "__CRC32#"
#: Ours: since when a retry has waited for a member that subscribes to its topic.
NO_SUBSCRIBER_SINCE: Final = "LIBRA_NO_SUBSCRIBER_SINCE"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
#: Ours: the type of the last exception raised by a dead letter's handler.
ERROR_TYPE: Final = "LIBRA_ERROR_TYPE"
#: Ours: the text of that exception.
ERROR_TEXT: Final = "LIBRA_ERROR_TEXT"
#: Ours: the dead letter from which this message was resent: `%DLQ%G:broker:queue:offset`.
REPLAYED_FROM: Final = "LIBRA_REPLAYED_FROM"

# MessageConst.STRING_HASH_SET: the names that putUserProperty refuses.
RESERVED: Final = frozenset({
    TRACE_ON, MSG_REGION, KEYS, TAGS, WAIT, DELAY, RETRY_TOPIC, REAL_TOPIC, REAL_QUEUE_ID,
    TRANSACTION_PREPARED, PRODUCER_GROUP, MIN_OFFSET, MAX_OFFSET, BUYER_ID, ORIGIN_MESSAGE_ID, TRANSFER_FLAG,
    CORRECTION_FLAG, MQ2_FLAG, RECONSUME_TIME, UNIQ_KEY, MAX_RECONSUME_TIMES, CONSUME_START_TIME, POP_CK,
    POP_CK_OFFSET, FIRST_POP_TIME, TRANSACTION_PREPARED_QUEUE_OFFSET, DUP_INFO, EXTEND_UNIQ_INFO, INSTANCE_ID,
    CORRELATION_ID, REPLY_TO_CLIENT, TTL, ARRIVE_TIME, PUSH_REPLY_TIME, CLUSTER, MESSAGE_TYPE,
    INNER_MULTI_QUEUE_OFFSET, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_OUT_MS, TIMER_DEL_UNIQKEY, TIMER_DELAY_LEVEL, BORN_HOST,
    BORN_TIMESTAMP, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, CRC32,
})  # fmt: skip

# Message.java has setters for these; here they are set as properties.
#: The properties by which a producer sets the time of a timer message.
TIMER_REQUESTS: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
SETTABLE: Final = frozenset({WAIT, *TIMER_REQUESTS})


def properties_to_text(properties: Mapping[str, str]) -> str:
    """Encode the properties as text, as in request headers."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items() if name and value])


def properties_from_text(text: str) -> dict[str, str]:
    """Decode the properties in a text; incomplete pairs are skipped, as upstream does."""
    properties: dict[str, str] = {}
    for pair in text.split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties for storage; unencodable characters and NULs become question marks.

    Sends cannot contain a NUL; only copies of messages accepted by Apache's broker or an older store can.
    """
    return properties_to_text(properties).replace(NUL, "?").encode("utf-8", "replace")


def decode_properties(data: bytes) -> dict[str, str]:
    """Decode the properties in stored bytes; invalid UTF-8 becomes U+FFFD, as in Java."""
    return properties_from_text(data.decode("utf-8", "replace"))


def whole_number(text: str, *, digits_max: int = 18) -> int | None:
    """Return a property's value as a number, or None if it is none or too long for Java."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits_max else None


def find_property(data: bytes, name: bytes) -> bytes | None:
    """Return one value from stored bytes, without decoding the others."""
    if data.startswith(name + b"\x01"):
        start = len(name) + 1
    else:
        found = data.find(b"\x02" + name + b"\x01")
        if found < 0:
            return None
        start = found + len(name) + 2
    end = data.find(b"\x02", start)
    return data[start:] if end < 0 else data[start:end]


def light_names(data: bytes) -> list[str]:
    """Return all names of light queues in stored properties, or in a batch of messages with theirs."""
    return [name for value in values_of(data, INNER_MULTI_DISPATCH) for name in value.split(",")]


def values_of(data: bytes, name: str) -> list[str]:
    """Return all values of a property in stored properties, or in a batch of messages with theirs.

    A property set twice is found twice, because the store may use either value.
    """
    mark = name.encode() + b"\x01"
    if mark not in data:
        return []
    return [after.partition(b"\x02")[0].decode("utf-8", "replace") for after in data.split(mark)[1:]]
