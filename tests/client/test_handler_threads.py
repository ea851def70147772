"""Tests of the handler threads: a delivery that is queued again while it is being reported."""

import asyncio
import threading

import pytest

from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.handling.handlers import HandlerThreads
from libramq.client.consuming.membership.lease import Lease
from libramq.client.consuming.ownership.owned_queue import Delivery, OwnedQueue
from libramq.client.consuming.ownership.state import QueueState
from libramq.clock import SystemClock
from libramq.message.queue import MessageQueue

WAIT_S = 30


@pytest.fixture
def owned_queue():
    clock = SystemClock()
    return OwnedQueue(
        MessageQueue("T", "broker-a", 0), 1, Lease(clock.monotonic_ms), now_ms=clock.monotonic_ms()
    )


def test_a_delivery_not_begun_may_be_queued_again_before_its_report_returns(owned_queue):
    """Another thread takes it at once. Neither a thread nor its place in the pool is lost."""
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
    threads = HandlerThreads({}, count=2, loop=loop, report=report, loop_closed=lambda: None)
    threads.put([delivery])
    assert ran_again.wait(WAIT_S)
    threads.close()
    loop.close()
    assert [(ended, ending) for ended, ending, _ in reports] == [(delivery, HandlerOutcome.SKIPPED)] * 2
    assert len({ident for *_, ident in reports}) == 2
    assert threads._running == {}
