"""The throughput: messages per second stored in topics and delivered to groups, over the last minute.

        stored, read ─► counted by topic, by group and topic ─► a bucket every 10 s ─► the last six are a
        minute

Buckets are made only while something is counted: an idle broker needs no timer.
Upstream: BrokerStatsManager.java, TOPIC_PUT_NUMS and GROUP_GET_NUMS, sampled every 10 s.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.kernel.parts import Kernel
from libramq.store.message_store import MessageStore

BUCKET_MS: Final = 10_000
WINDOW_MS: Final = 60_000
#: Ours: groups and topics counted in 10 s; four for each possible group.
PAIRS_MAX: Final = 100_000


class _Bucket(NamedTuple):
    """The counts between the previous bucket's end and `until_ms`."""

    until_ms: MonotonicMs
    puts: Mapping[str, int]
    gets: Mapping[tuple[str, str], int]


class Throughput:
    """Counts pulled messages; the store counts sends, one queue of a batch at a time."""

    def __init__(self, store: MessageStore, kernel: Kernel) -> None:
        self._store = store
        self._clock = kernel.clock
        self._deadline = kernel.deadlines.new(self._sample)
        self._started_ms = kernel.clock.monotonic_ms()
        self._gets: dict[tuple[str, str], int] = {}
        self._buckets: deque[_Bucket] = deque(maxlen=WINDOW_MS // BUCKET_MS)

    def got(self, group: str, topic: str, count: int) -> None:
        """Count messages that were delivered to a group."""
        pair = (group, topic)
        known = self._gets.get(pair)
        if known is not None:
            self._gets[pair] = known + count
        elif len(self._gets) < PAIRS_MAX:
            self._gets[pair] = count

    def settle(self) -> None:
        """Schedule a bucket once something was counted."""
        if self._deadline.due_ms is None and (self._gets or self._store.topic_puts):
            self._deadline.at(self._clock.monotonic_ms() + BUCKET_MS)

    def puts_per_second(self, topic: str) -> float:
        """Return the messages per second sent to a topic in the last minute."""
        count = self._store.topic_puts.get(topic, 0)
        return self._rate(count + sum(bucket.puts.get(topic, 0) for bucket in self._recent()))

    def gets_per_second(self, group: str, topic: str) -> float:
        """Return the messages per second of a topic delivered to a group in the last minute."""
        pair = (group, topic)
        count = self._gets.get(pair, 0)
        return self._rate(count + sum(bucket.gets.get(pair, 0) for bucket in self._recent()))

    def _sample(self, now_ms: MonotonicMs) -> None:
        self._buckets.append(_Bucket(now_ms, self._store.drain_topic_puts(), self._gets))
        self._gets = {}

    def _recent(self) -> list[_Bucket]:
        from_ms = self._clock.monotonic_ms() - WINDOW_MS
        return [bucket for bucket in self._buckets if bucket.until_ms > from_ms]

    def _rate(self, count: int) -> float:
        """Return a rate over the last minute, or since the broker was started."""
        window_ms = min(WINDOW_MS, self._clock.monotonic_ms() - self._started_ms)
        return count * 1_000 / max(window_ms, 1_000)
