"""All classic groups of a broker, by name. One without members is forgotten; offsets are kept elsewhere."""

from typing import Final

from libramq.groups.classic.group import ClassicGroup

#: Ours: as many as there may be groups of RocketMQ's (GROUPS_MAX in `catalog`).
CLASSIC_GROUPS_MAX: Final = 25_000


class ClassicGroups:
    """The groups that have members, or expect some."""

    def __init__(self) -> None:
        self._groups: dict[str, ClassicGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> ClassicGroup | None:
        """Return a group; None if it has no members."""
        return self._groups.get(name)

    def get_or_create(self, name: str) -> ClassicGroup | None:
        """Return a group, for a member that joins it; None if there are too many."""
        group = self._groups.get(name)
        if group is None and len(self._groups) < CLASSIC_GROUPS_MAX:
            group = self._groups[name] = ClassicGroup()
        return group

    def forget_unused(self, name: str) -> bool:
        """Forget a group that nobody is in; return whether it is gone."""
        group = self._groups.get(name)
        if group is not None and group.is_unused:
            del self._groups[name]
            group = None
        return group is None
