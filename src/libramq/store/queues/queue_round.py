"""The queue round: consume queues are written out, and flushed, a slice at a time.

    regular     about once a second: what waits is written; queues with two dirty pages are flushed
    thorough    once a minute: all of them, so that recovery may begin where the log ended at its beginning

The first unit of a queue makes directories and a file, which keeps the event loop for a tenth of a
millisecond and more: 50,000 new queues took 20 seconds. So a plan has one slice (queue_slice_cost).
"""

from collections import deque
from typing import Final

from libramq.clock import WallMs
from libramq.store.queues.consume_queue import ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.recovery.checkpoint import Checkpoint
from libramq.store.recovery.recovery_point import UNKNOWN

#: Ours: a new file costs as much as so many writes, which take some 12 µs each.
NEW_FILE_COST: Final = 8


class QueueRound:
    """One round over the queues that had something to write or to flush when it began.

    least_bytes: queues with fewer unsynced bytes are not flushed. checkpoint: the one that may be written at
    the end of a thorough round. end, units: the log's end at the beginning, and how many units there were.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        *,
        least_bytes: int,
        checkpoint: Checkpoint | None = None,
        end: int = 0,
    ) -> None:
        self.least_bytes = least_bytes
        self.checkpoint = checkpoint
        self.end = end
        self.units = UNKNOWN if checkpoint is None else queues.count_units()
        self._table = queues
        self._left = deque(queues.pending if checkpoint is None else queues.pending | queues.unsynced)

    @property
    def is_over(self) -> bool:
        """Return whether every queue has had its turn."""
        return not self._left

    def advance(self, cost_max: int | None) -> list[ConsumeQueue]:
        """Write queues out; return those to flush. OSError if the disk refuses: then the round is void.

        cost_max: when to stop; None: not before the round is over.
        """
        table, found, cost = self._table, [], 0
        while self._left and (cost_max is None or cost < cost_max):
            queue = self._left.popleft()
            if queue in table.pending:
                cost += NEW_FILE_COST if queue.needs_file else 1
                table.write_out_queue(queue)
            else:
                cost += 1
            if queue in table.unsynced and queue.unsynced_bytes >= self.least_bytes:
                found.append(queue)
        return found


def thorough_checkpoint(last: Checkpoint, store_timestamp_ms: WallMs) -> Checkpoint:
    """Return the checkpoint of a round that flushes everything stored up to a time."""
    return last._replace(
        commit_log_timestamp_ms=store_timestamp_ms, consume_queue_timestamp_ms=store_timestamp_ms
    )
