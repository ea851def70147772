"""The clock: what time it is, for whoever was given one.

`wall_ms` is what gets recorded (store times, born times); it may jump. `monotonic_ms` is what sessions
and timeouts are measured with; it never goes back. Only a shell that composes things makes a
`SystemClock`; everything else takes a `Clock` or, better, a time.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings of time, in milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine believes."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an unknown moment; never goes back."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since the machine started, or another fixed moment."""
        return time.monotonic_ns() // 1_000_000
