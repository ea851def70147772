"""The cut: a slave's log becomes shorter again, because its master has something else from there on.

    kept aside ─► recovery point lowered, on the disk ─► queues cut ─► log cut

A crash between any two steps leaves a log that recovery accepts: it begins at the lowered point, and what was
not cut yet is still a valid end. The slave compares it with the master's again before it copies.
"""

from pathlib import Path

from libramq.filesystem import FileSystem
from libramq.logs import get_logger
from libramq.store.log.commit_log import CommitLog
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.recovery.kept_aside import keep_aside
from libramq.store.recovery.recovery_point_writer import RecoveryPointWriter

log = get_logger(__name__)


def cut_log(
    filesystem: FileSystem,
    root: Path,
    log_: CommitLog,
    queues: ConsumeQueueTable,
    points: RecoveryPointWriter,
    end: int,
) -> None:
    """Cut log and queues at a record's start; waits for the disk, and raises OSError if that refuses."""
    assert log_.min_offset <= end <= log_.end, (log_.min_offset, end, log_.end)
    size, path = keep_aside(filesystem, root, log_.segments, end, is_torn=True)
    log.warning("the end of the commit log was cut off", offset=end, size=size, kept=str(path))
    points.cut(end)
    for queue in queues:
        queue.truncate_physical(end)
    log_.flushed = min(log_.flushed, end)
    log_.recovered(end)
