"""The kernel of a consumer: the clock, effects and deadlines that all parts of its core share; how they make
requests, and when a failed deadline is retried.
"""

from collections.abc import Callable
from typing import Any, Final

from libramq.client.consuming import effects as fx
from libramq.clock import Clock, MonotonicMs
from libramq.errors import LibraError
from libramq.kernel.deadlines import Deadline
from libramq.kernel.parts import Kernel
from libramq.rpc.call import Call
from libramq.transport.access import REQUEST_TIMEOUT_MS

Done = Callable[[Any | LibraError, MonotonicMs], None]

#: Ours: the delay before a deadline whose action raised an exception is retried.
FAILED_AGAIN_MS: Final = 1_000


class ConsumerKernel(Kernel):
    """The kernel. failed: called with bugs of LibraMQ; decisions made before one are performed."""

    def __init__(self, clock: Clock, failed: Callable[[str, Exception], None]) -> None:
        super().__init__(clock)
        self.failed = failed
        self.deadlines.failed = self._deadline_failed

    def ask(
        self,
        address: str,
        call: Call[Any],
        done: Done,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        *,
        takes_late: bool = False,
    ) -> None:
        """Make a request to a broker; `done` gets its result, or the error instead."""
        self.effects.add(fx.Ask(address, call, self._observed(address, done), timeout_ms, takes_late))

    def _observed(self, address: str, done: Done) -> Done:
        """Return the callback for the result of a request; subclasses may measure how long it takes."""
        return done

    def _deadline_failed(self, deadline: Deadline, error: Exception) -> None:
        self.failed(f"{deadline.called} failed, and is retried", error)
        deadline.by(self.clock.monotonic_ms() + FAILED_AGAIN_MS)
