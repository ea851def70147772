"""The membership of a coordinated group: admits members, recognizes returning clients and static names, and
fences replaced ones.

    a new client                          a new id
    the id of a member                    that member, with its queues
        the same client on its connection     that member: the answer to its first join was lost
        an unused id                          that id: a member keeps its id when its coordinator is lost
        the name of a static member           that member's place, under a new id; the former instance is
        fenced

Ids are 128 random bits: a client that knows one is its member.
"""

import re
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.fencing import Claims
from libramq.groups.coordinator.member import GroupMember
from libramq.groups.coordinator.request import NAMED_MAX, Held
from libramq.groups.coordinator.shared_tables import MemberKey, SharedTables
from libramq.groups.coordinator.state import MemberProfile
from libramq.groups.limits import MEMBERS_MAX, SUBSCRIPTION_BYTES_MAX, has_share
from libramq.message.queue import MessageQueue

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")

#: Ours: this many former instances of static members are remembered, to be fenced by name.
REPLACED_MAX: Final = 1_000
#: Ours: this many departed members are remembered, because fences may still name them.
LEFT_MAX: Final = 1_000


#: 128 bits.
_ID = re.compile(r"[0-9a-f]{32}\Z")


class Admission(NamedTuple, Generic[P, T]):
    """An admitted member. earlier: its previous profile; replaced: the member whose place it took."""

    member: GroupMember[P, T]
    earlier: MemberProfile | None = None
    replaced: GroupMember[P, T] | None = None


class GroupMembership(Generic[P, T]):
    """The members of one group, in the order they joined."""

    def __init__(self, group: str, shared: SharedTables[P]) -> None:
        self._group = group
        self._shared = shared
        #: Members by id, in joining order.
        self.members: dict[str, GroupMember[P, T]] = {}
        self._instances: dict[str, str] = {}
        #: This group's share of the counts in the shared tables.
        self._subscription_bytes = self.held_count = 0
        self._replaced: dict[str, str] = {}
        #: Ids of stopping members, which get no more queues and release their own.
        self.leaving: set[str] = set()
        #: Ids of the last members that have left, which are not awaited.
        self.left: dict[str, None] = {}
        #: Ids of members with a handler that takes too long; other members, if any, get their queues.
        self.slow: set[str] = set()

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, member: str) -> bool:
        return member in self.members

    def __iter__(self) -> Iterator[GroupMember[P, T]]:
        return iter(self.members.values())

    def require(self, member: str) -> GroupMember[P, T]:
        """Return the member with this id; raises UnknownMember, or Fenced if another has taken its place."""
        known = self.members.get(member)
        if known is not None:
            return known
        if member in self._replaced:
            raise self.fenced(self._replaced[member])
        raise broker_error(
            ResponseCode.UNKNOWN_MEMBER, f"group {self._group} has no member {member[:40]!r} (any more)"
        )

    def named(self, name: str) -> list[GroupMember[P, T]]:
        """Return the static member of that name, or the members with that client id; raises UnknownMember."""
        if name in self._instances:
            return [self.members[self._instances[name]]]
        found = [member for member in self if member.profile.client_id == name]
        if found:
            return found
        known = sorted({member.profile.instance or member.profile.client_id for member in self})
        named = ", ".join(known[:NAMED_MAX]) or "none"
        more = f" and {len(known) - NAMED_MAX} more" if len(known) > NAMED_MAX else ""
        remark = f"group {self._group} has no member {name!r}; it has {named}{more}"
        raise broker_error(ResponseCode.UNKNOWN_MEMBER, remark)

    def fenced(self, instance: str) -> BrokerError:
        """Return the error for a fenced former instance of a static member."""
        return broker_error(
            ResponseCode.FENCED, f"another client has joined group {self._group} as instance {instance}"
        )

    def admit(
        self,
        profile: MemberProfile,
        wanted: str | None,
        peer: P,
        *,
        if_free: bool = False,
        now_ms: MonotonicMs,
    ) -> Admission[P, T]:
        """Admit a client. profile.member is a new id; wanted: the id that the client claims.

        if_free: do not replace another member; raise Fenced unless the static name is free.
        Raises Fenced, InvalidParameter, SystemError when the group is full, or SystemBusy.
        """
        if not wanted:  # The client on this connection may already be a member.
            keys = (key for key in self._shared.connections.of(peer) if key.group == self._group)
            clients = {self.members[key.member].profile.client_id: key.member for key in keys}
            wanted = clients.get(profile.client_id)
        instance = profile.instance
        former = self._instances.get(instance) if instance is not None else None
        if wanted is not None and wanted in self.members:
            if former not in (None, wanted):
                raise broker_error(
                    ResponseCode.INVALID_PARAMETER,
                    f"member {wanted} cannot become instance {instance}, which is member {former};"
                    " leave first, or choose another lbInstance",
                )
            self._require_room(profile, self.members[wanted])
            return self._readmit(self.members[wanted], profile, peer, now_ms)
        if instance is not None:
            was_replaced = wanted is not None and self._replaced.get(wanted) == instance
            if former is not None if if_free else was_replaced:
                raise self.fenced(instance)
        replaced = self.members[former] if former is not None else None
        if replaced is None and len(self.members) >= MEMBERS_MAX:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"group {self._group} has {MEMBERS_MAX} members, which is the limit; let some leave first",
            )
        self._require_room(profile, replaced)
        if wanted is not None and _ID.match(wanted) and wanted not in self._replaced:
            profile = msgspec.structs.replace(profile, member=wanted)
        if replaced is not None:
            self.remove(replaced)
            self._remember(replaced)
        return Admission(self._add(profile, peer, now_ms), replaced.profile if replaced else None, replaced)

    def _require_room(self, profile: MemberProfile, former: GroupMember[P, T] | None) -> None:
        """Raise SystemBusy if there is no room for a client's subscriptions."""
        before = former.profile.subscription_bytes if former is not None else 0
        more = profile.subscription_bytes - before
        of_group, of_all = self._subscription_bytes + more, self._shared.subscription_bytes + more
        if more > 0 and not has_share(of_group, of_all, SUBSCRIPTION_BYTES_MAX):
            raise broker_error(
                ResponseCode.SYSTEM_BUSY,
                f"group {self._group}: its members' subscriptions may take what all groups leave free of"
                f" {SUBSCRIPTION_BYTES_MAX} bytes; use shorter expressions or fewer groups",
            )

    def _count_bytes(self, more: int) -> None:
        self._subscription_bytes += more
        self._shared.subscription_bytes += more

    def _count_held(self, more: int) -> None:
        self.held_count += more
        self._shared.held_count += more

    def restore(self, profile: MemberProfile, *, now_ms: MonotonicMs) -> None:
        """Add a recorded member, whose connection is not known yet."""
        self._add(profile, None, now_ms)

    def seen(self, member: GroupMember[P, T], peer: P, *, now_ms: MonotonicMs) -> None:
        """Note a request of a member."""
        member.seen(now_ms=now_ms)
        if member.peer != peer:
            self._disconnect(member)
            self._shared.connections.add(peer, MemberKey(self._group, member.id))
            member.peer = peer

    def holds(self, member: GroupMember[P, T], held: Held) -> None:
        """Note the queues that a member lists, with their epochs."""
        self._count_held(len(held) - len(member.held))
        member.held = held

    def opened(self, claims: Claims) -> None:
        """Note queues that were opened for their members."""
        for queue, claim in claims.items():
            member = self.members.get(claim.member)
            if member is not None:
                self.holds(member, member.held | {queue: claim.epoch})

    def released(self, member: GroupMember[P, T], queues: Iterable[MessageQueue]) -> None:
        """Note queues that a member no longer lists."""
        before = len(member.held)
        for queue in queues:
            member.held.pop(queue, None)
        self._count_held(len(member.held) - before)

    def closed(self, member: GroupMember[P, T], *, now_ms: MonotonicMs) -> None:
        """Note that a member's connection has ended."""
        self._disconnect(member)
        member.closed(now_ms=now_ms)

    def remove(self, member: GroupMember[P, T]) -> None:
        """Remove a member."""
        del self.members[member.id]
        self.leaving.discard(member.id)
        self.slow.discard(member.id)
        self._shared.member_count -= 1
        self._count_bytes(-member.profile.subscription_bytes)
        self._count_held(-len(member.held))
        self._disconnect(member)
        if member.profile.instance is not None:
            del self._instances[member.profile.instance]

    def note_left(self, member: str) -> None:
        """Remember a member that has left on its own."""
        self.left[member] = None
        if len(self.left) > LEFT_MAX:
            del self.left[next(iter(self.left))]

    @property
    def profiles(self) -> list[MemberProfile]:
        """Return the profiles of all members."""
        return [member.profile for member in self.members.values()]

    @property
    def staying(self) -> list[MemberProfile]:
        """Return the profiles of members that are neither leaving nor slow; if all are slow, of those."""
        staying = [profile for profile in self.profiles if profile.member not in self.leaving]
        return [profile for profile in staying if profile.member not in self.slow] or staying

    @property
    def client_ids(self) -> list[str]:
        """Return the client ids of the staying members, sorted and without duplicates."""
        return sorted({profile.client_id for profile in self.staying})

    def revoke_timeout_ms(self, member: str) -> int:
        """Return how long a member may take to release a revoked queue."""
        return self.members[member].profile.revoke_timeout_ms

    def _readmit(
        self, member: GroupMember[P, T], profile: MemberProfile, peer: P, now_ms: MonotonicMs
    ) -> Admission[P, T]:
        earlier = member.profile
        if earlier.instance is not None:
            del self._instances[earlier.instance]
        member.profile = msgspec.structs.replace(profile, member=earlier.member)
        self._count_bytes(profile.subscription_bytes - earlier.subscription_bytes)
        if profile.instance is not None:
            self._instances[profile.instance] = earlier.member
        self.seen(member, peer, now_ms=now_ms)
        return Admission(member, earlier)

    def _add(self, profile: MemberProfile, peer: P | None, now_ms: MonotonicMs) -> GroupMember[P, T]:
        member: GroupMember[P, T] = GroupMember(profile.member, profile, now_ms)
        self.members[member.id] = member
        self.left.pop(member.id, None)
        self._shared.member_count += 1
        self._count_bytes(profile.subscription_bytes)
        if profile.instance is not None:
            self._instances[profile.instance] = member.id
        if peer is not None:
            self._shared.connections.add(peer, MemberKey(self._group, member.id))
            member.peer = peer
        return member

    def _disconnect(self, member: GroupMember[P, T]) -> None:
        if member.peer is not None:
            self._shared.connections.remove(member.peer, MemberKey(self._group, member.id))

    def _remember(self, replaced: GroupMember[P, T]) -> None:
        assert replaced.profile.instance is not None
        self._replaced[replaced.id] = replaced.profile.instance
        if len(self._replaced) > REPLACED_MAX:
            del self._replaced[next(iter(self._replaced))]
