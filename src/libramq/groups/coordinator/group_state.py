"""The state of a coordinated group that outlives its coordinator's process: config/groups.json.

Ours; what is in it is written before anybody hears of it.
"""

from collections.abc import Callable
from typing import Final

from libramq.remoting.body.codec import Body
from libramq.remoting.body.coordination import MODE_EPOCHS, QueueGrant

#: The design's: how long a member that says nothing else may take to give up a queue.
REVOKE_TIMEOUT_MS: Final = 10_000


class MemberProfile(Body, frozen=True, kw_only=True):
    """A member as it described itself.

    instance: its name, if it is a static member. revoke_timeout_ms: how long it may take to give up a queue.
    """

    member: str
    client_id: str
    session_ms: int
    instance: str | None = None
    subscriptions: dict[str, str] = {}
    strategy: str = "balanced_sticky"
    capacity: int = 1
    revoke_timeout_ms: int = REVOKE_TIMEOUT_MS


class GroupState(Body, frozen=True, kw_only=True):
    """One group: its members in the order they joined, and who holds which queue under which epoch."""

    epoch: int = 0
    mode: str = MODE_EPOCHS
    members: list[MemberProfile] = []
    holdings: list[QueueGrant] = []


class GroupStatesFile(Body, frozen=True, kw_only=True):
    """What config/groups.json says: groups by name."""

    groups: dict[str, GroupState] = {}


#: Persist a group's state; None removes it. Raises OSError where the disk refuses.
Record = Callable[[str, GroupState | None], None]
