"""The cleaning: old files of the commit log go, and what in the queues points there.

Upstream: store/DefaultMessageStore.CleanCommitLogService.
"""

from libramq.clock import WallMs
from libramq.store.commit_log import CommitLog
from libramq.store.consume_queue_table import ConsumeQueueTable


def delete_old_files(log: CommitLog, queues: ConsumeQueueTable, older_than_ms: WallMs, count_max: int) -> int:
    """Remove files last written before a time, oldest first, and return how many; never the last one."""
    segments = log.segments
    keep = segments.min_offset
    for start in segments.starts[:-1][:count_max]:
        if start + segments.file_size > log.flushed or segments.modified_ms(start) >= older_than_ms:
            break
        keep = start + segments.file_size
    removed = segments.remove_before(keep)
    if removed:
        for queue in queues:
            queue.remove_files_before(segments.min_offset)
    return removed
