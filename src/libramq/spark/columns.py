"""Columns: stored records, back to back, made into Arrow columns on whole arrays.

    bytes of pull replies ──► where each record starts        by their magic, checked by their sizes
                          ──► fixed fields                    one gather of a packed struct, any start
                          ──► body, topic, properties         one copy each, by Arrow's `take`
                          ──► tag, key, message id            searched in all properties at once

No Python object is made for a message (compressed bodies excepted). A variable-length field is cut
out without an index per byte: the offsets `start0 end0 start1 end1 …` describe the received buffer
as a binary array whose even elements are the fields and whose odd ones the gaps between them, and
`take` copies the even ones.

Record format: store/MessageExtEncoder.java; properties: MessageDecoder.string2messageProperties.
"""

from collections.abc import Sequence
from functools import cached_property
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from libramq.errors import RemoteProtocolError
from libramq.message import sys_flag as flags
from libramq.message.compression import decompress_body
from libramq.message.record import HOST_BITS, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

MARKED_BYTES_MAX: Final = 512  # Larger records are sooner found by their sizes than by their magic.
MILLIS_MAX: Final = (1 << 63) // 1000 - 1  # Arrow's microseconds are signed 64-bit numbers.

# The record up to its first field of variable place, then what follows each host.
_HEAD = np.dtype(
    [
        ("size", ">u4"),
        ("magic", ">u4"),
        ("body_crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">u4"),
        ("born_ms", ">i8"),
    ]
)
_STORED = np.dtype([("stored_ms", ">i8")])
_TAIL = np.dtype([("reconsume_times", ">i4"), ("prepared_offset", ">i8"), ("body_size", ">i4")])
_U8 = np.dtype("u1")
_U16 = np.dtype(">u2")
_U32 = np.dtype(">u4")

UTC_MICROS: Final = pa.timestamp("us", tz="UTC")

FIELDS: Final[tuple[tuple[str, pa.DataType], ...]] = (
    ("topic", pa.string()),
    ("broker", pa.string()),
    ("queueId", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", UTC_MICROS),
    ("bornTimestamp", UTC_MICROS),
    ("key", pa.string()),
    ("tag", pa.string()),
    ("msgId", pa.string()),
    ("body", pa.binary()),
    ("reconsumeTimes", pa.int32()),
    ("properties", pa.map_(pa.string(), pa.string())),
)
"""The columns of libramq.spark.schema as Arrow types them."""

COLUMNS: Final[tuple[str, ...]] = tuple(name for name, _ in FIELDS)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of a batch with these columns, in this order."""
    kinds = dict(FIELDS)
    return pa.schema([pa.field(name, kinds[name]) for name in columns])


def record_starts(data: bytes) -> Positions:
    """Where each record starts; the records must fill the bytes exactly."""
    if len(data) < 4 or int.from_bytes(data[:4]) > MARKED_BYTES_MAX:
        return _followed_starts(data)
    marked = _marked_starts(data)
    sizes = _gather(data, marked, _U32).astype(np.int64)
    ends = marked + sizes
    if (
        len(marked)
        and marked[0] == 0
        and ends[-1] == len(data)
        and np.array_equal(ends[:-1], marked[1:])
        and sizes.min() >= RECORD_BYTES_MIN
    ):
        return marked
    return _followed_starts(data)  # A body holds the magic, or something is wrong.


def _marked_starts(data: bytes) -> Positions:
    """Where the magic of a record stands in its place: 0.2 ns a byte; following sizes takes 0.12 µs each."""
    first_bytes = np.flatnonzero(np.frombuffer(data, np.uint8) == MAGIC_V1 >> 24)
    places = first_bytes[(first_bytes >= 4) & (first_bytes <= len(data) - 4)]
    magic = _gather(data, places, _U32)
    starts: Positions = places[(magic == MAGIC_V1) | (magic == MAGIC_V2)] - 4
    return starts


def _followed_starts(data: bytes) -> Positions:
    starts: list[int] = []
    append = starts.append
    size_at = Struct(">I").unpack_from
    position, end = 0, len(data)
    while end - position >= RECORD_BYTES_MIN:
        append(position)
        (size,) = size_at(data, position)
        if size < RECORD_BYTES_MIN:
            raise RemoteProtocolError(f"record of {size} bytes at {position} of a pulled body")
        position += size
    if position != end:
        raise RemoteProtocolError(f"pulled body of {end} bytes ends inside a record")
    return np.array(starts, dtype=np.int64)


def _gather(data: bytes, positions: Positions, kind: np.dtype[Any]) -> Any:
    """One packed struct from each position, which need not be aligned."""
    last = len(data) - kind.itemsize
    if len(positions) and (int(positions.max()) > last or int(positions.min()) < 0):
        raise RemoteProtocolError("a field runs past the end of a pulled body")
    if not len(positions):
        return np.empty(0, dtype=kind)
    # Overlapping windows of the struct's size, one byte apart; copied as mere bytes, which numpy does ten
    # times faster than field by field.
    size = kind.itemsize
    return np.ndarray((last + 1,), f"V{size}", data, 0, (1,))[positions].view(kind)


def _slices(buffer: pa.Buffer, starts: Positions, ends: Positions) -> pa.Array:
    """The byte strings [start, end) as a binary array. They follow each other and do not overlap."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    fields_and_gaps = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), buffer])
    return fields_and_gaps.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))


def _text(binary: pa.Array) -> pa.Array:
    """UTF-8 as strings; what is not UTF-8 gets replacement characters, as in Java."""
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        values = [None if value is None else value.decode(errors="replace") for value in binary.to_pylist()]
        return pa.array(values, pa.string())


class Records:
    """The parsed places of records in one stretch of bytes; each column is made when asked for.

    starts: where they are, in ascending order; None where they lie back to back and fill the bytes.
    """

    def __init__(self, data: bytes, starts: Positions | None = None) -> None:
        self._data = data
        self._buffer = pa.py_buffer(data)
        if starts is None:
            starts = record_starts(data)
        head = _gather(data, starts, _HEAD)
        magic = head["magic"]
        wide_topic = magic == MAGIC_V2
        if not np.all(wide_topic | (magic == MAGIC_V1)):
            raise RemoteProtocolError("a pulled body holds something that is not a message record")
        self._starts = starts
        self._head = head
        self._sys_flag = head["sys_flag"].astype(np.int64)
        if np.any(self._sys_flag & flags.INNER_BATCH):
            raise RemoteProtocolError("records of batch queues (queue.type=BatchCQ) cannot be read")
        record_ends = starts + head["size"].astype(np.int64)
        self._stored_at = starts + (_HEAD.itemsize + 8)
        self._store_host_at = self._stored_at + 8
        tail_at = self._store_host_at + 8
        if np.any(self._sys_flag & HOST_BITS):
            born_longer = np.where(self._sys_flag & flags.BORN_HOST_V6, 12, 0)
            self._stored_at += born_longer
            self._store_host_at += born_longer
            tail_at += born_longer + np.where(self._sys_flag & flags.STORE_HOST_V6, 12, 0)
        self._tail = _gather(data, tail_at, _TAIL)
        self._body = _span(tail_at + _TAIL.itemsize, self._tail["body_size"], record_ends)
        topic_size = _gather(data, self._body[1], _U8).astype(np.int64)
        topic_at = self._body[1] + 1
        if np.any(wide_topic):
            topic_size[wide_topic] = _gather(data, self._body[1][wide_topic], _U16)
            topic_at += wide_topic
        self._topic = _span(topic_at, topic_size, record_ends)
        properties_size = _gather(data, self._topic[1], _U16)
        self._properties = _span(self._topic[1] + 2, properties_size, record_ends)

    def __len__(self) -> int:
        return len(self._head)

    @property
    def queue_offsets(self) -> Positions:
        return self._head["queue_offset"].astype(np.int64)  # type: ignore[no-any-return]

    @property
    def physical_offsets(self) -> Positions:
        """Where each record lies in its broker's commit log."""
        return self._head["physical_offset"].astype(np.int64)  # type: ignore[no-any-return]

    @property
    def queue_ids(self) -> Positions:
        """The queue of each record."""
        return self._head["queue_id"].astype(np.int64)  # type: ignore[no-any-return]

    def tags(self) -> pa.Array:
        """The tag of each record, null where it has none."""
        return _text(self._parsed.values_of(b"TAGS"))

    def count_before(self, ends: Sequence[int]) -> list[int]:
        """How many records lie before each of these places of the bytes."""
        return np.searchsorted(self._starts, ends).tolist()  # type: ignore[no-any-return]

    def batch(self, brokers: Sequence[tuple[str, int]], schema: pa.Schema) -> pa.RecordBatch:
        """The columns the schema names, in its order.

        brokers: whose records these are, each with the place where the bytes from that broker end.
        """
        made: dict[str, pa.Array] = {}
        for name in schema.names:
            match name:
                case "topic":
                    column = _text(_slices(self._buffer, *self._topic))
                case "broker":
                    column = self._brokers(brokers)
                case "queueId":
                    column = pa.array(self._head["queue_id"].astype(np.int32))
                case "offset":
                    column = pa.array(self.queue_offsets)
                case "timestamp":
                    column = _instants(_gather(self._data, self._stored_at, _STORED)["stored_ms"])
                case "bornTimestamp":
                    column = _instants(self._head["born_ms"])
                case "key":
                    column = _text(self._parsed.values_of(b"KEYS"))
                case "tag":
                    column = self.tags()
                case "msgId":
                    column = self._message_ids(self._parsed.values_of(b"UNIQ_KEY"))
                case "body":
                    column = self._bodies()
                case "reconsumeTimes":
                    column = pa.array(self._tail["reconsume_times"].astype(np.int32))
                case "properties":
                    column = self._parsed.as_map()
                case _:
                    raise ValueError(f"no column {name}")
            made[name] = column
        return pa.RecordBatch.from_arrays([made[name] for name in schema.names], schema=schema)

    @cached_property
    def _parsed(self) -> "Properties":
        return Properties(_slices(self._buffer, *self._properties))

    def _brokers(self, brokers: Sequence[tuple[str, int]]) -> pa.Array:
        before = [0, *self.count_before([end for _, end in brokers])]
        names = [
            pa.repeat(pa.scalar(name, pa.string()), count)
            for (name, _), count in zip(brokers, np.diff(before).tolist(), strict=True)
        ]
        return pa.concat_arrays(names) if names else pa.array([], pa.string())

    def _bodies(self) -> pa.Array:
        bodies = _slices(self._buffer, *self._body)
        packed = (self._sys_flag & flags.COMPRESSED) != 0
        if not packed.any():
            return bodies
        unpacked = [
            decompress_body(bodies[row].as_py(), int(self._sys_flag[row]))
            for row in np.flatnonzero(packed).tolist()
        ]
        return pc.replace_with_mask(bodies, pa.array(packed), pa.array(unpacked, pa.binary()))

    def _message_ids(self, unique_keys: pa.Array) -> pa.Array:
        """The producer's id, or where it gave none the offset id: store host, port, physical offset."""
        missing = unique_keys.is_null().to_numpy(zero_copy_only=False)
        if not missing.any():
            return _text(unique_keys)
        rows = np.flatnonzero(missing)
        hexed: list[bytes] = []
        sizes = np.where(self._sys_flag[rows] & flags.STORE_HOST_V6, 20, 8).tolist()
        offsets = self._head["physical_offset"][rows].tolist()
        for start, size, offset in zip(self._store_host_at[rows].tolist(), sizes, offsets, strict=True):
            host = self._data[start : start + size]
            hexed.append((host + (offset & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8)).hex().upper().encode())
        ids = pa.array(hexed, pa.binary())
        return _text(pc.replace_with_mask(unique_keys, pa.array(missing), ids))


class Properties:
    """The properties of many records: `name 0x01 value 0x02`, repeated, found in one pass.

    As in Java, the last separator may be missing and a pair needs a name and a value of at least one
    character each; what is not a pair is passed over.
    """

    def __init__(self, texts: pa.Array) -> None:
        self._count = len(texts)
        _, bounds, values = texts.buffers()
        bounds = np.frombuffer(bounds, dtype=np.int32)[: self._count + 1].astype(np.int64)
        row_starts, row_ends = bounds[:-1], bounds[1:]
        self._buffer = values if values is not None else pa.py_buffer(b"")
        self._text = np.frombuffer(self._buffer, dtype=np.uint8)[: int(bounds[-1]) if self._count else 0]
        equals_signs = np.flatnonzero(self._text == 1)
        ends, nexts = _pair_ends(self._text, row_starts, row_ends)
        begins = np.concatenate((np.zeros(min(1, len(nexts)), dtype=np.int64), nexts[:-1]))
        if len(equals_signs) == len(ends) and np.all((equals_signs > begins) & (equals_signs < ends - 1)):
            self._begins, self._middles, self._ends = begins, equals_signs, ends  # As everybody writes them.
        else:
            middles = np.append(equals_signs, len(self._text))[np.searchsorted(equals_signs, begins)]
            is_pair = (middles > begins) & (middles < ends - 1)
            self._begins, self._middles, self._ends = begins[is_pair], middles[is_pair], ends[is_pair]
        self._bounds = bounds
        pairs, rest = divmod(len(ends), max(1, self._count))
        is_regular = False
        if pairs and not rest and self._begins is begins:
            last = ends[pairs - 1 :: pairs]
            is_regular = np.array_equal(last, row_ends - 1) or np.array_equal(last, row_ends)
        #: How many pairs each row has, if they all have as many: columns of pairs, so to speak.
        self._pairs_per_row = pairs if is_regular else 0

    @cached_property
    def _first_pairs(self) -> Positions:
        """Where the pairs of each row begin. Pairs do not cross rows."""
        return np.searchsorted(self._begins, self._bounds)

    @cached_property
    def _rows(self) -> Positions:
        """The row of each pair."""
        return np.repeat(np.arange(self._count), np.diff(self._first_pairs))

    @cached_property
    def _name_sizes(self) -> Positions:
        return self._middles - self._begins

    def values_of(self, name: bytes) -> pa.Array:
        """The value of one property for every record, null where it has none; the last one counts."""
        column = self._column_of(name)
        if column is not None:
            every = slice(column, None, self._pairs_per_row)
            return _slices(self._buffer, self._middles[every] + 1, self._ends[every])
        pairs = np.flatnonzero(self._name_sizes == len(name))
        pairs = pairs[self._have_name(pairs, name)]
        rows = self._rows[pairs]
        if len(rows) > 1:
            is_last = np.append(rows[1:] != rows[:-1], True)
            pairs, rows = pairs[is_last], rows[is_last]
        values = _slices(self._buffer, self._middles[pairs] + 1, self._ends[pairs])
        if len(pairs) == self._count:
            return values
        place = np.zeros(self._count, dtype=np.int64)
        missing = np.ones(self._count, dtype=np.bool_)
        place[rows], missing[rows] = np.arange(len(rows)), False
        return values.take(pa.array(place, mask=missing))

    def _column_of(self, name: bytes) -> int | None:
        """The place at which every row has this name, as one producer's have; None where rows differ.

        A few comparisons a row; finding the pairs among all of them and their rows costs three times as much.
        """
        for column in reversed(range(self._pairs_per_row)):  # The last one counts.
            every = slice(column, None, self._pairs_per_row)
            has_size = self._name_sizes[every] == len(name)
            if not has_size.any():
                continue
            pairs = np.arange(column, len(self._begins), self._pairs_per_row)
            if not has_size.all():
                return None
            has_name = self._have_name(pairs, name)
            if has_name.all():
                return column
            if has_name.any():
                return None
        return None

    def _have_name(self, pairs: Positions, name: bytes) -> npt.NDArray[np.bool_]:
        """Which of these pairs, whose names are of that size, have that name."""
        if not len(pairs):
            return np.zeros(0, dtype=np.bool_)
        # Overlapping windows of the name's size, one byte apart.
        windows = np.ndarray((len(self._text) - len(name) + 1,), f"S{len(name)}", self._buffer, 0, (1,))
        return windows[self._begins[pairs]] == name  # type: ignore[no-any-return]

    def as_map(self) -> pa.Array:
        """All of them."""
        names = _slices(self._buffer, self._begins, self._middles)
        values = _slices(self._buffer, self._middles + 1, self._ends)
        return pa.MapArray.from_arrays(
            pa.array(self._first_pairs.astype(np.int32)), _text(names), _text(values)
        )


def _pair_ends(text: Bytes, row_starts: Positions, row_ends: Positions) -> tuple[Positions, Positions]:
    """Where pairs end, and where what follows them begins."""
    ends = np.flatnonzero(text == 2)
    nexts = ends + 1
    is_closed = row_ends == row_starts
    is_closed[~is_closed] = text[row_ends[~is_closed] - 1] == 2
    if not is_closed.all():
        # Rows end pairs too. A row's end goes before a separator that opens the next row.
        order = np.argsort(np.concatenate((row_ends, ends)), kind="stable")
        nexts = np.concatenate((row_ends, nexts))[order]
        ends = np.concatenate((row_ends, ends))[order]
    return ends, nexts


def _span(starts: Positions, sizes: Any, limits: Positions) -> tuple[Positions, Positions]:
    ends = starts + sizes.astype(np.int64)
    if np.any(ends > limits) or np.any(ends < starts):
        raise RemoteProtocolError("a field runs past the end of its record")
    return starts, ends


def _instants(millis: Any) -> pa.Array:
    # The producer's clock may say anything.
    micros = np.clip(millis.astype(np.int64), -MILLIS_MAX, MILLIS_MAX) * 1000
    return pa.Array.from_buffers(UTC_MICROS, len(micros), [None, pa.py_buffer(micros)])
