"""Commits at a slave (config/slaveCommits.json): offsets that groups committed while the master was gone,
until it has taken them.
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from libramq.broker.files.progress import DocumentSource
from libramq.catalog.config_file import ConfigFile
from libramq.filesystem import FileSystem
from libramq.formats.document import Document
from libramq.offsets.consumer_offset import SEPARATOR
from libramq.store.message_store import MessageStore

#: Ours.
FILE_NAME: Final = "slaveCommits.json"


class SlaveCommitsFile(Document, frozen=True, kw_only=True):
    """config/slaveCommits.json, by "topic@group" and queue id."""

    offset_table: dict[str, dict[int, int]] = {}


class CommitsAtSlave:
    """Commits of groups at this slave that its master may not have, by key and queue id; and their file.

    A kill loses the last second of them. A master notes none.
    """

    def __init__(self, filesystem: FileSystem, config_directory: Path, store: MessageStore) -> None:
        file = ConfigFile(filesystem, config_directory / FILE_NAME)
        loaded = file.load(SlaveCommitsFile) or SlaveCommitsFile()
        self.table = {
            key: dict(queues) for key, queues in loaded.offset_table.items() if store.config.is_copy
        }
        self._version = len(loaded.offset_table) - len(self.table)
        self.source = DocumentSource(file, lambda: self._version, self.content)
        self.cut(store.max_offset)

    def note(self, key: str, queue_id: int, offset: int) -> None:
        """Note a commit."""
        self.table.setdefault(key, {})[queue_id] = offset
        self._version += 1

    def take_turns(self, count: int) -> list[tuple[str, int, int]]:
        """Return the key, queue id and offset of some commits.

        They are moved behind the others, so that every commit has its turn.
        """
        table = self.table
        taken: list[tuple[str, int, int]] = []
        for key in list(islice(table, count)):
            queues = table[key] = table.pop(key)
            for queue_id in list(islice(queues, count - len(taken))):
                offset = queues[queue_id] = queues.pop(queue_id)
                taken.append((key, queue_id, offset))
            if len(taken) == count:
                break
        return taken

    def forget(self, key: str, queue_id: int, offset: int) -> None:
        """Note that the master has a commit, or refuses it; a later one remains."""
        queues = self.table.get(key, {})
        if queues.get(queue_id) == offset:
            del queues[queue_id]
            if not queues:
                del self.table[key]
            self._version += 1

    def remove(self, key: str) -> None:
        """Forget a group's commits to a topic."""
        if self.table.pop(key, None) is not None:
            self._version += 1

    def cut(self, ends: Callable[[str, int], int]) -> None:
        """Lower offsets beyond the ends of queues."""
        for key, queues in self.table.items():
            topic = key.partition(SEPARATOR)[0]
            for queue_id, offset in queues.items():
                if offset > ends(topic, queue_id):
                    queues[queue_id] = ends(topic, queue_id)
                    self._version += 1

    def content(self) -> SlaveCommitsFile:
        """Return the content of the file."""
        return SlaveCommitsFile(offset_table={key: dict(each) for key, each in self.table.items()})
