"""The link of torture: forwards all traffic between two brokers until it is cut.

127.0.0.2:PORT  ─► link ─► 127.0.0.1:PORT      brokers register with the first, and listen at the second
SILENT: connections stay, and nothing passes     REFUSED: old and new connections are closed
"""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Sequence
from typing import Final

#: The address by which the brokers of a pair know each other. On Linux all of 127.0.0.0/8 is local; on macOS
#: it must be configured.
LINK_HOST: Final = "127.0.0.2"
#: Ours: the bytes held per connection while the link is silent; the rest waits in sockets.
PIECE_BYTES: Final = 64 * 1024


class Cut(enum.Enum):
    """The ways to cut a link."""

    SILENT = "silent"
    REFUSED = "refused"


class Link:
    """Forwards the connections to some ports. host: the listening address; target: the destination."""

    def __init__(self, ports: Sequence[int], *, host: str, target: str) -> None:
        self._ports = ports
        self._host = host
        self._target = target
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._cut: Cut | None = None
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Link":
        try:
            for port in self._ports:
                self._servers.append(await self._listen(port))
        except OSError:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    def cut(self, cut: Cut) -> None:
        """Stop forwarding."""
        self._cut = cut
        self._is_open.clear()
        if cut is Cut.REFUSED:
            self._abort()

    def mend(self) -> None:
        """Resume forwarding, beginning with the held data."""
        self._cut = None
        self._is_open.set()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        self._abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _listen(self, port: int) -> asyncio.Server:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._forward(port, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return await asyncio.start_server(accepted, self._host, port, limit=PIECE_BYTES)

    async def _forward(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection until both ends have closed it or the link refuses connections."""
        async with self._closed_in_the_end(writer):
            if self._cut is Cut.REFUSED:
                return
            await self._is_open.wait()
            with contextlib.suppress(OSError):
                theirs = await asyncio.open_connection(self._target, port, limit=PIECE_BYTES)
                async with self._closed_in_the_end(theirs[1]), asyncio.TaskGroup() as ways:
                    ways.create_task(self._pass_on(reader, theirs[1]))
                    ways.create_task(self._pass_on(theirs[0], writer))

    @contextlib.asynccontextmanager
    async def _closed_in_the_end(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._writers.discard(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                await self._is_open.wait()
                if writer.is_closing():
                    break
                writer.write(data)
                await writer.drain()
        if self._cut is not Cut.REFUSED:
            await self._is_open.wait()  # A silent link does not forward the end of a connection either.
        if not writer.is_closing():
            writer.write_eof()
