"""Long work: a generator whose steps are interleaved with other requests; what it may wait for: threads,
memory, callbacks.

        yield                       others may be served
        yield InThread(t, work)     a thread does the work; its result or exception is sent into the generator
        yield Room(size)            a large request waits for memory, held until its end; at most once
        yield Callback(begin)       something else calls back: another process's answer, a deadline

If the awaited operation fails, or cannot even begin, the error is raised at its `yield`.

    Kernel.work(steps)                     for no request: what one event causes for many
    Effects.proceed(connection, steps)     for a request, whose connection is not served meanwhile

The first steps of `Kernel.work` are taken after the event that began it, before its bytes are sent. Several
works take turns, step by step.
"""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from libramq.clock import Clock
from libramq.kernel.connection import Connection
from libramq.kernel.deadlines import Deadlines
from libramq.kernel.effect import Effects, Thread

T = TypeVar("T", bound=Hashable)
R = TypeVar("R")

#: Ours: items processed between two looks at the clock. A look takes 1 µs, and an item 0.2 to 5; longer items
#: have a step each.
PORTION: Final = 100


def portions(items: Sequence[R]) -> Iterator[Sequence[R]]:
    """Split items that take some microseconds each into portions of one step each."""
    return (items[at : at + PORTION] for at in range(0, len(items), PORTION))


class InThread(NamedTuple):
    """Work for a thread; it must not touch the engine's state."""

    thread: Thread
    work: Callable[[], Any]


class Room(NamedTuple):
    """The expected memory of a large request."""

    size_bytes: int


class Callback(NamedTuple):
    """A result delivered by one call of a function, perhaps later; not for a request's work.

    begin: takes that function. Like a thread's, the result or exception is sent into the generator.
    """

    begin: Callable[[Callable[[Any], None]], Any]


#: Long work that returns an R.
Work = Generator[InThread | Room | Callback | None, Any, R]


class UnderWay:
    """Work that has begun. connection: that of its request, if any. size_bytes: of its room."""

    __slots__ = ("_result", "connection", "size_bytes", "steps")

    def __init__(self, steps: Any, connection: Connection | None = None) -> None:
        self.steps = steps
        self.connection = connection
        self.size_bytes = 0
        self._result: object = None

    def step(self, must_wait: Callable[["UnderWay", Any], bool]) -> bool:
        """Take the next step; return whether it now has to wait. Raises StopIteration at the end.

        must_wait: requests what the work yields, and returns whether it has to wait for that; its error is
        raised in the next step.
        """
        result, self._result = self._result, None
        if not isinstance(result, BaseException):
            wanted = self.steps.send(result)
        elif self.steps.gi_frame is None:  # It was closed while waiting.
            raise StopIteration
        else:
            wanted = self.steps.throw(result)
        while wanted is not None:
            try:
                waits = must_wait(self, wanted)
            except Exception as error:
                self.take(error)
                break
            if waits:
                return True
            wanted = self.steps.send(None)
        return False

    def take(self, result: object) -> None:
        """Keep a thread's result or exception for the next step."""
        self._result = result


class Workload:
    """An engine's work that serves no request. soon: schedules a function after this event."""

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
        self._works: deque[UnderWay] = deque()
        self._rest = deadlines.new(lambda _: soon(self._take_steps), "long work")
        #: Begins a turn, also for requests' work, and returns a function that tells whether its time is over.
        #: Set by the performer; takes the start of the turn if that is in the past.
        self.begin_turn: Callable[..., Callable[[], bool]] = lambda _=None: lambda: False

    def begin(self, steps: Iterator[None] | Work[None]) -> None:
        """Take the first steps after this event, unless earlier work is pending."""
        self._add(UnderWay(steps))

    def _add(self, work: UnderWay) -> None:
        self._works.append(work)
        if self._rest.due_ms is None:
            self._soon(self._take_steps)

    def _take_steps(self) -> None:
        """Take steps until the turn is over; drop work that fails."""
        is_over = self.begin_turn()
        works = self._works
        try:
            while works:
                work = works.popleft()
                try:
                    if not work.step(self._must_wait):
                        works.append(work)
                except StopIteration:
                    pass
                if works and is_over():
                    break
        finally:
            if works:
                self._rest.at(self._clock.monotonic_ms())

    def _must_wait(self, work: UnderWay, wanted: InThread | Callback) -> bool:
        done = partial(self._done, work)
        if isinstance(wanted, Callback):
            wanted.begin(done)
        else:
            self._effects.run(wanted.thread, wanted.work, done)
        return True

    def _done(self, work: UnderWay, result: object) -> None:
        work.take(result)
        self._add(work)


class Each(Generic[T]):
    """Acts on items in order of arrival, one per step; a waiting item is not added again.

    work: the kernel's. act: may add further items, which come after the waiting ones.
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
            self._begin()  # Continue with the others after a failure.
