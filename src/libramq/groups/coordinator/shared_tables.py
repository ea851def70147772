"""The tables that all coordinated groups of a broker share: topics, members, timers, records."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.groups.coordinator.group.request import Held, check_listed
from libramq.groups.coordinator.group.saved_state import Record
from libramq.groups.coordinator.timers import KeyTimers
from libramq.groups.coordinator.watched_topics import WatchedTopics
from libramq.groups.memberships import Memberships

P = TypeVar("P", bound=Hashable)

#: Ours: queues that all members list: 10,000 members with 50 each; 100 MB.
HELD_OF_ALL_MAX: Final = 500_000


class MemberKey(NamedTuple):
    """A member of a group; the group itself where the member is empty."""

    group: str
    member: str = ""


@dataclass(slots=True)
class SharedTables(Generic[P]):
    """Each table is its owner's to change; a group touches its own entries only.

    connections: members that speak over one. member_count, subscription_bytes: of all groups, with those that
    are not connected. held_count: the queues that all members list.
    stock: who allocates for itself, by group, of those that live here.
    """

    record: Record
    topics: WatchedTopics = field(default_factory=WatchedTopics)
    connections: Memberships[P, MemberKey] = field(default_factory=Memberships)
    stock: dict[str, tuple[str, ...]] = field(default_factory=dict)
    member_count: int = 0
    subscription_bytes: int = 0
    held_count: int = 0
    timers: KeyTimers[MemberKey] = field(default_factory=KeyTimers)

    def check_listed(self, held: Held, listed_before: int = 0) -> None:
        """Check how many queues a member lists; raises InvalidParameter, or SystemBusy."""
        check_listed(held)
        if self.held_count - listed_before + len(held) > HELD_OF_ALL_MAX:
            raise broker_error(
                ResponseCode.SYSTEM_BUSY,
                f"members list more than {HELD_OF_ALL_MAX} queues that they hold; let some leave first",
            )
