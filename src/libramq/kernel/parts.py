"""The parts of a kernel: effects, deadlines, purgatory and what follows an event.

They are built once and shared by one engine's services.
"""

import enum
from collections.abc import Callable
from functools import partial

from libramq.clock import Clock
from libramq.kernel.deadlines import Deadlines
from libramq.kernel.effect import Effects
from libramq.kernel.longest_turn import LongestTurn
from libramq.kernel.purgatory import Purgatory
from libramq.kernel.work import Workload


class Phase(enum.IntEnum):
    """The order of what follows an event: a phase begins once the earlier ones have nothing left."""

    JOURNAL = 0  # What was decided is written; no answer leaves before.
    ARRIVALS = 1  # Messages and slaves' bytes go to those who wait for them; their answers are journalled.
    WORK = 2  # Long work, for as long as a turn takes (`kernel.work`).
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
        #: What follows this event, by phase; each action once, in the order in which it was enlisted.
        self.following: tuple[dict[Callable[[], None], None], ...] = tuple({} for _ in Phase)

    def soon(self, phase: Phase, action: Callable[[], None]) -> None:
        """Call an action once after this event, before its bytes are sent.

        One that is enlisted meanwhile for an earlier phase is called next.
        """
        self.following[phase][action] = None
