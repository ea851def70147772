"""The waiter: the receiver of a service's answer. A protocol creates it, and encodes the answer.

    protocol ── Waiter ──► service ──► answer(result) | refuse(error)       in the same call or much later

A service that answers later parks its waiter in the purgatory, so that it is dropped with its connection.
"""

from typing import Generic, Protocol, TypeVar

from libramq.kernel.connection import Connection
from libramq.kernel.purgatory import Parked

R = TypeVar("R", contravariant=True)
T = TypeVar("T")


class Waiter(Protocol[R]):
    """One pending answer. One of its methods is called, once; none if its connection ends first."""

    @property
    def connection(self) -> Connection:
        """Return the connection that the answer goes to."""
        ...

    def answer(self, result: R) -> None:
        """Send the answer."""
        ...

    def refuse(self, error: Exception) -> None:
        """Send a refusal: a BrokerError has a code and a reason; other errors are bugs of ours."""
        ...


class ParkedWaiter(Parked, Generic[T]):
    """A parked waiter without a deadline of its own: its service keeps one."""

    __slots__ = ("waiter",)

    def __init__(self, waiter: Waiter[T], *, cost_bytes: int = 0) -> None:
        super().__init__(waiter.connection, cost_bytes=cost_bytes)
        self.waiter: Waiter[T] = waiter
