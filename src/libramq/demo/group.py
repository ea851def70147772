"""The group of the demonstration: its member processes, the times when each joins, leaves or is killed, and
the broker's events about the group.

A step is due when the group has consumed a share of the flights and the previous rebalance has settled, so
that each rebalance is visible by itself.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from libramq.admin.groups import EventReader
from libramq.demo.children import Child
from libramq.demo.member import ENTRY, GROUP, SUFFIX, Consumed, consumed
from libramq.errors import ConfigError
from libramq.groups.rebalance_event import RebalanceEvent


class Act(StrEnum):
    """An action on a member."""

    JOIN = "joins"
    LEAVE = "leaves cleanly"
    KILL = "is killed (SIGKILL)"


class Step(NamedTuple):
    """One step: an action on a member once the group has consumed a share of the flights."""

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
    """Return the next step after `done` steps, if it is due."""
    if done >= len(STEPS):
        return None
    step = STEPS[done]
    if step.share == 0.0:
        return step
    return step if is_settled and share >= step.share else None


SETTLE_SECONDS_MAX: Final = 15.0
"""After this long without `settled`, the scenario continues anyway."""
EVENT_SECONDS_MAX: Final = 2.0
"""The longest time from an action to its rebalance."""


def new_events(reader: EventReader) -> list[RebalanceEvent]:
    """Read the broker's new events about the group. Blocks for a round trip or two."""
    try:
        found = reader.read()
    except ConfigError:
        return []  # The broker has no events yet.
    return [each.event for each in found if each.event.group == GROUP]


class Group:
    """Runs the scenario."""

    def __init__(self, namesrv: str, directory: Path, say: Callable[[str], None]) -> None:
        self._namesrv = namesrv
        self._directory = directory
        self._say = say
        self._members: dict[str, Child] = {}
        self._leaving: set[str] = set()
        self._steps_done = 0
        self._acted_at = 0.0
        self._started_since_act = True
        self._epoch_started = 0
        self._epoch_settled = 0
        self.names: dict[str, str] = {}  # Client id → name.

    @property
    def is_at_rest(self) -> bool:
        return self._steps_done == len(STEPS) and self._epoch_settled >= self._epoch_started

    @property
    def entry_count(self) -> int:
        """Return the number of journal entries so far, including duplicates."""
        sizes = [path.stat().st_size for path in self._directory.glob(f"*{SUFFIX}")]
        return sum(sizes) // ENTRY.size

    def consumed(self) -> Consumed:
        return consumed(self._directory)

    def observe(self, event: RebalanceEvent) -> None:
        if event.kind == "started":
            self._started_since_act = True
            self._epoch_started = max(self._epoch_started, event.epoch)
        elif event.kind == "settled":
            self._epoch_settled = max(self._epoch_settled, event.epoch)

    async def follow(self, share: float, now: float) -> None:
        """Perform the actions that are due."""
        waited = now - self._acted_at
        is_settled = self._epoch_settled >= self._epoch_started and (
            self._started_since_act or waited > EVENT_SECONDS_MAX
        )
        while step := next_step(
            self._steps_done, share, is_settled=is_settled or waited > SETTLE_SECONDS_MAX
        ):
            self._steps_done += 1
            self._acted_at = now
            self._started_since_act = False
            is_settled, waited = False, 0.0
            await self._act(step, share)

    async def _act(self, step: Step, share: float) -> None:
        self._say(f"[bold]{step.member} {step.act}[/] ({share:.0%} of the flights consumed)")
        if step.act is Act.JOIN:
            child = Child(step.member, self._directory / f"{step.member}.log", self._handle_line)
            self._members[step.member] = child
            await child.start("libramq.demo.member", [self._namesrv, step.member, str(self._directory)])
            return
        self._leaving.add(step.member)
        child = self._members[step.member]
        if step.act is Act.KILL:
            child.kill()
        else:
            child.terminate()

    def _handle_line(self, child: Child, found: dict[str, Any]) -> None:
        if found["kind"] == "started":
            self.names[found["client_id"]] = child.name

    def check(self) -> None:
        """Raise ChildFailed for a member that ended unexpectedly."""
        for name, child in self._members.items():
            if name not in self._leaving:
                child.check()

    async def stop(self) -> None:
        for name, child in self._members.items():
            self._leaving.add(name)
            await child.stop()
