"""The handover: whose a group's queues are, whose they are meant to be, and under which epochs.

    held by its target      nothing happens to it, its epoch included
    held by another         revoked: the holder is asked to give it up, and loses it after its revoke timeout
    held by nobody          granted to its target, under an epoch above all its earlier ones

So no queue is ever held by two. What has to be said to fences and members is collected in `granted` and
`to_notify` until somebody takes it from there.
"""

from collections.abc import Callable, Collection, Container, Mapping
from typing import Self

from libramq.clock import MonotonicMs
from libramq.fencing import Claim, Claims
from libramq.groups.handover_ledger import HandoverLedger, Holding
from libramq.message.queue import MessageQueue


class QueueHandover(HandoverLedger):
    """The queues of one group. epoch: the group's, first_epoch at the beginning; it rises with the target.

    revoked: queues whose holder is to give them up, and until when. granted, to_notify: queues with a new
    holder, members whose queues changed.
    """

    def __init__(self, epoch: int = 0, claims: Claims | None = None) -> None:
        super().__init__()
        self.epoch = self.first_epoch = epoch
        self.revoked: dict[MessageQueue, MonotonicMs] = {}
        self.granted: dict[MessageQueue, None] = {}
        self.to_notify: dict[str, None] = {}
        self._overdue_at_ms: MonotonicMs | None = None
        self._free: dict[MessageQueue, None] = {}
        self._gone: set[str] = set()
        self._committed: dict[MessageQueue, bool] = {}
        self._last: dict[MessageQueue, int] = {}
        self._floor = epoch
        for queue, claim in (claims or {}).items():
            self.hold(queue, Holding(claim.member, claim.epoch))
            self.target[queue] = claim.member

    @classmethod
    def resumed(cls, epoch: int, holdings: Mapping[MessageQueue, Holding]) -> Self:
        """Begin under a new epoch with what was found out; all of it is to be said again."""
        handover = cls(epoch)
        handover._floor = epoch - 1
        for queue, holding in holdings.items():
            handover.hold(queue, holding)
            handover.target[queue] = holding.member
            handover.granted[queue] = None
            handover.to_notify[holding.member] = None
        return handover

    def claims(self) -> dict[MessageQueue, Claim]:
        """Return who holds what."""
        return {queue: Claim(holding.member, holding.epoch) for queue, holding in self.holdings.items()}

    @property
    def is_complete(self) -> bool:
        """Return whether every queue is where it is meant to be."""
        return not self.revoked and not self._free

    @property
    def has_free(self) -> bool:
        """Return whether a queue is meant for somebody and held by nobody."""
        return bool(self._free)

    def owned(self, member: str) -> list[MessageQueue]:
        """Return what a member holds, longest held first: where some have to go, those stay."""
        held = self.of(member)
        return sorted(held, key=lambda queue: (held[queue].granted_at_ms, held[queue].epoch, queue))

    def retarget(
        self,
        target: Mapping[MessageQueue, str],
        revoke_timeout_ms: Callable[[str], int],
        *,
        now_ms: MonotonicMs,
    ) -> bool:
        """The queues are meant for these members from now on; whether that is new.

        revoke_timeout_ms: how long each member may take to give up a queue.
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
        self._overdue_at_ms = min(self.revoked.values(), default=None)
        self._free = dict.fromkeys(queue for queue in self.target if queue not in self.holdings)
        self.grant_free(now_ms=now_ms)
        return is_new

    def grant_free(self, *, now_ms: MonotonicMs) -> None:
        """Grant what nobody holds to whom it is meant for."""
        ready = [queue for queue in self._free if self.target[queue] not in self._gone]
        if any(self._last.get(queue, self._floor) >= self.epoch for queue in ready):
            self.epoch += 1  # Given up by whom it was meant for: a new grant all the same.
        for queue in ready:
            del self._free[queue]
            self.hold(queue, Holding(self.target[queue], self.epoch, now_ms))
            self.granted[queue] = None
            self.to_notify[self.target[queue]] = None

    def release(
        self,
        member: str,
        queues: Mapping[MessageQueue, int],
        committed: Container[MessageQueue] = (),
        *,
        now_ms: MonotonicMs,
    ) -> list[MessageQueue]:
        """A member has given up queues, each under that epoch; those that are free now.

        committed: those of which nothing comes again.
        """
        freed = []
        for queue, epoch in queues.items():
            holding = self.holdings.get(queue)
            if holding is not None and holding.member == member and holding.epoch == epoch:
                self._free_queue(queue, now_ms, is_committed=queue in committed)
                freed.append(queue)
        return freed

    def release_unlisted(
        self, member: str, held: Container[MessageQueue], *, now_ms: MonotonicMs
    ) -> list[MessageQueue]:
        """Release the revoked queues that a member does not list as held."""
        unlisted = {
            queue: holding.epoch
            for queue, holding in self.of(member).items()
            if queue in self.revoked and queue not in held
        }
        return self.release(member, unlisted, now_ms=now_ms)

    def take_overdue(
        self, spared: Container[str] = (), *, now_ms: MonotonicMs
    ) -> list[tuple[MessageQueue, Holding]]:
        """Take the queues whose holders did not give them up in time; what was taken from whom.

        spared: members that stop, with a deadline of their own.
        """
        due_ms = self.overdue_at_ms
        if due_ms is None or now_ms < due_ms:
            return []
        overdue = [
            queue
            for queue, until_ms in self.revoked.items()
            if now_ms >= until_ms and self.holdings[queue].member not in spared
        ]
        # Who is spared now and stays after all has the group look again, and `retarget` this time.
        self._overdue_at_ms = min((at_ms for at_ms in self.revoked.values() if at_ms > now_ms), default=None)
        taken = [(queue, self.holdings[queue]) for queue in overdue]
        for queue, holding in taken:
            self.to_notify[holding.member] = None
            self._free_queue(queue, now_ms)
        return taken

    def postpone(self, by_ms: int) -> None:
        """Members that are to give up queues have so much more time."""
        for queue, until_ms in self.revoked.items():
            self.revoked[queue] = until_ms + by_ms

    @property
    def overdue_at_ms(self) -> MonotonicMs | None:
        """When the next queue is to be taken from a holder that has not given it up; at the earliest."""
        return self._overdue_at_ms if self.revoked else None

    def depart(self, member: str) -> None:
        """A member is about to go: what it gives up is not granted to it again."""
        self._gone.add(member)

    def expel(self, member: str, *, now_ms: MonotonicMs) -> None:
        """A member is gone: what it held is free, and nothing is meant for it."""
        self._gone.add(member)
        for queue in list(self.of(member)):
            self._free_queue(queue, now_ms)

    def rename(self, old: str, new: str, *, now_ms: MonotonicMs) -> None:
        """A member takes another's place: the same queues under a new epoch, so that the other is fenced.

        What the other was to give up is free: its place is taken by a process that never had it.
        """
        self.epoch += 1
        for queue in list(self.of(old)):
            if queue in self.revoked:
                self._free_queue(queue, now_ms)
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
        """These do not exist any more; who held one is told, nobody is asked."""
        for queue in queues:
            if queue in self.holdings:
                self.to_notify[self.holdings[queue].member] = None
                self.drop(queue)
            self._floor = max(self._floor, self._last.pop(queue, 0))
            self.freed.pop(queue, None)
            self._committed.pop(queue, None)

    def vanish_at(self, topic: str, broker_name: str) -> None:
        """The queues of a topic at one broker do not exist any more."""
        self.vanish([q for q in self.holdings if (q.topic, q.broker_name) == (topic, broker_name)])

    def hold(self, queue: MessageQueue, holding: Holding) -> None:
        """Give a queue that nobody holds to a member, under an epoch."""
        super().hold(queue, holding)
        self._last[queue] = holding.epoch

    def drop(self, queue: MessageQueue) -> None:
        """Have nobody hold a queue."""
        super().drop(queue)
        self.revoked.pop(queue, None)

    def take_committed(self) -> set[MessageQueue]:
        """Return the queues that were given up since they were held last, each time with all committed.

        Of those that nobody holds now this is kept for whom they are granted to next.
        """
        committed = {queue for queue, is_committed in self._committed.items() if is_committed}
        self._committed = {queue: it for queue, it in self._committed.items() if queue not in self.holdings}
        return committed

    def _free_queue(self, queue: MessageQueue, now_ms: MonotonicMs, *, is_committed: bool = False) -> None:
        self.free(queue, now_ms)
        self._committed[queue] = is_committed and self._committed.get(queue, True)
        if queue in self.target:
            self._free[queue] = None
