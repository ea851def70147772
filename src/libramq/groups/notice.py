"""Notices: what a broker sends to members of groups, whatever their protocol."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

#: The shell's handle of a connection.
P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, slots=True)
class GroupChanged(Generic[P]):
    """The members or queues of the group have changed: rebalance."""

    peer: P
    group: str


@dataclass(frozen=True, slots=True)
class AreYouThere(Generic[P]):
    """A probe of a silent member; its answer carries the number."""

    peer: P
    group: str
    client_id: str
    number: int


Notice = GroupChanged[P] | AreYouThere[P]
