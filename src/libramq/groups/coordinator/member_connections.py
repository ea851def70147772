"""The members by connection: whom to look at when a connection ends."""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P", bound=Hashable)


class MemberKey(NamedTuple):
    """A member of a group; with an empty member id, the group itself."""

    group: str
    member: str = ""


class MemberConnections(Generic[P]):
    """Members by connection; a member has at most one. member_count: over all groups."""

    def __init__(self) -> None:
        self.member_count = 0
        self._members: dict[P, dict[MemberKey, None]] = {}

    def move(self, key: MemberKey, old: P | None, new: P | None) -> None:
        """Move a member to another connection; None: to none."""
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
