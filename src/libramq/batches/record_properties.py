"""Kafka records as messages: which properties of a message hold a record's key, headers and null value.

    value           body; a null value is an empty body and the property __KAFKA_NULL
    key             KEYS, where it is plain text; else __KAFKA_KEY, in base64
    headers         user properties of the same names and order, where they are plain text and no name comes
                    twice; else __KAFKA_HEADERS, all of them, in base64
    timestamp       born timestamp

The mark of an idempotent producer is in protocols.kafka.idempotent_producers, and the way back in
protocols.kafka.records; a record that is fetched has the bytes that were sent.
"""

import base64
from typing import Final

from libramq.message import properties as p
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import InvalidBatch, Record

NULL: Final = "__KAFKA_NULL"
KEY: Final = "__KAFKA_KEY"
HEADERS: Final = "__KAFKA_HEADERS"
#: A property's value is never empty, and this is no base64.
EMPTY: Final = "="
_SEPARATORS: Final = frozenset((p.NAME_VALUE_SEPARATOR, p.PROPERTY_SEPARATOR, p.NUL))
#: Names that mean something to a broker or client, besides the reserved ones.
MEANT: Final = p.RESERVED | {
    p.INNER_NUM, p.INNER_BASE, p.INNER_MULTI_DISPATCH, p.FORWARD_QUEUE_ID, p.REDIRECT,
    p.TRANSACTION_CHECK_TIMES,
    p.CHECK_IMMUNITY_TIME_IN_SECONDS,
}  # fmt: skip
_UTF_8_BYTES_MAX: Final = 4
#: Room for what the broker adds: its region, cluster, the unique key, and the mark of an idempotent producer.
PROPERTIES_BYTES_MAX: Final = p.PROPERTIES_BYTES_MAX - 1024


def record_properties(record: Record) -> str:
    """Return the stored text of a record's key and headers; raises InvalidBatch if they are too large."""
    text = ""
    if record.key is not None:
        name, value = _key_property(record.key)
        text = p.properties_to_text({name: value})
    if record.headers:
        text += p.properties_to_text(_header_properties(record))
    if record.value is None:
        text += p.properties_to_text({NULL: "true"})
    if len(text) > PROPERTIES_BYTES_MAX // _UTF_8_BYTES_MAX and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise InvalidBatch(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"key and headers of a record take {len(text)} bytes; {PROPERTIES_BYTES_MAX} are allowed",
        )
    return text


def _key_property(key: bytes) -> tuple[str, str]:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.isprintable():
        return p.KEYS, text
    return KEY, _encoded(key)


def _header_properties(record: Record) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in record.headers:
        text = _plain(name, value)
        if text is None or name in found:
            return {HEADERS: _encoded(record.raw_headers)}
        found[name] = text
    return found


def _plain(name: str, value: bytes | None) -> str | None:
    """Return a header's value if it can be a user property, with the same bytes."""
    if not name or not value or name in MEANT or name.startswith("__") or not _SEPARATORS.isdisjoint(name):
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if _SEPARATORS.isdisjoint(text) else None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode() or EMPTY
