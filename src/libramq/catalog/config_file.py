"""A configuration file below `config/`: reading (with a fallback to `.bak`), writing, and preserving members
that this version does not know.

A missing, empty or broken file is read from `.bak`, which is logged. Unknown members are written back,
because another version may use them. Upstream: common/ConfigManager.java.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from libramq.errors import ProtocolError, StoreCorrupt
from libramq.filesystem import FileSystem, read_with_backup
from libramq.formats import fastjson
from libramq.formats.document import from_value
from libramq.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")


class ConfigFile:
    """One file below `config/`."""

    def __init__(self, filesystem: FileSystem, path: Path) -> None:
        self._filesystem = filesystem
        self._path = path
        self._unknown: UnknownMembers | None = None

    def load(self, kind: type[T]) -> T | None:
        """Load the file or else its backup; None if neither exists.

        StoreCorrupt if neither can be read: continuing would overwrite a damaged file with wrong content.
        """

        def decode(text: str) -> tuple[object, T]:
            read = fastjson.loads(text.encode())
            return read, from_value(read, kind)

        try:
            found = read_with_backup(self._filesystem, self._path, decode)
        except ProtocolError as error:
            raise StoreCorrupt(
                f"{self._path} cannot be read ({error}), and neither can a .bak of it; repair one of the"
                " two, or remove both to start with an empty configuration"
            ) from error
        if found is None:
            return None
        read, value = found
        self._unknown = unknown_members(read, value)
        return value

    def load_cache(self, kind: type[T], *, otherwise: str) -> T | None:
        """Load a file whose loss is harmless; log a warning and return None if it cannot be read.

        otherwise: the consequence of the loss, for the log.
        """
        try:
            return self.load(kind)
        except StoreCorrupt as error:
            log.warning(f"a file is lost, and {otherwise}", path=str(self._path), reason=str(error.__cause__))
            return None

    def forget(self, entry: str) -> None:
        """Forget the unknown members of a removed entry."""
        if self._unknown is not None:
            self._unknown.forget(entry)

    def save(self, value: object) -> None:
        """Write the whole file and its backup."""
        if self._unknown is not None:
            value = self._unknown.within(value)
        self._filesystem.replace_text(self._path, fastjson.dumps(value, indent=True).decode())


class UnknownMembers(NamedTuple):
    """The members of a file that its typed document lacks: an object's own, and those of nested objects.

    They are written back with the file: another version of Apache's broker may have written them, and would
    miss them.
    """

    own: Mapping[str, Any]
    below: dict[Any, "UnknownMembers"]

    def forget(self, entry: str) -> None:
        """Forget the members of an entry removed from a table: a later entry of that name is a new one."""
        for table in self.below.values():
            table.below.pop(entry, None)

    def within(self, value: Any) -> Any:
        """Return a value to encode that includes these members, except those of entries that are gone."""
        found = _members(value)
        if found is None:
            return value
        members = dict(found)
        for name, unknown in list(self.below.items()):  # A copy, as this may run in a thread.
            if name in members:
                members[name] = unknown.within(members[name])
        return {**members, **self.own}


def unknown_members(read: Any, value: Any) -> UnknownMembers | None:
    """Return the members of an object that its typed value lacks; None if it lacks none."""
    members = _members(value)
    if not isinstance(read, dict) or members is None:
        return None
    is_table = isinstance(value, dict)
    own = {} if is_table else {name: member for name, member in read.items() if name not in members}
    below: dict[Any, UnknownMembers] = {}
    for name, member in read.items():
        if isinstance(member, dict) and name in members:
            unknown = unknown_members(member, members[name])
            if unknown is not None:
                below[name] = unknown
    return UnknownMembers(own, below) if own or below else None


def _members(value: Any) -> dict[Any, Any] | None:
    """Return a document's or table's members by their names in the file; None for any other value."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {name: getattr(value, field) for name, field in names}
    return value if isinstance(value, dict) else None
