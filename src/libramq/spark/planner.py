"""The planner: asks brokers how far their queues reach, and says what a micro-batch reads.

All rules are in libramq.spark.positions; here is what has to be remembered between Spark's calls and
what has to be asked over the network. Spark polls every 10 ms when there is nothing to read.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from libramq.client.queue_reader import QueueReader
from libramq.clock import SystemClock
from libramq.errors import LibraError
from libramq.message.queue import MessageQueue
from libramq.spark.options import SourceOptions
from libramq.spark.positions import (
    Boundary,
    Bounds,
    Positions,
    Range,
    next_end,
    queue_key,
    ranges_between,
)

log = logging.getLogger(__name__)

ASK_EVERY_MS: Final = 20  # A question to every queue; its answer is at most this old.
ROUTE_EVERY_MS: Final = 5_000  # New queues and brokers are seen this soon; the Java client asks every 30 s.


class Brokers(Protocol):
    """What the planner asks of libramq.client.queue_reader."""

    def queues(self, topic: str) -> list[MessageQueue]: ...
    def max_offsets(self, queues: list[MessageQueue]) -> dict[MessageQueue, int]: ...
    def min_offsets(self, queues: list[MessageQueue]) -> dict[MessageQueue, int]: ...
    def reachable_max_offsets(
        self, queues: list[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], list[LibraError]]: ...


class Planner:
    """One for each query, in one process."""

    def __init__(
        self,
        options: SourceOptions,
        brokers: Brokers | None = None,
        monotonic_ms: Callable[[], int] | None = None,
    ) -> None:
        self._options = options
        self._brokers: Brokers = brokers or QueueReader(
            options.namesrv, group=options.group, timeout_ms=options.timeout_ms
        )
        self._monotonic_ms = monotonic_ms or SystemClock().monotonic_ms
        self._initial: Positions | None = None
        self._target: Positions | None = None
        self._queues: list[MessageQueue] = []
        self._queues_asked_ms: int | None = None
        self._maximums: dict[MessageQueue, int] = {}
        self._maximums_asked_ms: int | None = None
        self._silent: str = ""

    @property
    def latest(self) -> Positions:
        """Where the queues ended when they were last asked, for Spark's progress reports."""
        return self._maximums

    def fix_target(self) -> None:
        """AvailableNow: what is there now is what this run reads."""
        self._target = self._brokers.max_offsets(self._current_queues())

    def initial(self, default: Boundary) -> Positions:
        """Where a new query begins; the same however often it is asked."""
        if self._initial is None:
            boundary = self._options.starting_or(default)
            self._initial = boundary.resolve(self._bounds(), option="startingOffsets")
        return self._initial

    def next_end(self, start: Positions, row_limit: int | None) -> dict[MessageQueue, int]:
        """Where the micro-batch from `start` ends; `start` itself when there is nothing new."""
        self._refresh()
        new = [queue for queue in self._maximums if queue not in start]
        minimums = self._brokers.min_offsets(new) if new else {}
        bounds = {
            # The minimum of a queue that has been started says nothing any more.
            queue: Bounds(minimum=minimums.get(queue, 0), maximum=maximum)
            for queue, maximum in self._maximums.items()
        }
        return next_end(start, bounds, row_limit=row_limit, target=self._target)

    def ranges(self, start: Positions, end: Positions) -> list[Range]:
        """What the micro-batch between two positions reads."""
        for queue, position in start.items():
            if end.get(queue, position) < position:
                log.warning(
                    "queue %s starts at %d, behind its end %d: it was restarted before its first batch was "
                    "done and reads nothing now; startingOffsets=earliest or JSON avoids this",
                    queue_key(queue),
                    position,
                    end[queue],
                )
        unknown = [queue for queue in end if queue not in start]
        known = self._brokers.min_offsets(unknown) if unknown else {}
        return ranges_between(start, end, known=known)

    def batch_ranges(self) -> list[Range]:
        """What a batch query reads."""
        bounds = self._bounds()
        earliest = Boundary(default="earliest", by_queue={})
        start = self._options.starting_or(earliest).resolve(bounds, option="startingOffsets")
        end = self._options.ending.resolve(bounds, option="endingOffsets")
        return ranges_between(start, end)

    def _bounds(self) -> dict[MessageQueue, Bounds]:
        queues = self._current_queues()
        maximums = self._brokers.max_offsets(queues)
        minimums = self._brokers.min_offsets(queues)
        return {queue: Bounds(minimum=minimums[queue], maximum=maximums[queue]) for queue in queues}

    def _refresh(self) -> None:
        asked_ms, now_ms = self._maximums_asked_ms, self._monotonic_ms()
        if asked_ms is not None and now_ms - asked_ms < ASK_EVERY_MS:
            return
        # Queues that cannot be reached keep their position and go on when they are back.
        found, failures = self._brokers.reachable_max_offsets(self._current_queues())
        self._maximums |= found
        silent = "; ".join(str(error) for error in failures)
        if silent and silent != self._silent:
            log.warning("some queues stand still: %s", silent)
        self._silent = silent
        self._maximums_asked_ms = self._monotonic_ms()

    def _current_queues(self) -> list[MessageQueue]:
        asked_ms, now_ms = self._queues_asked_ms, self._monotonic_ms()
        if asked_ms is None or now_ms - asked_ms >= ROUTE_EVERY_MS:
            try:
                self._queues = [
                    queue for topic in self._options.topics for queue in self._brokers.queues(topic)
                ]
            except LibraError as error:
                if not self._queues:
                    raise
                log.warning("the queues may have changed: %s", error)
            self._queues_asked_ms = now_ms
        return self._queues
