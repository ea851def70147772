"""Notices: what members of groups are to hear of their broker, in whatever protocol they speak."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

#: Whatever the shell knows a connection by.
P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, slots=True)
class GroupChanged(Generic[P]):
    """The group has other members, or other queues: look again."""

    peer: P
    group: str


@dataclass(frozen=True, slots=True)
class AreYouThere(Generic[P]):
    """A question to a member that has been silent; its answer carries the number."""

    peer: P
    group: str
    client_id: str
    number: int


Notice = GroupChanged[P] | AreYouThere[P]
