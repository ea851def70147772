"""The creation rate: how many topics and groups per second may be created by use, by one connection and in
total.

A topic costs its broker files, and every name server and client a line of each route; a producer that invents
names creates thousands a second. Operators' requests are not limited.
"""

from typing import Final

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.kernel.connection import Connection

#: Ours; upstream has no limit. Enough for a producer that begins with all its topics at once, and adds few
#: later.
PER_CONNECTION_AT_ONCE: Final = 500
PER_CONNECTION_A_SECOND: Final = 20
#: Ours: enough for the start of a deployment.
AT_ONCE: Final = 2_000
A_SECOND: Final = 100


class _Bucket:
    """A token bucket: a burst at once, then a steady rate."""

    __slots__ = ("_at_ms", "_left")

    def __init__(self, at_once: int, now_ms: MonotonicMs) -> None:
        self._left = float(at_once)
        self._at_ms = now_ms

    def fill(self, at_once: int, a_second: int, now_ms: MonotonicMs) -> bool:
        """Add the tokens of the elapsed time; return whether one is available."""
        self._left = min(at_once, self._left + (now_ms - self._at_ms) * a_second / 1000)
        self._at_ms = now_ms
        return self._left >= 1

    def take(self) -> None:
        """Take one token."""
        self._left -= 1


class CreationRate:
    """The budget of topics and groups that connections may still create."""

    def __init__(self, now_ms: MonotonicMs) -> None:
        self._all = _Bucket(AT_ONCE, now_ms)
        self._by_connection: dict[Connection, _Bucket] = {}

    def take(self, connection: Connection, topic: str, now_ms: MonotonicMs) -> None:
        """Count a topic created by a send; raises SystemBusy over the limit."""
        bucket = self._by_connection.get(connection)
        if bucket is None:
            bucket = self._by_connection[connection] = _Bucket(PER_CONNECTION_AT_ONCE, now_ms)
        if not bucket.fill(PER_CONNECTION_AT_ONCE, PER_CONNECTION_A_SECOND, now_ms):
            raise _too_many(topic, PER_CONNECTION_A_SECOND, f"from {connection.address}")
        if not self._all.fill(AT_ONCE, A_SECOND, now_ms):
            raise _too_many(topic, A_SECOND, "at this broker")
        bucket.take()
        self._all.take()

    def connection_ended(self, connection: Connection) -> None:
        """Remove a connection."""
        self._by_connection.pop(connection, None)


def _too_many(topic: str, a_second: int, where: str) -> Exception:
    return broker_error(
        ResponseCode.SYSTEM_BUSY,
        f"topic {topic} is not created: sends {where} may create {a_second} topics a second;"
        " try again later, or create it with `libra admin updateTopic`",
    )
