"""config/delayOffset.json: how far each delay level has been delivered (DelayOffsetSerializeWrapper.java)."""

from bisect import bisect_left
from typing import Final

from libramq.formats.document import Document, Int, Long
from libramq.formats.tables import DataVersion
from libramq.pop.passed_on import PassedOn

#: Ours: messages of a level that others pass; with more of them, those behind wait, too.
WAITING_MAX: Final = 4_096


class LevelAccount(Document, frozen=True, kw_only=True):
    """A level's account: an acting slave has delivered all before `until` but what is waiting.

        level      ✓ ✓ ○ ✓ ✓ ○ ✓ │ …
        offset ────────┘         └── until          waiting: both ○, in ascending order

    Apache's broker knows the offset alone, and delivers again what lies behind it.
    """

    until: int = 0
    waiting: tuple[int, ...] = ()

    def first_undelivered(self, offset: int) -> int:
        """Return the first offset, from one on, that is not delivered."""
        if offset >= self.until:
            return offset
        place = bisect_left(self.waiting, offset)
        return self.waiting[place] if place < len(self.waiting) else self.until

    def is_ahead_of(self, other: "LevelAccount") -> bool:
        """Return whether more is delivered by this account than by another one."""
        if self.until == other.until:
            return len(self.waiting) < len(other.waiting)
        return self.until > other.until

    def bounded(self, end: int) -> "LevelAccount":
        """Return what holds before an offset, and in order; whoever wrote it may be another version."""
        until = max(0, min(self.until, end))
        waiting = sorted({each for each in self.waiting if 0 <= each < until})
        if len(waiting) > WAITING_MAX:
            until = waiting[WAITING_MAX]
        return LevelAccount(until=until, waiting=tuple(waiting[:WAITING_MAX]))


class ScheduleFile(Document, frozen=True, kw_only=True):
    """The offset of the next message to deliver, by level.

    level_accounts: what acting slaves have delivered behind it; ours, and Apache's broker ignores it.
    """

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, int] = {}
    level_accounts: dict[int, LevelAccount] = {}


class DelayAnswer(ScheduleFile, frozen=True, kw_only=True):
    """The answer to GET_ALL_DELAY_OFFSET and SLAVE_PROGRESS; the members of this class are ours.

    passed_on: of POP; None in an answer of Apache's broker. The others are a slave's. half_offset: the first
    half message that it has not passed on. timers: an offset and a time; timer messages before both are sent.
    committed: some of what groups committed there and the master may not have. last_record: place and size of
    its log's last record; who has the same there has all that this answer speaks of.
    """

    passed_on: PassedOn | None = None
    half_offset: Long | None = None
    timers: tuple[Long, ...] | None = None
    committed: dict[str, dict[Int, Long]] = {}
    last_record: tuple[Long, Long] | None = None
