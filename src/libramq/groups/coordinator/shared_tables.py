"""The tables that all coordinated groups of a broker share: topics, connections, timers and counts."""

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.groups.coordinator.request import Held, check_listed
from libramq.groups.coordinator.state import Record
from libramq.groups.coordinator.topics import WatchedTopics
from libramq.groups.limits import has_share
from libramq.groups.memberships import Memberships

P = TypeVar("P", bound=Hashable)

#: Ours: all members together list at most this many queues: 10,000 members with 50 each, 100 MB. A group may
#: use as many as are left: members may list queues that are not known yet, and others must still be able to
#: list theirs.
HELD_OF_ALL_MAX: Final = 500_000


class MemberKey(NamedTuple):
    """A member of a group; the group itself if `member` is empty."""

    group: str
    member: str = ""


class GroupTimers:
    """The timers of groups and members, one each, by monotonic time. A timer may fire early but never late.

    A deadline that moves later changes no timer: if the timer fires too early, it is set again.
    next_due_ms: the earliest time at which a timer may fire.
    due_by: called with that time whenever a timer is set.
    """

    def __init__(self) -> None:
        self.due_by: Callable[[MonotonicMs], None] = lambda _: None
        self._due: dict[MemberKey, MonotonicMs] = {}
        self._heap: list[tuple[MonotonicMs, int, MemberKey]] = []
        self._sequence = 0
        self.next_due_ms: MonotonicMs | None = None

    def wake_by(self, key: MemberKey, due_ms: MonotonicMs | None) -> None:
        """Fire at `due_ms` at the latest; None: no timer needed."""
        if due_ms is None or self._due.get(key, due_ms + 1) <= due_ms:
            return
        self._due[key] = due_ms
        self._sequence += 1
        heapq.heappush(self._heap, (due_ms, self._sequence, key))
        self.next_due_ms = self._heap[0][0]
        self.due_by(self.next_due_ms)

    def take_due(self, now_ms: MonotonicMs) -> list[MemberKey]:
        """Return the due keys in order of time, and clear their timers; announce the next time."""
        keys = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due_ms:
                del self._due[key]
                keys.append(key)
        self.next_due_ms = self._heap[0][0] if self._heap else None
        if self.next_due_ms is not None:
            self.due_by(self.next_due_ms)
        return keys


@dataclass(slots=True)
class SharedTables(Generic[P]):
    """The shared tables. A group changes only its own entries.

    connections: the members of each connection. member_count, subscription_bytes: over all groups, including
    unconnected members. held_count: the queues that all members list. stock: by group, the stock members,
    which allocate for themselves.
    """

    record: Record
    topics: WatchedTopics = field(default_factory=WatchedTopics)
    connections: Memberships[P, MemberKey] = field(default_factory=Memberships)
    stock: dict[str, tuple[str, ...]] = field(default_factory=dict)
    member_count: int = 0
    subscription_bytes: int = 0
    held_count: int = 0
    timers: GroupTimers = field(default_factory=GroupTimers)

    def check_listed(self, held: Held, of_group: int, listed_before: int = 0) -> None:
        """Check the number of queues that a member lists; raises InvalidParameter or SystemBusy.

        of_group: the number that all members of its group list now.
        """
        check_listed(held)
        more = len(held) - listed_before
        if more > 0 and not has_share(of_group + more, self.held_count + more, HELD_OF_ALL_MAX):
            raise broker_error(
                ResponseCode.SYSTEM_BUSY,
                "a group's members may list as many queues that they hold as all groups leave free of"
                f" {HELD_OF_ALL_MAX}; let some leave first",
            )
