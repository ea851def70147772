"""The timer metrics: how many timer messages wait, by topic (config/timermetrics).

Upstream: store/timer/TimerMetrics.java.
"""

from libramq.clock import WallMs
from libramq.formats.document import Document
from libramq.formats.tables import DataVersion


class TimerCount(Document, frozen=True, kw_only=True):
    """The number of waiting messages of a topic, and the time of its last change."""

    count: int = 0
    time_stamp: int = 0


class TimerMetricsFile(Document, frozen=True, kw_only=True):
    """The file; GET_TIMER_METRICS answers with the same."""

    timing_count: dict[str, TimerCount] = {}
    data_version: DataVersion = DataVersion()


class TimerMetrics:
    """Waiting messages by topic."""

    def __init__(self, loaded: TimerMetricsFile | None) -> None:
        self._counts = dict(loaded.timing_count) if loaded is not None else {}
        self._version = loaded.data_version if loaded is not None else DataVersion()

    def add(self, topic: str | None, number: int, wall_ms: WallMs) -> None:
        """Count messages of a topic that begin to wait, or (negative) that wait no more."""
        if topic is None:
            return
        count = self._counts[topic].count if topic in self._counts else 0
        self._counts[topic] = TimerCount(count=max(0, count + number), time_stamp=int(wall_ms))
        self._version = self._version.next(wall_ms)

    def content(self) -> TimerMetricsFile:
        """Return the content of the file."""
        return TimerMetricsFile(timing_count=dict(self._counts), data_version=self._version)
