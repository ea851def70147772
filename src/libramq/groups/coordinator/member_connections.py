"""Which members speak over which connection: what to look at when one ends."""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P", bound=Hashable)


class MemberKey(NamedTuple):
    """A member of a group; the group itself where the member is empty."""

    group: str
    member: str = ""


class MemberConnections(Generic[P]):
    """Members by connection; a member is at one connection at most. member_count: of all groups."""

    def __init__(self) -> None:
        self.member_count = 0
        self._members: dict[P, dict[MemberKey, None]] = {}

    def move(self, key: MemberKey, old: P | None, new: P | None) -> None:
        """A member speaks over another connection now; None: over none."""
        if old is not None:
            members = self._members.get(old, {})
            members.pop(key, None)
            if not members:
                self._members.pop(old, None)
        if new is not None:
            self._members.setdefault(new, {})[key] = None

    def members(self, peer: P) -> list[MemberKey]:
        """Return the members that use a connection, in the order they began to."""
        return list(self._members.get(peer, ()))
