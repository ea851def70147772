"""The records of groups of one protocol, as far as other brokers get them, and have had them."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from libramq.broker.cluster.group_copies import GroupCopies
from libramq.broker.cluster.group_successors import GroupSuccessors
from libramq.groups.classic.group import ClassicGroup
from libramq.groups.modern.group import ModernGroup
from libramq.groups.protocol_groups import Groups
from libramq.protocols.kafka.broker_groups import BrokerGroups

G = TypeVar("G", ClassicGroup, ModernGroup)


class GroupRecords(Generic[G]):
    """The common part of a `group_successors.Source`. groups: of this protocol."""

    def __init__(
        self, every: BrokerGroups, groups: Groups[G], successors: GroupSuccessors, copies: GroupCopies
    ) -> None:
        self._all = every
        self._groups: Groups[G] = groups
        self._copies = copies
        self.successors = successors

    def observe(self, observer: Callable[[], None]) -> None:
        """Have a function called when `claimed` may yield groups, beside changes of the brokers."""
        self._copies.observe(observer)

    def names(self) -> Iterable[str]:
        """Return the names of the groups."""
        return self._groups.names()

    def _may_continue(self, name: str) -> bool:
        """Return whether a group may continue here: no member has begun it anew, and there is room."""
        return not self._all.has_members(name) and self._groups.has_room
