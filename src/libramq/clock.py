"""The clocks: wall time for what is recorded, monotonic time for how long things take.

    WallMs        a moment as people know it: store times, events, when a delayed message is due. It may be
                  set, by an hour, in either direction: nothing may be measured with it.
    MonotonicMs   a moment on a clock that never goes back, and that means nothing outside its machine:
                  sessions, holds, locks, timeouts. It begins anew with the machine, so none is stored.

Only a shell that composes things makes a `SystemClock`; everything else takes a `Clock` or, better, a time.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import overload

    class WallMs(int):
        """Milliseconds since 1970, as a machine believes."""

        def __add__(self, duration_ms: int, /) -> "WallMs": ...
        def __sub__(self, duration_ms: int, /) -> "WallMs": ...

    class MonotonicMs(int):
        """Milliseconds since an unknown moment; never goes back."""

        def __add__(self, duration_ms: int, /) -> "MonotonicMs": ...
        @overload
        def __sub__(self, other: "MonotonicMs", /) -> int: ...  # type: ignore[overload-overlap]
        @overload
        def __sub__(self, other: int, /) -> "MonotonicMs": ...
        def __sub__(self, other: int, /) -> int: ...

else:
    WallMs = MonotonicMs = int


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """One moment by both clocks of a machine."""

    wall_ms: WallMs
    monotonic_ms: MonotonicMs

    def wall_of(self, at_ms: MonotonicMs) -> WallMs:
        """Return a moment of the monotonic clock as it is recorded now.

        Counted back from the wall clock's present reading, so that moments recorded together are as far apart
        as they were, whatever happened to the wall clock between them.
        """
        return self.wall_ms - (self.monotonic_ms - at_ms)


class Clock(Protocol):
    """Two readings of time, in milliseconds."""

    def wall_ms(self) -> WallMs:
        """Milliseconds since 1970, as the machine believes."""
        ...

    def monotonic_ms(self) -> MonotonicMs:
        """Milliseconds since an unknown moment; never goes back."""
        ...


def read_clock(clock: Clock) -> Now:
    """Return the present moment by both clocks."""
    return Now(wall_ms=clock.wall_ms(), monotonic_ms=clock.monotonic_ms())


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> WallMs:
        """Milliseconds since 1970."""
        return WallMs(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> MonotonicMs:
        """Milliseconds since the machine started, or another fixed moment."""
        return MonotonicMs(time.monotonic_ns() // 1_000_000)
