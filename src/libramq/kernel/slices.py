"""Slices: what one event causes for many, some of it at once and the rest after everybody else was served.

A message may wake thousands of pulls that are held for its queue; they are not all run in its sender's turn.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from libramq.kernel.parts import Kernel

T = TypeVar("T", bound=Hashable)


class Slices(Generic[T]):
    """Acts on items in the order in which they came, so many at a time; one that waits is not added again.

    act: may add further items, which come after those that wait.
    """

    def __init__(self, kernel: Kernel, act: Callable[[T], None], *, per_step: int) -> None:
        self._clock = kernel.clock
        self._act = act
        self._per_step = per_step
        self._waiting: deque[T] = deque()
        self._known: set[T] = set()
        self._is_acting = False
        self._next_step = kernel.deadlines.new(lambda _: self._step(), "slices")

    @property
    def is_busy(self) -> bool:
        """Return whether items wait."""
        return bool(self._waiting)

    def add(self, items: Iterable[T]) -> None:
        """Act on items: on the first ones at once, unless others wait already."""
        for item in items:
            if item not in self._known:
                self._known.add(item)
                self._waiting.append(item)
        if not self._is_acting and self._next_step.due_ms is None:
            self._step()

    def _step(self) -> None:
        self._is_acting = True
        try:
            for _ in range(self._per_step):
                if not self._waiting:
                    break
                item = self._waiting.popleft()
                self._known.discard(item)
                self._act(item)
        finally:
            self._is_acting = False
            if self._waiting:
                self._next_step.at(self._clock.monotonic_ms())
