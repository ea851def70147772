"""The properties that the broker adds to and reads from a message, as stored text, and those for which it
refuses a send.

Upstream: SendMessageProcessor.java, MessageDecoder.java.
"""

import re
from collections.abc import Sequence
from functools import cache
from operator import methodcaller
from typing import Final

from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.message import properties as p
from libramq.message.names import has_controls, without_controls

#: Ours, as for the names of retry topics: Java's hash of a tag takes 0.1 µs a character here, and a batch may
#: have thousands of tags. Apache's broker has no limit.
TAG_LENGTH_MAX: Final = 255

_END: Final = p.PROPERTY_SEPARATOR
_END_BYTES: Final = _END.encode()
_TAGS_BYTES: Final = p.TAGS.encode()
_UNIQ_KEY_BYTES: Final = f"{p.UNIQ_KEY}{p.NAME_VALUE_SEPARATOR}".encode()
_INNER_UNIQ_KEY_BYTES: Final = _END_BYTES + _UNIQ_KEY_BYTES
_EMPTY_UNIQ_KEY_BYTES: Final = _UNIQ_KEY_BYTES + _END_BYTES
#: Ours: fewer messages are searched faster than compared.
_ALIKE_MIN: Final = 24
_HEXADECIMAL: Final = b"0123456789ABCDEF"
#: Properties that the broker refuses, replaces or removes.
_SPECIAL: Final = tuple(
    name.encode()
    for name in (
        p.NUL, "TIMER_D", p.TRANSACTION_PREPARED, p.POP_CK, p.CLUSTER, p.MSG_REGION, p.TRACE_ON, "INNER_",
        p.RETRY_TOPIC, p.DLQ_ORIGIN_TOPIC,
    )
)  # fmt: skip
#: Those that affect a message's handling, or are refused; only tools use the others.
_EFFECTIVE: Final = tuple(
    name.encode()
    for name in (
        p.NUL, "TIMER_D", p.TRANSACTION_PREPARED, p.POP_CK, "INNER_", p.RETRY_TOPIC, p.DLQ_ORIGIN_TOPIC,
    )
)  # fmt: skip
#: Each of these names contains one of three characters, whose search takes a tenth of the time. The
#: properties added by our producers contain none of them, nor do ids.
_IN_EFFECTIVE: Final = (b"\0", b"R", b"P")
assert all(any(character in name for character in _IN_EFFECTIVE) for name in _EFFECTIVE)
#: All bytes but the control characters of ASCII, and the separators; deleting these takes 1 ns a byte.
_NO_CONTROLS: Final = bytes(
    each
    for each in range(256)
    if (each >= 0x20 and each != 0x7F) or chr(each) in p.NAME_VALUE_SEPARATOR + _END
)
_C1: Final = re.compile(rb"\xc2[\x80-\x9f]")
_BEGINS_WITH_KEY: Final = methodcaller("startswith", _UNIQ_KEY_BYTES)
_IS_TERMINATED: Final = methodcaller("endswith", _END_BYTES)


@cache
def _needles(name: str) -> tuple[str, str]:
    """Return the prefix of a value, at the start of the text and within it. For our own names only."""
    key = name + p.NAME_VALUE_SEPARATOR
    return key, _END + key


def find(text: str, name: str) -> str | None:
    """Return the value of one property, the last if there are several, or None.

    This takes about 0.3 µs: `in` and `partition` cost a third of `find` with its arguments.
    """
    key, inner_key = _needles(name)
    if key not in text:
        return None
    _, found, after = text.rpartition(inner_key)
    if not found:
        if not text.startswith(key):
            return None
        after = text[len(key) :]
    return after.partition(_END)[0] or None


def require_storable(text: str) -> None:
    """Refuse properties that recall messages, those with a NUL (the trace of a lost sector), and tags and
    keys with control characters, which tools print.

    Apache's gRPC proxy refuses every control character; its remoting client refuses only values that consist
    of blanks and control characters (Message.putUserProperty).
    """
    if p.NUL in text:
        raise broker_error(
            ResponseCode.MESSAGE_ILLEGAL, "a property has a NUL character in its name or value; leave it out"
        )
    for name in (p.TAGS, p.KEYS):
        value = find(text, name) if name in text else None
        if value is not None and not value.isprintable() and has_controls(value):  # Most values pass here.
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, f"{name} has a control character; leave it out")
    # It would recall a message of any topic, even one the sender may not write
    # (TimerMessageStore.needDelete).
    if p.TIMER_DEL_UNIQKEY in text and find(text, p.TIMER_DEL_UNIQKEY) is not None:
        raise broker_error(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the property {p.TIMER_DEL_UNIQKEY} would recall another message; RECALL_MESSAGE does that",
        )


def storable_tags(text: str) -> str | None:
    """Return the tags of a message that a client sends; BrokerError if they are too long to hash."""
    tags = find(text, p.TAGS)
    if tags is not None and len(tags) > TAG_LENGTH_MAX:
        raise broker_error(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a tag of {len(tags)} characters; {TAG_LENGTH_MAX} are allowed: put long texts into properties",
        )
    return tags


def sent_back(text: str) -> str:
    """Return the properties of a message that a consumer sends back, without control characters.

    They become blanks in tags and keys: the message may have been stored before they were refused, and
    without its retry its queue would be stuck.
    """
    for name in (p.TAGS, p.KEYS):
        value = find(text, name)
        if value is not None and has_controls(value):
            text = with_property(text, name, without_controls(value))
    return text


def with_property(text: str, name: str, value: str) -> str:
    """Return the text with one property set, replacing an older value."""
    return f"{_terminated(without(text, name))}{name}{p.NAME_VALUE_SEPARATOR}{value}{_END}"


def without(text: str, name: str) -> str:
    """Return the text without one property."""
    if name + p.NAME_VALUE_SEPARATOR not in text:
        return text
    return re.sub(
        f"(^|{_END}){re.escape(name)}{p.NAME_VALUE_SEPARATOR}[^{_END}]*(?={_END}|$)", "", text
    ).lstrip(_END)


def _terminated(text: str) -> str:
    return text if not text or text.endswith(_END) else text + _END


def are_without_effect(properties: Sequence[bytes]) -> bool:
    """Return whether the broker may store encoded properties of several messages without examining each.

    They contain nothing to refuse, remove or act on, and are not too long.
    """
    together = b"".join(properties)
    if together.translate(None, _NO_CONTROLS) or (b"\xc2" in together and _C1.search(together)):
        return False
    if any(character in together for character in _IN_EFFECTIVE) and any(
        name in together for name in _EFFECTIVE
    ):
        return False
    return len(together) <= p.PROPERTIES_BYTES_MAX or max(map(len, properties)) <= p.PROPERTIES_BYTES_MAX


class BrokerProperties:
    """The properties that the broker adds to every stored message."""

    def __init__(self, *, cluster: str, region: str, trace_on: bool) -> None:
        self.region = region
        self.trace_on = "true" if trace_on else "false"
        pairs = ((p.MSG_REGION, region), (p.TRACE_ON, self.trace_on), (p.CLUSTER, cluster))
        self._suffix = "".join(f"{name}{p.NAME_VALUE_SEPARATOR}{value}{_END}" for name, value in pairs)
        self._suffix_bytes = self._suffix.encode("utf-8", "replace")
        self._pairs = pairs

    def added_to(self, text: str) -> str:
        """Return the text with the broker's own properties."""
        # The message was stored before.
        if p.CLUSTER in text or p.MSG_REGION in text or p.TRACE_ON in text:
            for name, value in self._pairs:
                text = with_property(text, name, value)
            return text
        return (text if text.endswith(_END) else _terminated(text)) + self._suffix

    def added_to_plain(self, properties: bytes) -> tuple[bytes, bool] | None:
        """Return encoded properties with the broker's own, and whether they may include a tag.

        None if something may have to be refused, changed or added first, which `added_to` and the checks
        decide. Hardly any message of a batch is such a case; this takes 0.5 µs instead of 1.6.
        """
        if (
            not properties.isascii()
            or _has_special(properties)
            or not (properties.startswith(_UNIQ_KEY_BYTES) or _INNER_UNIQ_KEY_BYTES in properties)
            or _EMPTY_UNIQ_KEY_BYTES in properties
            or not properties.endswith(_END_BYTES)
        ):
            return None
        return properties + self._suffix_bytes, _TAGS_BYTES in properties

    def suffix_of_all_plain(self, properties: Sequence[bytes]) -> tuple[bytes, bool] | None:
        """Return the suffix for the properties of several messages, and whether any may include a tag.

        None if `added_to_plain` returns None for any of them. Searching all at once takes a third of the time
        per message; where they differ only in their ids, the first stands for all: a sixth.
        """
        if _differ_in_ids_alone(properties):
            properties = properties[:1]
        together = b"".join(properties)
        if (
            not together.isascii()
            or _has_special(together)
            or _EMPTY_UNIQ_KEY_BYTES in together
            or not all(map(_IS_TERMINATED, properties))
        ):
            return None
        # Ours and Java's producers write the key first.
        if not all(map(_BEGINS_WITH_KEY, properties)) and not all(
            each.startswith(_UNIQ_KEY_BYTES) or _INNER_UNIQ_KEY_BYTES in each for each in properties
        ):
            return None
        return self._suffix_bytes, _TAGS_BYTES in together


def _differ_in_ids_alone(properties: Sequence[bytes]) -> bool:
    """Return whether properties begin with a unique id in hexadecimal and are otherwise the same.

    One step compares one byte of all, by a slice with their size as its stride.
    """
    first, count = properties[0], len(properties)
    size, id_end = len(first), first.find(_END_BYTES)
    if count < _ALIKE_MIN or not first.startswith(_UNIQ_KEY_BYTES) or set(map(len, properties)) != {size}:
        return False
    together, id_start = b"".join(properties), len(_UNIQ_KEY_BYTES)
    for at in (*range(id_end, size), *range(id_start)):
        if together[at::size] != first[at : at + 1] * count:
            return False
    ids = b"".join([together[at::size] for at in range(id_start, id_end)])
    return not ids.translate(None, _HEXADECIMAL)


def _has_special(properties: bytes) -> bool:
    # Half of a regular expression's time.
    return any(name in properties for name in _SPECIAL) or bool(properties.translate(None, _NO_CONTROLS))
