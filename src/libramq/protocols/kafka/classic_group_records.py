"""The records of classic groups: what each one's next coordinator has to know, and what the last one knew.

every member has its share, or one comes, goes or is replaced ─► the group's state ─► its successor
a former coordinator's copy ─► the group as it continues here
"""

from collections.abc import Iterator

from libramq.broker.cluster.group_copies import GroupCopies, GroupCopy
from libramq.broker.cluster.group_successors import GroupSuccessors
from libramq.clock import MonotonicMs
from libramq.groups.classic.group import ClassicGroup
from libramq.groups.classic.saved_state import is_sound, restored, saved
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.group_records import GroupRecords


class ClassicGroupRecords(GroupRecords[ClassicGroup]):
    """The records of this broker's groups; a `group_successors.Source`."""

    def __init__(self, groups: BrokerGroups, successors: GroupSuccessors, copies: GroupCopies) -> None:
        super().__init__(groups, groups.classic, successors, copies)
        self._versions: dict[str, int] = {}
        successors.add(self)

    def copy(self, name: str) -> GroupCopy | None:
        """Return what is passed on of a group."""
        group = self._groups.get(name)
        state = saved(group) if group is not None else None
        if group is None or state is None:
            return None
        return GroupCopy(classic=state, cost_bytes=group.cost_bytes)

    def note(self, name: str) -> None:
        """Pass a group on if it has changed."""
        group = self._groups.get(name)
        if group is None:
            if self._versions.pop(name, None) is not None:
                self.successors.changed(name)
        elif self._versions.get(name) != group.version:
            self._versions[name] = group.version
            self.successors.changed(name)

    def claimed(self, now_ms: MonotonicMs) -> Iterator[tuple[str, ClassicGroup]]:
        """Yield the groups that this broker has to continue; not those that members have begun anew."""
        for name, state in self._copies.claim_classic().items():
            if self._may_continue(name) and is_sound(state):
                yield name, restored(state, now_ms)
