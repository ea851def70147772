"""The attributes of a topic (`message.type`, `queue.type`, ...): their values, and their changes, written as
`+key=value,-key`.

    message.type      UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY   changes
    reserve.time      -1 or milliseconds, for tiered stores                changes
    queue.type        SimpleCQ, BatchCQ                                    set at creation
    cleanup.policy    DELETE                                               set at creation

Upstream: attribute/AttributeParser.java, AttributeUtil.java, TopicAttributes.java. Apache's COMPACTION is
refused: it is not implemented, and messages would be stored without it.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.formats.tables import TopicConfig

#: TopicMessageType.topicMessageTypeSet; PRIORITY is new in 5.4.
MESSAGE_TYPES: Final = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED")
MESSAGE_TYPE: Final = "message.type"
QUEUE_TYPE: Final = "queue.type"
SIMPLE_QUEUES: Final = "SimpleCQ"
BATCH_QUEUES: Final = "BatchCQ"
#: Ours: there are four attributes, each of about 30 characters.
TEXT_LENGTH_MAX: Final = 1_024
_LONG_MAX: Final = 2**63 - 1


class Attribute(NamedTuple):
    """One attribute. verify: raises BrokerError for an impossible value."""

    is_changeable: bool
    verify: Callable[[str], None]


def _one_of(values: tuple[str, ...]) -> Callable[[str], None]:
    def verify(value: str) -> None:
        if value not in values:
            raise _refused(f"value is not in set: [{', '.join(values)}]")

    return verify


def _reserve_time(value: str) -> None:
    digits = value.removeprefix("-")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 19
    if not is_number or not -1 <= int(value) <= _LONG_MAX:
        raise _refused(f"value is not in range(-1, {_LONG_MAX})")


ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    QUEUE_TYPE: Attribute(False, _one_of((SIMPLE_QUEUES, BATCH_QUEUES))),
    "cleanup.policy": Attribute(False, _one_of(("DELETE",))),
    MESSAGE_TYPE: Attribute(True, _one_of(MESSAGE_TYPES)),
    "reserve.time": Attribute(True, _reserve_time),
}


def parse_changes(text: str | None) -> dict[str, str]:
    """Parse changes, by signed key; raises BrokerError (SYSTEM_ERROR) for invalid text."""
    if not text:
        return {}
    if len(text) > TEXT_LENGTH_MAX:
        raise _refused(f"attributes of {len(text)} characters; {TEXT_LENGTH_MAX} are allowed")
    changes: dict[str, str] = {}
    for change in text.split(","):
        key, equals, value = change.partition("=")
        if equals and "+" not in key:
            raise _refused(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise _refused(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise _refused(f"key duplication: {key}")
        changes[key] = value
    return changes


def changed_attributes(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's attributes after changes; current: None for a new topic.

    Raises BrokerError: INVALID_PARAMETER for mixed message types, as Apache's broker does by default, and
    SYSTEM_ERROR for every other invalid change.
    """
    if changes.get("+message.type") == "MIXED":
        raise broker_error(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
    attributes = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise _refused("kv string format wrong.")
        if key in seen:
            raise _refused(f"alter duplication key. key: {key}")
        seen.add(key)
        if sign not in ("+", "-"):
            raise _refused(f"wrong format key: {key}")
        if sign == "-" and current is None:
            raise _refused(f"only add attribute is supported while creating topic. key: {key}")
        if sign == "-" and key not in attributes:
            raise _refused(f"attempt to delete a nonexistent key: {key}")
        attribute = ATTRIBUTES.get(key)
        if attribute is None:
            raise _refused(f"unsupported key: {key}")
        if current is not None and not attribute.is_changeable:
            raise _refused(
                f"attempt to update an unchangeable attribute. key: {key}; it is chosen when a topic "
                "is created: create another topic with it, or delete this one first (deleteTopic)"
            )
        if sign == "-":
            del attributes[key]
        else:
            attribute.verify(value)
            attributes[key] = value
    return attributes


def attributes_of(queue_type: str) -> dict[str, str]:
    """Return the attributes of a topic with queues of a type; empty for the default type."""
    return {} if queue_type == SIMPLE_QUEUES else {QUEUE_TYPE: queue_type}


def is_of_batches(topic: TopicConfig) -> bool:
    """Return whether a topic has batch queues (`store.queues.batch_consume_queue`)."""
    return topic.attributes.get(QUEUE_TYPE) == BATCH_QUEUES


def _refused(remark: str) -> BrokerError:
    return broker_error(ResponseCode.SYSTEM_ERROR, remark)


def is_of_priorities(topic: TopicConfig) -> bool:
    """Return whether groups pop messages of higher queue ids first."""
    return topic.attributes.get(MESSAGE_TYPE) == "PRIORITY"
