"""Herding: members that allocate queues themselves are told of a change until each has looked.

A stock client learns of a change from one one-way notification; lost, it notices 20 s later. So a change is
repeated, to each member that has not begun a round of looking at the member list since, at most once a second
(the Java client keeps a second between its rounds). Whoever is current hears nothing.

A round is a burst of list fetches, one a topic; one that was under way when the change came does not count.
Upstream: RebalanceService.java, DefaultConsumerIdsChangeListener.java.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs

P = TypeVar("P", bound=Hashable)

#: RebalanceService.minInterval: a client told sooner would only wait.
REPEAT_MS: Final = 1_000
#: Ours: a thousand members that come or go together would cause a million notifications.
TOLD_AT_ONCE_MAX: Final = 50
#: Ours: three of the client's own 20 s rounds. Who has not looked by then does not mean to.
HERD_MS_MAX: Final = 60_000
#: Ours: the fetches of one round follow each other at once; rounds are at least a second apart.
ROUND_GAP_MS: Final = 200


@dataclass(slots=True)
class _Sheep:
    """One member: when it last looked, and when it was last told."""

    fetched_at_ms: MonotonicMs
    told_at_ms: MonotonicMs
    is_current: bool


class Herd(Generic[P]):
    """The members of one group, and which of them know its latest change. Times are monotonic."""

    def __init__(self) -> None:
        self._changed_at_ms: MonotonicMs | None = None
        self._looked_at_ms: MonotonicMs | None = None
        self._sheep: dict[P, _Sheep] = {}

    @property
    def is_current(self) -> bool:
        """Whether nobody need be told again."""
        return self._changed_at_ms is None

    @property
    def looked_at_ms(self) -> MonotonicMs | None:
        """Since when all members know the latest change; None while some do not, or never looked."""
        return self._looked_at_ms

    def changed(self, members: Collection[P], *, now_ms: MonotonicMs, wait_ms: int = 0) -> list[P]:
        """The group changed: whom to tell now; in a large group, who was told just now is told later.

        wait_ms: tell nobody before that, by `due`; at most REPEAT_MS.
        """
        self._changed_at_ms, self._looked_at_ms = now_ms, None
        is_large = len(members) > TOLD_AT_ONCE_MAX
        known, told = self._sheep, []
        self._sheep = {}
        for member in members:
            sheep = known.get(member)
            if sheep is None:
                sheep = _Sheep(now_ms - ROUND_GAP_MS, now_ms, False)
                told.append(member)
            else:
                sheep.is_current = False
                if not is_large or now_ms - sheep.told_at_ms >= REPEAT_MS:
                    sheep.told_at_ms = now_ms
                    told.append(member)
            self._sheep[member] = sheep
        if not wait_ms:
            return told
        for sheep in self._sheep.values():
            sheep.told_at_ms = now_ms - REPEAT_MS + wait_ms
        return []

    def again(self, member: P, *, now_ms: MonotonicMs, wait_ms: int) -> None:
        """There is, or will be, something else for a member: tell it to look once more in wait_ms."""
        sheep = self._sheep.setdefault(member, _Sheep(now_ms - ROUND_GAP_MS, now_ms, False))
        sheep.is_current = False
        sheep.told_at_ms = now_ms - REPEAT_MS + min(wait_ms, REPEAT_MS)
        self._changed_at_ms, self._looked_at_ms = now_ms, None

    def fetched(self, member: P, *, now_ms: MonotonicMs) -> None:
        """A member looks at the list."""
        sheep = self._sheep.get(member)
        if sheep is not None:
            begins_round = now_ms - sheep.fetched_at_ms >= ROUND_GAP_MS
            sheep.is_current = sheep.is_current or begins_round
            sheep.fetched_at_ms = now_ms

    def due(self, *, now_ms: MonotonicMs) -> list[P]:
        """Whom to tell again now."""
        if self._changed_at_ms is None:
            return []
        stragglers = {member: sheep for member, sheep in self._sheep.items() if not sheep.is_current}
        if not stragglers or now_ms - self._changed_at_ms > HERD_MS_MAX:
            self._changed_at_ms = None
            self._looked_at_ms = None if stragglers else now_ms
            return []
        told = [member for member, sheep in stragglers.items() if now_ms - sheep.told_at_ms >= REPEAT_MS]
        for member in told:
            stragglers[member].told_at_ms = now_ms
        return told
