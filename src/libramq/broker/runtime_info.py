"""BROKER_RUNTIME_INFO: a broker's state as names and values, for mqadmin clusterList.

Upstream: AdminBrokerProcessor.prepareRuntimeInfo.
"""

from collections import deque
from typing import Final, NamedTuple

from libramq.clock import MonotonicMs, WallMs
from libramq.remoting.body.codec import encode_body
from libramq.remoting.body.route import KVTable
from libramq.rpc.endpoint import Request
from libramq.rpc.outcome import Outcome, Reply
from libramq.store.message_store import MessageStore

#: StoreStatsService: rates over the last 10 s, 1 min and 10 min, from a sample a second.
_WINDOWS_S: Final = (10, 60, 600)
_ZEROES: Final = (
    "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "ackThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills", "timerReadBehind",
    "timerOffsetBehind", "timerCongestNum", "dispatchBehindBytes", "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning", "msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning",
)  # fmt: skip


class _Sample(NamedTuple):
    at_ms: MonotonicMs
    counts: tuple[int, int]


class RuntimeInfo:
    """The numbers, sampled once a second by `sample`."""

    def __init__(self, store: MessageStore, *, version: str, started_ms: WallMs) -> None:
        self._store = store
        self._version = version
        self._started_ms = started_ms
        self._samples: deque[_Sample] = deque(maxlen=_WINDOWS_S[-1] + 1)

    def sample(self, now_ms: MonotonicMs) -> None:
        """Remember the counters as they are at a moment (monotonic)."""
        statistics = self._store.statistics()
        self._samples.append(_Sample(now_ms, (statistics.put_message_count, statistics.get_message_count)))

    def handle(self, request: Request) -> Outcome:
        """Answer GET_BROKER_RUNTIME_INFO."""
        statistics = self._store.statistics()
        table = dict.fromkeys(_ZEROES, "0")
        table.update(
            brokerVersionDesc=self._version,
            brokerVersion=self._version,
            brokerActive="true",
            bootTimestamp=str(self._started_ms),
            putTps=self._rates(0),
            getTransferredTps=self._rates(1),
            getFoundTps=self._rates(1),
            getTotalTps=self._rates(1),
            timerEnqueueTps="0.0",
            timerDequeueTps="0.0",
            earliestMessageTimeStamp="-1",
            commitLogDiskRatio="0.0",
            consumeQueueDiskRatio="0.0",
            commitLogMinOffset=str(statistics.min_physical_offset),
            commitLogMaxOffset=str(statistics.max_physical_offset),
            msgPutTotalTodayNow=str(statistics.put_message_count),
            msgGetTotalTodayNow=str(statistics.get_message_count),
            putMessageTimesTotal=str(statistics.put_message_count),
            putMessageSizeTotal=str(statistics.put_bytes),
            remainHowManyDataToFlush=str(statistics.max_physical_offset - statistics.flushed_offset),
        )
        return Reply(body=encode_body(KVTable(table=table)))

    def _rates(self, column: int) -> str:
        return " ".join(f"{self._rate(column, window_s):.2f}" for window_s in _WINDOWS_S)

    def _rate(self, column: int, window_s: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        newest = self._samples[-1]
        oldest = self._samples[max(0, len(self._samples) - 1 - window_s)]
        elapsed_ms = newest.at_ms - oldest.at_ms
        return (newest.counts[column] - oldest.counts[column]) * 1000 / elapsed_ms if elapsed_ms else 0.0
