"""The saved state of a classic group, which its next coordinator receives, and the time in which members must
return there.

Only a stable group has one. During a rebalance the members know about it, and restart it at the new
coordinator.
"""

from collections.abc import Iterator
from typing import Final

from libramq.clock import MonotonicMs
from libramq.formats.document import Document
from libramq.groups.classic.group import ClassicGroup
from libramq.groups.classic.state import SESSION_MS_MAX, SESSION_MS_MIN, ClassicMember, Status
from libramq.groups.classic.values import JoinGroup, Protocol

#: Ours: members have at least this long to return. The heartbeat interval is a third of the session in most
#: clients, and Kafka advises no more.
RETURN_MS: Final = 15_000


#: Ours: half of the protocol's range, which leaves room for later generations.
GENERATION_MAX: Final = 1 << 30
#: Ours: a member's id is a name (NAME_CHARACTERS_MAX) and 33 more characters.
MEMBER_ID_CHARACTERS_MAX: Final = 300


class SavedProtocol(Document, frozen=True, kw_only=True):
    """A strategy that a member supports."""

    name: str
    metadata: bytes


class SavedClassicMember(Document, frozen=True, kw_only=True):
    """A member and its share."""

    session_ms: int
    rebalance_ms: int
    protocols: list[SavedProtocol]
    assignment: bytes = b""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    may_skip: bool = False


class SavedClassicGroup(Document, frozen=True, kw_only=True):
    """A group. members: by id, in joining order."""

    generation: int
    members: dict[str, SavedClassicMember]
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None


def saved(group: ClassicGroup) -> SavedClassicGroup | None:
    """Return a group's state; None if it has no members or a rebalance is under way."""
    if group.status is not Status.STABLE or not group.members:
        return None
    return SavedClassicGroup(
        generation=group.generation,
        members={member_id: _saved_member(each) for member_id, each in group.members.items()},
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader,
    )


def is_sound(state: SavedClassicGroup) -> bool:
    """Return whether a state sent by another process is valid."""
    members = state.members.values()
    instances = [each.instance_id for each in members if each.instance_id is not None]
    names = [*state.members, *instances]
    return (
        bool(members)
        and 0 <= state.generation <= GENERATION_MAX
        and (state.leader is None or state.leader in state.members)
        and all(0 < len(name) <= MEMBER_ID_CHARACTERS_MAX for name in names)
        and len(set(instances)) == len(instances)
        and all(SESSION_MS_MIN <= each.session_ms <= SESSION_MS_MAX for each in members)
        and all(state.protocol_name in {own.name for own in each.protocols} for each in members)
    )


def restored(state: SavedClassicGroup, now_ms: MonotonicMs) -> ClassicGroup:
    """Return a group that continues at this coordinator and expects its members to return."""
    group = ClassicGroup()
    group.restore(
        state.generation, state.protocol_type, state.protocol_name, state.leader, _members(state, now_ms)
    )
    return group


def _saved_member(member: ClassicMember) -> SavedClassicMember:
    return SavedClassicMember(
        session_ms=member.session_ms,
        rebalance_ms=member.rebalance_ms,
        protocols=[SavedProtocol(name=each.name, metadata=each.metadata) for each in member.protocols],
        assignment=member.assignment,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        may_skip=member.may_skip,
    )


def _members(state: SavedClassicGroup, now_ms: MonotonicMs) -> Iterator[ClassicMember]:
    for member_id, each in state.members.items():
        join = JoinGroup(
            key=None,
            member_id=member_id,
            instance_id=each.instance_id,
            fresh_id=member_id,
            client_id=each.client_id,
            session_ms=each.session_ms,
            rebalance_ms=each.rebalance_ms,
            protocol_type=state.protocol_type or "",
            protocols=[Protocol(protocol.name, protocol.metadata) for protocol in each.protocols],
            may_skip=each.may_skip,
            client_host=each.client_host,
        )
        member = ClassicMember(member_id, join)
        member.is_new = False
        member.assignment = each.assignment
        is_static = each.instance_id is not None
        wait_ms = each.session_ms if is_static else max(RETURN_MS, each.session_ms // 2)
        member.expires_ms = now_ms + min(wait_ms, each.session_ms)
        yield member
