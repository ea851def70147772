"""The simulated handlers: user code that takes time, and sometimes fails."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.testing.machine.process import Process


@dataclass(frozen=True, slots=True)
class Handling:
    """The behaviour of a member's handlers. slow_chance: of a handler that takes slow_ms."""

    duration_ms_max: int = 5
    failure_chance: float = 0.0
    concurrency: int = 20
    slow_chance: float = 0.0
    slow_ms: int = 0


class SimulatedHandlers:
    """Runs a limited number of handlers at a time, in the order of deliveries."""

    def __init__(
        self,
        process: Process,
        handling: Handling,
        randomness: random.Random,
        *,
        began: Callable[[Delivery], None],
        ended: Callable[[Delivery, HandlerOutcome], None],
    ) -> None:
        self._process = process
        self._handling = handling
        self._random = randomness
        self._began = began
        self._ended = ended
        self._waiting: deque[Delivery] = deque()
        self._running = 0
        self._abandoned: set[Delivery] = set()

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries."""
        self._waiting.extend(deliveries)
        self._process.after(0, self._start)

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Run others in place of handlers that do not return."""
        self._abandoned.update(deliveries)
        self._running -= len(deliveries)
        self._process.after(0, self._start)

    def _start(self) -> None:
        while self._waiting and self._running < self._handling.concurrency:
            delivery = self._waiting.popleft()
            if not delivery.begin():
                self._ended(delivery, HandlerOutcome.SKIPPED)
                continue
            self._running += 1
            self._began(delivery)
            duration_ms = self._random.randint(0, self._handling.duration_ms_max)
            if self._handling.slow_chance and self._random.random() < self._handling.slow_chance:
                duration_ms = self._handling.slow_ms
            self._process.after(duration_ms, partial(self._end, delivery))

    def _end(self, delivery: Delivery) -> None:
        if delivery in self._abandoned:
            self._abandoned.discard(delivery)
        else:
            self._running -= 1
        failed = self._random.random() < self._handling.failure_chance
        self._ended(delivery, HandlerOutcome.LATER if failed else HandlerOutcome.SUCCESS)
        self._start()
