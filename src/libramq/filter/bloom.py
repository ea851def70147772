"""A group's place in Apache's bloom filter: three bits that its broker may set for a message it stores.

Our broker sets none; but Apache's ignores a whole consumerFilter.json in which one place is missing or is of
another size. The size is that of its default options (maxErrorRateOfBloomFilter, expectConsumerNumUseFilter).

Upstream: filter/util/BloomFilter.java; the hash is Guava's murmur3_128 with seed 0.
"""

from typing import Final

from libramq.formats.document import Document

#: BloomFilter.createByFn(20, 32): functions, and bits.
FUNCTIONS: Final = 3
BITS: Final = 112

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C3_7B91_1142_53D5
_C2: Final = 0x4CF5_AD43_2745_937F


class BloomFilterData(Document, frozen=True, kw_only=True):
    """The bits of a group and topic."""

    bit_pos: list[int] | None = None
    bit_num: int = 0


def bloom_filter_data(group: str, topic: str) -> BloomFilterData:
    """Return the bits of a group and topic."""
    code = murmur3(f"{group}#{topic}".encode("utf-8", "replace"))
    low, high = code & 0xFFFF_FFFF, code >> 32
    positions = []
    for number in range(1, FUNCTIONS + 1):
        combined = (low + number * high) & 0xFFFF_FFFF
        if combined >> 31:  # A negative int, for Java.
            combined ^= 0xFFFF_FFFF
        positions.append(combined % BITS)
    return BloomFilterData(bit_pos=positions, bit_num=BITS)


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of a text's murmur3_128."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for start in range(0, whole, 16):
        h1 ^= _mixed_1(int.from_bytes(data[start : start + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DC_E729 & _MASK
        h2 ^= _mixed_2(int.from_bytes(data[start + 8 : start + 16], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x3849_5AB5 & _MASK
    h1 ^= _mixed_1(int.from_bytes(data[whole : whole + 8], "little"))
    h2 ^= _mixed_2(int.from_bytes(data[whole + 8 :], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return _finished(h1) + _finished(h2) & _MASK


def _mixed_1(half: int) -> int:
    return _rotated(half * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_2(half: int) -> int:
    return _rotated(half * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51_AFD7_ED55_8CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CE_B9FE_1A85_EC53 & _MASK
    return value ^ value >> 33
