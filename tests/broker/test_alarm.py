"""One timer for what is due next."""

import asyncio

from libramq.broker import alarm
from libramq.broker.alarm import Alarm
from libramq.clock import SystemClock

now_ms = SystemClock().monotonic_ms


async def test_it_rings_once_at_the_earliest_time_asked_for():
    rings: asyncio.Queue[int] = asyncio.Queue()
    bell = Alarm(now_ms, lambda: rings.put_nowait(now_ms()))
    start = now_ms()
    bell.ring_by(start + 60_000)
    bell.ring_by(start + 20)
    bell.ring_by(start + 30)
    bell.ring_by(None)
    assert await rings.get() >= start + 20
    bell.ring_by(start)  # Past: at once.
    await rings.get()
    assert rings.empty()
    bell.ring_by(now_ms())
    bell.cancel()
    bell.ring_by(now_ms() + 5)
    await rings.get()
    assert rings.empty()


async def test_what_fails_is_tried_again(monkeypatch):
    monkeypatch.setattr(alarm, "AGAIN_MS", 5)
    rings: asyncio.Queue[int] = asyncio.Queue()

    def fail_once() -> None:
        rings.put_nowait(now_ms())
        if rings.qsize() == 1 and not failed:
            failed.append(True)
            raise RuntimeError("not this time")

    failed: list[bool] = []
    bell = Alarm(now_ms, fail_once)
    bell.ring_by(now_ms())
    first, second = await rings.get(), await rings.get()
    assert second >= first + 5
