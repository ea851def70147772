"""The clocks: wall time for records and events; and monotonic time, which continues while the machine sleeps,
for every duration: two types that cannot be mixed.

        WallMs        a moment as people know it: store times, events, versions. It may be set, by an hour, in
                      either direction: never measure with it.
        MonotonicMs   a moment on a clock that never goes back, without meaning outside its machine: sessions,
                      holds, locks, delays, timeouts. It restarts with the machine: it is never stored.

At run time both are ints and cost nothing. To the type checker they differ: each is compared with its own
kind only, and two wall times cannot be subtracted. A disk or a peer gets `int(wall_ms)`; a value from there
becomes `WallMs(number)`. `Now` converts a moment from one clock to the other.

Only a composing shell makes a `SystemClock`; everything else takes a `Clock` or, better, a time.
"""

import time
from dataclasses import dataclass
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import overload

    class WallMs:
        """Milliseconds since 1970, by the machine's clock."""

        def __init__(self, ms: int, /) -> None: ...
        def __int__(self) -> int: ...
        def __add__(self, duration_ms: int, /) -> "WallMs": ...
        def __sub__(self, duration_ms: int, /) -> "WallMs": ...
        def __lt__(self, other: "WallMs", /) -> bool: ...
        def __le__(self, other: "WallMs", /) -> bool: ...
        def __gt__(self, other: "WallMs", /) -> bool: ...
        def __ge__(self, other: "WallMs", /) -> bool: ...

    class MonotonicMs:
        """Milliseconds since an unknown moment; never goes back."""

        def __init__(self, ms: int, /) -> None: ...
        def __int__(self) -> int: ...
        def __add__(self, duration_ms: int, /) -> "MonotonicMs": ...
        @overload
        def __sub__(self, other: "MonotonicMs", /) -> int: ...
        @overload
        def __sub__(self, other: int, /) -> "MonotonicMs": ...
        def __sub__(self, other: object, /) -> object: ...
        def __lt__(self, other: "MonotonicMs", /) -> bool: ...
        def __le__(self, other: "MonotonicMs", /) -> bool: ...
        def __gt__(self, other: "MonotonicMs", /) -> bool: ...
        def __ge__(self, other: "MonotonicMs", /) -> bool: ...

else:
    WallMs = MonotonicMs = int


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """One moment by both clocks of a machine."""

    wall_ms: WallMs
    monotonic_ms: MonotonicMs

    @property
    def wall_ahead_ms(self) -> int:
        """Return how far the wall clock is ahead of the monotonic one; constant until the former is set."""
        return int(self.wall_ms) - int(self.monotonic_ms)

    def wall_of(self, at_ms: MonotonicMs) -> WallMs:
        """Return a monotonic moment in wall time, for a record.

        It is counted back from the wall clock's current reading, so that moments recorded together keep their
        distances even if the wall clock was set between them.
        """
        return self.wall_ms - (self.monotonic_ms - at_ms)


class Clock(Protocol):
    """Two readings of time, in milliseconds."""

    def wall_ms(self) -> WallMs:
        """Return the milliseconds since 1970, by the machine's clock."""
        ...

    def monotonic_ms(self) -> MonotonicMs:
        """Return the milliseconds since an unknown moment; never goes back."""
        ...


def read_clock(clock: Clock) -> Now:
    """Return the current moment by both clocks."""
    return Now(wall_ms=clock.wall_ms(), monotonic_ms=clock.monotonic_ms())


def clock_with_sleep() -> int:
    """Return the system's clock that continues while the machine sleeps.

    macOS's CLOCK_MONOTONIC does, although Python's time.monotonic() there does not; Linux has CLOCK_BOOTTIME.
    """
    return getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


# Hot, several calls a request: checking the platform, two module lookups and a call of int took 0.6 µs.
_monotonic_ns = partial(time.clock_gettime_ns, clock_with_sleep())


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> WallMs:
        """Return the milliseconds since 1970."""
        return time_ns() // 1_000_000  # type: ignore[return-value] # As `_monotonic_ns`.

    def monotonic_ms(self) -> MonotonicMs:
        """Return the milliseconds since the machine started, or another fixed moment, including sleep.

        A member whose machine slept must find its session expired, because at the coordinator it is.
        """
        return _monotonic_ns() // 1_000_000  # type: ignore[return-value] # See `_monotonic_ns`.
