"""The inner batch: one record of the log that holds several messages of its queue, and how to unpack it.

    queue offset 7, INNER_NUM 3, body: a │ b │ c     ─►     7: a    8: b    9: c

Its system flag has INNER_BATCH. Only batch queues have such records (`queue.type=BatchCQ`). Every record in
them has the property INNER_BASE, its own queue offset, so that the queue can be rebuilt from the log alone.

A broker sends whole batches to clients that unwrap them (`decode_pulled`), so the first one may begin before
the pulled offset:

    record: head │ body: item 7 │ item 8 │ item 9 │ topic, properties
              └──► one head for all of its messages ──► a message: that head, and its own body and properties

A batch is checked once, by the checksum of its body; its items must add up to the body's size and to the
number announced. A batch that does not is delivered as stored, like a body that cannot be decompressed,
because the queue would otherwise be stuck there.

Upstream: MessageSysFlag.INNER_BATCH_FLAG, MessageConst.PROPERTY_INNER_NUM, MessageDecoder.decodeMessage,
PullAPIWrapper.processPullResult.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from libramq.errors import BodyDamaged, LibraError, RemoteProtocolError, StoreCorrupt
from libramq.message import sys_flag as flags
from libramq.message.batch import decode_columns, iterate_batch
from libramq.message.compression import decompress_body
from libramq.message.ids import encode_host, place_of
from libramq.message.message import IN_A_BATCH, NONE_ADDED, MessageExt, Received
from libramq.message.properties import INNER_BASE, INNER_NUM, find_property
from libramq.message.record import (
    RecordHead,
    decode_record,
    decode_records,
    encode_record,
    has_good_crc,
    peek_record,
)

#: A consume queue unit counts a batch's messages in two bytes.
INNER_NUM_MAX: Final = 0x7FFF
_NUM: Final = INNER_NUM.encode()
_BASE: Final = INNER_BASE.encode()
#: System flag bits of a batch's record that its messages do not share.
OF_A_BATCH: Final = flags.WRAPPED | flags.COMPRESSED | flags.COMPRESSION_MASK


def message_count(head: RecordHead) -> int:
    """Return how many messages a record holds."""
    if not head.sys_flag & flags.INNER_BATCH:
        return 1
    text = find_property(head.properties, _NUM) or b""
    count = int(text) if text.isdigit() and len(text) <= 5 else 0
    return count if 0 < count <= INNER_NUM_MAX else 1


def is_of_batch_queue(head: RecordHead) -> bool:
    """Return whether a record belongs to a batch queue."""
    return bool(head.sys_flag & flags.INNER_BATCH) or (
        _BASE in head.properties and find_property(head.properties, _BASE) == str(head.queue_offset).encode()
    )


def unwrapped_items(data: bytes, head: RecordHead, numbers: Collection[int] | None = None) -> list[bytes]:
    """Return a record for each message of a RocketMQ batch; StoreCorrupt if it cannot be read.

    numbers: the wanted messages, or None for all. If the batch does not match its checksum, neither does any
    of these records, so that the receiver notices.
    """
    decoded = decode_record(data)
    if decoded is None:
        raise StoreCorrupt(f"the record at {head.physical_offset} is cut short")
    batch = decoded[0]
    records = [
        encode_record(
            topic=head.topic,
            queue_id=head.queue_id,
            queue_offset=head.queue_offset + number,
            physical_offset=place_of(head.physical_offset, number),
            body=item.body,
            properties=item.properties,
            flag=item.flag,
            sys_flag=head.sys_flag & ~OF_A_BATCH,
            born_timestamp_ms=batch.born_timestamp_ms,
            born_host=encode_host(batch.born_host),
            store_timestamp_ms=batch.store_timestamp_ms,
            store_host=encode_host(batch.store_host),
        )
        for number, item in enumerate(iterate_batch(batch.body))
        if numbers is None or number in numbers
    ]
    found = peek_record(data)  # The head may stem from a scan, whose positions refer to its own window.
    is_sound = found is None or has_good_crc(data, found)
    return records if is_sound else [*map(_as_damaged, records)]


def _as_damaged(record: bytes) -> bytes:
    """Return a record with a checksum that does not match its body."""
    crc = int.from_bytes(record[8:12]) ^ 0x7FFF_FFFF
    return b"".join((record[:8], crc.to_bytes(4), record[12:]))


class BatchFormat(NamedTuple):
    """The format of batches: how their messages are unpacked.

    unwrap: returns a record for each message of a batch's record; raises LibraError if it cannot be read.
    is_packed: returns whether the messages are compressed, so that they may be of any size.
    """

    unwrap: Callable[[bytes, RecordHead], list[bytes]]
    is_packed: Callable[[bytes, RecordHead], bool]


#: RocketMQ's own format; other protocols have theirs.
ROCKETMQ: Final = BatchFormat(unwrapped_items, lambda _, head: bool(head.sys_flag & flags.COMPRESSED))


class Items(NamedTuple):
    """Items of a batch that share one flag. number: that of the first within the batch."""

    number: int
    flag: int
    bodies: Sequence[bytes]
    properties: Sequence[bytes]


def decode_pulled(
    data: bytes, offset: int, *, check_crc: bool, broker_name: str = "", added: Mapping[str, str] = NONE_ADDED
) -> list[MessageExt]:
    """Decode a pull reply's messages from the pulled offset on, like `decode_records`, including batches."""

    def unwrap(record: bytes, start: int, messages: list[MessageExt]) -> int:
        try:
            head = peek_record(record, start)
        except StoreCorrupt as error:
            raise RemoteProtocolError(str(error)) from None
        if head is None:
            raise RemoteProtocolError(f"the last record of {len(record)} bytes is cut off at {start}")
        if check_crc and not has_good_crc(record, head):
            place = f"{head.topic}, queue {head.queue_id}, offset {head.queue_offset}"
            raise BodyDamaged(f"the body of the batch at {place} does not match its checksum")
        messages += _messages(record, start, head, offset - head.queue_offset, broker_name, added)
        return start + head.size

    return decode_records(data, check_crc=check_crc, broker_name=broker_name, added=added, unwrap=unwrap)


def _messages(
    data: bytes, start: int, head: RecordHead, first: int, broker_name: str, added: Mapping[str, str]
) -> list[MessageExt]:
    """Return a batch's messages from number `first` on; its record begins at `start`."""
    try:
        runs = list(items_of(data, head))
    except LibraError as error:
        return _as_stored(data, start, head, broker_name, error) if first <= 0 else []
    found: list[MessageExt] = []
    for number, flag, bodies, properties in runs:
        if number < first:
            skipped = first - number
            number, bodies, properties = first, bodies[skipped:], properties[skipped:]
        offset = head.queue_offset + number
        found += map(
            Received, repeat(head.topic), range(offset, offset + len(bodies)), repeat(0), bodies,
            repeat(broker_name), repeat(_head_of(data, start, head, flag)), properties, repeat(added),
        )  # fmt: skip
    return found


def items_of(data: bytes, head: RecordHead) -> Iterator[Items]:
    """Yield the items of the batch with that head; raises RemoteProtocolError if they do not add up."""
    body_start, body_end = head.body_start, head.body_end
    if head.sys_flag & flags.COMPRESSED:
        data = decompress_body(data[body_start:body_end], head.sys_flag)
        body_start, body_end = 0, len(data)
    wanted = message_count(head)
    number, start = 0, body_start
    while start < body_end:
        (all_flags, bodies, properties), start = decode_columns(data, start, wanted, body_end - start)
        first, count = 0, len(all_flags)
        while first < count:  # One pass in nearly all cases.
            flag, end = all_flags[first], count
            if all_flags.count(flag) < count:  # Counting takes a tenth of the loop.
                end = next((at for at in range(first, count) if all_flags[at] != flag), count)
            yield Items(number + first, flag, bodies[first:end], properties[first:end])
            first = end
        number += count
        if number > wanted:
            break
    if start != body_end or number != wanted:
        size = body_end - body_start
        raise RemoteProtocolError(f"a batch that announces {wanted} messages has {number} in {size} bytes")


def _head_of(data: bytes, start: int, head: RecordHead, flag: int) -> bytes:
    """Return the head shared by a batch's messages with this flag: see `IN_A_BATCH`."""
    stored = data[start : head.body_start]
    return b"".join((
        stored[:4], IN_A_BATCH, stored[8:16], (flag & 0xFFFF_FFFF).to_bytes(4), stored[20:36],
        (head.sys_flag & ~OF_A_BATCH & 0xFFFF_FFFF).to_bytes(4), stored[40:],
    ))  # fmt: skip


def _as_stored(
    data: bytes, start: int, head: RecordHead, broker_name: str, error: LibraError
) -> list[MessageExt]:
    from libramq.logs import get_logger  # Imported lazily, as in `record`.

    get_logger(__name__).error(
        "a batch is delivered as stored: its messages cannot be read",
        topic=head.topic,
        queue_id=head.queue_id,
        offset=head.queue_offset,
        reason=str(error),
    )
    decoded = decode_record(data, start, decompress=False, broker_name=broker_name)
    assert decoded is not None, "its head was decoded before"
    return [decoded[0]]
