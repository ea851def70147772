"""A slave's timers: what is kept of a wheel and a log when a broker becomes a slave, and what it takes from
its master.

A broker that becomes a slave drops its wheel and its log, as both lead into the commit log that it had as a
master. As a master again it collects from the topic, without what was delivered: by this broker before, by
its master, or by a slave that acted. That is all its checkpoint has.
"""

from libramq.clock import WallMs
from libramq.timers.timer_checkpoint import FoundCheckpoint, OwnCheckpoint, TimerCheckpoint
from libramq.timers.timer_directory import TimerDirectory
from libramq.timers.timer_log import TimerLog
from libramq.timers.timers import Again


def slave_checkpoint(
    again: Again, before: TimerCheckpoint, wall_ms: WallMs
) -> tuple[TimerCheckpoint, OwnCheckpoint]:
    """Return both parts of a slave's checkpoint: what its master has delivered, and nothing of its own."""
    apache = TimerCheckpoint(
        read_ms=again.from_ms,
        master_queue_offset=again.until,
        version_ms=int(wall_ms),
        counter=before.counter + 1,
    )
    return apache, OwnCheckpoint(0, 0, 0, *again)


def drop_wheel(directory: TimerDirectory, log: TimerLog, wall_ms: WallMs) -> tuple[TimerCheckpoint, Again]:
    """Drop a new slave's wheel, and what its timer log has; return its checkpoint and what was delivered.

    What the directory says was delivered, by this broker as a master, holds until its commit log is cut.
    """
    found = directory.found or FoundCheckpoint()
    checkpoint, own = found
    again = Again(own.again_until, own.again_from_ms) if own is not None else Again()
    again = again.renewed(found.collected, checkpoint.read_ms)
    log.open()
    is_of_slave = own is not None and own.pop_place == own.queue_offset == checkpoint.log_end == 0
    if directory.filesystem.exists(directory.checkpoint) and not is_of_slave:
        # It is on the disk before the log looks as if nothing had been collected.
        checkpoint, own = slave_checkpoint(again, checkpoint, wall_ms)
        directory.write_checkpoint(checkpoint, own)
    if log.end > log.start:
        log.end_at(log.start)
    directory.filesystem.unlink(directory.wheel)
    return checkpoint, again
