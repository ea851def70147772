"""The timer unit: one timer message, in the timer log.

    size (4) | previous unit of its slot (8) | magic (4) | written at (8) | delay (4)
    position of the message in the commit log (8) | its size (4) | hash of its topic (4) | 0 (8)

Upstream: store/timer/TimerLog.java, TimerMessageStore.doEnqueue.
"""

import struct
from typing import Final, NamedTuple

UNIT_BYTES: Final = 52
#: The header of what fills a file up to its end: size, 0, BLANK_MAGIC.
BLANK_BYTES: Final = 16
#: TimerLog.BLANK_MAGIC_CODE: `0xBBCCDDEE ^ 1880681586 + 8`, as a signed number; Java adds first.
BLANK_MAGIC: Final = (0xBBCC_DDEE ^ (1_880_681_586 + 8)) - (1 << 32)
#: What ends a slot's chain.
NO_UNIT: Final = -1

ROLL: Final = 2
DELETE: Final = 4
_DEFAULT: Final = 1
_FORMAT: Final = struct.Struct(">iqiqiqiiq")
_BLANK: Final = struct.Struct(">iqi")


class TimerUnit(NamedTuple):
    """One timer message. previous: the unit of its slot that was written before; NO_UNIT if it is the first.

    written_ms, delay_ms: together the time of its slot. rolls: the slot is an earlier one, as the message's
    own is too far away. deletes: the message says which others of its slot are not delivered.
    """

    previous: int
    written_ms: int
    delay_ms: int
    physical_offset: int
    size: int
    topic_hash: int = 0
    rolls: bool = False
    deletes: bool = False

    @property
    def slot_ms(self) -> int:
        """Return the time of its slot."""
        return self.written_ms + self.delay_ms


def encode_unit(unit: TimerUnit) -> bytes:
    """Return a unit's bytes."""
    magic = _DEFAULT | (ROLL if unit.rolls else 0) | (DELETE if unit.deletes else 0)
    return _FORMAT.pack(
        UNIT_BYTES, unit.previous, magic, unit.written_ms, unit.delay_ms, unit.physical_offset, unit.size,
        unit.topic_hash, 0,
    )  # fmt: skip


def decode_unit(data: bytes | bytearray, start: int = 0) -> TimerUnit | None:
    """Return the unit that begins here; None if none does."""
    if start + UNIT_BYTES > len(data):
        return None
    size, previous, magic, written_ms, delay_ms, physical_offset, length, topic_hash, _ = _FORMAT.unpack_from(
        data, start
    )
    # TimerMessageStore.isMagicOK: no bits but the lowest four.
    if size != UNIT_BYTES or not 0 <= magic <= 0xF or length <= 0 or physical_offset < 0:
        return None
    return TimerUnit(
        previous, written_ms, delay_ms, physical_offset, length, topic_hash,
        bool(magic & ROLL), bool(magic & DELETE),
    )  # fmt: skip


def encode_blank(size: int) -> bytes:
    """Return the filler at the end of a file."""
    return _BLANK.pack(size, 0, BLANK_MAGIC) + bytes(size - BLANK_BYTES)


def is_blank(data: bytes, start: int) -> bool:
    """Return whether the rest of the file is filled up."""
    return start + BLANK_BYTES <= len(data) and _BLANK.unpack_from(data, start)[2] == BLANK_MAGIC
