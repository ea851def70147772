"""The unknown members: what a file has that its typed document does not, written with it again.

Another version of Apache's broker may have written them; without them it would read its own file changed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec


class UnknownMembers(NamedTuple):
    """Those of an object itself, and those of its members that have some."""

    own: Mapping[str, Any]
    below: dict[Any, "UnknownMembers"]

    def forget(self, entry: str) -> None:
        """Forget those of an entry of a table, which was removed: what gets its name later is another."""
        for table in self.below.values():
            table.below.pop(entry, None)

    def within(self, value: Any) -> Any:
        """Return a value with these in it, to be encoded, without those of entries that are gone."""
        if isinstance(value, msgspec.Struct):
            names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
            members = {name: getattr(value, field) for name, field in names}
        elif isinstance(value, dict):
            members = dict(value)
        else:
            return value
        for name, unknown in list(self.below.items()):  # A copy, as this may run in a thread.
            if name in members:
                members[name] = unknown.within(members[name])
        return {**members, **self.own}


def unknown_members(read: Any, value: Any) -> UnknownMembers | None:
    """Return what the typed value of an object that was read does not have; None if it has everything."""
    own: dict[str, Any] = {}
    members: dict[Any, Any]
    if not isinstance(read, dict):
        return None
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        members = {name: getattr(value, field) for name, field in names}
        own = {name: member for name, member in read.items() if name not in members}
    elif isinstance(value, dict):
        members = value
    else:
        return None
    below: dict[Any, UnknownMembers] = {}
    for name, member in read.items():
        if isinstance(member, dict) and name in members:
            unknown = unknown_members(member, members[name])
            if unknown is not None:
                below[name] = unknown
    return UnknownMembers(own, below) if own or below else None
