"""Incomplete frames: how much a server holds of frames whose rest has not arrived, over all connections.

A frame may have 16 MiB. A client that sends nearly all of one and then stops occupies that much memory; so
the sum is bounded, and connections that held the most for the longest are closed first. A frame that is still
arriving is young, however large, and safe.
"""

from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs

C = TypeVar("C")

#: Ours: four of the largest frames, sixteen messages of maxMessageSize. Netty has no such bound.
UNFINISHED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Ours: how much remains after closing, so that the limit is not reached again with the next read.
LEFT_SHARE: Final = 0.75


class UnfinishedFrames(Generic[C]):
    """The incomplete input of each connection, and since when."""

    def __init__(self) -> None:
        self._held: dict[C, tuple[int, MonotonicMs]] = {}
        self.total_bytes = 0

    def update(self, connection: C, size: int, now_ms: MonotonicMs, *, is_another: bool) -> list[C]:
        """Record a connection's incomplete input; return the connections to close, mostly none.

        is_another: the bytes belong to another frame than the last time.
        """
        before = self._held.pop(connection, None)
        self.total_bytes += size - (before[0] if before is not None else 0)
        if size:
            since_ms = now_ms if before is None or is_another else before[1]
            self._held[connection] = size, since_ms
        return self._worst(now_ms) if self.total_bytes > UNFINISHED_BYTES_MAX else []

    def forget(self, connection: C) -> None:
        """Drop a connection's input."""
        self.total_bytes -= self._held.pop(connection, (0, 0))[0]

    def _worst(self, now_ms: MonotonicMs) -> list[C]:
        """Return the connections that held the most bytes for the longest, as many as make room."""
        excess_bytes = self.total_bytes - UNFINISHED_BYTES_MAX * LEFT_SHARE
        worst = []
        # Of those that began at the same moment, the larger one.
        cost = {each: size * (now_ms - since_ms + 1) for each, (size, since_ms) in self._held.items()}
        for connection in sorted(cost, key=cost.__getitem__, reverse=True):
            if excess_bytes <= 0:
                break
            excess_bytes -= self._held[connection][0]
            worst.append(connection)
        return worst
