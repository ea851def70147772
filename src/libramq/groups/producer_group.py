"""The producer group: tracks connected producers, removes silent ones, and limits the groups.

Upstream: broker/client/ProducerManager.java.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.groups.consumer_group import Member
from libramq.groups.memberships import Memberships
from libramq.kernel.connection import ANONYMOUS, Principal

P = TypeVar("P", bound=Hashable)

#: ClientHousekeepingService, BrokerConfig.channelExpiredTimeout.
SILENCE_MS_MAX: Final = 120_000
#: Ours: the groups of one connection; a process has one producer or a few.
GROUPS_PER_CONNECTION_MAX: Final = 1_000
#: Ours: ten for each connection that the server accepts.
MEMBERSHIPS_MAX: Final = 200_000
#: Ours: half of these, so that one user leaves as many to all others, as an address does with connections.
#: Producing in a group needs no permission, and a producer without a membership gets no transaction checks.
MEMBERSHIPS_PER_USER_MAX: Final = MEMBERSHIPS_MAX // 2


class ProducerGroups(Generic[P]):
    """All producer groups with connected members."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[P, Member[P]]] = {}
        self._memberships: Memberships[P, str] = Memberships()
        #: The connections of each client id, the newest last, with the number of each one's groups.
        self._by_client: dict[str, dict[P, int]] = {}
        #: The number of memberships by user name; anonymous ones are not counted.
        self._by_user: Counter[str] = Counter()
        #: Called when the first member appears.
        self.changed: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._memberships)

    def beat(self, group: str, member: Member[P]) -> bool:
        """Apply a heartbeat; return False if that would exceed a limit."""
        memberships = self._memberships
        is_full = (
            memberships.count(member.peer) >= GROUPS_PER_CONNECTION_MAX
            or len(self) >= MEMBERSHIPS_MAX
            or (
                member.principal is not ANONYMOUS
                and self._by_user[member.principal.name] >= MEMBERSHIPS_PER_USER_MAX
            )
        )
        if is_full and not memberships.has(member.peer, group):
            return False
        if not memberships:
            self.changed()
        memberships.add(member.peer, group)
        members = self._groups.setdefault(group, {})
        before = members.get(member.peer)
        members[member.peer] = member
        self._count_user(member, 1)
        if before is not None:
            self._count_user(before, -1)
        if before is None or before.client_id != member.client_id:
            if before is not None:
                self._forget(before)
            peers = self._by_client.setdefault(member.client_id, {})
            peers[member.peer] = peers.get(member.peer, 0) + 1
        return True

    def connection(self, client_id: str) -> P | None:
        """Return the newest connection of a client; None if it is not connected."""
        peers = self._by_client.get(client_id)
        return next(reversed(peers)) if peers else None

    def members(self, group: str) -> list[Member[P]]:
        """Return the connected members."""
        return list(self._groups.get(group, {}).values())

    def names(self) -> list[str]:
        """Return the groups with connected members."""
        return list(self._groups)

    def remove(self, group: str, peer: P) -> None:
        """Remove a member."""
        members = self._groups.get(group)
        member = members.pop(peer, None) if members is not None else None
        if member is None:
            return
        if not members:
            del self._groups[group]
        self._memberships.remove(peer, group)
        self._count_user(member, -1)
        self._forget(member)

    def _count_user(self, member: Member[P], more: int) -> None:
        name = member.principal.name
        if member.principal is not ANONYMOUS:
            self._by_user[name] += more
            if not self._by_user[name]:
                del self._by_user[name]

    def _forget(self, member: Member[P]) -> None:
        """Decrement the group count of a client's connection."""
        peers = self._by_client[member.client_id]
        peers[member.peer] -= 1
        if not peers[member.peer]:
            del peers[member.peer]
        if not peers:
            del self._by_client[member.client_id]

    def remove_peer(self, peer: P) -> Iterator[None]:
        """Remove the members of a connection that ended; yields where others may be served."""
        for group in self._memberships.of(peer):
            self.remove(group, peer)
            yield

    def remove_disabled(self, is_known: Callable[[Principal], bool]) -> Iterator[None]:
        """Remove members whose user no longer exists; yields where others may be served."""
        for group, members in list(self._groups.items()):
            for peer, member in list(members.items()):
                if not is_known(member.principal) and members.get(peer) is member:
                    self.remove(group, peer)
                yield

    def remove_silent(self, now_ms: MonotonicMs) -> Iterator[None]:
        """Remove members whose heartbeats have stopped; yields where others may be served."""
        oldest = now_ms - SILENCE_MS_MAX
        for group, members in list(self._groups.items()):
            for peer, member in list(members.items()):
                if member.heartbeat_at_ms < oldest and members.get(peer) is member:
                    self.remove(group, peer)
                    yield
            yield
