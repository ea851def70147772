"""A configuration file below `config/`: how it is read (or its `.bak`), written, and what of another
version's members is kept.

Reading falls back to `.bak` when the file is missing, empty or broken, and says so. Members that are unknown
here are written again: another version has them. Upstream: common/ConfigManager.java.
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
        """Load a file whose loss does little: None, and a line in the log, if it cannot be read.

        otherwise: what is done without it.
        """
        try:
            return self.load(kind)
        except StoreCorrupt as error:
            log.warning(f"a file is lost, and {otherwise}", path=str(self._path), reason=str(error.__cause__))
            return None

    def forget(self, entry: str) -> None:
        """Do not write the unknown members of an entry again: it was removed."""
        if self._unknown is not None:
            self._unknown.forget(entry)

    def save(self, value: object) -> None:
        """Write the whole file, and a backup of it."""
        if self._unknown is not None:
            value = self._unknown.within(value)
        self._filesystem.replace_text(self._path, fastjson.dumps(value, indent=True).decode())


class UnknownMembers(NamedTuple):
    """What a file has that its typed document does not, of an object itself and of its members.

    It is written with the file again: another version of Apache's broker may have written it, and would read
    its own file changed.
    """

    own: Mapping[str, Any]
    below: dict[Any, "UnknownMembers"]

    def forget(self, entry: str) -> None:
        """Forget those of an entry of a table, which was removed: what gets its name later is another."""
        for table in self.below.values():
            table.below.pop(entry, None)

    def within(self, value: Any) -> Any:
        """Return a value with these in it, to be encoded, without those of entries that are gone."""
        found = _members(value)
        if found is None:
            return value
        members = dict(found)
        for name, unknown in list(self.below.items()):  # A copy, as this may run in a thread.
            if name in members:
                members[name] = unknown.within(members[name])
        return {**members, **self.own}


def unknown_members(read: Any, value: Any) -> UnknownMembers | None:
    """Return what the typed value of an object that was read does not have; None if it has everything."""
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
    """Return the members of a document, or of a table, by their names in a file; None for any other value."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {name: getattr(value, field) for name, field in names}
    return value if isinstance(value, dict) else None
