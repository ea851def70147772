"""Awaiting several coroutines."""

import asyncio

from libramq.client.awaiting import all_of


async def test_a_single_work_is_done_in_the_callers_task_and_several_at_once():
    """A separate task would start and be noticed one turn of the loop later each time."""
    tasks: list[asyncio.Task[object] | None] = []
    both = asyncio.Barrier(2)

    async def meet() -> None:
        await both.wait()

    async def note() -> None:
        tasks.append(asyncio.current_task())

    await all_of([note()])
    assert tasks == [asyncio.current_task()]
    await all_of([meet(), meet()])
    await all_of([])
