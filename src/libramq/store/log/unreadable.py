"""The unreadable records: places of the log that readers had to skip, each reported once."""

from typing import Final

from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: on a disk that lost more than this, further reports add nothing.
REMEMBERED_MAX: Final = 10_000


class UnreadableRecords:
    """Physical offsets of records that could not be read."""

    def __init__(self) -> None:
        self._offsets: set[int] = set()

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, places: set[tuple[int, int]]) -> None:
        """Note physical offsets and sizes of unreadable records, and report the new ones."""
        for offset, _ in sorted(places):
            if self.note(offset):
                log.error("a record of the commit log cannot be read; readers skip it", offset=offset)

    def note(self, offset: int) -> bool:
        """Note a record that was reported already; return whether it is new."""
        if offset in self._offsets or len(self._offsets) >= REMEMBERED_MAX:
            return False
        self._offsets.add(offset)
        return True
