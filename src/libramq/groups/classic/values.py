"""The values of a classic group: its members' requests and the answers; `key` names the request that an
answer is for.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from libramq.groups.protocol_groups import Refusal


class Protocol(NamedTuple):
    """A strategy that a member knows, and its subscription as the strategy wants it."""

    name: str
    metadata: bytes


class JoinGroup(NamedTuple):
    """A member joins or rejoins. fresh_id: the id for a member that has none yet.

    must_come_back: a member without id gets one, and joins when it returns with it. may_skip: it
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
    """A member wants its share. protocol_type, protocol_name: None where it does not name them.

    waiting: of the leader's, members whose shares bring nothing new, while others give up theirs and join
    again at once. They are answered with that rebalance, those whose own syncs say that they may wait.
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
    """A member's sign of life. generation -1: of a commit by nobody's membership."""

    member_id: str
    instance_id: str | None
    generation: int


class Leaving(NamedTuple):
    """A member that leaves: by its id, or a static one by its instance's."""

    member_id: str
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    """A member, for the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to a join. members: of the leader's answer only."""

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
