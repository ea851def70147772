"""Invariants of slaves: they copy, and let members read on."""

from typing import TYPE_CHECKING

from libramq.message.queue import MessageQueue
from libramq.testing.invariants.invariant import Invariant

if TYPE_CHECKING:
    from libramq.testing.slave_node import SimulatedSlave


class SlavesOnlyRead(Invariant):
    """Check that nothing is opened or committed at a slave: the fence of a queue is its master's."""

    name = "a slave lets nobody open a queue or commit"

    def changed_at_slave(self, group: str, queue: MessageQueue, what: str) -> None:
        self.broken(f"{group}: {what} of {queue} at its slave")


class SlavesHaveTheLog(Invariant):
    """Check that once faults have ended, every slave has its master's log, byte for byte."""

    name = "a slave's log is its master's soon after faults end"
    within_ms = 30_000  # An HA connection that lost bytes unnoticed ends after 20 s of silence.

    def is_met(self) -> bool:
        return all(slave.is_caught_up for slave in self.cluster.slaves.values())

    def finish(self) -> None:
        for slave in self.cluster.slaves.values():
            if not slave.is_caught_up:
                self.broken(f"{slave.name} has not caught up with its master")
            difference = _difference(slave)
            if difference is not None:
                self.broken(f"{slave.name} differs from its master at {difference}")


def _difference(slave: "SimulatedSlave") -> int | None:
    """Return the first file of the log that is another at the master; None if all are equal."""
    ours, theirs = slave.broker, slave.master.broker
    assert ours is not None
    assert theirs is not None
    position = max(ours.store.log_start, theirs.store.log_start)
    while position < ours.store.end:
        end = min(ours.store.log_file_end(position), ours.store.end)
        if ours.store.read_log(position, end - position, may_wait=True) != theirs.store.read_log(
            position, end - position, may_wait=True
        ):
            return position
        position = end
    return None
