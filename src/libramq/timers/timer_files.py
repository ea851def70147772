"""The timers' files (timerlog, timerwheel, timercheck, timermetrics): the order in which they are opened and
written, so that a power cut at any moment loses nothing; when they are rebuilt (damaged, or at a new slave).

    the messages      in the commit log, on the disk          (the rule of `broker/files/progress.py`)
    timerlog/         units that refer to them, flushed
    timerwheel        slots that refer to units, flushed
    config/timercheck the progress of both, flushed

Units found behind the checkpoint refer to messages on the disk, so they are used; missing ones are collected
from the topic again. Copies in the log show which messages of a slot were delivered if the slot is still on
the disk.
"""

from collections.abc import Callable

from libramq.catalog.config_file import ConfigFile
from libramq.catalog.destinations import Destinations
from libramq.clock import WallMs
from libramq.filesystem import PendingWrite
from libramq.logs import get_logger
from libramq.message.names import TIMER_TOPIC
from libramq.store.message_store import MessageStore
from libramq.timers.delivered_copies import DeliveredCopies
from libramq.timers.slot_reader import TimerData
from libramq.timers.timer_checkpoint import FoundCheckpoint, OwnCheckpoint, TimerCheckpoint, TimerDirectory
from libramq.timers.timer_log import TimerLog, TimerUnit, run_log_write
from libramq.timers.timer_wheel import Slot, TimerWheel, is_whole, read_wheel, write_slots
from libramq.timers.timers import (
    Again,
    Collected,
    PopEntries,
    TimerMessages,
    TimerMetrics,
    TimerMetricsFile,
    TimerOptions,
)

log = get_logger(__name__)


def slave_checkpoint(again: Again, before: TimerCheckpoint, wall_ms: WallMs) -> TimerCheckpoint:
    """Return Apache's part of a slave's checkpoint: the progress of its master."""
    return TimerCheckpoint(
        read_ms=again.from_ms,
        master_queue_offset=again.until,
        version_ms=int(wall_ms),
        counter=before.counter + 1,
    )


class TimerFiles:
    """The open files; raises StoreCorrupt if they cannot be this store's timers."""

    def __init__(
        self,
        directory: TimerDirectory,
        store: MessageStore,
        options: TimerOptions,
        *,
        pop: PopEntries,
        destinations: Destinations,
        wall_ms: Callable[[], WallMs],
        copies: DeliveredCopies,
    ) -> None:
        self._directory = directory
        self._found = directory.found or FoundCheckpoint()
        self._store = store
        self._wall_ms = wall_ms
        self._metrics_file = ConfigFile(directory.filesystem, directory.metrics)
        self._wheel = TimerWheel()
        self._log = TimerLog(directory.filesystem, directory.root, directory.log_file_bytes)
        self._pop = pop
        self.checkpoint = self._found.apache
        #: Whether to ignore the wheel's file and write it as a whole.
        self._makes_wheel_again = False
        try:
            queue_offset, again = self._open_at_slave() if store.config.is_copy else self._open(options)
            metrics = self._metrics_file.load_cache(
                TimerMetricsFile, otherwise="only new timer messages are counted"
            )
        except BaseException:
            self._log.close()
            raise
        self.timers = TimerMessages(
            TimerData(store, self._log, self._wheel),
            Collected(queue_offset, TimerMetrics(metrics), again),
            options,
            pop=pop,
            destinations=destinations,
            copies=copies,
        )
        own = self._found.own
        is_saved = directory.found is None or (own is not None and own.pop_place == pop.place)
        is_saved = is_saved and not (self._makes_wheel_again and len(self._wheel))
        self._saved = (self.timers.version, pop.place) if is_saved else None

    def _open(self, options: TimerOptions) -> tuple[int, Again]:
        """Load wheel and log; return the topic's next message to collect, and the range to collect again."""
        store, (checkpoint, own) = self._store, self._found
        self._log.open()
        from_tick = checkpoint.read_ms // options.precision_ms
        self._makes_wheel_again = not self._load_wheel(from_tick, options.precision_ms)
        last = self._add_units(
            0 if self._makes_wheel_again else checkpoint.log_end, from_tick, options.precision_ms
        )
        queue_offset = self._found.collected
        if last is not None:
            queue_offset = max(queue_offset, self._after(last))
        again = Again(own.again_until, own.again_from_ms) if own is not None else Again()
        log_end = self._log.scanned_end
        end = store.max_offset(TIMER_TOPIC, 0)
        if max(queue_offset, again.until) > end:
            log.error(
                "the timers' progress lies beyond their topic; messages without a copy are collected again",
                collected=queue_offset,
                ends_at=end,
            )
            self._wheel.load(())
            self._log.end_at(self._log.start)
            self._makes_wheel_again = True
            self._note(Again(), 0)
            return store.min_offset(TIMER_TOPIC, 0), Again()
        lost, expired = self._wheel.forget_outside(self._log.start, log_end)
        if expired:
            log.error("timer messages were removed with the log's old files before their time", count=expired)
        if lost or log_end < checkpoint.log_end:
            log.error(
                "the timer log is damaged; waiting messages are collected again from the topic",
                ends_at=log_end,
                messages=queue_offset,
            )
            again = again.renewed(queue_offset, checkpoint.read_ms)
            queue_offset = 0
            self._note(again, queue_offset)
        self._log.end_at(log_end)
        queue_offset = max(queue_offset, store.min_offset(TIMER_TOPIC, 0))
        return min(queue_offset, end), again

    def _open_at_slave(self) -> tuple[int, Again]:
        """Drop a new slave's wheel and the units of its timer log; return what was delivered.

        Both refer to the commit log that it had as a master. If it becomes a master again, it collects from
        the topic everything not delivered by this broker before, by its master, or by a slave that acted. Its
        checkpoint records only that, which is valid until the commit log is truncated.
        """
        directory, found = self._directory, self._found
        checkpoint, own = found
        again = Again(own.again_until, own.again_from_ms) if own is not None else Again()
        again = again.renewed(found.collected, checkpoint.read_ms)
        self._log.open()
        is_of_slave = own is not None and own.pop_place == own.queue_offset == checkpoint.log_end == 0
        if directory.filesystem.exists(directory.checkpoint) and not is_of_slave:
            # On the disk before the log looks as if nothing had been collected.
            self.checkpoint = slave_checkpoint(again, checkpoint, self._wall_ms())
            directory.write_checkpoint(self.checkpoint, OwnCheckpoint(0, 0, 0, *again))
        if self._log.end > self._log.start:
            self._log.end_at(self._log.start)
        directory.filesystem.unlink(directory.wheel)
        return 0, again

    def _load_wheel(self, from_tick: int, precision_ms: int) -> bool:
        """Load the wheel; return False if it has to be rebuilt from the log."""
        filesystem, path, slots = self._directory.filesystem, self._directory.wheel, self._directory.slots
        if not is_whole(filesystem, path, slots=slots):
            if filesystem.exists(path):
                log.error("the timer wheel has the wrong size; it is rebuilt from the timer log")
            return False
        self._wheel.load(read_wheel(filesystem, path, from_tick=from_tick, slots=slots))
        own = self._found.own
        is_right = own is None or own.wheel_sum == self._wheel.sum
        if is_right and self._has_ticks_of(precision_ms):
            return True
        # After a kill between the two writes, with a damaged file, or with another timerPrecisionMs.
        log.warning("the timer wheel does not match its checkpoint; it is rebuilt from the timer log")
        self._wheel.load(())
        return False

    def _has_ticks_of(self, precision_ms: int) -> bool:
        """Return whether the slots match the option's precision."""
        tick = self._wheel.first_tick()
        unit = self._log.unit_at(self._wheel.last_unit(tick)) if tick is not None else None
        return unit is None or unit.slot_ms // precision_ms == tick

    def _note(self, again: Again, queue_offset: int) -> None:
        """Record on disk what to collect again, before the log looks as if nothing were missing."""
        found = self._found.own
        own = OwnCheckpoint(queue_offset, found.pop_place if found is not None else -1, 0, *again)
        self._directory.write_checkpoint(self.checkpoint, own)

    def _add_units(self, start: int, from_tick: int, precision_ms: int) -> TimerUnit | None:
        """Add the log's units to the wheel; return the last one."""
        last: TimerUnit | None = None
        for position, unit in self._log.units(start):
            if unit.physical_offset + unit.size > self._store.end:
                break  # Apache's broker may write timer files before the log's.
            last = unit
            tick = unit.slot_ms // precision_ms
            # Units collected after the checkpoint cannot have been delivered before it, even if the clock was
            # set back in between.
            if tick < from_tick and position < self.checkpoint.log_end:
                continue
            slot = self._wheel.get(tick)
            if slot is None or slot.last < position:
                self._wheel.add(tick, position, deletes=unit.deletes)
        return last

    def _after(self, unit: TimerUnit) -> int:
        """Return the offset after a unit's message, or 0 if the message cannot be read."""
        message = self._store.message_at(unit.physical_offset)
        return message.queue_offset + 1 if message is not None and message.topic == TIMER_TOPIC else 0

    @property
    def current_checkpoint(self) -> TimerCheckpoint:
        """Return the checkpoint on disk; at a slave the current one, as its master may soon deliver."""
        if not self._store.config.is_copy:
            if self._store.max_offset(TIMER_TOPIC, 0):
                return self.checkpoint
            # No timer message yet. An acting Apache slave would walk from 0 through 54 years.
            return self.checkpoint._replace(read_ms=self.timers.read_ms(self._wall_ms()))
        again = self.timers.again
        return self.checkpoint._replace(read_ms=again.from_ms, master_queue_offset=again.until)

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
            or self._log.end > self._log.written_end
            or self._pop.place != saved[1]
        )

    def take(self, wall_ms: WallMs) -> PendingWrite | None:
        """Return a write of the files' next content, or None if they are up to date."""
        if not self.has_changes:
            return None
        timers = self.timers
        version, removed = (timers.version, self._pop.place), self._log.drop_before(self._store.log_start)
        units, metrics = self._log.take(), timers.metrics.content()
        if self._store.config.is_copy:
            self.checkpoint = slave_checkpoint(timers.again, self.checkpoint, wall_ms)
            own = OwnCheckpoint(0, 0, 0, *timers.again)
            slots, makes_wheel_again = dict[int, Slot | None](), False
        else:
            place = self._pop.oldest_place  # Apache's broker has to collect POP's entries in flight.
            self.checkpoint = TimerCheckpoint(
                read_ms=timers.read_ms(wall_ms),
                log_end=units.end,
                queue_offset=timers.queue_offset if place is None else min(timers.queue_offset, place),
                master_queue_offset=timers.queue_offset,
                version_ms=int(wall_ms),
                counter=self.checkpoint.counter + 1,
            )
            own = OwnCheckpoint(timers.queue_offset, self._pop.place, self._wheel.sum, *timers.again)
            slots, makes_wheel_again = self._wheel.take_changes(), self._makes_wheel_again
        checkpoint, directory, filesystem = self.checkpoint, self._directory, self._directory.filesystem

        def write() -> None:
            run_log_write(filesystem, units)
            if slots or makes_wheel_again:
                write_slots(
                    filesystem, directory.wheel, slots, slots=directory.slots, made_again=makes_wheel_again
                )
            directory.write_checkpoint(checkpoint, own)
            self._metrics_file.save(metrics)
            for path in removed:
                filesystem.unlink(path)
            if units.directories:  # New files, or a write that failed half-way.
                filesystem.sync_directory(directory.wheel.parent)
                filesystem.sync_directory(directory.checkpoint.parent)

        def written() -> None:
            self._log.written(units)
            self._saved, self._makes_wheel_again = version, False

        def failed() -> None:
            self._log.failed(units)
            self._wheel.put_back(slots)

        return PendingWrite(write=write, written=written, failed=failed)

    def close(self) -> None:
        """Close the files."""
        self._log.close()
