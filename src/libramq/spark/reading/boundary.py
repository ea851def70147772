"""The boundary: which of the starting and ending options (offsets, timestamps) decides where a query begins
and ends in each queue.

        startingTimestamp  before  startingOffsetsByTimestamp  before  startingOffsets      and likewise for
        ending

as in Spark's Kafka source. Unlike there, JSON may omit queues: they are read from their beginning, or to
their end. -2 is the earliest message of a queue, -1 its end.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue
from libramq.spark.options import Options, milliseconds
from libramq.spark.reading.positions import Bounds, Positions, numbers_by_queue, queue_key

EARLIEST: Final = -2  # As in Spark's Kafka source.
LATEST: Final = -1
_KEYWORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_OFFSETS: Final = (
    'earliest, latest, or JSON like {"Flights": {"broker-a": {"0": 120, "1": -2}}} (-2 earliest, -1 latest)'
)
_TIMES: Final = 'JSON with milliseconds since 1970, like {"Flights": {"broker-a": {"0": 1700000000000}}}'

#: Returns the first message of each queue stored at its time or later; the queue's end if there is none.
OffsetsAt = Callable[[Mapping[MessageQueue, int]], Mapping[MessageQueue, int]]
Side = Literal["starting", "ending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Offsets by queue, times by queue, or one time for all; other queues are at `default`.

    strategy: if no message is as young as a starting time: `error`, or `latest` (the end).
    """

    side: Side
    default: int
    offsets: Positions = field(default_factory=dict)
    times_ms: Mapping[MessageQueue, int] = field(default_factory=dict)
    time_ms: int | None = None
    strategy: str = "error"

    @classmethod
    def parse(cls, options: Options, side: Side) -> "Boundary | None":
        """Parse the options of one side; None if there are none."""
        default = EARLIEST if side == "starting" else LATEST
        strategy = "latest"  # If no message is as young as an ending time, read everything.
        if side == "starting":
            strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        time_ms = options.time_ms(f"{side}Timestamp")
        times, offsets = options.text(f"{side}OffsetsByTimestamp"), options.text(f"{side}Offsets")
        if time_ms is not None:
            return cls(side=side, default=default, time_ms=time_ms, strategy=strategy)
        if times is not None:
            option = f"{side}OffsetsByTimestamp"
            by_queue = numbers_by_queue(times, option=option, least=0, allowed=_TIMES)
            for each_ms in by_queue.values():
                milliseconds(option, each_ms)
            return cls(side=side, default=default, times_ms=by_queue, strategy=strategy)
        if offsets is None:
            return None
        keyword = _KEYWORDS.get(offsets.strip().lower())
        if keyword is not None:
            return cls(side=side, default=keyword)
        by_queue = numbers_by_queue(offsets, option=f"{side}Offsets", least=EARLIEST, allowed=_OFFSETS)
        return cls(side=side, default=default, offsets=by_queue)

    def refuse(self, offset: int, why: str) -> None:
        """Raise ConfigError if this boundary is a default end that makes no sense."""
        if self.default == offset or offset in self.offsets.values():
            text = "earliest (-2)" if offset == EARLIEST else "latest (-1)"
            raise ConfigError(f"{self.side}Offsets={text}: {why}")

    def resolve(
        self, bounds: Mapping[MessageQueue, Bounds], offsets_at: OffsetsAt
    ) -> dict[MessageQueue, int]:
        """Return the positions in these queues, with the bounds known before times are queried."""
        named = self.offsets.keys() | self.times_ms.keys()
        unknown = sorted(named - bounds.keys())
        if unknown:
            raise ConfigError(
                f"{self._option} names {queue_key(unknown[0])}, which is not a queue that is read; there are "
                f"{', '.join(queue_key(queue) for queue in sorted(bounds)[:8])}"
            )
        resolved = {}
        for queue, bound in bounds.items():
            wanted = self.offsets.get(queue, self.default)
            resolved[queue] = {EARLIEST: bound.minimum, LATEST: bound.maximum}.get(wanted, wanted)
            if resolved[queue] > bound.maximum:
                raise ConfigError(
                    f"{self._option}: queue {queue_key(queue)} ends at {bound.maximum}, {wanted} is beyond"
                )
        times_ms = dict(self.times_ms) if self.time_ms is None else dict.fromkeys(bounds, self.time_ms)
        for queue, offset in offsets_at(times_ms).items() if times_ms else ():
            if offset >= bounds[queue].maximum and self.strategy == "error":
                raise ConfigError(
                    f"{self._option}: queue {queue_key(queue)} has no message stored at {times_ms[queue]} ms "
                    "or later; give an earlier time, or startingOffsetsByTimestampStrategy=latest"
                )
            resolved[queue] = max(bounds[queue].minimum, min(offset, bounds[queue].maximum))
        return resolved

    @property
    def _option(self) -> str:
        if self.time_ms is not None:
            return f"{self.side}Timestamp"
        return f"{self.side}OffsetsByTimestamp" if self.times_ms else f"{self.side}Offsets"
