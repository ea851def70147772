"""The consume queue table: finds, creates and deletes the queues of a store, and limits the light queues.

    consumequeue/<topic>/<queue id>/<20 digits>
    batchconsumequeue/<topic>/<queue id>/<20 digits>      topics with queue.type=BatchCQ

Upstream: store/queue/ConsumeQueueStore.java.
"""

import errno
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from libramq.errors import InvalidName
from libramq.filesystem import FileSystem, safe_child
from libramq.logs import get_logger
from libramq.message.inner_batch import is_of_batch_queue
from libramq.message.names import is_light
from libramq.message.record import RecordHead
from libramq.message.sys_flag import is_queued
from libramq.store.config import StoreConfig
from libramq.store.log.segments import Segments
from libramq.store.open_files import OpenFiles
from libramq.store.queues.batch_consume_queue import BatchConsumeQueue
from libramq.store.queues.consume_queue import PENDING_BYTES_MAX, ConsumeQueue
from libramq.store.queues.light_queues import LIGHT_QUEUE_ID, MARK, QueuePlace, light_places
from libramq.store.queues.queue_extension import EXTENSIONS, QueueExtension

log = get_logger(__name__)

QueueKey = tuple[str, int]

#: Ours: this many light queues may exist beyond the limit that sends are checked against, for messages
#: accepted in the same turn or waiting for delivery.
LIGHT_BEYOND_MAX: Final = 1_000


class ConsumeQueueTable:
    """The queues, and which of them have unwritten or unflushed units."""

    def __init__(self, filesystem: FileSystem, files: OpenFiles, config: StoreConfig) -> None:
        self._filesystem = filesystem
        self._files = files
        self._root = config.root
        #: The directory and file size of queues; the key is whether they are batch queues.
        self._places = {
            False: (config.consume_queue_directory, config.mapped_file_size_consume_queue),
            True: (config.batch_queue_directory, config.mapped_file_size_batch_consume_queue),
        }
        #: Topics whose new queues are batch queues.
        self.batch_topics: set[str] = set()
        #: Whether messages go to the light queues that they name (store.queues.light_queues).
        self.has_light = config.light_queues_max > 0
        self._light_max = config.light_queues_max
        self.light_count = 0
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self.removal = Removal(filesystem, config.root)
        # Dicts, not sets: the order of writes is the same in every run of a simulation.
        self.pending: dict[ConsumeQueue, None] = {}
        self.unsynced: dict[ConsumeQueue, None] = {}
        #: Queues whose files a thread is removing, by directory. A queue recreated in one of these
        #: directories must not write, because its first file would have the name of a file being removed.
        self.being_cleaned: dict[Path, ConsumeQueue] = {}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None."""
        return self._queues.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, created if missing; raises InvalidName if no directory can have the name."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if queue_id < 0:
                raise InvalidName(f"queue {queue_id} of topic {topic}: a queue id is not negative")
            is_batch = topic in self.batch_topics
            root, file_size = self._places[is_batch]
            directory = safe_child(safe_child(root, topic), str(queue_id))
            segments = Segments(self._filesystem, self._files, directory, file_size)
            kind = BatchConsumeQueue if is_batch else ConsumeQueue
            queue = self._queues[topic, queue_id] = kind(topic, queue_id, segments)
            self.light_count += is_light(topic)
        return queue

    def add_unit(self, head: RecordHead, place: QueuePlace, unit: bytes) -> ConsumeQueue | None:
        """Add the unit of a record found in the log to its queue, created if missing; return the queue.

        Returns None if the queue or the number is impossible. The first record of a topic decides whether its
        queues are batch queues.
        """
        topic, queue_id, number = place
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if topic == head.topic and is_of_batch_queue(head) and not self.of_topic(topic):
                self.batch_topics.add(topic)
            try:
                queue = self.get_or_create(topic, queue_id)
            except InvalidName:
                return None
        if not queue.rebuild(head, number, unit):
            return None
        self.pending[queue] = None
        if queue.pending_bytes >= PENDING_BYTES_MAX:
            self.write_out_queue(queue)
        return queue

    def require_room_for_light(self, name: str) -> None:
        """Raise InvalidName if another light queue would far exceed the limit: a batch may name many."""
        has_room = self.light_count < self._light_max + LIGHT_BEYOND_MAX
        if not has_room and self.get(name, LIGHT_QUEUE_ID) is None:
            raise InvalidName(f"{self.light_count} light queues exist")

    def places(self, head: RecordHead, *, is_damaged: bool = False) -> list[QueuePlace]:
        """Return a record's places in queues, its own queue first, as at the broker that stored it.

        Existing light queues continue even without the option, so that no number is used twice. Light queues
        named by a damaged record are ignored.
        """
        if not is_queued(head.sys_flag):
            return []
        places = [QueuePlace(head.topic, head.queue_id, head.queue_offset)]
        if not is_damaged and MARK in head.properties:
            places += (each for each in light_places(head) if self.has_light or each[:2] in self._queues)
        return places

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic."""
        return [queue for (name, _), queue in self._queues.items() if name == topic]

    def topics(self) -> set[str]:
        """Return the topics that have a queue."""
        return {topic for topic, _ in self._queues}

    def load(self, *, clean: bool, physical_min: int) -> None:
        """Load the queues on the disk. physical_min: the start of the log."""
        for is_batch, (directory, _) in self._places.items():
            for topic in self._filesystem.listdir(directory):
                ids = self._queue_ids(safe_child(directory, topic))
                if is_batch:
                    # Apache's broker leaves empty directories when it deletes a topic.
                    if not any(self._filesystem.listdir(directory / topic / str(each)) for each in ids):
                        continue
                    before = max([queue.last_physical_end for queue in self.of_topic(topic)], default=-1)
                    self._forget_topic(topic)
                    self.batch_topics.add(topic)
                for queue_id in ids:
                    self._load(topic, queue_id, clean=clean, physical_min=physical_min)
                if is_batch and before >= 0:
                    self._settle(topic, before, clean=clean, physical_min=physical_min)

    def _forget_topic(self, topic: str) -> None:
        for queue in self.of_topic(topic):
            self._forget(queue)

    def _settle(self, topic: str, before: int, *, clean: bool, physical_min: int) -> None:
        """Keep the newer queues of a topic that has both kinds, and remove the others.

        The topic was deleted and recreated as the other kind, and a power cut undid the deletion or Apache's
        broker left empty directories. before: the physical end of the plain queues.
        """
        is_batch = max(queue.last_physical_end for queue in self.of_topic(topic)) >= before
        self.removal.put(safe_child(self._places[not is_batch][0], topic))
        if not is_batch:
            self._forget_topic(topic)
            self.batch_topics.discard(topic)
            for queue_id in self._queue_ids(safe_child(self._places[False][0], topic)):
                self._load(topic, queue_id, clean=clean, physical_min=physical_min)

    def _load(self, topic: str, queue_id: int, *, clean: bool, physical_min: int) -> None:
        queue = self.get_or_create(topic, queue_id)
        queue.load(clean=clean, physical_min=physical_min)
        if not queue.is_batch and self._filesystem.is_directory(self._root / EXTENSIONS):
            directory = safe_child(safe_child(self._root / EXTENSIONS, topic), str(queue_id))
            queue.extension = QueueExtension.find(self._filesystem, self._files, directory)

    def _queue_ids(self, directory: Path) -> list[int]:
        names = self._filesystem.listdir(directory) if self._filesystem.is_directory(directory) else []
        return [int(name) for name in names if name.isascii() and name.isdecimal() and str(int(name)) == name]

    def count_units(self) -> int:
        """Return the unit count of all queues, as stored in a recovery point."""
        return sum(queue.max_offset for queue in self._queues.values())

    def write_out_queue(self, queue: ConsumeQueue) -> None:
        """Write out the pending units of one queue."""
        directory = queue.segments.directory
        if self.being_cleaned.get(directory, queue) is not queue:
            raise OSError(errno.EBUSY, "files of a deleted queue are being removed", str(directory))
        queue.write_out()
        self.pending.pop(queue, None)
        self.unsynced[queue] = None

    def delete_topic(self, topic: str) -> None:
        """Remove the queues of a topic; `removal` deletes their files. Raises OSError if the disk refuses."""
        for directory in (*(each for each, _ in self._places.values()), self._root / EXTENSIONS):
            self.removal.put(safe_child(directory, topic))
        self.batch_topics.discard(topic)
        self._forget_topic(topic)

    def delete(self, queue: ConsumeQueue) -> None:
        """Remove one queue; `removal` deletes its files. Raises OSError if the disk refuses."""
        self.removal.put(queue.segments.directory)
        self._forget(queue)

    def _forget(self, queue: ConsumeQueue) -> None:
        self.pending.pop(queue, None)
        self.unsynced.pop(queue, None)
        queue.forget_files()
        del self._queues[queue.topic, queue.queue_id]
        self.light_count -= is_light(queue.topic)

    def delete_all(self) -> None:
        """Remove every queue, because there is no commit log."""
        for topic in self.topics():
            self.delete_topic(topic)


REMOVED_DIRECTORY: Final = "libra.removed"


class Removal:
    """The directories of deleted topics, renamed at once and removed later by a thread.

        consumequeue/T ─► libra.removed/0 ─► gone

    A rename takes microseconds, whatever the directory holds, and a topic of the same name can be created at
    once. A kill during the removal leaves no half-deleted queue, whose missing files an opening would
    rebuild. The rename is flushed before files are removed. The next opening removes any leftovers. If a
    power cut undoes the rename, the whole topic reappears, and `Deletions` knows that it was deleted.
    Apache's brokers ignore the directory.
    """

    def __init__(self, filesystem: FileSystem, root: Path) -> None:
        self._filesystem = filesystem
        self._root = root / REMOVED_DIRECTORY
        self._number = 0
        self._parents: dict[Path, None] = {}
        #: Directories put here since the last `take_work`.
        self.left: list[Path] = []

    def put(self, directory: Path) -> None:
        """Rename a directory for removal; a missing one is ignored. Raises OSError if the disk refuses."""
        if not self._filesystem.exists(directory):
            return
        self._filesystem.makedirs(self._root)
        while self._filesystem.exists(removed := self._root / str(self._number)):
            self._number += 1
        try:
            self._filesystem.rename(directory, removed)
        except OSError as failed:
            if failed.errno != errno.EXDEV:  # `consumequeue` may be a link to another disk.
                raise
            self._filesystem.remove_tree(directory)
            return
        self._parents |= dict.fromkeys((directory.parent, self._root, self._root.parent))
        self.left.append(removed)

    def take_work(self) -> Callable[[], None]:
        """Return work for a thread: the removal of all directories put here since the last call."""
        work = partial(_remove, self._filesystem, tuple(self._parents), tuple(self.left))
        self._parents.clear()
        self.left.clear()
        return work

    def remove_left(self) -> None:
        """Remove an earlier process's leftovers, waiting for the disk."""
        if self._filesystem.exists(self._root):
            _remove(self._filesystem, (self._root.parent,), (self._root,))


def _remove(filesystem: FileSystem, parents: tuple[Path, ...], directories: tuple[Path, ...]) -> None:
    try:
        for parent in parents:
            filesystem.sync_directory(parent)
    except OSError as failed:
        log.error("files of deleted topics are not removed before the next start", reason=str(failed))
        return
    for directory in directories:
        try:
            filesystem.remove_tree(directory)
        except OSError as failed:
            log.error("a deleted topic's files cannot be removed", path=str(directory), reason=str(failed))
