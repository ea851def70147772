"""The pending notifications: tracks the self-allocating members that have not fetched the member list since a
change, and repeats their notification once a second.

A stock client learns of a change from a single one-way notification; if that is lost, it notices 20 s later.
So the notification is repeated, at most once a second (the Java client waits a second between its rounds), to
each member that has not begun a round of fetching the member list since. Current members are not notified.

A round is a burst of list fetches, one per topic; a round that was under way when the change came does not
count.

Upstream: RebalanceService.java, DefaultConsumerIdsChangeListener.java.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from libramq.clock import MonotonicMs
from libramq.message.message import MessageExt

#: The shell's handle of a connection.
P = TypeVar("P", bound=Hashable)

#: RebalanceService.minInterval: a client that is notified sooner only waits.
REPEAT_MS: Final = 1_000
#: Ours: in larger groups recently notified members wait; otherwise a thousand joins or leaves would cause a
#: million notifications.
NOTIFIED_AT_ONCE_MAX: Final = 50
#: Ours: three of the client's own 20 s rounds. A member that has not fetched the list by then never will.
PENDING_MS_MAX: Final = 60_000
#: Ours: the fetches of one round follow each other at once; rounds are at least a second apart.
ROUND_GAP_MS: Final = 200


@dataclass(frozen=True, slots=True)
class GroupChanged(Generic[P]):
    """The members or queues of the group have changed: rebalance."""

    peer: P
    group: str


@dataclass(frozen=True, slots=True)
class AreYouThere(Generic[P]):
    """A probe of a silent member; its answer carries the number."""

    peer: P
    group: str
    client_id: str
    number: int


@dataclass(frozen=True, slots=True)
class TransactionCheck(Generic[P]):
    """A transaction check: asks a producer of a group for the state of a half message."""

    peer: P
    group: str
    message: MessageExt


@dataclass(frozen=True, slots=True)
class OffsetsReset(Generic[P]):
    """An operator has reset the group's offsets in a topic; offsets: queue ids and new offsets."""

    peer: P
    group: str
    topic: str
    offsets: tuple[tuple[int, int], ...]


Notice = GroupChanged[P] | AreYouThere[P] | TransactionCheck[P] | OffsetsReset[P]


class _Notified(msgspec.Struct, gc=False):
    """One member: when it last fetched the list, and when it was last notified."""

    fetched_at_ms: MonotonicMs
    notified_at_ms: MonotonicMs
    is_current: bool


class PendingNotifications(Generic[P]):
    """The members of one group, and which of them know its latest change. Times are monotonic."""

    def __init__(self) -> None:
        self._changed_at_ms: MonotonicMs | None = None
        self._looked_at_ms: MonotonicMs | None = None
        self._members: dict[P, _Notified] = {}

    @property
    def is_current(self) -> bool:
        """Return whether no member needs another notification."""
        return self._changed_at_ms is None

    @property
    def looked_at_ms(self) -> MonotonicMs | None:
        """Return since when all members know the latest change; None while one does not, or never fetched."""
        return self._looked_at_ms

    def changed(self, members: Collection[P], *, now_ms: MonotonicMs, wait_ms: int = 0) -> list[P]:
        """Return the connections to notify of a change now; in a large group, recently notified ones wait.

        wait_ms: notify no member until this much time has passed, and then by `due`; at most REPEAT_MS.
        """
        self._changed_at_ms, self._looked_at_ms = now_ms, None
        is_large = len(members) > NOTIFIED_AT_ONCE_MAX
        known, to_notify = self._members, []
        self._members = {}
        for member in members:
            one = known.get(member)
            if one is None:
                one = _Notified(now_ms - ROUND_GAP_MS, now_ms, False)
                to_notify.append(member)
            else:
                one.is_current = False
                if not is_large or now_ms - one.notified_at_ms >= REPEAT_MS:
                    one.notified_at_ms = now_ms
                    to_notify.append(member)
            self._members[member] = one
        if not wait_ms:
            return to_notify
        for one in self._members.values():
            one.notified_at_ms = now_ms - REPEAT_MS + wait_ms
        return []

    def again(self, member: P, *, now_ms: MonotonicMs, wait_ms: int) -> None:
        """Notify a member again after wait_ms, because its assignment changes or will change."""
        one = self._members.setdefault(member, _Notified(now_ms - ROUND_GAP_MS, now_ms, False))
        one.is_current = False
        one.notified_at_ms = now_ms - REPEAT_MS + min(wait_ms, REPEAT_MS)
        self._changed_at_ms, self._looked_at_ms = now_ms, None

    def fetched(self, member: P, *, now_ms: MonotonicMs) -> None:
        """Note that a member fetches the list."""
        one = self._members.get(member)
        if one is not None:
            begins_round = now_ms - one.fetched_at_ms >= ROUND_GAP_MS
            one.is_current = one.is_current or begins_round
            one.fetched_at_ms = now_ms

    def due(self, *, now_ms: MonotonicMs) -> list[P]:
        """Return the connections to notify again now."""
        if self._changed_at_ms is None:
            return []
        pending = {member: one for member, one in self._members.items() if not one.is_current}
        if not pending or now_ms - self._changed_at_ms > PENDING_MS_MAX:
            self._changed_at_ms = None
            self._looked_at_ms = None if pending else now_ms
            return []
        to_notify = [member for member, one in pending.items() if now_ms - one.notified_at_ms >= REPEAT_MS]
        for member in to_notify:
            pending[member].notified_at_ms = now_ms
        return to_notify
