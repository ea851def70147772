"""The check point: the messages taken by one pop from one queue, which of them are done, and when the others
are visible again.

    popped ──► acknowledged, one by one ──► settled
         └───► due ──► the rest is copied to the retry topic, and acknowledged ──► settled

A check point is identified by its key; a message in it by its queue offset. Each message has a bit, set once
done.
"""

from collections.abc import Sequence
from sys import intern
from typing import Final

import msgspec

from libramq.clock import MonotonicMs
from libramq.message.properties import whole_number
from libramq.pop.entries import MESSAGES_MAX, AckEntry, CheckPointEntry

#: The offsets of consecutive messages, by their number; shared by nearly all check points.
_CONSECUTIVE: Final = tuple(tuple(range(count)) for count in range(MESSAGES_MAX + 1))

#: Revive offsets from this one down, which Apache's broker replaces, mark a check point that says nothing
#: about the position: this one is for messages popped before; lower ones are for check points written a
#: second time, and encode the place of the first in the journal.
POPPED_BEFORE: Final = -1

#: Topic, group, queue, start offset, and time of the pop (wall clock).
Key = tuple[str, str, int, int, int]
#: The key of a check point, and its finished messages as a Java BitSet.
AckSet = tuple[Key, bytes]


class CheckPoint(msgspec.Struct, eq=False, kw_only=True, gc=False):
    """A check point in flight. A Struct, because one is created for every pop.

    diffs: its messages' offsets from `start_offset`. done: the bits of finished messages. due_ms: when the
    rest becomes visible. place: its place in the journal; origin: its first place there (-1: unknown).
    re_puts: how often it was postponed because its messages could not be copied. is_changed: its message was
    popped before, and got a new time. is_unseen: no program has seen its messages; the journal's form, which
    is Apache's, has no field for it, so a restarted broker counts an attempt. failures: how often one of its
    messages has failed, for operators; a restarted broker begins at 0.
    """

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    diffs: tuple[int, ...]
    broker_name: str
    revive_queue: int
    due_ms: MonotonicMs
    done: int = 0
    place: int = -1
    origin: int = -1
    re_puts: int = 0
    is_unseen: bool = False
    is_changed: bool = False
    failures: int = 0

    def __post_init__(self) -> None:
        """Share the names and the offsets of consecutive messages, which many check points have in common."""
        self.topic, self.group = intern(self.topic), intern(self.group)
        consecutive = _CONSECUTIVE[len(self.diffs)]
        if self.diffs == consecutive:
            self.diffs = consecutive

    @property
    def key(self) -> Key:
        """Return the check point's identity."""
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time_ms

    @property
    def visible_ms(self) -> int:
        """Return when its messages become visible again, by the wall clock of the broker that served it."""
        return self.pop_time_ms + self.invisible_ms

    @property
    def is_settled(self) -> bool:
        """Return whether all of its messages are done."""
        return self.done == (1 << len(self.diffs)) - 1

    @property
    def open_bits(self) -> int:
        """Return the bits of the unfinished messages."""
        return (1 << len(self.diffs)) - 1 & ~self.done

    @property
    def end(self) -> int:
        """Return the offset after its last message."""
        return self.start_offset + self.diffs[-1] + 1 if self.diffs else self.start_offset

    def bit_of(self, offset: int) -> int:
        """Return the bit of an unfinished message, or 0 if there is none at this offset."""
        try:
            bit = 1 << self.diffs.index(offset - self.start_offset)
        except ValueError:
            return 0
        return bit & ~self.done

    def bits_of(self, offsets: Sequence[int]) -> int:
        """Return the bits of the unfinished messages at these offsets; others are ignored."""
        if len(offsets) == 1:
            return self.bit_of(offsets[0])
        wanted, start = set(offsets), self.start_offset
        named = [1 << index for index, diff in enumerate(self.diffs) if start + diff in wanted]
        return sum(named) & ~self.done

    def open_bits_in(self, bit_set: bytes) -> int:
        """Return the bits of the unfinished messages that a Java BitSet contains.

        The BitSet's indexes are distances from the start offset.
        """
        if self.diffs is _CONSECUTIVE[len(self.diffs)]:
            return int.from_bytes(bit_set[: MESSAGES_MAX // 8], "little") & self.open_bits
        end = 8 * len(bit_set)
        named = [
            1 << index
            for index, diff in enumerate(self.diffs)
            if diff < end and bit_set[diff >> 3] >> (diff & 7) & 1
        ]
        return sum(named) & self.open_bits

    def open_offsets(self) -> list[int]:
        """Return the offsets of the unfinished messages."""
        return self.offsets_of(self.open_bits)

    def offsets_of(self, bits: int) -> list[int]:
        """Return the offsets of the messages with these bits."""
        start, diffs = self.start_offset, self.diffs
        if bits == (1 << len(diffs)) - 1:
            if diffs is _CONSECUTIVE[len(diffs)]:
                return list(range(start, start + len(diffs)))
            return [start + diff for diff in diffs]
        if bits and not bits & bits - 1:
            return [start + diffs[bits.bit_length() - 1]]
        return [start + diff for index, diff in enumerate(diffs) if bits >> index & 1]

    def entry(self, *, is_again: bool = False) -> CheckPointEntry:
        """Return the check point's journal entry. is_again: it is written a second time."""
        revive_offset = POPPED_BEFORE if self.is_changed else 0
        if is_again:
            revive_offset = POPPED_BEFORE - 1 - self.origin
        return CheckPointEntry(
            bit_map=self.done - (1 << 32) if self.done >> 31 else self.done,  # Java's int is signed.
            broker_name=self.broker_name,
            group=self.group,
            diffs=list(self.diffs),
            invisible_ms=self.invisible_ms,
            count=len(self.diffs),
            pop_time_ms=self.pop_time_ms,
            queue_id=self.queue_id,
            revive_offset=revive_offset,
            start_offset=self.start_offset,
            topic=self.topic,
            re_puts=str(self.re_puts) if self.re_puts else None,
        )

    def ack(self, bits: int) -> AckEntry:
        """Return the entry that acknowledges the messages with these bits."""
        offsets = self.offsets_of(bits)
        alone = len(offsets) == 1
        return AckEntry(
            offset=offsets[0] if alone else -1,
            offsets=None if alone else offsets,
            broker_name=self.broker_name,
            group=self.group,
            pop_time_ms=self.pop_time_ms,
            queue_id=self.queue_id,
            start_offset=self.start_offset,
            topic=self.topic,
        )


def diffs_of(start_offset: int, offsets: Sequence[int]) -> tuple[int, ...]:
    """Return the distances of messages, in queue order, from an offset at or before the first."""
    if offsets[-1] - start_offset == len(offsets) - 1:
        return _CONSECUTIVE[len(offsets)]
    return tuple([offset - start_offset for offset in offsets])


def was_popped_before(entry: CheckPointEntry) -> bool:
    """Return whether a check point's messages were popped before: it says nothing about the position."""
    return entry.revive_offset <= POPPED_BEFORE


def check_point_of(
    entry: CheckPointEntry, *, revive_queue: int, place: int, due_ms: MonotonicMs
) -> CheckPoint:
    """Return the check point of a journal entry."""
    diffs = tuple(entry.diffs) if entry.diffs else tuple(range(entry.count))
    origin = POPPED_BEFORE - 1 - entry.revive_offset if entry.revive_offset < POPPED_BEFORE else place
    return CheckPoint(
        topic=entry.topic,
        group=entry.group,
        queue_id=entry.queue_id,
        start_offset=entry.start_offset,
        pop_time_ms=entry.pop_time_ms,
        invisible_ms=entry.invisible_ms,
        diffs=diffs,
        broker_name=entry.broker_name or "",
        revive_queue=revive_queue,
        due_ms=due_ms,
        done=entry.bit_map & ((1 << len(diffs)) - 1),
        place=place,
        origin=max(origin, -1),
        re_puts=whole_number(entry.re_puts or "") or 0,
    )


def key_of(entry: CheckPointEntry | AckEntry) -> Key:
    """Return the key of an entry's check point."""
    return entry.topic, entry.group, entry.queue_id, entry.start_offset, entry.pop_time_ms
