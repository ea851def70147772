"""The passed-on file (config/popPassedOn.json): which popped messages of its master an acting slave has
passed on or seen acknowledged.

It refers to messages that other masters have, so it is written at once, without waiting for the log.
"""

from collections.abc import Container
from pathlib import Path
from typing import Final

import msgspec

from libramq.catalog.config_file import ConfigFile
from libramq.clock import WallMs
from libramq.filesystem import FileSystem, PendingWrite
from libramq.pop.passed_on import FILE_NAME, PassedOn

#: Ours: how often acknowledgements are saved; after passing on, the file is written at once
#: (`BrokerFiles.save_progress_soon`).
SAVE_MS: Final = 1_000


class PassedOnFile:
    """The account, and its file. has_changes: whether the file is out of date."""

    def __init__(self, filesystem: FileSystem, config_directory: Path) -> None:
        self._file = ConfigFile(filesystem, config_directory / FILE_NAME)
        self._saved = self.content = self._file.load(PassedOn) or PassedOn()
        #: The bits of acknowledged messages, by the origins of their check points.
        self._acknowledged = dict(self.content.acknowledged)
        #: Whether `_acknowledged` differs from `content`.
        self._has_changed = False

    @property
    def has_changes(self) -> bool:
        """Return whether the file is out of date."""
        return self._has_changed or (self.content is not self._saved and self.content != self._saved)

    @property
    def account(self) -> PassedOn:
        """Return the account including acknowledgements."""
        if self._has_changed:
            acknowledged = tuple(self._acknowledged.items())
            self.content = msgspec.structs.replace(self.content, acknowledged=acknowledged)
            self._has_changed = False
        return self.content

    @property
    def is_ahead(self) -> bool:
        """Return whether this slave has delivered messages about which its master may not have asked."""
        return self.content.is_ahead

    @is_ahead.setter
    def is_ahead(self, is_ahead: bool) -> None:
        if is_ahead != self.content.is_ahead:
            self.content = msgspec.structs.replace(self.content, is_ahead=is_ahead)

    def take_over(self, other: PassedOn) -> bool:
        """Merge the account of another slave of the same master; return whether that added anything."""
        before, mark = self.account, (self.content.visible_ms, self.content.origin)
        if (other.visible_ms, other.origin) > mark:
            self.content = msgspec.structs.replace(
                self.content,
                until=other.until, visible_ms=other.visible_ms, origin=other.origin, waiting=other.waiting,
            )  # fmt: skip
        elif (other.visible_ms, other.origin) == mark and len(other.waiting) < len(before.waiting):
            self.content = msgspec.structs.replace(self.content, waiting=other.waiting)
        for origin, bits in other.acknowledged:
            if bits & ~self.acknowledged(origin):
                self.acknowledge(origin, bits)
        return self.account != before

    def acknowledge(self, origin: int, bits: int) -> None:
        """Note messages of a check point as acknowledged. The file is written within a second."""
        self._acknowledged[origin] = self.acknowledged(origin) | bits
        self._has_changed = True

    def acknowledged(self, origin: int) -> int:
        """Return the bits of a check point's acknowledged messages."""
        return self._acknowledged.get(origin, 0)

    def keep(self, origins: Container[int]) -> None:
        """Forget acknowledgements except for check points with these origins."""
        kept = {origin: bits for origin, bits in self._acknowledged.items() if origin in origins}
        self._has_changed = self._has_changed or len(kept) < len(self._acknowledged)
        self._acknowledged = kept

    def journal_begins_at(self, place: int) -> None:
        """Note the position of the first check point in flight in the master's journal; -1: unknown."""
        self.content = msgspec.structs.replace(self.content, place=place)

    def pass_halves_on(self, begin: int, end: int) -> None:
        """Note where passing on half messages begins, and their topic's end, unless that end is known."""
        if self.content.halves is None or self.content.halves[1] != end:
            self.content = msgspec.structs.replace(self.content, halves=(begin, end))

    def leave_halves(self) -> None:
        """Note that the master settles its half messages again."""
        self.content = msgspec.structs.replace(self.content, halves=None)

    def become_master(self, journal_end: int) -> PassedOn:
        """Return the account up to the journal's end, and begin an empty one: it is no slave any more."""
        passed_on = self.account.bounded(journal_end)
        self._clear()
        return passed_on

    def cut(self, journal_end: int) -> bool:
        """Forget an account that ends beyond where the journal will be cut; return whether that is saved."""
        if self.content.until > journal_end:
            self._clear()
        return not self.has_changes

    def take(self, wall_ms: WallMs) -> PendingWrite | None:
        """Return the file's next content; None if it is up to date."""
        if not self.has_changes:
            return None
        content = self.account

        def written() -> None:
            self._saved = content

        return PendingWrite(write=lambda: self._file.save(content), written=written)

    def _clear(self) -> None:
        self.content = PassedOn()
        self._acknowledged = {}
        self._has_changed = False
