"""Outages: addresses that do not answer. Each outage is logged once at its beginning and once at its end.

While its broker is away, a member with nine queues makes ten failing requests a second;
`log_failed_request` logs those at debug level.
"""

from collections.abc import Callable
from typing import Any, Final

import structlog

from libramq.clock import MonotonicMs
from libramq.errors import ConnectFailed, ConnectionLost, LibraError, NameServerUnavailable
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: addresses that are remembered; a client has a few dozen.
ADDRESSES_MAX: Final = 1_000


class Outages:
    """The addresses that do not answer, with the time of each outage's beginning.

    of_known_only: do not log an address that has never answered, since its caller gets the error anyway.
    """

    def __init__(self, monotonic_ms: Callable[[], MonotonicMs], *, of_known_only: bool = False) -> None:
        self._monotonic_ms = monotonic_ms
        self._of_known_only = of_known_only
        self._since_ms: dict[str, MonotonicMs] = {}

    def unanswered(self, address: str, reason: str, *, is_known: bool) -> None:
        """Note that an address could not be reached. is_known: it has answered before."""
        if address in self._since_ms or (self._of_known_only and not is_known):
            return
        if len(self._since_ms) < ADDRESSES_MAX:
            self._since_ms[address] = self._monotonic_ms()
            log.warning("no connection; retrying until it succeeds", address=address, reason=reason)

    def answered(self, address: str) -> None:
        """Note that an address has answered over a new connection."""
        since_ms = self._since_ms.pop(address, None)
        if since_ms is not None:
            seconds = (self._monotonic_ms() - since_ms) / 1000
            log.warning("connected again", address=address, after=f"{seconds:.1f} s")


def log_failed_request(
    logger: structlog.stdlib.BoundLogger,
    event: str,
    error: LibraError,
    *,
    warn: Callable[..., Any] | None = None,
    **values: Any,
) -> None:
    """Log a failed request, at debug level if there was no connection. warn: replaces logger.warning."""
    is_outage = isinstance(error, ConnectFailed | ConnectionLost | NameServerUnavailable)
    (logger.debug if is_outage else warn or logger.warning)(event, **values, reason=str(error))
