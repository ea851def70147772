"""Held heartbeats: how long the answer to a Kafka member's heartbeat waits for news, and what ends the wait.

So a member hears of a rebalance in a round trip, not at its next heartbeat, 3 to 5 s later. Clients have one
heartbeat under way, and send none meanwhile. Answers leave in the order of requests: another request of the
same connection ends the wait, unless the client does not need the order. After an automatic commit it would
send the next heartbeat up to 3 s later, and hear of a rebalance only then. Clients that send nothing else
meanwhile are answered at once, and so is every client that is not known to do otherwise (`answers.PATIENT`).
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.groups.classic.values import Beat
from libramq.kernel.connection import Connection
from libramq.kernel.deadlines import Deadline, Deadlines
from libramq.protocols.kafka.answers import Slot

#: Ours: a classic group's; less than any client's default interval, 3 s, so that none is late for its next
#: heartbeat.
CLASSIC_HOLD_MS_MAX: Final = 2_800
#: Ours: a member has several heartbeats in a session.
HOLDS_PER_SESSION: Final = 3
#: Ours: a modern group's (KIP-848); for librdkafka a heartbeat fails that takes longer than the interval. A
#: client that has one under way can neither leave nor change its topics.
MODERN_HOLD_MS: Final = 900


class HeldHeartbeat(NamedTuple):
    """A heartbeat that is not answered yet."""

    slot: Slot
    group: str
    beat: Beat
    deadline: Deadline


class HeldHeartbeats:
    """The heartbeats, one of a connection. answer: answers one that is not held any more."""

    def __init__(self, deadlines: Deadlines, answer: Callable[[HeldHeartbeat], None]) -> None:
        self._deadlines = deadlines
        self._answer = answer
        self._held: dict[Connection, HeldHeartbeat] = {}
        self._of_group: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, slot: Slot, group: str, beat: Beat, until_ms: MonotonicMs) -> None:
        """Hold a heartbeat; the one before of its connection is answered."""
        connection = slot.connection
        self.answer(connection)
        slot.step_aside()
        deadline = self._deadlines.set(until_ms, partial(self._expire, connection))
        self._held[connection] = HeldHeartbeat(slot, group, beat, deadline)
        self._of_group.setdefault(group, {})[connection] = None

    def answer_before_others(self, connection: Connection) -> None:
        """Answer a connection's heartbeat if the answers behind would have to wait for it."""
        held = self._held.get(connection)
        if held is not None and not held.slot.is_apart:
            self.answer(connection)

    def answer(self, connection: Connection) -> None:
        """Answer a connection's heartbeat, if there is one."""
        held = self._held.pop(connection, None)
        if held is None:
            return
        held.deadline.cancel()
        connections = self._of_group[held.group]
        del connections[connection]
        if not connections:
            del self._of_group[held.group]
        self._answer(held)

    def answer_group(self, group: str, has_news: Callable[[Beat], bool] = lambda _: True) -> None:
        """Answer the heartbeats of a group's members, or only those that have news."""
        for connection in list(self._of_group.get(group, ())):
            held = self._held.get(connection)
            if held is not None and has_news(held.beat):
                self.answer(connection)

    def _expire(self, connection: Connection, now_ms: MonotonicMs) -> None:
        self.answer(connection)
