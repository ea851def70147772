"""The memory of a server's process: when Python collects garbage, which pauses it, and when the C library
returns memory.
"""

import contextlib
import ctypes
import gc
from typing import Final

#: Ours: the collector stops the loop, for 0.3 to 0.5 µs an object. It looks at 5,000 new ones at a time
#: (2 ms), at 15,000 that survived (7 ms), and at all of them only after 20 million: where twenty clients
#: have a thousand groups each, that takes 80 to 120 ms, and found 4 objects. What a request leaves behind in
#: cycles (an exception and its frames) dies young; the rest is freed by reference counts.
_COLLECTION_THRESHOLDS: Final = (5_000, 2, 1_400)
#: malloc.h of glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
#: Ours: freed memory that the C library keeps, and the largest block that is taken from it. Batches and
#: answers of up to 4 MiB come and go all the time.
KEPT_BYTES: Final = 32 * 1024 * 1024
BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024


def calm_garbage_collector() -> None:
    """Make garbage collection rare.

    Objects made at the start stay, so they are never scanned again; those of a read are freed by reference
    counting, so looking for cycles every 700 objects only costs time (1 to 2 µs a message).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)


def keep_freed_memory() -> None:
    """Have the C library keep memory that was freed for the next batch or answer.

    Otherwise it is given back, and the system finds and clears every page of it again: a fifth of the time of
    a broker that sends messages of 1 KiB. Only glibc is told; others have their own ways.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES_MAX)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
