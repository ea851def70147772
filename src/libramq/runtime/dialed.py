"""The dialed connection: one that this process made for a stream of bytes, as an engine sees it."""

from collections.abc import Callable
from typing import Any

from libramq.errors import RemoteError
from libramq.kernel.connection import ANONYMOUS, NUMBERS
from libramq.kernel.effect import Stream
from libramq.logs import get_logger
from libramq.runtime.seams import Link

log = get_logger(__name__)


class DialedConnection:
    """A connection attempt and what came of it; a `seams.Dialed` for its dialer, a `seams.Channel` for its
    performer.

    event: wraps a function so that its call is an event of the engine.
    """

    def __init__(
        self, address: str, stream: Stream, event: Callable[[Callable[[Any], None]], Callable[..., None]]
    ) -> None:
        self.address = address
        self.number = next(NUMBERS)
        self.principal = ANONYMOUS
        self.unsent_bytes = self.leaving_bytes = 0
        self._stream = stream
        self._event = event
        self._link: Link | None = None

    @property
    def is_open(self) -> bool:
        """Return whether data sent now can still arrive."""
        return self._link is not None

    def opened(self, link: Link) -> None:
        """Use the connection from now on."""
        self._link = link
        self._event(lambda _: self._stream.opened(self))()

    def received(self, data: bytes) -> None:
        """Handle the bytes of one read."""
        if self._link is not None:
            self._event(lambda _: self._stream.received(self, data))()

    def ended(self, reason: str) -> None:
        """Handle the end of the connection, whichever side closed it."""
        self._link = None
        self._event(lambda _: self._stream.ended(self, reason))()

    def refused(self, error: RemoteError) -> None:
        """Handle a failed attempt."""
        self._event(lambda _: self._stream.refused(str(error)))()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._link is not None:
            self._link.write(data)

    def close(self, reason: str) -> None:
        """Close the connection after all written data has left; what still comes is ignored."""
        link, self._link = self._link, None
        if link is not None:
            log.info("connection closed", peer=self.address, reason=reason)
            link.close()

    def abort(self, reason: str) -> None:
        """Close the connection now, dropping data that has not left yet."""
        link, self._link = self._link, None
        if link is not None:
            log.info("connection aborted", peer=self.address, reason=reason)
            link.abort()

    def pause_reading(self) -> None:
        """Do nothing: a stream is bounded by its protocol."""

    def resume_reading(self) -> None:
        """Do nothing."""
