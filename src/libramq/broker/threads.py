"""The threads: work that waits for the disk, done beside the event loop."""

import asyncio
from collections.abc import Callable


async def on_thread(work: Callable[..., None], *arguments: object) -> None:
    """Wait for work on a thread, also when cancelled: nobody else may touch its files meanwhile."""
    future = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # The caller notes what became of the work, and ends where it waits next.
        future.result()
