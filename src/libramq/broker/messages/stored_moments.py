"""The stored moments: when messages were stored by the monotonic clock, however the wall clock was set.

A record's store time is the wall clock's at the time. Whenever the difference between wall clock and
monotonic clock has changed, it is remembered together with the log's end:

    log      0 ────────────────── 81 920 ─────────────────► end
        ahead    as at the start      3 600 000 ms less: the clock was set back by an hour

Ours; upstream adds the delay to the store time and compares with the current wall clock.
"""

from bisect import bisect_right
from typing import Final

from libramq.clock import MonotonicMs, Now

#: Ours: clock synchronisation moves the clock by less (ntpd steps from 128 ms on); a delay may be wrong by
#: this much.
UNNOTICED_MS: Final = 100
#: Ours: a clock is not set so often while messages wait; of more settings the oldest are forgotten.
SETTINGS_MAX: Final = 1_000


class StoredMoments:
    """The wall clock's difference for each part of the log. `now`: when the store was opened.

    Messages of an earlier process count as stored by the current wall clock: only that one continued
    meanwhile.
    """

    def __init__(self, now: Now) -> None:
        self._starts = [0]
        self._ahead_ms = [now.wall_ahead_ms]

    def is_set(self, now: Now) -> bool:
        """Return whether the wall clock was set since the last call."""
        return abs(now.wall_ahead_ms - self._ahead_ms[-1]) > UNNOTICED_MS

    def note(self, log_end: int, now: Now) -> None:
        """Note that messages from here on take their store time from the clock as it is now."""
        self._starts.append(log_end)
        self._ahead_ms.append(now.wall_ahead_ms)
        if len(self._starts) > SETTINGS_MAX:
            del self._starts[1], self._ahead_ms[1]

    def moment_of(self, physical_offset: int, store_timestamp_ms: int) -> MonotonicMs:
        """Return when a record was stored."""
        position = bisect_right(self._starts, physical_offset) - 1
        return MonotonicMs(store_timestamp_ms - self._ahead_ms[position])
