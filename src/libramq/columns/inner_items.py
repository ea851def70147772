"""Inner items: where the messages of inner batches are, found on whole arrays.

Where a batch's items have one size, their places are an arithmetic sequence; else the sizes are followed.
What the items say of themselves is then read and checked for all batches at once.

Upstream: MessageDecoder.decodeMessages.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from libramq.columns.fields import Positions, gather
from libramq.message.batch import ITEM_BYTES_MIN, ITEM_HEAD

_ITEM: Final = np.dtype([("size", ">i4"), ("unused", "V8"), ("flag", ">i4"), ("body_size", ">i4")])
_U16: Final = np.dtype(">u2")


class Batch(NamedTuple):
    """A batch: where its body is, and how many items it announces. row: of its record."""

    row: int
    start: int
    end: int
    item_count: int


class InnerItems(NamedTuple):
    """The items of batches, in the order of these. batches: those that can be read."""

    batches: Sequence[Batch]
    flags: npt.NDArray[np.int64]
    body: tuple[Positions, Positions]
    properties: tuple[Positions, Positions]


def find_items(data: bytes, batches: Sequence[Batch]) -> InnerItems:
    """Return the items of all batches that can be read; a batch ends where its last item does."""
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
    """Return where each item begins; None unless there are so many, and the last ends with the batch."""
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
