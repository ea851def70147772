"""The records of KIP-848's groups: what changed is written before any member hears of it.

    request ─► group ─► touched members, and the group's epoch ─► the table's journal ─► answer

After a restart the groups continue from there, if this broker is alone. Where there are others, one of them
has coordinated the groups since, and members join anew. Epochs go on from the last one in either case.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from libramq.broker.files.tables import Tables
from libramq.catalog.group_table import GroupTable
from libramq.clock import MonotonicMs
from libramq.groups.modern.group import EPOCHS_AHEAD, ModernGroup
from libramq.groups.modern.saved_state import (
    SEPARATOR,
    SavedEntry,
    SavedGroup,
    member_key,
    members_of,
    restored,
    saved_group,
    saved_member,
)
from libramq.groups.protocol_groups import GROUPS_MAX
from libramq.logs import get_logger
from libramq.protocols.kafka.answers import CHANGES_PER_STEP

log = get_logger(__name__)


class ModernGroupRecords:
    """The records of this broker's groups."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._entries = tables.modern_groups
        self._table: GroupTable = tables.groups
        self._journals = tables.journals
        #: Groups that were read at the start, and not used since.
        self._former = {name: each.group for name, each in self._entries.items() if each.group is not None}
        self._count = len(self._former)

    def restored(self, now_ms: MonotonicMs) -> Iterator[tuple[str, ModernGroup]]:
        """Yield the groups that had members before the restart, as they continue."""
        for name, members in members_of(self._entries).items():
            saved = self._former.pop(name, None) or SavedGroup(epoch=max(m.epoch for m in members.values()))
            yield name, restored(saved, members, now_ms)

    def begin(self, name: str, group: ModernGroup) -> None:
        """Have a group without members go on from its last epoch."""
        entry = self._entries.get(name)
        if not group.members and not group.epoch and entry is not None and entry.group is not None:
            is_former = self._former.pop(name, None) is not None
            group.epoch = entry.group.epoch + (EPOCHS_AHEAD if is_former else 0)

    def note(self, name: str, group: ModernGroup) -> bool:
        """Record what has changed; return whether it could be: otherwise it is tried again."""
        if not group.touched and self._epoch(name) == group.epoch:
            return True
        try:
            self._put(name, saved_group(group))
            for member_id in sorted(group.touched):
                self._put(member_key(name, member_id), saved_member(group, member_id))
                group.touched.discard(member_id)
            if self._count > GROUPS_MAX:
                self._forget_deleted()
        except OSError as refused:
            log.warning("a group of Kafka's clients cannot be recorded", group=name, reason=str(refused))
            return False
        return True

    def when_recorded(self, then: Callable[[bool], None]) -> None:
        """Call with True once all records so far are as durable as the broker's flush promises."""
        self._journals.when_synced(then)

    def _epoch(self, name: str) -> int:
        entry = self._entries.get(name)
        return entry.group.epoch if entry is not None and entry.group is not None else 0

    def _put(self, key: str, entry: SavedEntry | None) -> None:
        if self._entries.get(key) == entry:
            return
        if SEPARATOR not in key:
            self._count += (entry is not None) - (key in self._entries)
        self._tables.record_modern_group(key, entry)

    def _forget_deleted(self) -> None:
        """Forget groups that were deleted, whichever protocol's client did it."""
        deleted = (each for each in self._entries if SEPARATOR not in each and each not in self._table)
        for name in list(islice(deleted, CHANGES_PER_STEP)):
            self._put(name, None)
