"""Known transactions: which half messages are open, and which have ended, between the committed offsets of
the half topic and the op topic.

    half topic   … ended  ended │ open   ended  open   ended     `half_offset` │
    op topic     … "0,"   "1,"  │ "3,"   "5,"                    `op_offset`   │

Both offsets are committed as those of CID_RMQ_SYS_TRANS, as Apache's broker does, so either broker continues
with the other's open transactions. Everything behind them is kept in memory; after a start it is read from
the op topic.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

#: Ours: ended half messages that are remembered, so that a second commit stores no second message. One takes
#: some 100 bytes.
ENDED_MAX: Final = 200_000


class Known(Enum):
    """What is known of a half message that its producer names."""

    OPEN = auto()
    ENDED = auto()
    NOTHING = auto()  # It was passed, and may have ended longer ago than is remembered.


class KnownTransactions:
    """The open transactions, and those that have ended; offsets are those of the one queue of each topic.

    unread_before: half messages before it may have ended, or may be copies: they are still being read.
    held_before: a slave may have passed on half messages before it, which is being found out.
    """

    def __init__(self, half_offset: int, op_offset: int) -> None:
        self.half_offset = half_offset
        self.unread_before = self.held_before = 0
        self._op_start = self._op_end = op_offset
        self._ops: deque[tuple[int, int]] = deque()  # Its offset, and the last half message that it names.
        self._ended: dict[int, None] = {}
        self._copies: dict[int, int] = {}

    @property
    def op_offset(self) -> int:
        """Return the first operation message that names a half message behind `half_offset`."""
        if self.unread_before:
            return self._op_start
        return self._ops[0][0] if self._ops else self._op_end

    def ended(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """Note an operation message."""
        named = list(half_offsets)
        for half_offset in named:
            self._ended[half_offset] = None
            self._copies.pop(half_offset, None)
        self._ops.append((op_offset, max(named, default=-1)))
        self._op_end = max(self._op_end, op_offset + 1)
        self._forget()

    def all_read(self) -> None:
        """Note that both topics are read; what ended meanwhile was noted before what had ended earlier."""
        self.unread_before = 0
        self._ops = deque(sorted(self._ops))

    def remember(self, half_offsets: Iterable[int]) -> None:
        """Note half messages that have ended: their producers may repeat themselves."""
        for half_offset in half_offsets:
            self._ended[half_offset] = None
        self._forget()

    def was_renewed(self, first_offset: int, new_offset: int) -> None:
        """Note that a half message was copied to the end, or given up where it is."""
        self._copies[first_offset] = new_offset
        if len(self._copies) > ENDED_MAX:
            del self._copies[next(iter(self._copies))]

    def to_end(self, half_offset: int, first_offset: int) -> list[int]:
        """Return all offsets by which a half message may be named, without repetitions."""
        newest = self._copies.get(first_offset, half_offset)
        return list(dict.fromkeys((newest, half_offset, first_offset)))

    def has_ended(self, half_offset: int) -> bool:
        """Return whether a half message is known to have ended."""
        return half_offset in self._ended

    def known(self, half_offset: int, first_offset: int) -> Known:
        """Return what is known of a half message, by its offset and the first one that it had."""
        if half_offset in self._ended or first_offset in self._ended:
            return Known.ENDED
        if half_offset < self.held_before:
            return Known.NOTHING
        if first_offset in self._copies or half_offset >= max(self.half_offset, self.unread_before):
            return Known.OPEN
        return Known.NOTHING

    def is_renewed(self, first_offset: int, half_offset: int) -> bool:
        """Return whether a half message has a later copy."""
        return self._copies.get(first_offset, half_offset) > half_offset

    def was_passed_on(self, half_offset: int) -> None:
        """Note that a slave has passed on the open half messages before this one: they end elsewhere."""
        self.passed(half_offset)
        self._copies = {first: newest for first, newest in self._copies.items() if newest >= half_offset}

    def passed(self, half_offset: int) -> None:
        """Go on behind the half messages before this one: they have ended, were copied or given up."""
        self.half_offset = max(self.half_offset, half_offset)
        while self._ops and self._ops[0][1] < self.half_offset:
            self._ops.popleft()

    def _forget(self) -> None:
        """Forget the oldest ended ones that lie behind us."""
        while len(self._ended) > ENDED_MAX:
            oldest = next(iter(self._ended))
            if oldest >= self.half_offset:
                return
            del self._ended[oldest]
