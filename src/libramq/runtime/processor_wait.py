"""The processor wait: how long a thread was ready to run, and others ran instead.

Work that takes long because the machine is busy is no faster on another thread. Linux counts the wait in
/proc/thread-self/schedstat: nanoseconds that the thread ran, nanoseconds that it waited, how often it ran.
"""

import contextlib
import os
from typing import Final

_PATH: Final = "/proc/thread-self/schedstat"


class ProcessorWait:
    """Reads the wait of the thread that makes it; 0 where the system does not count it."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)

    def waited_us(self) -> int:
        """Return for how many microseconds the thread has waited so far; that takes three."""
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) // 1_000
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
