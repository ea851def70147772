"""The waiter: whom a service owes an answer. A protocol makes it, and knows how the answer is put into bytes.

    protocol ── Waiter ──► service ──► answer(result) | refuse(error)       in the same call or much later

A service that answers later parks its waiter in the purgatory, so that it goes with its connection.
"""

from typing import Generic, Protocol, TypeVar

from libramq.kernel.connection import Connection
from libramq.kernel.purgatory import Parked

R = TypeVar("R", contravariant=True)
T = TypeVar("T")


class Waiter(Protocol[R]):
    """One answer that is owed. One of its methods is called, once; none where its connection ends first."""

    @property
    def connection(self) -> Connection:
        """Where the answer goes."""
        ...

    def answer(self, result: R) -> None:
        """Give the answer."""
        ...

    def refuse(self, error: Exception) -> None:
        """Give a refusal: a BrokerError has a code and says what is wrong; others are bugs of ours."""
        ...


class ParkedWaiter(Parked, Generic[T]):
    """A waiter that is parked without a deadline of its own: the service that took it keeps one."""

    __slots__ = ("waiter",)

    def __init__(self, waiter: Waiter[T], *, cost_bytes: int = 0) -> None:
        super().__init__(waiter.connection, cost_bytes=cost_bytes)
        self.waiter: Waiter[T] = waiter
