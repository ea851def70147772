"""The scenario: who joins the group, leaves it and dies, and when.

A step is due when the group has consumed its share of the flights and the rebalance before it has
settled, so that each can be seen by itself.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Act(StrEnum):
    """An action on a member."""

    JOIN = "joins"
    LEAVE = "leaves cleanly"
    KILL = "is killed (SIGKILL)"


class Step(NamedTuple):
    """At which share of the flights what happens to whom."""

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
    """The step that is due after `done` of them, if one is."""
    if done >= len(STEPS):
        return None
    step = STEPS[done]
    if step.share == 0.0:
        return step
    return step if is_settled and share >= step.share else None
