"""Small handmade histories, and a clock that advances whenever it is read."""

from collections.abc import Mapping
from itertools import count

from libramq.lab.cost import COSTS
from libramq.lab.entrant import entrant
from libramq.lab.histories import Departure, History, Step
from libramq.lab.replay import StepOutcome, Ticks, replay
from libramq.message.queue import MessageQueue

ALL = frozenset({"T"})


def clock() -> Ticks:
    """Return a clock that advances one millisecond between two readings."""
    return count(step=1_000_000).__next__


def step(
    at_ms: int = 1_000,
    *,
    gone: Mapping[str, Departure] | None = None,
    joined: str = "",
    **topics: frozenset[str],
) -> Step:
    """Return a step. joined has one letter for each member of T; topics names the members with other
    subscriptions.
    """
    return Step(at_ms=at_ms, what="", gone=gone or {}, joined=dict.fromkeys(joined, ALL), resubscribed=topics)


def history(members: str, *steps: Step, queues: int = 12) -> History:
    """Return a history with members of one letter each and the queues of T."""
    return History(
        group="G",
        kind="by_hand",
        queues={"T": [MessageQueue("T", "zone-0@broker-0", number) for number in range(queues)]},
        members=dict.fromkeys(members, ALL),
        steps=steps,
        has_zones=False,
    )


def played(given: History, strategy: str) -> list[StepOutcome]:
    """Return what a strategy makes of a history, at the default costs."""
    outcomes = replay(given, entrant(strategy), COSTS, clock())
    assert outcomes is not None
    return outcomes
