"""The handler tasks: they run coroutine functions on the loop that the consumer was started on."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from libramq.client.awaiting import awaited, current_task, is_from_outside
from libramq.client.consuming.handling.handler_call import log_failure
from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome, ending_of
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.message.message import MessageExt, handed_out

#: Ours: an event loop that ends has ended by then, and its tasks are not known to end with it before.
CANCELLED_PAUSE_S: Final = 0.1


class HandlerTasks:
    """Runs at most `count` tasks; further deliveries wait. Other threads call only `put` and `give_up`."""

    def __init__(
        self,
        handlers: Mapping[str, Callable[[list[MessageExt]], Any]],
        *,
        count: int,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Delivery, Ending], None],
        loop_closed: Callable[[], None],
    ) -> None:
        self._handlers = dict(handlers)
        self._count = count
        self._loop = loop
        self._report = report
        self._loop_closed = loop_closed
        self._waiting: deque[Delivery] = deque()
        self._running: dict[Delivery, asyncio.Task[None]] = {}
        # Cancelled, but not ended: referenced, so that they are not collected.
        self._abandoned: set[asyncio.Task[None]] = set()

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries."""
        self._call(self._accept, deliveries)

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Cancel handlers, and free their places at once."""
        self._call(self._cancel, deliveries)

    def is_current(self) -> bool:
        """Return whether the caller is one of the tasks."""
        task = current_task()
        return task is not None and (task in self._running.values() or task in self._abandoned)

    def _call(self, function: Callable[[Sequence[Delivery]], None], deliveries: Sequence[Delivery]) -> None:
        try:
            self._loop.call_soon_threadsafe(function, deliveries)
        except RuntimeError:  # It is closed. No report is needed: this ends the consumer.
            self._loop_closed()

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        self._waiting.extend(deliveries)
        self._start()

    def _cancel(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            task = self._running.pop(delivery, None)
            if task is not None:
                self._abandoned.add(task)
                task.cancel()
        self._start()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._count:
            delivery = self._waiting.popleft()
            if not delivery.begin():  # Its queue is not read any more: no task is needed to find that out.
                self._report(delivery, HandlerOutcome.SKIPPED)
                continue
            task = self._loop.create_task(self._run(delivery))
            self._running[delivery] = task
            task.add_done_callback(partial(self._ended, delivery))

    def _ended(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        if task in self._abandoned:
            self._abandoned.discard(task)
        else:
            del self._running[delivery]
            if task.cancelled():  # By others: a single one, or all as the loop ends, where nothing may begin.
                self._loop.call_later(CANCELLED_PAUSE_S, self._start)
                return
        if not task.cancelled():
            task.exception()  # Ctrl-C only, which the loop has raised already.
        self._start()

    async def _run(self, delivery: Delivery) -> None:
        messages = delivery.messages
        topic = messages[0].topic
        ending: Ending = HandlerOutcome.LATER
        try:
            handed = handed_out(messages)
            ending = ending_of(await awaited(self._handlers[topic]([*handed])), messages, handed)
        except BaseException as error:
            delivery.raised(error)
            log_failure(messages, topic)
            if is_from_outside(error):
                raise
        finally:
            self._report(delivery, ending)
