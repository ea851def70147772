"""Properties: the properties of many records at once, as Arrow columns of values.

One producer's records often have property texts that differ only in bytes of values. Then the first text
shows where all values are. In other texts, the separators are searched, in all records at once.

    KEYS ␁ key-17 ␂ TAGS ␁ new ␂        begin ── middle ── end of each pair
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from libramq.columns.fields import Bytes, Positions, even_distance, slices, text_of

_PAIR_END, _NAME_END = 2, 1


class Properties:
    """The properties in an array of texts, one per row.

    As in Java, the last separator may be missing, and both the name and the value of a pair need at least one
    character; anything else is ignored.

    Upstream: MessageDecoder.string2messageProperties.
    """

    def __init__(self, texts: pa.Array) -> None:
        self._count = len(texts)
        _, bounds, values = texts.buffers()
        bounds = np.frombuffer(bounds, dtype=np.int32)[: self._count + 1].astype(np.int64)
        row_starts, row_ends = bounds[:-1], bounds[1:]
        self._buffer = values if values is not None else pa.py_buffer(b"")
        self._text = np.frombuffer(self._buffer, dtype=np.uint8)[: int(bounds[-1]) if self._count else 0]
        equals_signs = np.flatnonzero(self._text == _NAME_END)
        ends, next_starts = _pair_ends(self._text, row_starts, row_ends)
        begins = np.concatenate((np.zeros(min(1, len(next_starts)), dtype=np.int64), next_starts[:-1]))
        if len(equals_signs) == len(ends) and np.all((equals_signs > begins) & (equals_signs < ends - 1)):
            self._begins, self._middles, self._ends = begins, equals_signs, ends  # The usual case.
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
        #: The number of pairs per row if all rows have the same, so that pairs form columns; else 0.
        self._pairs_per_row = pairs if is_regular else 0

    @cached_property
    def _first_pairs(self) -> Positions:
        """Return the index of each row's first pair. Pairs do not cross rows."""
        return np.searchsorted(self._begins, self._bounds)

    @cached_property
    def _rows(self) -> Positions:
        """Return the row of each pair."""
        return np.repeat(np.arange(self._count), np.diff(self._first_pairs))

    @cached_property
    def _name_sizes(self) -> Positions:
        return self._middles - self._begins

    def values_of(self, name: bytes) -> pa.Array:
        """Return the value of one property for every record, or null; the last of several counts."""
        column = self._column_of(name)
        if column is not None:
            every = slice(column, None, self._pairs_per_row)
            return slices(self._buffer, self._middles[every] + 1, self._ends[every])
        pairs = np.flatnonzero(self._name_sizes == len(name))
        pairs = pairs[self._have_name(pairs, name)]
        rows = self._rows[pairs]
        if len(rows) > 1:
            is_last = np.append(rows[1:] != rows[:-1], True)
            pairs, rows = pairs[is_last], rows[is_last]
        values = slices(self._buffer, self._middles[pairs] + 1, self._ends[pairs])
        if len(pairs) == self._count:
            return values
        place = np.zeros(self._count, dtype=np.int64)
        missing = np.ones(self._count, dtype=np.bool_)
        place[rows], missing[rows] = np.arange(len(rows)), False
        return values.take(pa.array(place, mask=missing))

    def _column_of(self, name: bytes) -> int | None:
        """Return the column in which every row has this name, as in one producer's records; None if rows
        differ.

        This takes a few comparisons per row; searching all pairs and their rows costs three times as much.
        """
        for column in reversed(range(self._pairs_per_row)):  # The last of several pairs counts.
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
        """Return which of these pairs have this name; all their names must have its size."""
        if not len(pairs):
            return np.zeros(0, dtype=np.bool_)
        # Overlapping windows of the name's size, one byte apart.
        windows = np.ndarray((len(self._text) - len(name) + 1,), f"S{len(name)}", self._buffer, 0, (1,))
        return windows[self._begins[pairs]] == name  # type: ignore[no-any-return]

    def as_map(self) -> pa.Array:
        """Return all properties as a map column."""
        names = slices(self._buffer, self._begins, self._middles)
        values = slices(self._buffer, self._middles + 1, self._ends)
        return pa.MapArray.from_arrays(
            pa.array(self._first_pairs.astype(np.int32)), text_of(names), text_of(values)
        )


def _pair_ends(text: Bytes, row_starts: Positions, row_ends: Positions) -> tuple[Positions, Positions]:
    """Return the ends of pairs and the starts of the next pairs."""
    ends = np.flatnonzero(text == _PAIR_END)
    next_starts = ends + 1
    is_closed = row_ends == row_starts
    is_closed[~is_closed] = text[row_ends[~is_closed] - 1] == _PAIR_END
    if not is_closed.all():
        # Row ends also end pairs. A row's end sorts before a separator at the start of the next row.
        order = np.argsort(np.concatenate((row_ends, ends)), kind="stable")
        next_starts = np.concatenate((row_ends, next_starts))[order]
        ends = np.concatenate((row_ends, ends))[order]
    return ends, next_starts


class AlikeProperties:
    """The properties of records whose texts differ only in bytes of values.

    pairs: by name, the start and end of its value in each text; the last pair counts.
    """

    def __init__(
        self, buffer: pa.Buffer, starts: Positions, ends: Positions, pairs: dict[bytes, tuple[int, int]]
    ) -> None:
        self._buffer = buffer
        self._starts, self._ends = starts, ends
        self._pairs = pairs

    @classmethod
    def of(cls, buffer: pa.Buffer, starts: Positions, ends: Positions) -> "AlikeProperties | None":
        """Return the properties between these positions of the buffer; None if the texts are not alike."""
        step = even_distance(starts, ends)
        if step is None:
            return None
        size = int(ends[0] - starts[0])
        texts: Bytes = np.ndarray((len(starts), size), np.uint8, buffer, int(starts[0]), (step, 1))
        pairs, is_value = _pairs_of(texts[0].tobytes())
        changing = np.flatnonzero((texts != texts[0]).any(axis=0))
        if not is_value[changing].all() or (len(changing) and texts[:, changing].min() <= _PAIR_END):
            return None
        return cls(buffer, starts, ends, pairs)

    def values_of(self, name: bytes) -> pa.Array:
        """Return the value of one property for every record, or null."""
        pair = self._pairs.get(name)
        if pair is None:
            return pa.nulls(len(self._starts), pa.binary())
        begin, end = pair
        return slices(self._buffer, self._starts + begin, self._starts + end)

    def as_map(self) -> pa.Array:
        """Return all properties as a map column."""
        return Properties(slices(self._buffer, self._starts, self._ends)).as_map()


def _pairs_of(text: bytes) -> tuple[dict[bytes, tuple[int, int]], npt.NDArray[np.bool_]]:
    """Return the positions of values in a text, by name, and which of its bytes belong to values."""
    pairs: dict[bytes, tuple[int, int]] = {}
    is_value = np.zeros(len(text), dtype=np.bool_)
    begin = 0
    for part in text.split(b"\x02"):
        end = begin + len(part)
        name, _, value = part.partition(b"\x01")
        if name and value:
            pairs[name] = end - len(value), end
            is_value[end - len(value) : end] = True
        begin = end + 1
    return pairs, is_value


def properties_of(buffer: pa.Buffer, starts: Positions, ends: Positions) -> Properties | AlikeProperties:
    """Return the properties of records, given the positions of their texts in the buffer."""
    alike = AlikeProperties.of(buffer, starts, ends)
    if alike is not None:
        return alike
    texts = slices(buffer, starts, ends)
    size = int(ends[0] - starts[0]) if len(starts) else 0
    if size and (ends - starts == size).all():  # The bodies' sizes may differ.
        places = np.arange(0, len(starts) * size, size)
        alike = AlikeProperties.of(texts.buffers()[2], places, places + size)
    return alike or Properties(texts)
