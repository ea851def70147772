"""The timers of a consumer's core: deadlines whose actions return effects, and when one that failed is tried
again.
"""

from collections.abc import Callable
from typing import Any, Final

from libramq.clock import MonotonicMs
from libramq.kernel.deadlines import Deadline, Deadlines

#: Ours: how soon what was due is done again, if an exception ended it.
FAILED_AGAIN_MS: Final = 1_000

#: What is done when a timer is due; it returns the effects.
TimerAction = Callable[[MonotonicMs], list[Any]]


class Timers:
    """The timers. failed: called with failures that are bugs of ours."""

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self.deadlines = Deadlines()
        self._effects: list[Any] = []
        self.clear = self.deadlines.clear

    def new(self, action: TimerAction) -> Deadline:
        """Return a timer that is not set yet."""

        def act(now_ms: MonotonicMs) -> None:
            try:
                self._effects += action(now_ms)
            except Exception as error:  # It must not cost the others, which may be of other queues, theirs.
                self._failed(f"{_name(action)} could not be done, and is done again", error)
                deadline.by(now_ms + FAILED_AGAIN_MS)

        deadline = self.deadlines.new(act)
        return deadline

    def at(self, due_ms: MonotonicMs, action: TimerAction) -> None:
        """Do something once at a time."""
        self.new(action).at(due_ms)

    def run(self, now_ms: MonotonicMs) -> list[Any]:
        """Do everything that is due; return the effects."""
        self.deadlines.run(now_ms)
        effects, self._effects = self._effects, []
        return effects


def _name(action: Any) -> str:
    return getattr(getattr(action, "func", action), "__qualname__", "a timer's action")
