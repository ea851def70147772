"""A configuration file of the broker: Apache's loose JSON, with the previous version kept as `.bak`.

Reading falls back to `.bak` when the file is missing, empty or broken. Members that are unknown here are
written again: another version has them. Upstream: common/ConfigManager.java.
"""

from pathlib import Path
from typing import TypeVar

from libramq.errors import ProtocolError, StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.formats import fastjson
from libramq.formats.document import from_value
from libramq.formats.unknown_members import UnknownMembers, unknown_members
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
        unreadable: ProtocolError | None = None
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            text = self._filesystem.read_text(path)
            if not text:
                continue
            try:
                read = fastjson.loads(text.encode())
                value = from_value(read, kind)
            except ProtocolError as error:
                log.warning("config file cannot be read", path=str(path), reason=str(error))
                unreadable = error
                continue
            self._unknown = unknown_members(read, value)
            return value
        if unreadable is not None:
            raise StoreCorrupt(
                f"{self._path} cannot be read ({unreadable}), and neither can a .bak of it; repair it, or"
                " remove it to start with an empty configuration"
            )
        return None

    def forget(self, entry: str) -> None:
        """Do not write the unknown members of an entry again: it was removed."""
        if self._unknown is not None:
            self._unknown.forget(entry)

    def save(self, value: object) -> None:
        """Write the whole file, keeping the old one as a backup."""
        if self._unknown is not None:
            value = self._unknown.within(value)
        self._filesystem.replace_text(self._path, fastjson.dumps(value, indent=True).decode())
