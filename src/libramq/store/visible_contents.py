"""The visible contents: how far readers see, and which queues have more to read than before.

stored ─► waits, by the log's end ─► on the disk, and at slaves, as far as either is asked for ─► shown
"""

from collections import deque
from collections.abc import Callable, Sequence

from libramq.filesystem import FileSystem
from libramq.store.config import FlushDiskType, StoreConfig
from libramq.store.contents import StoreContents
from libramq.store.log.commit_log import CommitLog
from libramq.store.open_files import OpenFiles
from libramq.store.queues.consume_queue import ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.reading.unwrapping import Unwrapping


class VisibleContents(StoreContents):
    """The contents, bounded by what is safe."""

    def __init__(
        self,
        config: StoreConfig,
        filesystem: FileSystem,
        files: OpenFiles,
        log: CommitLog,
        queues: ConsumeQueueTable,
        unwrapping: Unwrapping,
    ) -> None:
        super().__init__(config, filesystem, files, log, queues, unwrapping)
        self._is_sync = self._is_bounded = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._replicated: int | None = None
        #: Called when something is appended, flushed, shown or removed.
        self.changed: Callable[[], None] = _ignore
        #: Called when a flush is to begin soon (`MessageStore.want_flush`).
        self.flush_wanted: Callable[[], None] = _ignore
        self._waiting: dict[Callable[[], None], None] = {}
        #: The queues for `drain_touched`, for a quick check whether there are any.
        self.touched: dict[tuple[str, int], int] = {}
        self._unsafe: deque[tuple[int, Sequence[tuple[ConsumeQueue, int]]]] = deque()

    def drain_touched(self) -> dict[tuple[str, int], int]:
        """Return the queues whose readable end moved since the last call, with that end."""
        touched, self.touched = self.touched, {}
        return touched

    def when_changed(self, action: Callable[[], None]) -> None:
        """Have `take_waiting` return an action once, after the next change."""
        self._waiting[action] = None

    def take_waiting(self) -> Sequence[Callable[[], None]]:
        """Return the actions that wait for a change."""
        if not self._waiting:
            return ()
        waiting = tuple(self._waiting)
        self._waiting.clear()
        return waiting

    def set_replicated(self, offset: int | None) -> None:
        """Show readers nothing that slaves do not have; None: whatever slaves have."""
        self._replicated = offset
        self._is_bounded = self._is_sync or offset is not None
        self._show_what_is_safe()

    def _show_when_safe(self, shown: Sequence[tuple[ConsumeQueue, int]]) -> None:
        """Show what was stored, at once or when it is safe: queues, with their ends."""
        if self._is_bounded:
            self._unsafe.append((self._log.end, shown))
        else:
            self.visible_offset = self._log.end
            for queue, max_offset in shown:
                queue.visible_max = max_offset
                self.touched[queue.topic, queue.queue_id] = max_offset
        self.changed()

    def _show_what_is_safe(self) -> None:
        """Show readers what is on the disk and at slaves, as far as either is asked for; hide nothing."""
        if self._is_bounded or self._unsafe:
            safe = self._log.flushed if self._is_sync else self._log.end
            if self._replicated is not None:
                safe = min(safe, self._replicated)
            self._show(max(safe, self.visible_offset))
        self.changed()

    def _show(self, visible_offset: int) -> None:
        self.visible_offset = visible_offset
        unsafe = self._unsafe
        while unsafe and unsafe[0][0] <= visible_offset:
            for queue, max_offset in unsafe.popleft()[1]:
                queue.visible_max = min(max_offset, queue.max_offset)
                self.touched[queue.topic, queue.queue_id] = queue.visible_max

    def _hide_from(self, end: int) -> None:
        """Show nothing from an offset on: the log was cut there, and all before is safe."""
        self._unsafe.clear()
        self.visible_offset = end
        for queue in self._queues:
            queue.visible_max = queue.max_offset
        self.touched = {
            (topic, queue_id): min(was, self.max_offset(topic, queue_id))
            for (topic, queue_id), was in self.touched.items()
        }
        self.changed()


def _ignore() -> None:
    """Do nothing: nobody waits for this store."""
