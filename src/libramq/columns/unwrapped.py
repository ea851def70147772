"""Unwrapped records: columns of records that include inner batches, with a row for each message.

    record: head │ body: item 7 │ item 8 │ item 9 │ topic   ─►   rows 7, 8, 9: the head's fields, repeated;
                                                                 bodies and properties where the items are

An unreadable batch becomes one row with its body as stored, so that reading continues after it.

Upstream: MessageDecoder.decodeMessage.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from libramq.columns.fields import Positions, gather
from libramq.columns.records import Records
from libramq.errors import RemoteProtocolError
from libramq.message import sys_flag as flags
from libramq.message.batch import ITEM_BYTES_MIN, ITEM_HEAD
from libramq.message.compression import decompress_body
from libramq.message.ids import PLACE_BITS
from libramq.message.inner_batch import OF_A_BATCH, message_count
from libramq.message.record import RecordHead, encode_record, peek_record
from libramq.message.record_head import HEADS, HOST_BITS

_ITEM: Final = np.dtype([("size", ">i4"), ("unused", "V8"), ("flag", ">i4"), ("body_size", ">i4")])
_U16: Final = np.dtype(">u2")


class Batch(NamedTuple):
    """A batch: the position of its body and its stated number of items. row: the index of its record.

    If a batch's items have equal sizes, their positions are an arithmetic sequence; otherwise the sizes are
    followed. The item heads are then read and checked for all batches at once.

    Upstream: MessageDecoder.decodeMessages.
    """

    row: int
    start: int
    end: int
    item_count: int


class InnerItems(NamedTuple):
    """The items of batches, in the order of the batches. batches: only the readable ones."""

    batches: Sequence[Batch]
    flags: npt.NDArray[np.int64]
    body: tuple[Positions, Positions]
    properties: tuple[Positions, Positions]


def find_items(data: bytes, batches: Sequence[Batch]) -> InnerItems:
    """Return the items of all readable batches; the last item of each must end with its batch."""
    placed = [(batch, starts) for batch in batches if (starts := _starts(data, batch)) is not None]
    kept = [batch for batch, _ in placed]
    starts = np.concatenate([starts for _, starts in placed]) if placed else np.empty(0, dtype=np.int64)
    heads = gather(data, starts, _ITEM)
    sizes, body_sizes = heads["size"].astype(np.int64), heads["body_size"].astype(np.int64)
    body_starts = starts + ITEM_HEAD.size
    body_ends, ends = body_starts + body_sizes, starts + sizes
    is_sound = (body_sizes >= 0) & (body_ends + 2 <= ends)
    properties_starts = body_ends + 2
    stated = gather(data, np.where(is_sound, body_ends, 0), _U16)
    is_sound &= properties_starts + stated == ends
    if not is_sound.all():
        rows = np.repeat(np.arange(len(kept)), [batch.item_count for batch in kept])
        unsound = set(rows[~is_sound].tolist())
        return find_items(data, [batch for number, batch in enumerate(kept) if number not in unsound])
    return InnerItems(
        kept, heads["flag"].astype(np.int64), (body_starts, body_ends), (properties_starts, ends)
    )


def _starts(data: bytes, batch: Batch) -> Positions | None:
    """Return each item's start; None if their number is wrong or the last does not end with the batch."""
    _, start, end, count = batch
    if end - start < ITEM_BYTES_MIN * count:
        return None
    size, rest = divmod(end - start, count)
    if not rest and size >= ITEM_BYTES_MIN:
        sizes: npt.NDArray[np.int32] = np.ndarray((count,), ">i4", data, start, (size,))
        if (sizes == size).all():
            return np.arange(start, end, size)
    return _followed_starts(data, batch)


def _followed_starts(data: bytes, batch: Batch) -> Positions | None:
    size_at = Struct(">i").unpack_from
    starts: list[int] = []
    append = starts.append
    position, last = batch.start, batch.end - ITEM_BYTES_MIN
    while position <= last:
        append(position)
        (size,) = size_at(data, position)
        if size < ITEM_BYTES_MIN:
            return None
        position += size
    if position != batch.end or len(starts) != batch.item_count:
        return None
    return np.array(starts, dtype=np.int64)


def unwrapped(records: Records) -> Records:
    """Return records in which batches are replaced by their messages."""
    return UnwrappedRecords(records) if records.wrapped_rows else records


class UnwrappedRecords(Records):
    """Single messages and messages of batches. pulled: the records that hold them."""

    def __init__(self, pulled: Records) -> None:
        plain = _decompressed(pulled)
        stored = pulled if plain is None else Records(plain, wrapped=True)
        items = find_items(stored._data, _batches(stored))
        found = [batch.row for batch in items.batches]
        _log_unreadable(stored, set(stored.wrapped_rows) - set(found))
        counts = np.ones(len(stored), dtype=np.int64)
        counts[found] = [batch.item_count for batch in items.batches]
        is_batch = np.zeros(len(stored), dtype=np.bool_)
        is_batch[found] = True
        of = np.repeat(np.arange(len(stored)), counts)
        is_item = is_batch[of]
        numbers = np.arange(len(of)) - (np.cumsum(counts) - counts)[of]
        self._pulled, self._stored, self._record_of = pulled, stored, of
        self._data, self._buffer = stored._data, stored._buffer
        self.wrapped_rows = []
        self._starts = pulled._starts[of]
        self._head = head = stored._head.take(of)  # Indexing with an array would copy field by field.
        head["queue_offset"] += numbers
        head["physical_offset"] |= numbers << PLACE_BITS
        head["flag"][is_item] = items.flags
        self._sys_flag = stored._sys_flag[of]
        self._sys_flag[is_item] &= ~OF_A_BATCH
        head["sys_flag"] = self._sys_flag
        self._stored_at = stored._stored_at[of]
        self._store_host_at = stored._store_host_at[of]
        self._tail = stored._tail[of]
        self._body = _placed(stored._body, of, is_item, items.body)
        self._properties = _placed(stored._properties, of, is_item, items.properties)

    def record(self, row: int) -> bytes:
        """Return the bytes of one record; for a message of a batch, as if a broker had unwrapped it."""
        stored = int(self._record_of[row])
        start = int(self._stored._starts[stored])
        head = _head(self._data, start)  # Avoids copying a batch of 1 MiB for one of its messages.
        if not head.sys_flag & flags.INNER_BATCH or self._sys_flag[row] & flags.INNER_BATCH:
            return self._stored.record(stored)
        fields = HEADS[head.sys_flag & HOST_BITS].unpack_from(self._data, start)
        body, properties = (
            self._data[int(starts[row]) : int(ends[row])] for starts, ends in (self._body, self._properties)
        )
        return encode_record(
            topic=head.topic,
            queue_id=head.queue_id,
            queue_offset=int(self._head["queue_offset"][row]),
            physical_offset=int(self._head["physical_offset"][row]),
            body=body,
            properties=properties,
            flag=int(self._head["flag"][row]),
            sys_flag=head.sys_flag & ~OF_A_BATCH,
            born_timestamp_ms=fields[8],
            born_host=fields[9],
            store_timestamp_ms=fields[10],
            store_host=fields[11],
        )

    def has_good_crcs(self) -> bool:
        """Return whether every stored body matches its checksum."""
        return self._pulled.has_good_crcs()

    def _topics(self) -> pa.Array:
        return self._stored._topics().take(pa.array(self._record_of))


def _placed(
    stored: tuple[Positions, Positions],
    of: Positions,
    is_item: npt.NDArray[np.bool_],
    items: tuple[Positions, Positions],
) -> tuple[Positions, Positions]:
    """Return each row's start and end of a field, in its record or in an item of a batch."""
    if is_item.all():
        return items
    starts, ends = stored[0][of], stored[1][of]
    starts[is_item], ends[is_item] = items
    return starts, ends


def _head(data: bytes, start: int = 0) -> RecordHead:
    head = peek_record(data, start)
    assert head is not None, "the record is whole"
    return head


def _batches(records: Records) -> Sequence[Batch]:
    """Return the batches among records, except those that could not be decompressed."""
    found = []
    for row in records.wrapped_rows:
        head = _head(records._data, int(records._starts[row]))
        if not head.sys_flag & flags.COMPRESSED:
            found.append(Batch(row, head.body_start, head.body_end, message_count(head)))
    return found


def _decompressed(records: Records) -> bytes | None:
    """Return the bytes of records with the bodies of all batches decompressed; None if none is compressed.

    A body that cannot be decompressed stays unchanged.
    """
    compressed = set(np.flatnonzero(records._sys_flag & flags.COMPRESSED).tolist()).intersection(
        records.wrapped_rows
    )
    if not compressed:
        return None
    every = map(records.record, range(len(records)))
    return b"".join([_plain(each) if row in compressed else each for row, each in enumerate(every)])


def _plain(record: bytes) -> bytes:
    """Return the record of a batch with its body decompressed if possible."""
    head = _head(record)
    try:
        body = decompress_body(record[head.body_start : head.body_end], head.sys_flag)
    except RemoteProtocolError:
        return record
    kind = HEADS[head.sys_flag & HOST_BITS]
    fields = kind.unpack_from(record)
    sys_flag = head.sys_flag & ~(flags.COMPRESSED | flags.COMPRESSION_MASK)
    size = kind.size + len(body) + len(record) - head.body_end
    packed = kind.pack(size, *fields[1:7], sys_flag, *fields[8:14], len(body))
    return b"".join((packed, body, record[head.body_end :]))


def _log_unreadable(records: Records, rows: set[int]) -> None:
    if not rows:
        return
    from libramq.logs import get_logger  # As in `records`: imported only for the first such batch.

    for row in sorted(rows):
        get_logger(__name__).error(
            "a batch is returned as it is stored: its messages cannot be read",
            offset=int(records._head["queue_offset"][row]),
            physical_offset=int(records._head["physical_offset"][row]),
        )
