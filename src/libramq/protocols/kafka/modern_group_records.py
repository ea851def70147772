"""The records of KIP-848's groups: what changed is written before any member hears of it.

    request ─► group ─► touched members, and the group's epoch ─► the table's journal           ─► answer
                                                              └─► the group's next coordinator

After a restart the groups continue from there, if this broker is alone. Where there are others, one of them
has coordinated the groups since, and hands them over. Epochs go on from the last one in either case.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from msgspec import structs

from libramq.broker.cluster.group_copies import GroupCopies, GroupCopy
from libramq.broker.cluster.group_successors import GroupSuccessors
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
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.group_records import GroupRecords

log = get_logger(__name__)

#: Ours: deleted groups that are forgotten with each new one, if there are too many, by the same write.
FORGOTTEN_AT_ONCE: Final = 10


class ModernGroupRecords(GroupRecords[ModernGroup]):
    """The records of this broker's groups; a `group_successors.Source`."""

    def __init__(
        self, tables: Tables, groups: BrokerGroups, successors: GroupSuccessors, copies: GroupCopies
    ) -> None:
        super().__init__(groups, groups.modern, successors, copies)
        self._tables = tables
        self._entries = tables.modern_groups
        self._table: GroupTable = tables.groups
        self._journals = tables.journals
        #: Groups that were read at the start, and not used since.
        self._former = {name: each.group for name, each in self._entries.items() if each.group is not None}
        self._count = len(self._former)
        #: Groups that continue after a restart, and whose members were not heard since.
        self.silent: set[str] = set()
        successors.add(self)

    # What other brokers get, and have had.

    def copy(self, name: str) -> GroupCopy | None:
        """Return what is passed on of a group: nothing of one that another broker has had meanwhile."""
        group = self._groups.get(name)
        if group is None or not group.members or name in self.silent:
            return None
        entries = {name: saved_group(group)}
        for member_id in group.members:
            entry = saved_member(group, member_id)
            assert entry is not None, "it is a member"
            entries[member_key(name, member_id)] = entry
        return GroupCopy(modern=entries, cost_bytes=group.cost_bytes)

    def claimed(self, now_ms: MonotonicMs) -> Iterator[tuple[str, ModernGroup]]:
        """Yield the groups that this broker has to continue; not those that members have begun anew."""
        for name, entries in self._copies.claim_modern().items():
            entry = entries.get(name)
            if entry is None or entry.group is None or not self._may_continue(name):
                continue
            self._former.pop(name, None)
            members = members_of(entries).get(name, {})
            state = structs.replace(entry.group, epoch=max(entry.group.epoch, self._epoch(name)))
            yield name, restored(state, members, now_ms)

    # What is written.

    def restored(self, now_ms: MonotonicMs) -> Iterator[tuple[str, ModernGroup]]:
        """Yield the groups that had members before the restart, as they continue."""
        for name, members in members_of(self._entries).items():
            saved = self._former.pop(name, None) or SavedGroup(epoch=0)
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
            changes: dict[str, SavedEntry | None] = {name: saved_group(group)}
            changes |= {member_key(name, each): saved_member(group, each) for each in sorted(group.touched)}
            for key, entry in changes.items():
                self._put(key, entry)
            group.touched.clear()
            self.successors.changed(name, changes if group.members else None)
            if self._count > GROUPS_MAX:
                self._forget_deleted()
        except OSError as refused:
            log.warning("a group of Kafka's clients cannot be recorded", group=name, reason=str(refused))
            return False
        return True

    def when_recorded(self, name: str, then: Callable[[bool], None]) -> None:
        """Call with True once a group's records are passed on, and as durable as the flush promises."""

        def synced(is_synced: bool) -> None:
            self.successors.when_held(name, partial(then, is_synced))

        self._journals.when_synced(synced)

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
        for name in list(islice(deleted, FORGOTTEN_AT_ONCE)):
            self._put(name, None)
