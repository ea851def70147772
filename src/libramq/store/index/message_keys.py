"""The keys of a record's messages: what they are found by.

    record of a message    its unique key, and those of the application
    inner batch            its own unique key, as Apache's broker finds it, and the keys of all its messages

An index has the place of the record. Kafka's batches have no keys: nobody looks into them.
"""

from collections.abc import Sequence
from typing import Final

from libramq.errors import LibraError, StoreCorrupt
from libramq.message import sys_flag as flags
from libramq.message.batch import decode_properties
from libramq.message.compression import decompress_body
from libramq.message.ids import place_of
from libramq.message.inner_batch import unwrapped_items
from libramq.message.properties import KEYS, UNIQ_KEY, find_property
from libramq.message.record import RecordHead, peek_record

_UNIQ_KEY: Final = UNIQ_KEY.encode()
_KEYS: Final = KEYS.encode()


def has_items(head: RecordHead) -> bool:
    """Return whether a record is an inner batch with messages that have keys."""
    return head.sys_flag & flags.WRAPPED == flags.WRAPPED


def keys_of(head: RecordHead) -> list[str]:
    """Return the keys of a record itself, each once: the unique one, then those of the application."""
    if head.sys_flag & flags.TRANSACTION_MASK == flags.TRANSACTION_ROLLBACK:
        return []
    return _keys_in(head.properties)


def _keys_in(properties: bytes) -> list[str]:
    unique = find_property(properties, _UNIQ_KEY)
    keys = find_property(properties, _KEYS)
    found = keys.decode("utf-8", "replace").split(" ") if keys else []
    if unique:
        found.insert(0, unique.decode("utf-8", "replace"))
    return [key for key in dict.fromkeys(found) if key]


def keys_of_all(record: bytes, head: RecordHead) -> list[str]:
    """Return the keys of a record and of the messages in it, each once."""
    found = dict.fromkeys(keys_of(head))
    for properties in _properties_of_items(record):
        found.update(dict.fromkeys(_keys_in(properties)))
    return list(found)


def with_key(record: bytes, topic: str, key: str, begin_ms: int, end_ms: int) -> list[tuple[int, bytes]]:
    """Return what has a key, and its place: the record, or messages in it as records of their own."""
    try:
        head = peek_record(record)
    except StoreCorrupt:
        return []
    if head is None or head.topic != topic or not begin_ms <= head.store_timestamp_ms <= end_ms:
        return []
    if key in keys_of(head):
        return [(head.physical_offset, record)]
    # Nearly all are passed over by a look at the bytes: those of a key are in the properties as they are.
    wanted = key.encode("utf-8", "replace")
    numbers = [
        number
        for number, properties in enumerate(_properties_of_items(record))
        if (wanted in properties or not properties.isascii()) and key in _keys_in(properties)
    ]
    items = unwrapped_items(record, head, frozenset(numbers)) if numbers else []
    return [
        (place_of(head.physical_offset, number), data) for number, data in zip(numbers, items, strict=True)
    ]


def _properties_of_items(record: bytes) -> Sequence[bytes]:
    """Return the properties of an inner batch's messages; none of one that cannot be read.

    The bodies are left alone: no record is made for each message.
    """
    head = peek_record(record)  # That of a scan has places in its window.
    if head is None or not has_items(head):
        return ()
    try:
        body = decompress_body(record[head.body_start : head.body_end], head.sys_flag)
        found: list[bytes] = []
        start = 0
        while start < len(body):
            properties, start = decode_properties(body, start, len(body))
            found += properties
    except LibraError:
        return ()
    return found
