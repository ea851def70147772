"""The consume queue table: every queue of the store, by topic and queue id.

    consumequeue/<topic>/<queue id>/<20 digits>

Upstream: store/queue/ConsumeQueueStore.java.
"""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from libramq.errors import InvalidName, StoreError
from libramq.filesystem import FileSystem, safe_child
from libramq.message.names import is_light
from libramq.message.record import RecordHead
from libramq.store.config import StoreConfig
from libramq.store.log.segments import Segments
from libramq.store.open_files import OpenFiles
from libramq.store.queues.consume_queue import ConsumeQueue
from libramq.store.queues.light_queues import LIGHT_QUEUE_ID, LightPlace, light_places
from libramq.store.retention.removal import Removal

QueueKey = tuple[str, int]

#: Where Apache's broker keeps tag codes and filters' bits of units (enableConsumeQueueExt).
EXTENSIONS: Final = "consumequeue_ext"
#: Where Apache's broker keeps queues whose units are batches (queue.type=BatchCQ).
BATCH_QUEUES: Final = "batchconsumequeue"

#: Ours: how many light queues there may be beyond the limit that sends are checked against: of messages that
#: were accepted in one turn, or wait for their time.
LIGHT_BEYOND_MAX: Final = 1_000


def refuse_batch_queues(filesystem: FileSystem, root: Path) -> None:
    """Raise StoreError if a store has queues of batches, whose messages would be numbered wrong.

    Apache leaves empty directories behind when it deletes a topic.
    """
    topics = [
        topic
        for topic in filesystem.listdir(root / BATCH_QUEUES)
        for queue_id in filesystem.listdir(root / BATCH_QUEUES / topic)
        if filesystem.listdir(root / BATCH_QUEUES / topic / queue_id)
    ]
    if topics:
        raise StoreError(
            f"{root}: {', '.join(dict.fromkeys(topics))}: topics with queue.type=BatchCQ are served by "
            "Apache's broker only; `libra store unbatch` makes a copy of this directory that LibraMQ serves"
        )


class ConsumeQueueTable:
    """The queues, and which of them have something to write or to flush."""

    def __init__(self, filesystem: FileSystem, files: OpenFiles, config: StoreConfig) -> None:
        self._filesystem = filesystem
        self._files = files
        self._root = config.root
        self._directory = config.consume_queue_directory
        self._file_size = config.mapped_file_size_consume_queue
        #: Whether messages go to the light queues that they name (store.queues.light_queues).
        self.has_light = config.light_queues_max > 0
        self._light_max = config.light_queues_max
        self.light_count = 0
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self.removal = Removal(filesystem, config.root)
        # Dicts, not sets: the order of writes is the same in every run of a simulation.
        self.pending: dict[ConsumeQueue, None] = {}
        self.unsynced: dict[ConsumeQueue, None] = {}
        #: Queues of which a thread removes files, by directory. A queue that was made again in one of these
        #: may not write: its first file would have the name of one that is removed.
        self.being_cleaned: dict[Path, ConsumeQueue] = {}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None."""
        return self._queues.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, created if missing; InvalidName if no directory can have the topic's name."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if queue_id < 0:
                raise InvalidName(f"queue {queue_id} of topic {topic}: a queue id is not negative")
            directory = safe_child(safe_child(self._directory, topic), str(queue_id))
            segments = Segments(self._filesystem, self._files, directory, self._file_size)
            queue = self._queues[topic, queue_id] = ConsumeQueue(topic, queue_id, segments)
            self.light_count += is_light(topic)
        return queue

    def require_room_for_light(self, name: str) -> None:
        """Raise InvalidName if there are far too many light queues for one more: a batch may name many."""
        has_room = self.light_count < self._light_max + LIGHT_BEYOND_MAX
        if not has_room and self.get(name, LIGHT_QUEUE_ID) is None:
            raise InvalidName(f"{self.light_count} light queues exist")

    def light_places(self, head: RecordHead) -> list[LightPlace]:
        """Return the light queues of a record that have its unit, here as at the broker that stored it.

        Light queues that exist go on without the option, so that none of their numbers is used twice.
        """
        places = light_places(head)
        return [each for each in places if self.has_light or self.get(each.name, LIGHT_QUEUE_ID) is not None]

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic."""
        return [queue for (name, _), queue in self._queues.items() if name == topic]

    def topics(self) -> set[str]:
        """Return the topics that have a queue."""
        return {topic for topic, _ in self._queues}

    def load(self, *, clean: bool, physical_min: int) -> None:
        """Find the queues on the disk. physical_min: where the log begins."""
        for topic in self._filesystem.listdir(self._directory):
            for name in self._queue_names(topic):
                if name.isascii() and name.isdecimal() and str(int(name)) == name:
                    self.get_or_create(topic, int(name)).load(clean=clean, physical_min=physical_min)

    def _queue_names(self, topic: str) -> list[str]:
        directory = safe_child(self._directory, topic)
        return self._filesystem.listdir(directory) if self._filesystem.is_directory(directory) else []

    def count_units(self) -> int:
        """Return how many units all queues have, which a recovery point stores."""
        return sum(queue.max_offset for queue in self._queues.values())

    def write_out_queue(self, queue: ConsumeQueue) -> None:
        """Write what waits in one queue."""
        directory = queue.segments.directory
        if self.being_cleaned.get(directory, queue) is not queue:
            raise OSError(errno.EBUSY, "files of a deleted queue are being removed", str(directory))
        queue.write_out()
        self.pending.pop(queue, None)
        self.unsynced[queue] = None

    def delete_topic(self, topic: str) -> None:
        """Remove the queues of a topic; their files are put into the removal. OSError if the disk refuses."""
        for directory in (self._directory, self._root / EXTENSIONS):
            self.removal.put(safe_child(directory, topic))
        for queue in self.of_topic(topic):
            self._forget(queue)

    def delete(self, queue: ConsumeQueue) -> None:
        """Remove one queue; its files are put into the removal. OSError if the disk refuses."""
        self.removal.put(queue.segments.directory)
        self._forget(queue)

    def _forget(self, queue: ConsumeQueue) -> None:
        self.pending.pop(queue, None)
        self.unsynced.pop(queue, None)
        queue.segments.forget_all()
        del self._queues[queue.topic, queue.queue_id]
        self.light_count -= is_light(queue.topic)

    def delete_all(self) -> None:
        """Remove every queue: there is no commit log for them."""
        for topic in self.topics():
            self.delete_topic(topic)
