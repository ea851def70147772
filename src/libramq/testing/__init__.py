"""Tools for tests of programs that use LibraMQ, and for LibraMQ's own tests.

`Broker` is a real broker in this process, for your tests. Everything else is the simulator:

    seed ─► scenario ─► cluster of real brokers, name server and clients ─► history ─► invariants ─► report

on a virtual clock, over a faulty network and faulty disks, in one thread. The real modules make the
decisions; only their shells are simulated. `Simulation(seed).run()` runs one seed; `libra simulate` runs
many.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libramq.testing.in_process import Broker

__all__ = ["Broker"]


if not TYPE_CHECKING:  # A type checker would accept every name.

    def __getattr__(name: str) -> Any:
        """Import the broker on first use: the simulator needs no sockets."""
        if name == "Broker":
            from libramq.testing.in_process import Broker

            return Broker
        raise AttributeError(f"module {__name__} has no attribute {name}")
