"""Foreign groups: those with members of other protocols than RocketMQ's, as RocketMQ's tools see them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from libramq.message.queue import MessageQueue


class ForeignMember(NamedTuple):
    """A member. instance: the name of a static one."""

    member_id: str
    address: str
    instance: str | None
    queues: Sequence[MessageQueue]


class ForeignGroup(NamedTuple):
    """A group with members. strategy: the one that its members agreed on; None while they have not."""

    protocol: str
    generation: int
    strategy: str | None
    topics: Sequence[str]
    members: Sequence[ForeignMember]


class ForeignGroups:
    """The groups of all other protocols that a broker serves."""

    def __init__(self) -> None:
        self._sources: list[Callable[[str], ForeignGroup | None]] = []

    def add(self, source: Callable[[str], ForeignGroup | None]) -> None:
        """Add a protocol: a function that returns one of its groups, if that has members."""
        self._sources.append(source)

    def get(self, name: str) -> ForeignGroup | None:
        """Return a group, or None if no other protocol has members of it."""
        return next((found for source in self._sources if (found := source(name)) is not None), None)
