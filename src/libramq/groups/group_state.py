"""The state of a coordinated group that outlives its coordinator's process: config/groups.json.

Ours; what is in it is written before anybody hears of it.
"""

from collections.abc import Callable, Mapping

from libramq.remoting.body.codec import Body
from libramq.remoting.body.coordination import MODE_EPOCHS, QueueGrant


class MemberProfile(Body, frozen=True, kw_only=True):
    """A member as it described itself. instance: its name, if it is a static member."""

    member: str
    client_id: str
    session_ms: int
    instance: str | None = None
    subscriptions: dict[str, str] = {}
    strategy: str = "balanced_sticky"
    capacity: int = 1


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


class GroupStates:
    """The states of all groups that live here, as last recorded. record: as of every table with a ledger."""

    def __init__(self, loaded: GroupStatesFile | None = None, *, record: Record = lambda *_: None) -> None:
        self._groups = dict(loaded.groups) if loaded is not None else {}
        self._record = record

    @property
    def groups(self) -> Mapping[str, GroupState]:
        """States by group."""
        return self._groups

    def put(self, group: str, state: GroupState | None) -> None:
        """Record a group's state; None: it lives here no more. What `record` raises keeps all as it is."""
        self._record(group, state)
        self.apply(group, state)

    def apply(self, group: str, state: GroupState | None) -> None:
        """Make a change that was recorded."""
        if state is None:
            self._groups.pop(group, None)
        else:
            self._groups[group] = state

    def file(self) -> GroupStatesFile:
        """What to write to config/groups.json."""
        return GroupStatesFile(groups=dict(self._groups))
