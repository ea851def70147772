"""Steps: work that takes several turns of the loop, so that others are served in between."""

from collections.abc import Callable, Iterator

from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.kernel.parts import Kernel


class Steps:
    """One piece of work at a time, one step a turn."""

    def __init__(self, kernel: Kernel) -> None:
        self._clock = kernel.clock
        self._due = kernel.deadlines.new(self._step)
        self._steps: Iterator[None] = iter(())
        self._ended: Callable[[BaseException | None], None] | None = None

    def run(self, steps: Iterator[None], ended: Callable[[BaseException | None], None]) -> None:
        """Take the steps, and call `ended` after the last one, or with the error that stopped them."""
        self._steps, self._ended = steps, ended
        self._due.at(self._clock.monotonic_ms())

    def stop(self) -> None:
        """Take no further step, and do not call `ended`."""
        self._steps, self._ended = iter(()), None

    def _step(self, now_ms: MonotonicMs) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self._end(None)
        except (LibraError, OSError) as error:
            self._end(error)
        except BaseException as error:
            self._end(error)
            raise
        else:
            self._due.at(now_ms)

    def _end(self, error: BaseException | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(error)
