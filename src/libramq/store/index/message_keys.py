"""The keys of a record's messages: what they are found by.

    record of a message    its unique key, and those of the application
    inner batch            its own unique key, as Apache's broker finds it, and the keys of all its messages

An index has the place of the record. Kafka's batches have no keys: nobody looks into them.
"""

from collections.abc import Iterator
from typing import Final

from libramq.errors import LibraError, StoreCorrupt
from libramq.message import sys_flag as flags
from libramq.message.inner_batch import unwrapped_items
from libramq.message.properties import KEYS, UNIQ_KEY, find_property
from libramq.message.record import RecordHead, peek_record

_UNIQ_KEY: Final = UNIQ_KEY.encode()
_KEYS: Final = KEYS.encode()
_OF_ITEMS: Final = flags.INNER_BATCH | flags.NEED_UNWRAP


def has_items(head: RecordHead) -> bool:
    """Return whether a record is an inner batch with messages that have keys."""
    return head.sys_flag & _OF_ITEMS == _OF_ITEMS


def keys_of(head: RecordHead) -> list[str]:
    """Return the keys of a record itself, each once: the unique one, then those of the application."""
    if head.sys_flag & flags.TRANSACTION_MASK == flags.TRANSACTION_ROLLBACK:
        return []
    unique = find_property(head.properties, _UNIQ_KEY)
    keys = find_property(head.properties, _KEYS)
    found = keys.decode("utf-8", "replace").split(" ") if keys else []
    if unique:
        found.insert(0, unique.decode("utf-8", "replace"))
    return [key for key in dict.fromkeys(found) if key]


def keys_of_all(record: bytes, head: RecordHead) -> list[str]:
    """Return the keys of a record and of the messages in it, each once."""
    return list(
        dict.fromkeys([*keys_of(head), *(key for _, each in _items(record, head) for key in keys_of(each))])
    )


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
    return [(each.physical_offset, data) for data, each in _items(record, head) if key in keys_of(each)]


def _items(record: bytes, head: RecordHead) -> Iterator[tuple[bytes, RecordHead]]:
    """Yield the messages of an inner batch as records; none of one that cannot be read."""
    try:
        items = unwrapped_items(record, head) if has_items(head) else []
    except LibraError:
        return
    for item in items:
        each = peek_record(item)
        if each is not None:
            yield item, each
