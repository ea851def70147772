"""Beginnings (config/groupBeginnings.json): where a group reads queues in which it has committed nothing.

    "topic@group" → milliseconds           when the group began with the topic less a minute, or the timestamp
                                           that it chose to begin at
    group → topic → queue id → offset      where its members have pulled first, before any commit

The times are for queues of brokers that were away then, and for queues created later. A time counts while the
group has offsets in the topic here; it was stored together with them. The offsets are for lag: without them,
a group that ends before its first commit would be unknown. They are kept, however old, until the group has
committed, or until it or the topic is deleted. A kill loses the last second of both; slaves have none.
"""

from collections.abc import Set
from pathlib import Path
from typing import Final

from libramq.broker.files.progress import DocumentSource
from libramq.catalog.config_file import ConfigFile
from libramq.filesystem import FileSystem
from libramq.formats.document import Document
from libramq.offsets.consumer_offset import SEPARATOR, ConsumerOffset

FILE_NAME: Final = "groupBeginnings.json"
#: Ours: how often the file is saved.
SAVE_MS: Final = 1_000
#: Ours: at least this many entries are added between two searches for entries that no longer count.
UNCHECKED_MAX: Final = 1_000
#: Ours: queues with offsets, of all groups, as many as PULL_OFFSETS_MAX; beyond this, the oldest groups are
#: forgotten.
QUEUES_MAX: Final = 100_000


class BeginningsFile(Document, frozen=True, kw_only=True):
    """The file."""

    since_table: dict[str, int] = {}
    pulled_table: dict[str, dict[str, dict[int, int]]] = {}


class Beginnings:
    """The times and offsets, and their file. committed: the offsets of all groups."""

    def __init__(self, filesystem: FileSystem, config_directory: Path, committed: ConsumerOffset) -> None:
        file = ConfigFile(filesystem, config_directory / FILE_NAME)
        loaded = file.load_cache(
            BeginningsFile, otherwise="groups begin as Apache's in queues where they have no offset yet"
        )
        loaded = loaded or BeginningsFile()
        self._since_ms = dict(loaded.since_table)
        self._pulled = dict(loaded.pulled_table)
        self._queue_count = sum(len(queues) for topics in self._pulled.values() for queues in topics.values())
        self._committed = committed
        self._check_at = UNCHECKED_MAX
        self._clean_at = UNCHECKED_MAX
        self._version = 0
        self.source = DocumentSource(file, lambda: self._version, self.content)

    def since_ms(self, group: str, topic: str) -> int | None:
        """Return the time of a group and topic; 0: unknown; None: the group has no offsets there."""
        if not self._committed.has_any(group, topic):
            return None
        return self._since_ms.get(topic + SEPARATOR + group, 0)

    def note(self, group: str, topic: str, since_ms: int) -> None:
        """Note the time from which a group that begins with a topic reads other queues."""
        if len(self._since_ms) >= self._check_at:
            for key in list(self._since_ms):
                of_topic, _, of_group = key.partition(SEPARATOR)
                if not self._committed.has_any(of_group, of_topic):
                    del self._since_ms[key]
            self._check_at = 2 * len(self._since_ms) + UNCHECKED_MAX
        self._since_ms[topic + SEPARATOR + group] = since_ms
        self._version += 1

    def pulled_from(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a group has first pulled a queue; None: unknown."""
        return self._pulled.get(group, {}).get(topic, {}).get(queue_id)

    def topics_of_group(self, group: str) -> Set[str]:
        """Return the topics that a group has pulled, perhaps without any commit."""
        return self._pulled.get(group, {}).keys()

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note where a member pulls a queue in which its group has committed nothing."""
        known = self.pulled_from(group, topic, queue_id)
        if known is not None and known <= offset:
            return
        if known is None and self._queue_count >= self._clean_at:
            self._clean()
        self._queue_count += known is None
        self._pulled.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
        self._version += 1

    def remove_group(self, group: str) -> None:
        """Forget the pulls of a deleted group."""
        for topic in list(self._pulled.get(group, ())):
            self._forget(group, topic)

    def remove_topic(self, topic: str) -> None:
        """Forget the pulls of a deleted topic."""
        for group in [group for group, topics in self._pulled.items() if topic in topics]:
            self._forget(group, topic)

    def remove_queues(self, group: str, topic: str, queue_ids: Set[int]) -> None:
        """Forget a group's pulls of queues whose offsets are removed."""
        queues = self._pulled.get(group, {}).get(topic, {})
        for queue_id in queue_ids & queues.keys():
            del queues[queue_id]
            self._queue_count -= 1
            self._version += 1
        if not queues and topic in self._pulled.get(group, {}):
            self._forget(group, topic)

    def _forget(self, group: str, topic: str) -> None:
        topics = self._pulled[group]
        self._queue_count -= len(topics.pop(topic))
        if not topics:
            del self._pulled[group]
        self._version += 1

    def _clean(self) -> None:
        """Forget queues with commits, and the oldest groups if there are still too many."""
        for group, topics in list(self._pulled.items()):
            for topic, queues in list(topics.items()):
                committed = self._committed.offsets(group, topic).keys() & queues.keys()
                self._queue_count -= len(committed)
                topics[topic] = {key: offset for key, offset in queues.items() if key not in committed}
                if not topics[topic]:
                    self._forget(group, topic)
        while self._queue_count > QUEUES_MAX - UNCHECKED_MAX:
            self.remove_group(next(iter(self._pulled)))
        self._clean_at = min(2 * self._queue_count + UNCHECKED_MAX, QUEUES_MAX)

    def content(self) -> BeginningsFile:
        """Return the content of the file."""
        pulled = {
            group: {topic: dict(queues) for topic, queues in topics.items()}
            for group, topics in self._pulled.items()
        }
        return BeginningsFile(since_table=dict(self._since_ms), pulled_table=pulled)
