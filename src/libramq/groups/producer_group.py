"""The producer group: its connected producers.

Upstream: broker/client/ProducerManager.java.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.groups.consumer_group import Member
from libramq.groups.memberships import Memberships

P = TypeVar("P", bound=Hashable)

#: ClientHousekeepingService, BrokerConfig.channelExpiredTimeout.
SILENCE_MS_MAX: Final = 120_000
#: Ours: groups of one connection; a process has one producer or a few.
GROUPS_PER_CONNECTION_MAX: Final = 1_000
#: Ours: ten for each connection that the server takes.
MEMBERSHIPS_MAX: Final = 200_000


class ProducerGroups(Generic[P]):
    """All producer groups with connected members."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[P, Member[P]]] = {}
        self._memberships: Memberships[P, str] = Memberships()

    def __len__(self) -> int:
        return len(self._memberships)

    def beat(self, group: str, member: Member[P]) -> bool:
        """Apply a heartbeat; return False if that would exceed a limit."""
        memberships = self._memberships
        is_full = memberships.count(member.peer) >= GROUPS_PER_CONNECTION_MAX or len(self) >= MEMBERSHIPS_MAX
        if is_full and not memberships.has(member.peer, group):
            return False
        memberships.add(member.peer, group)
        self._groups.setdefault(group, {})[member.peer] = member
        return True

    def members(self, group: str) -> list[Member[P]]:
        """Return the connected members."""
        return list(self._groups.get(group, {}).values())

    def names(self) -> list[str]:
        """Return the groups with connected members."""
        return list(self._groups)

    def remove(self, group: str, peer: P) -> None:
        """Remove a member."""
        members = self._groups.get(group)
        if members is None or members.pop(peer, None) is None:
            return
        if not members:
            del self._groups[group]
        self._memberships.remove(peer, group)

    def remove_peer(self, peer: P) -> None:
        """Remove the members of a connection that ended."""
        for group in self._memberships.of(peer):
            self.remove(group, peer)

    def remove_silent(self, now_ms: MonotonicMs) -> None:
        """Remove members whose heartbeats have stopped."""
        oldest = now_ms - SILENCE_MS_MAX
        for group, members in list(self._groups.items()):
            for peer in [peer for peer, member in members.items() if member.heartbeat_at_ms < oldest]:
                self.remove(group, peer)
