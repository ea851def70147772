"""The parts of a kernel: effects, deadlines and purgatory, built once and shared by one engine's
services.
"""

from libramq.clock import Clock
from libramq.kernel.deadlines import Deadlines
from libramq.kernel.effect import Effects
from libramq.kernel.longest_turn import LongestTurn
from libramq.kernel.purgatory import Purgatory


class Kernel:
    """The parts that all services of one engine share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.effects = Effects()
        self.deadlines = Deadlines()
        self.purgatory = Purgatory(self.deadlines)
        self.longest_turn = LongestTurn()
        #: Whether something happened since then that `settle_changed` has to follow: no hot request.
        self.is_changed = True

    def mark_changed(self) -> None:
        """Make the engine call `settle_changed` after this event."""
        self.is_changed = True
