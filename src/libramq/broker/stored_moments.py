"""The stored moments: when messages were stored by the monotonic clock, however the wall clock was set.

A record has its store time from the wall clock of then. What that clock showed ahead of the monotonic one is
remembered with where the log ended, whenever it has changed:

    log      0 ────────────────── 81 920 ─────────────────► end
    ahead    as at the start      3 600 000 ms less: somebody set it back an hour

Ours; upstream adds the delay to the store time and compares with the wall clock of now.
"""

from bisect import bisect_right
from typing import Final

from libramq.clock import MonotonicMs, Now

#: Ours: who keeps a clock right moves it by less (ntpd steps from 128 ms on); so much a delay may be wrong.
UNNOTICED_MS: Final = 100
#: Ours: nobody sets a clock so often while messages wait; of more settings the oldest are forgotten.
SETTINGS_MAX: Final = 1_000


class StoredMoments:
    """How the wall clock stood when which part of the log was written. `now`: when the store was opened.

    What an earlier process stored counts as stored by the wall clock of now: only that one went on meanwhile.
    """

    def __init__(self, now: Now) -> None:
        self._starts = [0]
        self._ahead_ms = [now.wall_ahead_ms]

    def is_set(self, now: Now) -> bool:
        """Return whether the wall clock was set since the last look."""
        return abs(now.wall_ahead_ms - self._ahead_ms[-1]) > UNNOTICED_MS

    def note(self, log_end: int, now: Now) -> None:
        """Note that messages stored from here on take their store time from the clock as it is now."""
        self._starts.append(log_end)
        self._ahead_ms.append(now.wall_ahead_ms)
        if len(self._starts) > SETTINGS_MAX:
            del self._starts[1], self._ahead_ms[1]

    def moment_of(self, physical_offset: int, store_timestamp_ms: int) -> MonotonicMs:
        """Return when a record was stored."""
        position = bisect_right(self._starts, physical_offset) - 1
        return MonotonicMs(store_timestamp_ms - self._ahead_ms[position])
