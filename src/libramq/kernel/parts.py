"""The parts of a kernel: effects, deadlines, purgatory, and the phases in which an event's consequences run
(`Kernel.soon`).

They are built once and shared by one engine's services.
"""

import enum
from collections.abc import Callable
from functools import partial
from typing import Final

from libramq.clock import Clock
from libramq.kernel.deadlines import Deadlines
from libramq.kernel.effect import Effects
from libramq.kernel.purgatory import Purgatory
from libramq.kernel.work import Workload

#: The readers: BROKER_RUNTIME_INFO and the metrics. Each has a maximum of its own.
RUNTIME_INFO: Final = 0
METRICS: Final = 1


class LongestTurn:
    """The longest turn of the loop, in microseconds."""

    __slots__ = ("_longest_us", "noted_us")

    def __init__(self) -> None:
        self._longest_us = [0, 0]
        #: Shorter turns, that is nearly all, change nothing, and need not be recorded.
        self.noted_us = 0

    def record(self, turn_us: int) -> None:
        """Record a turn."""
        self._longest_us = [max(turn_us, longest_us) for longest_us in self._longest_us]
        self.noted_us = min(self._longest_us)

    def take_us(self, reader: int) -> int:
        """Return the longest turn since this reader's last call, and reset it for this reader."""
        longest_us, self._longest_us[reader] = self._longest_us[reader], 0
        self.noted_us = 0
        return longest_us


class Phase(enum.IntEnum):
    """The order of an event's consequences: a phase begins once the earlier ones have nothing left."""

    JOURNAL = 0  # Decisions are written; no answer leaves earlier.
    ARRIVALS = 1  # Messages and slaves' bytes go to those who wait for them; their answers are journalled.
    WORK = 2  # Long work, for the length of a turn (`kernel.work`).
    FLUSH = 3  # A flush begins, which covers all of that.
    TIMERS = 4  # Deadlines are set.


class Kernel:
    """The parts that all services of one engine share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.effects = Effects()
        self.deadlines = Deadlines()
        self.workload = Workload(self.effects, self.deadlines, clock, partial(self.soon, Phase.WORK))
        #: Takes a generator's steps, some per turn.
        self.work = self.workload.begin
        self.purgatory = Purgatory(self.deadlines, self.work)
        self.longest_turn = LongestTurn()
        #: The consequences of this event, by phase; each action once, in the order in which it was enlisted.
        self.following: tuple[dict[Callable[[], None], None], ...] = tuple({} for _ in Phase)

    def soon(self, phase: Phase, action: Callable[[], None]) -> None:
        """Call an action once after this event, before its bytes are sent.

        An action enlisted meanwhile for an earlier phase is called next.
        """
        self.following[phase][action] = None
