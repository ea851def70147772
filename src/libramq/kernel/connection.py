"""The connection as an engine sees it: an opaque handle, told apart by identity."""

from itertools import count
from typing import Final, Protocol

#: The numbers of connections, drawn as they are accepted.
NUMBERS: Final = count(1)


class Connection(Protocol):
    """The other end of a connection. An engine never writes to it: it returns `Send` and `Close`."""

    @property
    def address(self) -> str:
        """The other end's "host:port"."""
        ...

    @property
    def number(self) -> int:
        """Higher than that of every connection that was accepted before, whoever made them."""
        ...

    @property
    def is_open(self) -> bool:
        """Return whether what is sent can still arrive."""
        ...

    def __hash__(self) -> int:
        """Connections are told apart by identity."""
        ...
