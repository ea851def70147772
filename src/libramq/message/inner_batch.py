"""The inner batch: one record of the log that stands for several messages of its queue.

    queue offset 7, INNER_NUM 3, body: a │ b │ c     ─►     7: a    8: b    9: c

Its system flag has INNER_BATCH. Only queues of batches have such records (`queue.type=BatchCQ`), and every
record of theirs has the property INNER_BASE, its own queue offset: by that, a queue is built again from the
log alone.

Upstream: MessageSysFlag.INNER_BATCH_FLAG, MessageConst.PROPERTY_INNER_NUM, MessageDecoder.decodeMessage (a
client that unwraps).
"""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from libramq.errors import StoreCorrupt
from libramq.message import sys_flag as flags
from libramq.message.batch import iterate_batch
from libramq.message.ids import encode_host
from libramq.message.place import place_of
from libramq.message.properties import INNER_BASE, INNER_NUM, find_property
from libramq.message.record import RecordHead, decode_record, encode_record, has_good_crc, peek_record

#: A unit counts the messages of a batch in two bytes.
INNER_NUM_MAX: Final = 0x7FFF
_NUM: Final = INNER_NUM.encode()
_BASE: Final = INNER_BASE.encode()
#: The bits of a batch's record that its messages do not have.
OF_A_BATCH: Final = flags.WRAPPED | flags.COMPRESSED | flags.COMPRESSION_MASK


def message_count(head: RecordHead) -> int:
    """Return how many messages a record stands for."""
    if not head.sys_flag & flags.INNER_BATCH:
        return 1
    text = find_property(head.properties, _NUM) or b""
    count = int(text) if text.isdigit() and len(text) <= 5 else 0
    return count if 0 < count <= INNER_NUM_MAX else 1


def is_of_batch_queue(head: RecordHead) -> bool:
    """Return whether a record says that its queue is one of batches."""
    return bool(head.sys_flag & flags.INNER_BATCH) or (
        _BASE in head.properties and find_property(head.properties, _BASE) == str(head.queue_offset).encode()
    )


def unwrapped_items(data: bytes, head: RecordHead, numbers: Collection[int] | None = None) -> list[bytes]:
    """Return a record for each message of a batch of RocketMQ's; StoreCorrupt if it cannot be read.

    numbers: of the wanted messages, if not all are. If the batch does not match its checksum, none of them
    matches its own: the receiver must know.
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
    found = peek_record(data)  # The head may be one of a scan, with places in that one's window.
    is_sound = found is None or has_good_crc(data, found)
    return records if is_sound else [*map(_as_damaged, records)]


def _as_damaged(record: bytes) -> bytes:
    """Return a record with a checksum that its body does not match."""
    crc = int.from_bytes(record[8:12]) ^ 0x7FFF_FFFF
    return b"".join((record[:8], crc.to_bytes(4), record[12:]))


class BatchFormat(NamedTuple):
    """What is known of batches.

    unwrap: returns a record for each message of a batch's record; raises LibraError if it cannot be read.
    is_packed: whether the messages are compressed, so that they may be of any size.
    """

    unwrap: Callable[[bytes, RecordHead], list[bytes]]
    is_packed: Callable[[bytes, RecordHead], bool]


#: RocketMQ's own, without those of other protocols.
ROCKETMQ: Final = BatchFormat(unwrapped_items, lambda _, head: bool(head.sys_flag & flags.COMPRESSED))
