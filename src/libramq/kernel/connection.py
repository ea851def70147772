"""The connection as an engine sees it: an opaque handle, told apart by identity."""

from itertools import count
from typing import Final, Protocol

#: The numbers of connections, assigned as they are accepted.
NUMBERS: Final = count(1)


class Connection(Protocol):
    """The other end of a connection. An engine never writes to it: it returns `Send` and `Close`."""

    @property
    def address(self) -> str:
        """Return the other end's "host:port"."""
        ...

    @property
    def number(self) -> int:
        """Return a number higher than that of every connection accepted before, on any server."""
        ...

    @property
    def is_open(self) -> bool:
        """Return whether data sent now can still arrive."""
        ...

    def __hash__(self) -> int:
        """Hash by identity."""
        ...
