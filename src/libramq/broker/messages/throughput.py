"""The throughput: messages stored in topics and delivered to groups in the last minute, hour and day, and the
limits of counting.

    stored, read ─► counted by topic, by group and topic ─► a bucket every 10 s ─► the last six are a minute
                                                         ─► one every 10 min, one an hour: an hour, a day

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
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
#: Ours: groups and topics counted in 10 s; four for each possible group.
PAIRS_MAX: Final = 100_000
#: Ours: keys in each of the 30 buckets of an hour and a day; more are counted in the last minute only.
LONG_KEYS_MAX: Final = 20_000

#: A topic for sends, or a group and a topic for deliveries.
Key = str | tuple[str, str]


class _Bucket(NamedTuple):
    """The counts between the previous bucket's end and `until_ms`."""

    until_ms: MonotonicMs
    puts: Mapping[str, int]
    gets: Mapping[tuple[str, str], int]


class Rate(NamedTuple):
    """A count in a window of time, and its rate."""

    messages: int
    per_second: float


class _LongCounts:
    """Counts over a longer time, in buckets of `bucket_ms` that fill the window."""

    def __init__(self, window_ms: int, bucket_ms: int) -> None:
        self._window_ms = window_ms
        self._bucket_ms = bucket_ms
        self._counts: deque[tuple[MonotonicMs, dict[Key, int]]] = deque()

    def add(self, bucket: _Bucket) -> None:
        """Add the counts of a bucket."""
        now_ms = bucket.until_ms
        if not self._counts or now_ms - self._counts[-1][0] >= self._bucket_ms:
            self._counts.append((now_ms, {}))
        while now_ms - self._counts[0][0] >= self._window_ms:
            self._counts.popleft()
        counts = self._counts[-1][1]
        for kind in (bucket.puts, bucket.gets):
            for key, count in kind.items():
                if key in counts or len(counts) < LONG_KEYS_MAX:
                    counts[key] = counts.get(key, 0) + count

    def count(self, key: "Key", now_ms: MonotonicMs) -> int:
        """Return the count of a key in the window that ends now."""
        return sum(
            counts.get(key, 0) for from_ms, counts in self._counts if now_ms - from_ms < self._window_ms
        )


class Throughput:
    """Counts pulled messages; the store counts sends, one queue of a batch at a time."""

    def __init__(self, store: MessageStore, kernel: Kernel) -> None:
        self._store = store
        self._clock = kernel.clock
        self._deadline = kernel.deadlines.new(self._sample)
        self._started_ms = kernel.clock.monotonic_ms()
        self._gets: dict[tuple[str, str], int] = {}
        self._buckets: deque[_Bucket] = deque(maxlen=WINDOW_MS // BUCKET_MS)
        self._hour = _LongCounts(HOUR_MS, HOUR_MS // 6)
        self._day = _LongCounts(DAY_MS, HOUR_MS)

    def got(self, group: str, topic: str, count: int) -> None:
        """Count messages delivered to a group."""
        pair = (group, topic)
        known = self._gets.get(pair)
        if known is not None:
            self._gets[pair] = known + count
        elif len(self._gets) < PAIRS_MAX:
            self._gets[pair] = count

    def schedule(self, counted_ms: MonotonicMs) -> None:
        """Schedule the end of a bucket that began at `counted_ms`, if anything has been counted."""
        if self._deadline.due_ms is None and (self._gets or self._store.topic_puts):
            self._deadline.at(counted_ms + BUCKET_MS)

    def puts_per_second(self, topic: str) -> float:
        """Return the messages per second sent to a topic in the last minute."""
        count = self._store.topic_puts.get(topic, 0)
        return self._rate(count + sum(bucket.puts.get(topic, 0) for bucket in self._recent()))

    def gets_per_second(self, group: str, topic: str) -> float:
        """Return the messages per second of a topic delivered to a group in the last minute."""
        pair = (group, topic)
        count = self._gets.get(pair, 0)
        return self._rate(count + sum(bucket.gets.get(pair, 0) for bucket in self._recent()))

    def windows(self, key: "Key | None") -> tuple[Rate, Rate, Rate] | None:
        """Return the last minute, hour and day of a topic, or of a group and topic; None if all are 0."""
        if key is None:
            return None
        now_ms = self._clock.monotonic_ms()
        if isinstance(key, str):
            now = self._store.topic_puts.get(key, 0)
            minute = now + sum(bucket.puts.get(key, 0) for bucket in self._recent())
        else:
            now = self._gets.get(key, 0)
            minute = now + sum(bucket.gets.get(key, 0) for bucket in self._recent())
        hour, day = now + self._hour.count(key, now_ms), now + self._day.count(key, now_ms)
        if not day:
            return None
        alive_s = max(1.0, (now_ms - self._started_ms) / 1_000)
        windows = ((minute, WINDOW_MS), (hour, HOUR_MS), (day, DAY_MS))
        first, second, third = (Rate(count, count / min(alive_s, ms / 1_000)) for count, ms in windows)
        return first, second, third

    def _sample(self, now_ms: MonotonicMs) -> None:
        bucket = _Bucket(now_ms, self._store.drain_topic_puts(), self._gets)
        self._buckets.append(bucket)
        self._hour.add(bucket)
        self._day.add(bucket)
        self._gets = {}

    def _recent(self) -> list[_Bucket]:
        from_ms = self._clock.monotonic_ms() - WINDOW_MS
        return [bucket for bucket in self._buckets if bucket.until_ms > from_ms]

    def _rate(self, count: int) -> float:
        """Return a rate over the last minute, or since the broker was started."""
        window_ms = min(WINDOW_MS, self._clock.monotonic_ms() - self._started_ms)
        return count * 1_000 / max(window_ms, 1_000)
