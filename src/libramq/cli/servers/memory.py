"""The memory of a server process: when Python collects garbage, and when the C library returns memory."""

import contextlib
import ctypes
import gc
from typing import Final

#: Ours: the collector stops the loop for 0.3 to 0.5 µs an object. It scans 5,000 new objects at a time
#: (2 ms), then 15,000 survivors (7 ms), and all objects only after 20 million: with twenty clients that have
#: a thousand groups each, that takes 80 to 120 ms, and found 4 objects. Cycles left by a request (an
#: exception and its frames) die young; the rest is freed by reference counting.
_COLLECTION_THRESHOLDS: Final = (5_000, 2, 1_400)
#: glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
#: glibc's malloc.h.
_M_MMAP_THRESHOLD: Final = -3
#: Ours: freed memory that the C library keeps. Batches and answers of up to 4 MiB come and go all the time.
KEPT_BYTES: Final = 32 * 1024 * 1024
#: Ours: the largest block that is allocated from kept memory.
BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024


def calm_garbage_collector() -> None:
    """Make garbage collection rare.

    Objects made at startup live on, so they are never scanned again. Objects of a read are freed by reference
    counting, so searching for cycles every 700 objects only costs time (1 to 2 µs a message).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for the next batch or answer.

    Otherwise it is returned, and the system has to find and clear every page again: a fifth of the time of a
    broker that sends messages of 1 KiB. This affects glibc only.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES_MAX)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
