"""A private network: a program with a loopback of its own, where the ports that documents name are free.

    python -m tests.docs.private_network PROGRAM [ARGUMENT...]     within `unshare --net`

Where the machine allows no namespaces, the program runs in the network that all share.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Final

_UNSHARE: Final = ("unshare", "--map-root-user", "--net")
#: linux/sockios.h and if.h: `ip link set lo up`.
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1


def command(program: Sequence[str]) -> list[str]:
    """Return the command that runs a program in a network of its own, where that is possible."""
    return [*_UNSHARE, sys.executable, "-m", __name__, *program] if _is_possible() else list(program)


@cache
def _is_possible() -> bool:
    try:
        return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _IFF_UP))
    os.execvp(sys.argv[1], sys.argv[1:])
