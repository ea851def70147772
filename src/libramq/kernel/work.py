"""Long work: steps that are taken until a turn's time is over; the others after everybody else was served.

        Kernel.work(steps)      a generator, which yields wherever others may be served, or work for a thread

One event may cause much: a message wakes thousands of held pulls, a client of a thousand groups leaves. The
first steps are taken after that event, before its bytes are sent. Several works take turns, step by step.
"""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from libramq.clock import Clock
from libramq.errors import LibraError
from libramq.kernel.deadlines import Deadlines
from libramq.kernel.effect import Effects, Thread

T = TypeVar("T", bound=Hashable)
#: Steps that wait for a thread here and there.
Waiting = Generator[Callable[[], Any] | None, Any, None]


class Workload:
    """All long work of one engine. soon: has a function called after this event."""

    def __init__(
        self,
        effects: Effects,
        deadlines: Deadlines,
        clock: Clock,
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._effects = effects
        self._clock = clock
        self._soon = soon
        #: The works, how each goes on, and the thread that it wants.
        self._works: deque[tuple[Any, Callable[[], Any], Thread]] = deque()
        self._rest = deadlines.new(lambda _: soon(self._take_steps), "long work")
        #: Begins a turn, and returns what says whether its time is over. The performer sets it.
        self.begin_turn: Callable[[], Callable[[], bool]] = lambda: lambda: False

    def begin(self, steps: Iterator[None] | Waiting, thread: Thread = Thread.READ) -> None:
        """Take the first steps after this event, unless other work is left from an earlier one.

        thread: does what is yielded, and its result or exception is sent into the generator.
        """
        self._add(steps, steps.__next__, thread)

    def _add(self, steps: Any, go_on: Callable[[], Any], thread: Thread) -> None:
        self._works.append((steps, go_on, thread))
        if self._rest.due_ms is None:
            self._soon(self._take_steps)

    def _take_steps(self) -> None:
        """Take steps until the turn is over; work that fails is dropped."""
        is_over = self.begin_turn()
        works = self._works
        try:
            while works:
                steps, go_on, thread = works.popleft()
                try:
                    wanted = go_on()
                except StopIteration:
                    pass
                else:
                    if wanted is None:
                        works.append((steps, steps.__next__, thread))
                    else:
                        self._effects.run(thread, wanted, partial(self._done, steps, thread))
                if works and is_over():
                    break
        finally:
            if works:
                self._rest.at(self._clock.monotonic_ms())

    def _done(self, steps: Waiting, thread: Thread, result: object) -> None:
        send = steps.throw if isinstance(result, BaseException) else steps.send
        self._add(steps, partial(send, result), thread)


class Each(Generic[T]):
    """Acts on items in the order in which they came, one a step; one that waits is not added again.

    work: the kernel's. act: may add further items, which come after those that wait.
    """

    def __init__(self, work: Callable[[Iterator[None]], None], act: Callable[[T], None]) -> None:
        self._work = work
        self._act = act
        self._waiting: deque[T] = deque()
        self._known: set[T] = set()
        self._is_acting = False

    def add(self, items: Iterable[T]) -> None:
        """Act on items."""
        for item in items:
            if item not in self._known:
                self._known.add(item)
                self._waiting.append(item)
        self._begin()

    def _begin(self) -> None:
        if self._waiting and not self._is_acting:
            self._is_acting = True
            self._work(self._steps())

    def _steps(self) -> Iterator[None]:
        try:
            while self._waiting:
                item = self._waiting.popleft()
                self._known.discard(item)
                self._act(item)
                yield
        finally:
            self._is_acting = False
            self._begin()  # An action has failed: the others follow.


class OneWork:
    """One piece of work at a time, which can be stopped."""

    def __init__(self, work: Callable[[Iterator[None]], None]) -> None:
        self._work = work
        self._steps: Iterator[None] | None = None

    def run(self, steps: Iterator[None], ended: Callable[[BaseException | None], None]) -> None:
        """Take the steps, and call `ended` after the last one, or with the error that stopped them."""
        self._steps = steps
        self._work(self._run(steps, ended))

    def stop(self) -> None:
        """Take no further step, and do not call `ended`."""
        self._steps = None

    def _run(self, steps: Iterator[None], ended: Callable[[BaseException | None], None]) -> Iterator[None]:
        error: Exception | None = None
        try:
            while self._steps is steps and next(steps, self) is not self:
                yield
        except Exception as failed:
            error = failed
        if self._steps is steps:
            self._steps = None
            ended(error)
        if error is not None and not isinstance(error, LibraError | OSError):
            raise error
