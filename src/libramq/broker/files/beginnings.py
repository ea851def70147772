"""Beginnings (config/groupBeginnings.json): from which time a group reads queues in which it has committed
nothing.

    "topic@group" → milliseconds: when the group began with the topic less a minute, or the time it began at

For queues of brokers that were away then, and for those that are made later. An entry counts while the group
has offsets in the topic here, with which it was made. A kill forgets the last second of it, slaves have none:
such a group begins in these queues as Apache's do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from libramq.broker.files.progress import Progress
from libramq.catalog.config_file import ConfigFile
from libramq.filesystem import FileSystem
from libramq.formats.document import Document
from libramq.offsets.consumer_offset import SEPARATOR

FILE_NAME: Final = "groupBeginnings.json"
#: Ours.
SAVE_MS: Final = 1_000
#: Ours: entries that are kept before those that do not count are looked for.
UNCHECKED_MAX: Final = 1_000


class BeginningsFile(Document, frozen=True, kw_only=True):
    """The file."""

    since_table: dict[str, int] = {}


class Beginnings:
    """The times, and their file. has_offsets: whether a group has offsets in a topic."""

    def __init__(
        self, filesystem: FileSystem, config_directory: Path, has_offsets: Callable[[str, str], bool]
    ) -> None:
        self._file = ConfigFile(filesystem, config_directory / FILE_NAME)
        loaded = self._file.load_cache(
            BeginningsFile, otherwise="groups begin as Apache's in queues where they have no offset yet"
        )
        self._since_ms = dict(loaded.since_table) if loaded is not None else {}
        self._has_offsets = has_offsets
        self._check_at = UNCHECKED_MAX
        #: Whether the file is out of date.
        self.has_changes = False

    def since_ms(self, group: str, topic: str) -> int | None:
        """Return the time of a group and topic; 0: it is unknown; None: the group has no offsets there."""
        if not self._has_offsets(group, topic):
            return None
        return self._since_ms.get(topic + SEPARATOR + group, 0)

    def note(self, group: str, topic: str, since_ms: int) -> None:
        """Note from when a group that begins with a topic reads other queues."""
        if len(self._since_ms) >= self._check_at:
            for key in list(self._since_ms):
                of_topic, _, of_group = key.partition(SEPARATOR)
                if not self._has_offsets(of_group, of_topic):
                    del self._since_ms[key]
            self._check_at = 2 * len(self._since_ms) + UNCHECKED_MAX
        self._since_ms[topic + SEPARATOR + group] = since_ms
        self.has_changes = True

    def take(self) -> Progress | None:
        """Return the file's next content; None if it is up to date."""
        if not self.has_changes:
            return None
        self.has_changes = False
        content = BeginningsFile(since_table=dict(self._since_ms))

        def failed() -> None:
            self.has_changes = True

        return Progress(write=lambda: self._file.save(content), written=lambda: None, failed=failed)
