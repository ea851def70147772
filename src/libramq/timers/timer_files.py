"""The timers' files: opened together, and written together, in an order that a power cut may end anywhere.

    the messages      in the commit log, on the disk          (the rule of `broker/files/progress.py`)
    timerlog/         units that lead to them, flushed
    timerwheel        slots that lead to units, flushed
    config/timercheck how far both go, flushed

What is found behind the checkpoint leads to messages on the disk, so it is used; what is missing is collected
from the topic again. A slot that was delivered, but not yet forgotten on the disk, is delivered again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from libramq.catalog.config_file import ConfigFile
from libramq.clock import WallMs
from libramq.filesystem import FileSystem
from libramq.logs import get_logger
from libramq.message.names import TIMER_TOPIC
from libramq.store.message_store import MessageStore
from libramq.timers.metrics import TimerMetrics, TimerMetricsFile
from libramq.timers.pop_entries import PopEntries
from libramq.timers.request import TimerOptions
from libramq.timers.timer_checkpoint import (
    FILE_NAME,
    FoundCheckpoint,
    OwnCheckpoint,
    TimerCheckpoint,
    write_timer_checkpoint,
)
from libramq.timers.timer_log import LogWrite, TimerLog, run_log_write
from libramq.timers.timer_wheel import SLOTS, Slot, TimerWheel, read_wheel, write_slots
from libramq.timers.timers import Timers
from libramq.timers.unit import TimerUnit

log = get_logger(__name__)

WHEEL_NAME: Final = "timerwheel"
METRICS_NAME: Final = "timermetrics"
#: MessageStoreConfig.mappedFileSizeTimerLog.
LOG_FILE_BYTES: Final = 100 << 20


class TimerWrite(NamedTuple):
    """The next content of the files."""

    version: tuple[int, int]
    log: LogWrite
    slots: dict[int, Slot | None]
    checkpoint: TimerCheckpoint
    own: OwnCheckpoint
    metrics: TimerMetricsFile
    removed: list[Path]


class TimerFiles:
    """The files, open; raises StoreCorrupt where they cannot be the timers' of this store."""

    def __init__(
        self,
        filesystem: FileSystem,
        root: Path,
        store: MessageStore,
        options: TimerOptions,
        *,
        found: FoundCheckpoint | None,
        pop: PopEntries,
        wall_ms: Callable[[], WallMs],
        log_file_bytes: int = LOG_FILE_BYTES,
        slots: int = SLOTS,
    ) -> None:
        self._filesystem = filesystem
        self._store = store
        self._wall_ms = wall_ms
        self._slots = slots
        self._wheel_path = root / WHEEL_NAME
        self._checkpoint_path = root / "config" / FILE_NAME
        self._metrics_file = ConfigFile(filesystem, root / "config" / METRICS_NAME)
        self._wheel = TimerWheel()
        self._log = TimerLog(filesystem, root, log_file_bytes)
        self._pop = pop
        self.checkpoint = found.apache if found is not None else TimerCheckpoint()
        self._own = found.own if found is not None else None
        try:
            queue_offset = self._open(options)
            metrics = TimerMetrics(self._metrics_file.load(TimerMetricsFile))
        except BaseException:
            self._log.close()
            raise
        self.timers = Timers(
            store, self._log, self._wheel, metrics, options, queue_offset=queue_offset, pop=pop
        )
        is_saved = found is None or (self._own is not None and self._own.pop_place == pop.place)
        self._saved = (self.timers.version, pop.place) if is_saved else None

    def _open(self, options: TimerOptions) -> int:
        """Load wheel and log; return the next message of the topic to be collected."""
        store, checkpoint, precision_ms = self._store, self.checkpoint, options.precision_ms
        self._log.open()
        from_tick = checkpoint.read_ms // precision_ms
        has_wheel = self._filesystem.exists(self._wheel_path)
        if has_wheel:
            self._wheel.load(
                read_wheel(self._filesystem, self._wheel_path, from_tick=from_tick, slots=self._slots)
            )
        last = self._add_units(checkpoint.log_end if has_wheel else 0, from_tick, precision_ms)
        queue_offset = min(checkpoint.queue_offset, checkpoint.master_queue_offset)
        if self._own is not None:
            queue_offset = self._own.queue_offset
        if last is not None:
            queue_offset = max(queue_offset, self._after(last))
        self._log.end_at(self._log.scanned_end)
        lost, expired = self._wheel.forget_outside(self._log.start, self._log.end)
        if expired:
            log.error("timer messages were removed with the log's old files before their time", count=expired)
        if lost:
            log.error("the timer log was cut; its messages are collected again", slots=len(lost))
            last = self._add_units(0, from_tick, precision_ms, only=lost)
            queue_offset = self._after(last) if last is not None else 0
        queue_offset = max(queue_offset, store.min_offset(TIMER_TOPIC, 0))
        return min(queue_offset, store.max_offset(TIMER_TOPIC, 0))

    def _add_units(
        self, start: int, from_tick: int, precision_ms: int, only: set[int] | None = None
    ) -> TimerUnit | None:
        """Add the log's units to the wheel; return the last one."""
        last: TimerUnit | None = None
        for position, unit in self._log.units(start):
            if (
                unit.physical_offset + unit.size > self._store.end
            ):  # Apache's files do not wait for the log's.
                break
            last = unit
            tick = unit.slot_ms // precision_ms
            if tick < from_tick or (only is not None and tick not in only):
                continue
            slot = self._wheel.get(tick)
            if slot is None or slot.last < position:
                self._wheel.add(tick, position, deletes=unit.deletes)
        return last

    def _after(self, unit: TimerUnit) -> int:
        """Return the offset behind a unit's message; 0 if that cannot be read."""
        message = self._store.message_at(unit.physical_offset)
        return message.queue_offset + 1 if message is not None and message.topic == TIMER_TOPIC else 0

    def set_may_wait(self, wait: bool) -> None:
        """Set whether reads of the timer log may wait for the disk."""
        self._log.set_may_wait(wait)

    @property
    def has_changes(self) -> bool:
        """Return whether the files are out of date."""
        saved = self._saved
        return (
            saved is None
            or self.timers.version != saved[0]
            or self._log.has_unwritten
            or self._pop.place != saved[1]
        )

    def take(self) -> TimerWrite | None:
        """Return the next content of the files; None if they are up to date."""
        if not self.has_changes:
            return None
        timers, wall_ms = self.timers, self._wall_ms()
        write, oldest_place = self._log.take(), self._pop.oldest_place
        # What POP has in flight is Apache's to collect.
        to_collect = min(timers.queue_offset, timers.queue_offset if oldest_place is None else oldest_place)
        self.checkpoint = TimerCheckpoint(
            read_ms=timers.read_ms(wall_ms),
            log_end=write.end,
            queue_offset=to_collect,
            master_queue_offset=to_collect,
            version_ms=int(wall_ms),
            counter=self.checkpoint.counter + 1,
        )
        return TimerWrite(
            (timers.version, self._pop.place),
            write,
            self._wheel.take_changes(),
            self.checkpoint,
            OwnCheckpoint(timers.queue_offset, self._pop.place),
            timers.metrics.content(),
            self._log.drop_before(self._store.log_start),
        )

    def run(self, write: TimerWrite) -> None:
        """Write all of it; may be called in a thread. Raises OSError."""
        run_log_write(self._filesystem, write.log)
        if write.slots:
            write_slots(self._filesystem, self._wheel_path, write.slots, slots=self._slots)
        write_timer_checkpoint(self._filesystem, self._checkpoint_path, write.checkpoint, write.own)
        self._metrics_file.save(write.metrics)
        for path in write.removed:
            self._filesystem.unlink(path)
        if write.log.directories:  # New files, or an attempt before failed half-way.
            self._filesystem.sync_directory(self._wheel_path.parent)
            self._filesystem.sync_directory(self._checkpoint_path.parent)

    def written(self, write: TimerWrite) -> None:
        """Note that it was written."""
        self._log.written(write.log)
        self._saved = write.version

    def failed(self, write: TimerWrite) -> None:
        """Take back what could not be written."""
        self._log.failed(write.log)
        self._wheel.put_back(write.slots)

    def close(self) -> None:
        """Close the files."""
        self._log.close()
