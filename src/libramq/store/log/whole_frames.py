"""Whole frames: `message.record.has_whole_frame` for many records at once, on arrays."""

import numpy as np
import numpy.typing as npt

from libramq.message.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from libramq.message.record_head import HEADS, HOST_BITS
from libramq.message.sys_flag import BORN_HOST_V6, STORE_HOST_V6

Places = npt.NDArray[np.int64]
_MAGIC_AT = 4
_PHYSICAL_OFFSET_AT = 28
_SYS_FLAG_AT = 36
_HEAD_BYTES = HEADS[0].size
_LONGER_BYTES = HEADS[BORN_HOST_V6].size - _HEAD_BYTES
assert HOST_BITS == BORN_HOST_V6 | STORE_HOST_V6


def whole_frames(data: bytes, starts: Places, sizes: Places, physical: Places) -> npt.NDArray[np.bool_]:
    """Return for each place whether a record of that size and physical offset is there, and adds up."""
    if len(data) < RECORD_BYTES_MIN:
        return np.zeros(len(starts), dtype=np.bool_)

    def read(at: Places, kind: str) -> Places:
        dtype = np.dtype(kind)
        numbers: npt.NDArray[np.int64] = np.ndarray(
            (len(data) - dtype.itemsize + 1,), dtype, buffer=data, strides=(1,)
        )
        return numbers[np.clip(at, 0, len(numbers) - 1)].astype(np.int64)

    magic = read(starts + _MAGIC_AT, ">u4")
    sys_flag = read(starts + _SYS_FLAG_AT, ">i4")
    ends = starts + sizes
    body_at = starts + _HEAD_BYTES
    for bit in (BORN_HOST_V6, STORE_HOST_V6):
        body_at += np.where(sys_flag & bit, _LONGER_BYTES, 0)
    length_at = body_at + read(body_at - 4, ">u4")
    is_v1 = magic == MAGIC_V1
    topic_size = np.where(is_v1, read(length_at, ">u1"), read(length_at, ">u2"))
    properties_at = length_at + np.where(is_v1, 1, 2) + topic_size + 2
    whole: npt.NDArray[np.bool_] = (
        (read(starts, ">u4") == sizes)
        & (is_v1 | (magic == MAGIC_V2))
        & (read(starts + _PHYSICAL_OFFSET_AT, ">i8") == physical)
        & (properties_at <= ends)
        & (properties_at + read(properties_at - 2, ">u2") == ends)
        & (ends <= len(data))
    )
    return whole
