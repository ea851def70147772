"""Tests of handler tasks and threads: deliveries of lost queues, or requeued while being reported."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest

from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome
from libramq.client.consuming.handling.handlers import FailureLog, HandlerTasks, HandlerThreads
from libramq.client.consuming.queues.owned_queue import Delivery, Lease, OwnedQueue, QueueState
from libramq.clock import SystemClock
from libramq.logs import LINES_MAX
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from tests.client.consuming.examples import message


class Run(NamedTuple):
    """The run of a consumer, as far as handlers know it."""

    loop: asyncio.AbstractEventLoop
    report: Callable[[Delivery, Ending], None]

    def loop_closed(self) -> None:
        raise AssertionError


async def test_deliveries_of_a_queue_that_is_not_read_any_more_get_no_task():
    """After a stop, a program's end used to leave these tasks pending, and asyncio printed each."""
    clock = SystemClock()
    queue = MessageQueue("T", "broker-a", 0)
    owned = OwnedQueue(queue, Lease(clock.monotonic_ms), now_ms=clock.monotonic_ms())
    owned.state = QueueState.READING
    gate, begun, reports = asyncio.Event(), asyncio.Event(), []

    async def handle(messages: list[MessageExt]) -> None:
        begun.set()
        await gate.wait()

    loop = asyncio.get_running_loop()
    run = Run(loop, lambda *report: reports.append(report))
    tasks = HandlerTasks({"T": handle}, run, count=1, log_failure=FailureLog())
    deliveries = [Delivery(owned, [message(0)]) for _ in range(5)]
    tasks.put(deliveries)
    await begun.wait()
    owned.state = QueueState.PAUSED
    gate.set()
    while len(reports) < len(deliveries):
        before = asyncio.all_tasks()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before
    assert [ending for _, ending in reports[1:]] == [HandlerOutcome.SKIPPED] * 4


def test_a_loop_that_ends_begins_no_further_handlers():
    """`asyncio.run` cancels what runs at its end; tasks that began then were destroyed while pending."""
    clock, created = SystemClock(), []
    owned = OwnedQueue(
        MessageQueue("T", "broker-a", 0), Lease(clock.monotonic_ms), now_ms=clock.monotonic_ms()
    )
    owned.state = QueueState.READING

    async def main() -> None:
        begun = asyncio.Event()

        async def handle(messages: list[MessageExt]) -> None:
            begun.set()
            await asyncio.Event().wait()

        def count(loop, coroutine, **options):
            created.append(coroutine)
            return asyncio.Task(coroutine, loop=loop, **options)

        loop = asyncio.get_running_loop()
        loop.set_task_factory(count)
        tasks = HandlerTasks({"T": handle}, Run(loop, print), count=1, log_failure=FailureLog())
        tasks.put([Delivery(owned, [message(0)]) for _ in range(5)])
        await begun.wait()

    asyncio.run(main())
    assert [each.__qualname__ for each in created if "HandlerTasks" in each.__qualname__] == [
        "HandlerTasks._handle"
    ]


WAIT_S = 30


@pytest.fixture
def owned_queue():
    clock = SystemClock()
    return OwnedQueue(
        MessageQueue("T", "broker-a", 0), Lease(clock.monotonic_ms), now_ms=clock.monotonic_ms()
    )


def test_a_delivery_not_begun_may_be_queued_again_before_its_report_returns(owned_queue):
    """Another thread takes it at once. No thread or slot of the pool is lost."""
    owned_queue.state = QueueState.PAUSED
    delivery = Delivery(owned_queue, [])
    reports, ran_again = [], threading.Event()

    def report(ended, ending):
        reports.append((ended, ending, threading.get_ident()))
        if len(reports) == 1:
            threads.put([delivery])
            assert ran_again.wait(WAIT_S)
        elif len(reports) == 2:
            ran_again.set()

    loop = asyncio.new_event_loop()
    threads = HandlerThreads({}, Run(loop, report), count=2, log_failure=FailureLog())
    threads.put([delivery])
    assert ran_again.wait(WAIT_S)
    threads.close()
    loop.close()
    assert [(ended, ending) for ended, ending, _ in reports] == [(delivery, HandlerOutcome.SKIPPED)] * 2
    assert len({ident for *_, ident in reports}) == 2
    assert threads._running == {}


def test_a_flood_of_failures_with_long_texts_stays_readable(caplog):
    """50 KB of text in each of them made 139 MB of log in 25 seconds."""
    log_failure = FailureLog()
    for _ in range(500):
        try:
            raise ValueError("x" * 50_000)
        except ValueError:
            log_failure([message(0)], "T")
    lines = [logging.Formatter().format(record) for record in caplog.records]
    assert len(lines) == LINES_MAX
    assert all("in test_a_flood_of_failures" in line for line in lines)
    assert all("LongError: ValueError: xxx" in line and "(cut: 50," in line for line in lines)
    assert sum(map(len, lines)) < 30_000
