"""The recovery point writer: updates the recovery point after flushes while a store is open."""

from pathlib import Path

import msgspec

from libramq.filesystem import FileSystem
from libramq.store.flush import FlushPlan
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.recovery.recovery_point import UNKNOWN, RecoveryPoint, RecoveryPointFile


class RecoveryPointWriter:
    """Writes the point after each flush that moved it.

    Nothing waits for that: after a power cut the point may be as old as the last flush of queues but one.
    """

    def __init__(self, filesystem: FileSystem, root: Path, queues: ConsumeQueueTable) -> None:
        self._file = RecoveryPointFile(filesystem, root)
        self._queues = queues
        self._point = RecoveryPoint()
        self._planned: tuple[FlushPlan, int] | None = None
        #: The queues are flushed for the log up to there, with so many units; the log itself is not yet.
        self._due: tuple[int, int] | None = None

    @property
    def point(self) -> RecoveryPoint:
        """Return the newest point."""
        return self._point

    @property
    def path(self) -> Path:
        """Return the file."""
        return self._file.path

    def load(self) -> RecoveryPoint | None:
        """Return the newest point in the file; None if there is none."""
        return self._file.load()

    def close(self) -> None:
        """Close the descriptor."""
        self._file.close()

    def put(self, point: RecoveryPoint) -> None:
        """Replace the point and wait for the disk; OSError if it refuses."""
        self._point = point
        self._file.save(point, sync=True)

    def planned(self, plan: FlushPlan) -> FlushPlan:
        """Add the point to the plan of a flush of queues, about once a second, so that it is flushed too.

        Remembers how many units become durable by a plan that covers all queues and all of the log.
        """
        if plan.queues or plan.checkpoint is not None:
            plan = msgspec.structs.replace(plan, paths=(*plan.paths, self._file.path))
        if plan.checkpoint is not None:
            self._planned = plan, plan.units
        return plan

    def flushed(self, plan: FlushPlan, log_flushed: int) -> None:
        """Handle a plan that was run, and the log's end on the disk now."""
        if self._planned is not None and self._planned[0] is plan:
            self._due = plan.checkpoint_end, self._planned[1]
            self._planned = None
        point = self._point._replace(flushed=max(self._point.flushed, log_flushed))
        if self._due is not None and self._due[0] <= log_flushed:
            point = point._replace(dispatched=self._due[0], units=self._due[1])
            self._due = None
        self._write(point)

    def all_flushed(self, end: int) -> None:
        """Note that log and queues are on the disk up to an end, and wait for the point too."""
        self._planned = self._due = None
        self.put(self._point._replace(flushed=end, dispatched=end, units=self._queues.count_units()))

    def queues_deleted(self, units: int) -> None:
        """Expect fewer units: queues were removed on purpose, which have so many by now."""
        self._planned = self._due = None
        self._write(self._point._replace(units=max(self._point.units - units, UNKNOWN)))

    def log_begins(self, at: int) -> None:
        """Note where the log begins: a later beginning is not expected."""
        self._write(self._point._replace(begins=at))

    def cut(self, end: int) -> None:
        """Lower the point, before the log is cut at `end`, and wait for the disk; OSError if it refuses."""
        self._planned = self._due = None
        point = self._point
        self.put(
            point._replace(
                flushed=min(point.flushed, end),
                dispatched=min(point.dispatched, end),
                units=UNKNOWN,
                begins=point.begins if point.begins < end else UNKNOWN,
            )
        )

    def _write(self, point: RecoveryPoint) -> None:
        if point != self._point:
            # On a full disk the old one stays: recovery takes longer but loses nothing. Only the log begins
            # where it does from now on: the next point says so.
            try:
                self._file.save(point)
            except OSError:
                point = self._point._replace(begins=point.begins)
            self._point = point
