"""Groups of protocols other than RocketMQ's (Kafka's), by name, with limits, and as RocketMQ's tools see
them.

A group without members is dropped; offsets are kept elsewhere.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from libramq.message.queue import MessageQueue

#: Ours: as many as RocketMQ groups (GROUPS_MAX in `catalog`).
GROUPS_MAX: Final = 25_000
#: Ours: the memory of all groups, including the members' metadata: a thousand groups with 100 KiB each.
COST_BYTES_MAX: Final = 128 * 1024 * 1024
#: Ours: the memory of one group, which must leave room for other groups. Kafka's brokers keep the metadata of
#: all members of a group in one message of 1 MiB.
GROUP_COST_BYTES_MAX: Final = 16 * 1024 * 1024


class Refusal(Enum):
    """The reasons for which a group refuses the requests of its members."""

    NONE = auto()
    UNKNOWN_MEMBER = auto()
    FENCED_INSTANCE = auto()
    GROUP_FULL = auto()
    # Of classic groups.
    MEMBER_ID_REQUIRED = auto()
    ILLEGAL_GENERATION = auto()
    INCONSISTENT_PROTOCOL = auto()
    REBALANCE_IN_PROGRESS = auto()
    INVALID_SESSION_TIMEOUT = auto()
    # Of modern groups.
    FENCED_EPOCH = auto()
    STALE_EPOCH = auto()
    UNRELEASED_INSTANCE = auto()


class _Group(Protocol):
    @property
    def is_unused(self) -> bool:
        """Return whether the group has nothing worth keeping."""

    @property
    def cost_bytes(self) -> int:
        """Return the approximate memory that the group takes."""


G = TypeVar("G", bound=_Group)


class Groups(Generic[G]):
    """The groups of one protocol that have or expect members. new: returns an empty group."""

    def __init__(self, new: Callable[[], G]) -> None:
        self._new = new
        self._groups: dict[str, G] = {}
        self._costs: dict[str, int] = {}
        self.cost_bytes = 0

    def __len__(self) -> int:
        return len(self._groups)

    def names(self) -> list[str]:
        """Return the names of all groups."""
        return list(self._groups)

    def get(self, name: str) -> G | None:
        """Return a group; None if it has no members."""
        return self._groups.get(name)

    @property
    def has_room(self) -> bool:
        """Return whether there is memory for more members' metadata."""
        return self.cost_bytes <= COST_BYTES_MAX

    def has_room_in(self, name: str) -> bool:
        """Return whether there is memory for another member's metadata in a group."""
        return self.has_room and self._costs.get(name, 0) <= GROUP_COST_BYTES_MAX

    def get_or_create(self, name: str) -> G | None:
        """Return a group for a joining member; None if the group or all groups take too much memory."""
        if not self.has_room_in(name):
            return None
        group = self._groups.get(name)
        if group is None and len(self._groups) < GROUPS_MAX:
            group = self._groups[name] = self._new()
        return group

    def put(self, name: str, group: G) -> None:
        """Restore a group that was recorded before a restart."""
        self._groups[name] = group

    def charge(self, name: str) -> None:
        """Update the accounted memory of a group."""
        group = self._groups.get(name)
        cost = group.cost_bytes if group is not None else 0
        self.cost_bytes += cost - self._costs.pop(name, 0)
        if cost:
            self._costs[name] = cost

    def forget(self, name: str) -> None:
        """Forget a group that another broker coordinates now."""
        self._groups.pop(name, None)
        self.charge(name)

    def forget_unused(self, name: str) -> bool:
        """Forget a group if it is unused; return whether it is gone."""
        group = self._groups.get(name)
        if group is not None and group.is_unused:
            del self._groups[name]
            self.charge(name)
            group = None
        return group is None


class ForeignMember(NamedTuple):
    """A member. instance: the name of a static one."""

    member_id: str
    address: str
    instance: str | None
    queues: Sequence[MessageQueue]


class ForeignGroup(NamedTuple):
    """A group with members. strategy: the one its members agreed on; None before that."""

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
        """Add a protocol: a function that returns one of its groups, or None if it has no members."""
        self._sources.append(source)

    def get(self, name: str) -> ForeignGroup | None:
        """Return a group, or None if no other protocol has members of it."""
        return next((found for source in self._sources if (found := source(name)) is not None), None)
