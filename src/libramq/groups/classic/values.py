"""The values of a classic group: its members' requests and the answers, matched by `key`."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from libramq.groups.protocol_groups import Refusal


class Protocol(NamedTuple):
    """A strategy that a member supports, with its subscription in that strategy's format."""

    name: str
    metadata: bytes


class JoinGroup(NamedTuple):
    """A member joins or rejoins. fresh_id: the id for a member without one.

    must_come_back: a member without an id is sent one and must rejoin with it (KIP-394). may_skip: the member
    understands that a leader need not assign.
    """

    key: Hashable
    member_id: str
    instance_id: str | None
    fresh_id: str
    client_id: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: Sequence[Protocol]
    must_come_back: bool = True
    may_skip: bool = False
    client_host: str = ""


class SyncGroup(NamedTuple):
    """A member requests its share. protocol_type, protocol_name: None if the request lacks them.

    waiting: from the leader: members whose shares bring nothing new, while others give up queues and rejoin
    at once. They are answered with that rebalance if their own syncs allow a wait (may_wait).
    """

    key: Hashable
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = {}
    waiting: Collection[str] = ()
    may_wait: bool = True


class Beat(NamedTuple):
    """A member's sign of life. generation -1: a commit without membership."""

    member_id: str
    instance_id: str | None
    generation: int


class Leaving(NamedTuple):
    """A leaving member: its id or, if static, its instance id."""

    member_id: str
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    """A member, for the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to a join. members: only in the leader's answer."""

    key: Hashable
    refusal: Refusal
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """The answer to a sync."""

    key: Hashable
    refusal: Refusal
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


Answer = JoinAnswer | SyncAnswer
