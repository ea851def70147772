"""The holdings of queues: the holder, the target member and the rest period of each queue of a group.

A queue has at most one holder at any moment. The next member is admitted to a released queue:

        by epochs       at once: the queue's fence refuses the former holder     coordinator/queue_handover
        by asking       after a rest, since the former holder commits one-way
                        after dropping the queue, and the next one asks for it   broker_assignment
"""

from collections.abc import Mapping
from typing import NamedTuple

from libramq.clock import MonotonicMs
from libramq.message.queue import MessageQueue


class Holding(NamedTuple):
    """The holder of a queue, the epoch of its grant (0: none), and its time."""

    member: str
    epoch: int = 0
    granted_at_ms: MonotonicMs = MonotonicMs(0)


class QueueHoldings:
    """One group's queues. target: each queue's target member. freed: when a queue was last released.

    rest_ms: the time during which no member is admitted to a released queue.
    """

    def __init__(self, *, rest_ms: int = 0) -> None:
        self.target: dict[MessageQueue, str] = {}
        self.holdings: dict[MessageQueue, Holding] = {}
        self.freed: dict[MessageQueue, MonotonicMs] = {}
        self._rest_ms = rest_ms
        self._of_member: dict[str, dict[MessageQueue, Holding]] = {}

    def of(self, member: str) -> Mapping[MessageQueue, Holding]:
        """Return a member's queues, in the order of their grants."""
        return self._of_member.get(member, {})

    def holder(self, queue: MessageQueue) -> str | None:
        """Return the holder of a queue, or None."""
        holding = self.holdings.get(queue)
        return holding.member if holding is not None else None

    def hold(self, queue: MessageQueue, holding: Holding) -> None:
        """Give a free queue to a member."""
        assert queue not in self.holdings, "a queue has one holder"
        self.holdings[queue] = holding
        self._of_member.setdefault(holding.member, {})[queue] = holding

    def drop(self, queue: MessageQueue) -> None:
        """Take a queue from its holder."""
        member = self.holdings.pop(queue).member
        held = self._of_member[member]
        del held[queue]
        if not held:
            del self._of_member[member]

    def free(self, queue: MessageQueue, now_ms: MonotonicMs) -> None:
        """Note that a queue was released now."""
        self.drop(queue)
        self.freed[queue] = now_ms

    def rest_ms(self, queue: MessageQueue, now_ms: MonotonicMs) -> int:
        """Return how long a queue still rests before a member is admitted."""
        freed_ms = self.freed.get(queue)
        if freed_ms is None or queue in self.holdings:
            return 0
        return max(0, freed_ms + self._rest_ms - now_ms)

    def forget_rested(self, now_ms: MonotonicMs) -> None:
        """Drop releases whose rest is over."""
        self.freed = {queue: at for queue, at in self.freed.items() if at + self._rest_ms > now_ms}
