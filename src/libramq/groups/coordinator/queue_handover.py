"""The handover: each queue's holder, epoch and target; revokes queues, takes them from holders that do not
release them, and passes on counted delivery attempts.

    held by its target    nothing happens, and the epoch stays
    held by another       revoked: the holder must release it, and loses it after its revoke timeout
    not held              granted to its target, under an epoch above all its earlier ones

So two members never hold the same queue. Changes for fences and members collect in `granted` and `to_notify`,
from which the caller takes them.
"""

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Self

from libramq.clock import MonotonicMs
from libramq.fencing import MODE_EPOCHS, Attempts, Claims
from libramq.groups.queue_holdings import Holding, QueueHoldings
from libramq.message.queue import MessageQueue


class QueueHandover(QueueHoldings):
    """The queues of one group. epoch: the group's, initially first_epoch; it rises with each target.

    revoked: queues that their holder must release, with the deadline. unheld: queues with a target but no
    holder. granted: queues with a new holder. to_notify: members whose queues changed.
    """

    def __init__(self, epoch: int = 0, claims: Claims | None = None) -> None:
        super().__init__()
        self.epoch = self.first_epoch = epoch
        self.revoked: dict[MessageQueue, MonotonicMs] = {}
        self.granted: dict[MessageQueue, None] = {}
        self.to_notify: dict[str, None] = {}
        #: The earliest time at which a revoked queue must be taken from its holder.
        self.overdue_at_ms: MonotonicMs | None = None
        self.unheld: dict[MessageQueue, None] = {}
        #: Delivery attempts of the messages at which orderly queues were last released.
        self.attempts: dict[MessageQueue, Attempts] = {}
        self._gone: set[str] = set()
        self._committed: dict[MessageQueue, bool] = {}
        #: The last epoch of each free queue.
        self._last: dict[MessageQueue, int] = {}
        self._floor = epoch
        for queue, claim in (claims or {}).items():
            self.hold(queue, Holding(claim.member, claim.epoch))
            self.target[queue] = claim.member

    @classmethod
    def resumed(cls, epoch: int, holdings: Mapping[MessageQueue, Holding]) -> Self:
        """Begin a new epoch with the holders that an inquiry found, and publish all of them again."""
        handover = cls(epoch)
        handover._floor = epoch - 1
        for queue, holding in holdings.items():
            handover.hold(queue, holding)
            handover.target[queue] = holding.member
            handover.granted[queue] = None
            handover.to_notify[holding.member] = None
        return handover

    @property
    def is_complete(self) -> bool:
        """Return whether every queue is held by its target."""
        return not self.revoked and not self.unheld

    def retarget(
        self,
        target: Mapping[MessageQueue, str],
        revoke_timeout_ms: Callable[[str], int],
        *,
        now_ms: MonotonicMs,
    ) -> bool:
        """Set the target member of each queue, and return whether targets changed.

        revoke_timeout_ms: returns a member's time limit for releasing a queue.
        """
        is_new = target != self.target
        if is_new:
            self.epoch += 1
            self.target = dict(target)
        self._gone.clear()
        for queue, holding in self.holdings.items():
            is_revoked = self.target.get(queue) != holding.member
            if is_revoked != (queue in self.revoked):
                self.to_notify[holding.member] = None
                if is_revoked:
                    self.revoked[queue] = now_ms + revoke_timeout_ms(holding.member)
                else:
                    del self.revoked[queue]
        self.overdue_at_ms = min(self.revoked.values(), default=None)
        self.unheld = dict.fromkeys(queue for queue in self.target if queue not in self.holdings)
        self.grant_free(now_ms=now_ms)
        return is_new

    def grant_free(self, *, now_ms: MonotonicMs) -> None:
        """Grant free queues to their targets."""
        ready = [queue for queue in self.unheld if self.target[queue] not in self._gone]
        if any(self._last.get(queue, self._floor) >= self.epoch for queue in ready):
            self.epoch += 1  # Even if its own target released a queue, it needs a new grant.
        for queue in ready:
            del self.unheld[queue]
            self.hold(queue, Holding(self.target[queue], self.epoch, now_ms))
            self.granted[queue] = None
            self.to_notify[self.target[queue]] = None

    def release(
        self,
        member: str,
        queues: Mapping[MessageQueue, int],
        committed: Container[MessageQueue] = (),
        attempts: Mapping[MessageQueue, Attempts] | None = None,
    ) -> None:
        """Release a member's queues, each under its epoch; queues that the member does not hold are ignored.

        committed: queues whose handled messages are all committed.
        """
        for queue, epoch in queues.items():
            holding = self.holdings.get(queue)
            if holding is not None and holding.member == member and holding.epoch == epoch:
                self._free_queue(queue, is_committed=queue in committed)
                if attempts and queue in attempts:  # Else keep others' counts: it may not have opened it.
                    self.attempts[queue] = attempts[queue]

    def release_unlisted(self, member: str, held: Container[MessageQueue]) -> None:
        """Release the revoked queues that a member does not list as held."""
        for queue in list(self.of(member)) if self.revoked else ():
            if queue in self.revoked and queue not in held:
                self._free_queue(queue)

    def take_overdue(
        self, spared: Container[str] = (), *, now_ms: MonotonicMs
    ) -> list[tuple[MessageQueue, Holding]]:
        """Take queues that were not released in time, and return them with their former holders.

        spared: members that are stopping; they have their own deadline.
        """
        due_ms = self.overdue_at_ms
        if due_ms is None or now_ms < due_ms:
            return []
        overdue = [
            queue
            for queue, until_ms in self.revoked.items()
            if now_ms >= until_ms and self.holdings[queue].member not in spared
        ]
        # If a spared member stays after all, the group is rebalanced and `retarget` sets a new time.
        self.overdue_at_ms = min((at_ms for at_ms in self.revoked.values() if at_ms > now_ms), default=None)
        taken = [(queue, self.holdings[queue]) for queue in overdue]
        for queue, holding in taken:
            self.to_notify[holding.member] = None
            self._free_queue(queue)
        return taken

    def postpone(self, by_ms: int) -> None:
        """Extend the deadlines of all revocations."""
        for queue, until_ms in self.revoked.items():
            self.revoked[queue] = until_ms + by_ms

    def depart(self, member: str) -> None:
        """Note that a member is leaving, so that queues it releases are not granted to it again."""
        self._gone.add(member)

    def expel(self, member: str) -> None:
        """Remove a member: free its queues, and grant it no more."""
        self._gone.add(member)
        for queue in list(self.of(member)):
            self._free_queue(queue)

    def rename(self, old: str, new: str) -> None:
        """Give a member's queues to its successor, under a new epoch that fences the predecessor.

        Revoked queues become free, because the successor is a new process that never had them open.
        """
        self.epoch += 1
        for queue in list(self.of(old)):
            if queue in self.revoked:
                self._free_queue(queue)
                continue
            since_ms = self.holdings[queue].granted_at_ms
            self.drop(queue)
            self.hold(queue, Holding(new, self.epoch, since_ms))
            self.granted[queue] = None
        self.to_notify[new] = None
        for queue, member in self.target.items():
            if member == old:
                self.target[queue] = new

    def vanish(self, queues: Collection[MessageQueue]) -> None:
        """Remove queues that no longer exist; their holders are notified and need not release them."""
        for queue in queues:
            if queue in self.holdings:
                self.to_notify[self.holdings[queue].member] = None
                self.drop(queue)
            self._floor = max(self._floor, self._last.pop(queue, 0))
            self._committed.pop(queue, None)
            self.attempts.pop(queue, None)

    def vanish_at(self, topic: str, broker_name: str) -> None:
        """Remove the queues of a topic at one broker."""
        self.vanish([q for q in self.holdings if (q.topic, q.broker_name) == (topic, broker_name)])

    def drop(self, queue: MessageQueue) -> None:
        """Take a queue from its holder."""
        self._last[queue] = self.holdings[queue].epoch
        super().drop(queue)
        self.revoked.pop(queue, None)
        if not self.revoked:
            self.overdue_at_ms = None

    def take_committed(self) -> set[MessageQueue]:
        """Return the queues of which every release since the last call had everything committed.

        For queues without a holder, the fact is kept until they are granted again.
        """
        committed = {queue for queue, is_committed in self._committed.items() if is_committed}
        self._committed = {queue: it for queue, it in self._committed.items() if queue not in self.holdings}
        return committed

    def _free_queue(self, queue: MessageQueue, *, is_committed: bool = False) -> None:
        self.drop(queue)
        self._committed[queue] = is_committed and self._committed.get(queue, True)
        if queue in self.target:
            self.unheld[queue] = None


#: Queues and the epochs of their grants.
Epochs = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One member's assignment, under an epoch of its group. In mode `client` the member allocates for itself.

    warning: a problem of the group, for the member's user; "" if none.
    """

    epoch: int
    mode: str = MODE_EPOCHS
    queues: Epochs = field(default_factory=dict)
    revoke: Epochs = field(default_factory=dict)
    warning: str = ""
