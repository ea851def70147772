"""The seam by which requests are made for a client's core."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from libramq.client.consuming.effects import Effect
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.rpc.call import Call

T = TypeVar("T")
#: The functions that perform effects, by the type of the effect that each takes.
Performers = dict[type[Any], Callable[[Any], None]]


class Ask(Protocol):
    """Make a request; its answer or error goes to the core, with the time.

    takes_late: so does an answer that comes after the timeout, if it comes.
    """

    def __call__(
        self,
        address: str,
        call: Call[T],
        answered: Callable[[T | LibraError, MonotonicMs], Sequence[Effect]],
        timeout_ms: int,
        *,
        takes_late: bool = False,
    ) -> None: ...
