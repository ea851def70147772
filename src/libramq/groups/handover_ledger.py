"""The ledger of handovers: who holds a group's queues, whom they are meant for, and when each was given up.

A queue has one holder at any moment. When the next member is admitted to a queue that was given up differs:

    by epochs       at once: the queue's fence refuses whoever had it before     coordinator/queue_handover
    by asking       when it has rested, as its last holder commits one way
                    after it has let go, and the next one asks for it            broker_assignment
"""

from collections.abc import Mapping
from typing import NamedTuple

from libramq.clock import MonotonicMs
from libramq.message.queue import MessageQueue


class Holding(NamedTuple):
    """The holder of a queue, under which epoch (0: without one), and since when."""

    member: str
    epoch: int = 0
    granted_at_ms: MonotonicMs = MonotonicMs(0)


class HandoverLedger:
    """One group's. target: whom queues are meant for. freed: when a queue was last given up.

    rest_ms: for so long nobody is admitted to a queue that was given up.
    """

    def __init__(self, *, rest_ms: int = 0) -> None:
        self.target: dict[MessageQueue, str] = {}
        self.holdings: dict[MessageQueue, Holding] = {}
        self.freed: dict[MessageQueue, MonotonicMs] = {}
        self._rest_ms = rest_ms
        self._of_member: dict[str, dict[MessageQueue, Holding]] = {}

    def of(self, member: str) -> Mapping[MessageQueue, Holding]:
        """Return what a member holds, in the order in which it was given."""
        return self._of_member.get(member, {})

    def holder(self, queue: MessageQueue) -> str | None:
        """Return who holds a queue; None: nobody does."""
        holding = self.holdings.get(queue)
        return holding.member if holding is not None else None

    def hold(self, queue: MessageQueue, holding: Holding) -> None:
        """Give a queue that nobody holds to a member."""
        assert queue not in self.holdings, "a queue has one holder"
        self.holdings[queue] = holding
        self._of_member.setdefault(holding.member, {})[queue] = holding

    def drop(self, queue: MessageQueue) -> None:
        """Have nobody hold a queue."""
        member = self.holdings.pop(queue).member
        held = self._of_member[member]
        del held[queue]
        if not held:
            del self._of_member[member]

    def free(self, queue: MessageQueue, now_ms: MonotonicMs) -> None:
        """Take note that a queue was given up now."""
        self.drop(queue)
        self.freed[queue] = now_ms

    def rest_ms(self, queue: MessageQueue, now_ms: MonotonicMs) -> int:
        """Return for how long nobody is admitted to a queue yet."""
        freed_ms = self.freed.get(queue)
        if freed_ms is None or queue in self.holdings:
            return 0
        return max(0, freed_ms + self._rest_ms - now_ms)

    def forget_rested(self, now_ms: MonotonicMs) -> None:
        """Forget when queues were given up that have rested since."""
        self.freed = {queue: at for queue, at in self.freed.items() if at + self._rest_ms > now_ms}
