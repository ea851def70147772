"""The lock of a file: its first byte, as java.nio's FileChannel.tryLock(0, 1, false) locks it.

On Linux the lock belongs to the open file: it conflicts with Java's record locks and also with a second
opener in this process, and closing another descriptor does not release it.
"""

import errno
import fcntl
import os
import struct
import sys
from typing import Final

#: Linux's locks of an open file. macOS has the names too, but another struct flock.
HAS_FILE_LOCKS: Final = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")


def try_lock(file: int) -> bool:
    """Lock an open file until it is closed; return False if another has it."""
    try:
        if HAS_FILE_LOCKS:
            first_byte = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)  # struct flock
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, first_byte)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as failed:
        if failed.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def is_locked(file: int) -> bool:
    """Return whether another has locked an open file; changes nothing."""
    try:
        if HAS_FILE_LOCKS:
            query = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)  # struct flock
            kind: int = struct.unpack("hhqqi0q", fcntl.fcntl(file, fcntl.F_OFD_GETLK, query))[0]
            return kind != fcntl.F_UNLCK
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as failed:
        if failed.errno in (errno.EACCES, errno.EAGAIN):
            return True
        raise
    return False
