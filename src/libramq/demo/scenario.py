"""The scenario: which members join, leave and are killed, and when.

A step is due when the group has consumed its share of the flights and the previous rebalance has settled, so
that each one is visible by itself.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Act(StrEnum):
    """An action on a member."""

    JOIN = "joins"
    LEAVE = "leaves cleanly"
    KILL = "is killed (SIGKILL)"


class Step(NamedTuple):
    """One step of the demonstration: what happens to a member once that share of the flights was sent."""

    share: float
    act: Act
    member: str


STEPS: Final = (
    Step(0.0, Act.JOIN, "anna"),
    Step(0.0, Act.JOIN, "bela"),
    Step(0.1, Act.JOIN, "carla"),
    Step(0.3, Act.LEAVE, "anna"),
    Step(0.5, Act.KILL, "bela"),
    Step(0.7, Act.JOIN, "dora"),
)


def next_step(done: int, share: float, *, is_settled: bool) -> Step | None:
    """Return the step that is due after `done` of them, if any."""
    if done >= len(STEPS):
        return None
    step = STEPS[done]
    if step.share == 0.0:
        return step
    return step if is_settled and share >= step.share else None
