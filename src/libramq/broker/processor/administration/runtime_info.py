"""BROKER_RUNTIME_INFO: a broker's state as names and values, for mqadmin clusterList; and how its rates are
sampled.

Upstream: AdminBrokerProcessor.prepareRuntimeInfo.
"""

from collections import deque
from datetime import date, datetime
from pathlib import Path
from typing import Final, NamedTuple

from libramq.broker.files.files import BrokerFiles
from libramq.broker.messages.throughput import Throughput
from libramq.clock import MonotonicMs, WallMs
from libramq.codes import RequestCode
from libramq.formats.document import encode_body
from libramq.kernel.parts import RUNTIME_INFO, Kernel
from libramq.remoting.body.cluster import KVTable
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Request, serves

#: StoreStatsService: rates over the last 10 s, 1 min and 10 min, from a sample a second.
_WINDOWS_S: Final = (10, 60, 600)
SAMPLE_MS: Final = 1_000
#: Features that do not exist here: thread pools, a dispatch behind the log, a lock of the page cache.
_ZEROES: Final = (
    "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "ackThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills", "dispatchBehindBytes",
)  # fmt: skip


class _Sample(NamedTuple):
    at_ms: MonotonicMs
    counts: tuple[int, ...]


class _DayStarts:
    """The counters at the beginning of today and yesterday, in the broker's time zone.

    Upstream: BrokerStats.java, which counts from the broker's start and records once a day.
    """

    def __init__(self, wall_ms: WallMs, counts: tuple[int, ...]) -> None:
        self._day = _day(wall_ms)
        self.today = self.yesterday = counts

    def look(self, wall_ms: WallMs, counts: tuple[int, ...]) -> None:
        """Begin a new day if the date has changed; `counts` are those before it."""
        day = _day(wall_ms)
        if day > self._day:
            was_yesterday = (day - self._day).days == 1
            self._day, self.yesterday, self.today = day, self.today if was_yesterday else counts, counts


def _day(wall_ms: WallMs) -> date:
    return datetime.fromtimestamp(int(wall_ms) / 1000).astimezone().date()


def _runtime(duration_ms: int) -> str:
    """Format a duration like StoreStatsService.getFormatRuntime."""
    minutes, seconds = divmod(duration_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


class RuntimeInfo:
    """The numbers, sampled once a second while they change."""

    def __init__(self, files: BrokerFiles, throughput: Throughput, version: str, kernel: Kernel) -> None:
        self._destinations = files.destinations
        self._store = files.store
        self._timers = files.timers.timers
        self._filesystem = files.filesystem
        self._clock = kernel.clock
        self._deadline = kernel.deadlines.new(self._sample)
        self._longest_turn = kernel.longest_turn
        self._version = version
        self._started_ms = kernel.clock.wall_ms()
        self._started_monotonic_ms = kernel.clock.monotonic_ms()
        self._throughput = throughput
        self._samples: deque[_Sample] = deque()
        self._sampled = self._counts()
        self._day_starts = _DayStarts(self._started_ms, self._sampled)
        self._sample(kernel.clock.monotonic_ms())

    def _sample_later(self) -> None:
        """Take a sample a second after the counters changed."""
        if self._deadline.due_ms is not None:
            return
        if self._counts() != self._sampled:
            self._deadline.at(self._clock.monotonic_ms() + SAMPLE_MS)
        else:
            self._store.when_changed(self._sample_later)

    def _sample(self, now_ms: MonotonicMs) -> None:
        """Store the counters at a monotonic time; the next one follows when something is stored or read."""
        self._day_starts.look(self._clock.wall_ms(), self._sampled)
        self._sampled = self._counts()
        self._throughput.schedule(now_ms - SAMPLE_MS)
        oldest_ms = now_ms - _WINDOWS_S[-1] * 1_000
        while len(self._samples) > 1 and self._samples[1].at_ms <= oldest_ms:
            self._samples.popleft()
        self._samples.append(_Sample(now_ms, self._sampled))
        self._store.when_read = self._sample_later
        self._store.when_changed(self._sample_later)

    @serves(RequestCode.GET_BROKER_RUNTIME_INFO)
    def handle(self, request: Request) -> Outcome:
        """Answer GET_BROKER_RUNTIME_INFO."""
        earliest_ms = self._store.earliest_log_time()  # First, because it may read the disk and be repeated.
        statistics = self._store.statistics()
        wall_ms = self._clock.wall_ms()
        self._day_starts.look(wall_ms, self._sampled)
        yesterday, today = self._day_starts.yesterday, self._day_starts.today
        table = dict.fromkeys(_ZEROES, "0")
        table.update(
            brokerVersionDesc=self._version,
            brokerVersion=self._version,
            brokerActive="true",
            bootTimestamp=str(self._started_ms),
            runtime=_runtime(self._clock.monotonic_ms() - self._started_monotonic_ms),
            putTps=self._rates(0),
            getTransferredTps=self._rates(1),
            getFoundTps=self._rates(1),
            getTotalTps=self._rates(1),
            earliestMessageTimeStamp=str(earliest_ms),
            timerReadBehind=str((int(wall_ms) - self._timers.read_ms(wall_ms)) // 1000),
            timerOffsetBehind=str(self._timers.uncollected),
            timerCongestNum=str(self._timers.pending),
            timerEnqueueTps=str(self._rate(2, _WINDOWS_S[0])),
            timerDequeueTps=str(self._rate(3, _WINDOWS_S[0])),
            commitLogDiskRatio=self._disk_ratio(self._store.config.disks[-1]),
            consumeQueueDiskRatio=self._disk_ratio(self._store.config.root),
            commitLogMinOffset=str(statistics.min_physical_offset),
            commitLogMaxOffset=str(statistics.max_physical_offset),
            msgPutTotalYesterdayMorning=str(yesterday[0]),
            msgGetTotalYesterdayMorning=str(yesterday[1]),
            msgPutTotalTodayMorning=str(today[0]),
            msgGetTotalTodayMorning=str(today[1]),
            msgPutTotalTodayNow=str(statistics.put_message_count),
            msgGetTotalTodayNow=str(statistics.get_message_count),
            putMessageTimesTotal=str(statistics.put_message_count),
            putMessageSizeTotal=str(statistics.put_bytes),
            remainHowManyDataToFlush=str(statistics.max_physical_offset - statistics.flushed_offset),
            # Not Apache's: delayed and timer messages for deleted topics, since the start.
            libraDroppedOfDeletedTopics=str(self._destinations.dropped),
            # Not Apache's: since the last request.
            libraLongestTurnMicros=str(self._longest_turn.take_us(RUNTIME_INFO)),
        )
        return Reply(body=encode_body(KVTable(table=table)))

    def _disk_ratio(self, directory: Path) -> str:
        """Return the used share of a disk; -1.0 if unknown, as upstream."""
        try:
            return str(self._filesystem.disk_space(directory).used_percent / 100)
        except OSError:
            return "-1.0"

    def _counts(self) -> tuple[int, ...]:
        """Return the totals of messages stored and read, and of timer messages collected and delivered."""
        return (*self._store.traffic, self._timers.collected, self._timers.delivered)

    def _rates(self, column: int) -> str:
        return " ".join(f"{self._rate(column, window_s):.2f}" for window_s in _WINDOWS_S)

    def _rate(self, column: int, window_s: int) -> float:
        """Return the messages per second in a window that ends now, at most since the start."""
        now_ms = self._clock.monotonic_ms()
        from_ms = max(now_ms - window_s * 1_000, self._samples[0].at_ms)
        # Between two samples nothing happened, except in the second before the later one.
        before = [sample for sample in self._samples if sample.at_ms <= from_ms]
        count = self._counts()[column] - before[-1].counts[column]
        return count * 1000 / (now_ms - from_ms) if now_ms > from_ms else 0.0
