"""The records of Kafka's groups: the state that is journalled or sent to the next coordinator before members
are notified, and how a group continues from it.

    a classic group has its shares, or lost a member     ─► its state           ─► its next coordinator
    a modern group has changed ─► members, and its epoch ─► the table's journal ─► answer, next coordinator
    a former coordinator's copy                          ─► the group as it continues here

After a restart modern groups continue from their table, if this broker is alone. Otherwise another broker has
coordinated the groups since, and hands them over. Epochs continue from the last one in either case.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, Generic

from msgspec import structs

from libramq.broker.cluster.kafka.group_copies import GroupCopies, GroupCopy, GroupSuccessors
from libramq.broker.files.tables import Tables
from libramq.catalog.group_table import GroupTable
from libramq.clock import MonotonicMs
from libramq.groups.classic import saved_state as classic
from libramq.groups.classic.group import ClassicGroup
from libramq.groups.modern import saved_state as modern
from libramq.groups.modern.group import EPOCHS_AHEAD, ModernGroup
from libramq.groups.modern.saved_state import SEPARATOR, SavedEntry, SavedGroup, member_key, members_of
from libramq.groups.protocol_groups import GROUPS_MAX, Groups
from libramq.logs import get_logger
from libramq.protocols.kafka.broker_groups import BrokerGroups, G

log = get_logger(__name__)

#: Ours: deleted groups that are forgotten with each new one, in the same write, if there are too many.
FORGOTTEN_AT_ONCE: Final = 10


class GroupRecords(ABC, Generic[G]):
    """The records of this broker's groups of one protocol; a `group_copies.Source`."""

    def __init__(
        self, every: BrokerGroups, groups: Groups[G], successors: GroupSuccessors, copies: GroupCopies
    ) -> None:
        self._all = every
        self._groups: Groups[G] = groups
        self._copies = copies
        self.successors = successors
        successors.add(self)

    def observe(self, observer: Callable[[], None]) -> None:
        """Register a function to be called when `claimed` may yield groups, besides changes of brokers."""
        self._copies.observe(observer)

    def names(self) -> Iterable[str]:
        """Return the names of the groups."""
        return self._groups.names()

    @abstractmethod
    def copy(self, name: str) -> GroupCopy | None:
        """Return the copy of a group for its next coordinator; None if there is none."""

    @abstractmethod
    def claimed(self, now_ms: MonotonicMs) -> Iterator[tuple[str, G]]:
        """Yield the groups that this broker has to continue, without those that members have restarted."""

    @abstractmethod
    def note(self, name: str, group: G) -> bool:
        """Record changes; return whether that succeeded: otherwise it is retried."""

    @abstractmethod
    def gone(self, name: str) -> None:
        """Note that a group is forgotten."""

    def _may_continue(self, name: str) -> bool:
        """Return whether a group may continue here: no member has restarted it, and there is room."""
        return not self._all.has_members(name) and self._groups.has_room


class ClassicGroupRecords(GroupRecords[ClassicGroup]):
    """The records of classic groups, whose state is copied once all members have their assignments."""

    def __init__(self, groups: BrokerGroups, successors: GroupSuccessors, copies: GroupCopies) -> None:
        super().__init__(groups, groups.classic, successors, copies)
        self._versions: dict[str, int] = {}

    def copy(self, name: str) -> GroupCopy | None:
        """Return the copy of a group for its next coordinator."""
        group = self._groups.get(name)
        state = classic.saved(group) if group is not None else None
        if group is None or state is None:
            return None
        return GroupCopy(classic=state, cost_bytes=group.cost_bytes)

    def note(self, name: str, group: ClassicGroup) -> bool:
        """Pass a group on if it has changed."""
        if self._versions.get(name) != group.version:
            self._versions[name] = group.version
            self.successors.changed(name)
        return True

    def gone(self, name: str) -> None:
        """Make the group's successor forget it as well."""
        if self._versions.pop(name, None) is not None:
            self.successors.changed(name)

    def claimed(self, now_ms: MonotonicMs) -> Iterator[tuple[str, ClassicGroup]]:
        """Yield the groups that this broker has to continue, without those that members have restarted."""
        for name, state in self._copies.claim_classic().items():
            if self._may_continue(name) and classic.is_sound(state):
                yield name, classic.restored(state, now_ms)


class ModernGroupRecords(GroupRecords[ModernGroup]):
    """The records of KIP-848's groups: changes are written before any member is notified."""

    def __init__(
        self, tables: Tables, groups: BrokerGroups, successors: GroupSuccessors, copies: GroupCopies
    ) -> None:
        super().__init__(groups, groups.modern, successors, copies)
        self._entries = tables.modern_groups.by_name
        self._record = tables.modern_groups.put
        self._table: GroupTable = tables.groups
        self._journals = tables.journals
        #: Groups read at startup that have not been used since.
        self._former = {name: each.group for name, each in self._entries.items() if each.group is not None}
        self._count = len(self._former)
        #: Groups that continue after a restart and whose members have sent nothing since.
        self.silent: set[str] = set()

    # Copies to and from other brokers.

    def copy(self, name: str) -> GroupCopy | None:
        """Return the copy of a group; None if another broker may have coordinated it meanwhile."""
        group = self._groups.get(name)
        if group is None or not group.members or name in self.silent:
            return None
        entries = {name: modern.saved_group(group)}
        for member_id in group.members:
            entry = modern.saved_member(group, member_id)
            assert entry is not None, "it is a member"
            entries[member_key(name, member_id)] = entry
        return GroupCopy(modern=entries, cost_bytes=group.cost_bytes)

    def claimed(self, now_ms: MonotonicMs) -> Iterator[tuple[str, ModernGroup]]:
        """Yield the groups that this broker has to continue, without those that members have restarted."""
        for name, entries in self._copies.claim_modern().items():
            entry = entries.get(name)
            if entry is None or entry.group is None or not self._may_continue(name):
                continue
            self._former.pop(name, None)
            members = members_of(entries).get(name, {})
            state = structs.replace(entry.group, epoch=max(entry.group.epoch, self._epoch(name)))
            yield name, modern.restored(state, members, now_ms)

    # The table's journal.

    def restored(self, now_ms: MonotonicMs) -> Iterator[tuple[str, ModernGroup]]:
        """Yield the groups that had members before the restart, ready to continue."""
        for name, members in members_of(self._entries).items():
            saved = self._former.pop(name, None) or SavedGroup(epoch=0)
            yield name, modern.restored(saved, members, now_ms)

    def begin(self, name: str, group: ModernGroup) -> None:
        """Continue a group without members from its last epoch."""
        entry = self._entries.get(name)
        if not group.members and not group.epoch and entry is not None and entry.group is not None:
            is_former = self._former.pop(name, None) is not None
            group.epoch = entry.group.epoch + (EPOCHS_AHEAD if is_former else 0)

    def note(self, name: str, group: ModernGroup) -> bool:
        """Record changes; return whether that succeeded: otherwise it is retried."""
        if not group.touched and self._epoch(name) == group.epoch:
            return True
        try:
            changes: dict[str, SavedEntry | None] = {name: modern.saved_group(group)}
            changes |= {
                member_key(name, each): modern.saved_member(group, each) for each in sorted(group.touched)
            }
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

    def gone(self, name: str) -> None:
        """Expect no more silent members of a group."""
        self.silent.discard(name)

    def when_recorded(self, name: str, then: Callable[[bool], None]) -> None:
        """Call `then` with True once a group's records are copied, and as durable as the flush promises."""

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
        self._record(key, entry)

    def _forget_deleted(self) -> None:
        """Forget some of the groups that clients of any protocol have deleted."""
        deleted = (each for each in self._entries if SEPARATOR not in each and each not in self._table)
        for name in list(islice(deleted, FORGOTTEN_AT_ONCE)):
            self._put(name, None)
