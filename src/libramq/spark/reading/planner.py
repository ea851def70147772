"""The planner: decides which ranges of queues a query or micro-batch reads, how often to query brokers for
maximum offsets, and what to do about missing brokers, missing queues and recreated topics.

The rules are in `positions` and `source_options`; this module has the state between Spark's calls, and
queries the servers. Spark polls every 10 ms when there is nothing to read.
"""

import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, TypeVar

from libramq.client.queue_reader import MessagesLost
from libramq.clock import MonotonicMs, SystemClock
from libramq.errors import ConfigError, LibraError, RemoteError
from libramq.message.queue import MessageQueue
from libramq.spark.reading.positions import (
    UNLIMITED,
    Bounds,
    Limits,
    Positions,
    Range,
    Since,
    lags,
    next_end,
    queue_key,
    ranges_between,
    share,
)
from libramq.spark.reading.source_options import SourceOptions

log = logging.getLogger(__name__)
T = TypeVar("T")

ASK_EVERY_MS: Final = 20  # Queries brokers for maximum offsets at most this often.
BYTES_UNKNOWN: Final = 1024  # Ours: assumed size of a message if a queue shows none.
ROUTE_EVERY_MS: Final = 5_000  # Refreshes queues and brokers this often; the Java client every 30 s.


class QueuesGone(LibraError):
    """Queues that were read no longer exist, or now end before the position reached."""


class Queues(Protocol):
    """A batch's queries, answered by libramq.client.queue_reader or libramq.spark.reading.store_queues."""

    def topics(self) -> list[str]: ...
    def queues(self, topic: str) -> list[MessageQueue]: ...
    def patiently(self, look_up: Callable[[], T]) -> T: ...
    def absent_brokers(
        self, topics: Collection[str], required: Collection[str] = (), *, waits: bool = False
    ) -> dict[str, list[str]]: ...
    def max_offsets(self, queues: list[MessageQueue]) -> dict[MessageQueue, int]: ...
    def min_offsets(self, queues: list[MessageQueue]) -> dict[MessageQueue, int]: ...
    def offsets_at(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]: ...


class GrowingQueues(Queues, Protocol):
    """A stream's queries, answered by libramq.client.queue_reader."""

    def broker_names(self) -> set[str]: ...
    def topics_since(self) -> dict[tuple[str, str], int]: ...
    def is_slave(self, broker_name: str) -> bool: ...
    def sizes(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]: ...
    def reachable_max_offsets(
        self, queues: list[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], list[LibraError]]: ...


def batch_ranges(options: SourceOptions, source: Queues) -> list[Range]:
    """Return the ranges that a batch query reads."""

    def found() -> dict[MessageQueue, Bounds]:
        return _bounds(source, source.patiently(lambda: options.subscription.queues(source)))

    bounds = found()
    if _await_brokers(options, source, sorted({queue.topic for queue in bounds})):
        bounds = found()
    if not bounds:
        raise ConfigError(f"{options.subscription}: there is no such topic")
    start = options.starting_batch.resolve(bounds, source.offsets_at)
    end = options.ending.resolve(bounds, source.offsets_at)
    for queue, bound in bounds.items():
        if start[queue] < min(bound.minimum, end[queue]):
            _lose(options, str(MessagesLost(queue, start[queue], bound.minimum)))
            start[queue] = bound.minimum
    return ranges_between(start, end)


def _bounds(source: Queues, queues: list[MessageQueue]) -> dict[MessageQueue, Bounds]:
    maximums, minimums = source.max_offsets(queues), source.min_offsets(queues)
    return {queue: Bounds(minimum=minimums[queue], maximum=maximums[queue]) for queue in queues}


def _await_brokers(options: SourceOptions, source: Queues, topics: list[str]) -> bool:
    """Wait for absent brokers, whose rows a batch would miss; return whether any were absent.

    A stream needs no wait: it reads their queues once they are back.
    """
    required, waits = options.required_brokers, options.fail_on_data_loss
    if not source.absent_brokers(topics, required):
        return False
    if waits:
        log.warning("brokers with messages to be read are away; waiting for brokerTimeout")
    for name, had in source.absent_brokers(topics, required, waits=waits).items():
        lost = f"and with it its queues of {', '.join(had)}" if had else "and requiredBrokers names it"
        _lose(options, f"broker {name} is away, {lost}")
    return True


def _lose(options: SourceOptions, lost: str) -> None:
    if options.fail_on_data_loss:
        raise QueuesGone(f"{lost}; failOnDataLoss=false continues without")
    log.warning("%s; continuing without", lost)


class Planner:
    """The planner of a streaming query."""

    def __init__(
        self,
        options: SourceOptions,
        queues: GrowingQueues,
        monotonic_ms: Callable[[], MonotonicMs] | None = None,
    ) -> None:
        self._options = options
        self._source = queues
        self._monotonic_ms = monotonic_ms or SystemClock().monotonic_ms
        self._initial: Positions | None = None
        self._target: Positions | None = None
        self._queues: list[MessageQueue] = []
        self._queues_requested_ms: MonotonicMs | None = None
        self._maximums: dict[MessageQueue, int] = {}
        self._maximums_requested_ms: MonotonicMs | None = None
        self._triggered_ms: MonotonicMs | None = None
        self._sizes: dict[MessageQueue, float] = {}  # Average bytes of a message in the last batches.
        self._silent = ""
        self._warned: set[MessageQueue] = set()

    @property
    def latest(self) -> Positions:
        """Return the maximum offsets at the last query, for Spark's progress reports."""
        return self._maximums

    def fix_target(self) -> None:
        """Fix the end of an AvailableNow run: everything that exists now."""
        self._target = self._source.max_offsets(self._current_queues({}))
        self._maximums |= self._target  # Reached even if a broker fails now: tasks wait for it.
        # Query again with the checkpoint's positions: some of its queues may be gone.
        self._queues_requested_ms = None

    def initial(self) -> Positions:
        """Return the start of a new query; every call returns the same positions."""
        if self._initial is None:
            self._initial = self._options.starting_stream.resolve(
                _bounds(self._source, self._current_queues({})), self._source.offsets_at
            )
        return self._initial

    def is_initial(self, positions: Positions) -> bool:
        """Return whether these are the start of a new query."""
        return positions == self._initial

    def since(self, before: Since | None) -> Since:
        """Return where each topic's last deletion is: the later of the place known now and the one `before`.

        Brokers forget a deletion once the last message older than it is gone.
        """
        now, before = self._source.topics_since(), before or {}
        return {key: max(now.get(key, 0), before.get(key, 0)) for key in {**before, **now}}

    def next_end(
        self,
        start: Positions,
        limits: Limits = UNLIMITED,
        since: Since | None = None,
    ) -> dict[MessageQueue, int]:
        """Return the end of the micro-batch from `start`; `start` itself if nothing or too little is new.

        since: the topics' last deletions as known at `start`.
        """
        self._refresh(start)
        cut = self._cut(start) | self._made_again(start, since or {})
        new = [queue for queue in self._maximums if queue not in start]
        minimums = self._source.min_offsets(new) if new else {}
        bounds = {
            # Once a queue has been started, its minimum does not matter.
            queue: Bounds(minimum=minimums.get(queue, 0), maximum=maximum)
            for queue, maximum in self._maximums.items()
        }
        waiting = lags(start, bounds, self._target)
        if self._is_too_little(sum(waiting.values()), limits.minimum):
            return dict(start)
        sizes = None if limits.bytes is None else self._sizes_of(start, waiting, limits)
        return next_end(start, bounds, limits=limits, sizes=sizes, target=self._target) | cut

    def _sizes_of(
        self, start: Positions, waiting: Mapping[MessageQueue, int], limits: Limits
    ) -> Mapping[MessageQueue, float]:
        """Estimate the message size of each queue from the messages at the start and end of a batch."""
        assert limits.bytes is not None
        known = sum(lag * self._sizes.get(queue, math.inf) for queue, lag in waiting.items())
        if known * 2 <= limits.bytes:  # By the last batches' sizes, half the limit or less.
            return self._sizes
        first = self._source.sizes({queue: start[queue] for queue in waiting})
        self._sizes = {queue: first.get(queue, self._sizes.get(queue, BYTES_UNKNOWN)) for queue in waiting}
        ends = {queue: start[queue] + n - 1 for queue, n in share(waiting, limits, self._sizes).items()}
        last = self._source.sizes({queue: end for queue, end in ends.items() if end > start[queue]})
        self._sizes |= {queue: (self._sizes[queue] + size) / 2 for queue, size in last.items()}
        return self._sizes

    def ranges(self, start: Positions, end: Positions) -> list[Range]:
        """Return the ranges of the micro-batch between two positions."""
        unknown = [queue for queue in end if queue not in start]
        known = self._source.min_offsets(unknown) if unknown else {}
        return ranges_between(start, end, known=known)

    def _refresh(self, start: Positions) -> None:
        requested_ms, now_ms = self._maximums_requested_ms, self._monotonic_ms()
        if requested_ms is not None and now_ms - requested_ms < ASK_EVERY_MS:
            return
        # Unreachable queues keep their positions and continue when their brokers return.
        found, failures = self._source.reachable_max_offsets(self._current_queues(start))
        self._maximums |= found
        silent = "; ".join(str(error) for error in failures)
        if silent and silent != self._silent:
            log.warning("some queues make no progress: %s", silent)
        self._silent = silent
        self._maximums_requested_ms = self._monotonic_ms()

    def _current_queues(self, start: Positions) -> list[MessageQueue]:
        """Return the queues according to the name servers, refreshed every ROUTE_EVERY_MS."""
        requested_ms, now_ms = self._queues_requested_ms, self._monotonic_ms()
        if requested_ms is not None and now_ms - requested_ms < ROUTE_EVERY_MS:
            return self._queues
        subscription = self._options.subscription
        if requested_ms is None and not start:
            self._queues = self._source.patiently(lambda: subscription.queues(self._source))
        else:
            try:
                known = {*self._queues, *filter(subscription.wants, start)}
                listed = set(subscription.queues_there(self._source))
                # Keep the queues of unreachable brokers, which the name servers no longer list.
                self._queues = sorted(listed | known - self._gone(known - listed))
            except RemoteError as error:
                log.warning("the queues may have changed: %s", error)
        self._queues_requested_ms = now_ms
        return self._queues

    def _gone(self, missing: set[MessageQueue]) -> set[MessageQueue]:
        """Return the queues that are missing although their broker answers."""
        if not missing:
            return missing
        registered = self._source.broker_names()
        suspects = {queue for queue in missing if queue.broker_name in registered}
        if suspects:  # The broker may have returned between the two queries.
            suspects -= set(self._options.subscription.queues_there(self._source))
        for queue in sorted(suspects):
            self._maximums.pop(queue, None)
            if queue not in self._warned:
                self._warned.add(queue)
                _lose(
                    self._options,
                    f"queue {queue_key(queue)} is gone: its topic was deleted or has fewer queues now",
                )
        return suspects

    def _cut(self, start: Positions) -> dict[MessageQueue, int]:
        """Return the new ends of queues that end before their positions: recreated, or truncated by a crash.

        Reading continues at the new end, as in Spark's Kafka source. Ignores slaves, which may just be
        behind.
        """
        cut = {
            queue: maximum
            for queue, maximum in self._maximums.items()
            if maximum < start.get(queue, 0) and not self._source.is_slave(queue.broker_name)
        }
        for queue, maximum in sorted(cut.items()):
            _lose(
                self._options,
                f"queue {queue_key(queue)} ends at {maximum} and was read up to {start[queue]}: its "
                "topic was made again, or its broker lost messages in a crash",
            )
        return cut

    def _made_again(self, start: Positions, since: Since) -> dict[MessageQueue, int]:
        """Return the start of each queue whose topic was deleted and recreated since `start`.

        The new queues may already be longer than the old ones, so the offsets alone would not reveal this.
        """
        now = self._source.topics_since()
        later = {key for key, place in now.items() if key in since and place > since[key]}
        queues = [queue for queue in self._maximums if (queue.topic, queue.broker_name) in later]
        firsts = self._source.min_offsets(queues) if queues else {}
        again = {queue: first for queue, first in firsts.items() if start.get(queue, 0) > first}
        for topic, broker_name in sorted({(queue.topic, queue.broker_name) for queue in again}):
            _lose(
                self._options,
                f"topic {topic} was deleted and made again at broker {broker_name} since it was read",
            )
        return again

    def _is_too_little(self, waiting: int, row_minimum: int | None) -> bool:
        """Decide as in KafkaMicroBatchStream.delayBatch: the first batch of a run never waits."""
        if row_minimum is None or self._target is not None:
            return False
        now_ms = self._monotonic_ms()
        is_early = (
            self._triggered_ms is not None
            and now_ms - self._triggered_ms < self._options.max_trigger_delay_ms
        )
        if waiting < row_minimum and is_early:
            return True
        self._triggered_ms = now_ms
        return False
