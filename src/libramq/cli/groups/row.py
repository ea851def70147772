"""The group row: one consumer group as `libra groups` shows it, in 80 columns, and as JSON."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final, Self

from libramq.admin.groups import GroupState
from libramq.cli.groups.history import as_json, causes, duration, member_names
from libramq.clock import WallMs
from libramq.groups.diagnosis import Kind
from libramq.groups.rebalance_history import RebalanceState

COLUMNS: Final = ("group", "members", "queues", "lag", "dead", "state", "last rebalance")
#: The state of a group without members, which cannot settle or move.
NO_MEMBERS: Final = "no members"
MEMBER_COLUMNS: Final = ("group", "client id", "static name", "queues", "topic broker ids")


class Trouble(IntEnum):
    """The order of groups: the worst problems come first.

    UNREAD: messages wait, and no member reads them. UNHEALTHY: messages are lost, read twice, or not read.
    REMARKABLE: idle members, dead letters, or an unfinished rebalance.
    """

    UNREAD = 0
    UNHEALTHY = 1
    REMARKABLE = 2
    NONE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow(GroupState):
    """The current state of a group, for the table and for JSON."""

    @classmethod
    def of(cls, state: GroupState) -> Self:
        """Return the row of a group."""
        return cls(**{each.name: getattr(state, each.name) for each in fields(state)})

    @property
    def trouble(self) -> Trouble:
        """Return the group's worst problem."""
        kinds = {one.kind for one in self.diagnoses}
        if Kind.NO_MEMBERS in kinds:
            return Trouble.UNREAD
        if kinds - {Kind.IDLE_MEMBERS} or (self.last is not None and self.members and self.last.unowned):
            return Trouble.UNHEALTHY
        if kinds or self.dead_letters or (self.members and self._state != RebalanceState.SETTLED):
            return Trouble.REMARKABLE
        return Trouble.NONE

    def remarks(self) -> list[str]:
        """Return the group's problems, and its protocol if that is not RocketMQ's, one line each."""
        problems = [f"{self.group}: {one.kind}: {one.text}" for one in self.diagnoses]
        if self.protocol is None:
            return problems
        strategy = f", strategy {self.strategy}" if self.strategy else ""
        return [f"{self.group}: {self.protocol} members, generation {self.generation}{strategy}", *problems]

    def cells(self, wall_ms: WallMs) -> list[str]:
        """Return the cells of COLUMNS."""
        counts = (len(self.members), self.queue_count, self.lag, self.dead_letters)
        numbers = ["?" if count is None else f"{count:,}" for count in counts]
        return [self.group, *numbers, self._state, self._last(wall_ms)]

    def member_cells(self) -> list[list[str]]:
        """Return the cells of MEMBER_COLUMNS, one list for each member."""
        return [
            [
                self.group,
                member.client_id,
                member.instance or "–",
                str(sum(len(ids) for brokers in member.queues.values() for ids in brokers.values())),
                queue_ranges(member.queues) or "–",
            ]
            for member in self.members
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON."""
        return {
            "group": self.group,
            "members": len(self.members),
            "queues": self.queue_count,
            "lag": self.lag,
            "deadLetters": self.dead_letters,
            "state": self._state,
            "protocol": self.protocol,
            "generation": self.generation,
            "strategy": self.strategy,
            "lastRebalance": as_json(self.last) if self.last else None,
            "diagnoses": [{"kind": one.kind, "about": one.about, "text": one.text} for one in self.diagnoses],
        }

    def members_as_json(self) -> list[dict[str, Any]]:
        """Return the members as JSON."""
        return [
            {
                "clientId": member.client_id,
                "staticName": member.instance,
                "address": member.client_addr,
                "queues": [
                    {"topic": topic, "broker": broker, "queueIds": ids}
                    for topic, brokers in sorted(member.queues.items())
                    for broker, ids in sorted(brokers.items())
                ],
            }
            for member in self.members
        ]

    @property
    def _state(self) -> str:
        if not self.members:
            return NO_MEMBERS
        return (self.last.state if self.last else RebalanceState.SETTLED).value

    def _last(self, wall_ms: WallMs) -> str:
        if self.last is None:
            return "–"
        static = {member.client_id: member.instance for member in self.members if member.instance}
        names = member_names(self.last, static=static)
        line = f"{_moment(self.last.at_ms, wall_ms)} {causes(self.last, names)}"
        if self.last.moved is None:
            return line
        return (
            f"{line}; moved {self.last.moved} (minimum {self.last.minimum}), "
            f"worst pause {duration(self.last.worst_pause_ms)}"
        )


def queue_ranges(queues: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """Return queues as text: `Orders broker-a 0-3 7, broker-b 0`."""
    return "; ".join(
        f"{topic} " + ", ".join(f"{broker} {_ranges(ids)}" for broker, ids in sorted(brokers.items()))
        for topic, brokers in sorted(queues.items())
    )


def _ranges(ids: Iterable[int]) -> str:
    ordered = sorted(ids)
    starts = [ordered[0], *(later for earlier, later in pairwise(ordered) if later != earlier + 1)]
    ends = [*(earlier for earlier, later in pairwise(ordered) if later != earlier + 1), ordered[-1]]
    runs = zip(starts, ends, strict=True)
    return " ".join(str(start) if start == end else f"{start}-{end}" for start, end in runs)


def _moment(at_ms: int, wall_ms: WallMs) -> str:
    """Return the time alone for today, otherwise date and time."""
    then, now = time.localtime(at_ms / 1000), time.localtime(int(wall_ms) / 1000)
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)
