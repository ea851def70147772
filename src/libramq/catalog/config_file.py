"""A configuration file of the broker: Apache's loose JSON, with the previous version kept as `.bak`.

Reading falls back to `.bak` when the file is missing, empty or broken. Upstream: common/ConfigManager.java.
"""

from pathlib import Path
from typing import TypeVar

from libramq.errors import ProtocolError, StoreCorrupt
from libramq.filesystem import FileSystem
from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")


class ConfigFile:
    """One file below `config/`."""

    def __init__(self, filesystem: FileSystem, path: Path) -> None:
        self._filesystem = filesystem
        self._path = path

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
                return decode_body(text.encode(), kind)
            except ProtocolError as error:
                log.warning("config file cannot be read", path=str(path), reason=str(error))
                unreadable = error
        if unreadable is not None:
            raise StoreCorrupt(
                f"{self._path} cannot be read ({unreadable}), and neither can a .bak of it; repair it, or"
                " remove it to start with an empty configuration"
            )
        return None

    def save(self, value: object) -> None:
        """Write the whole file, keeping the old one as a backup."""
        self._filesystem.makedirs(self._path.parent)
        self._filesystem.replace_text(self._path, fastjson.dumps(value, indent=True).decode())
