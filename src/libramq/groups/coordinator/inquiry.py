"""The inquiry: finds out who holds the queues before a new coordinator assigns them; limits the wait for
fences and members, and decides which epochs are credible.

A group has one in the states GATHERING, AWAITING, PARTING and RETURNING. Members continue reading meanwhile:
their assignment is the queues they report to hold.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from libramq.clock import MonotonicMs
from libramq.fencing import FenceReport
from libramq.groups.coordinator.state import State
from libramq.groups.queue_holdings import Holding
from libramq.message.queue import MessageQueue

#: Ours: a broker that has not answered within this time counts as gone; if it is not, its fence will refuse
#: grants.
GATHER_MS_MAX: Final = 5_000
#: From the design: one default session of LibraMQ's clients; less if all returned members have shorter ones.
AWAIT_MS_MAX: Final = 10_000
#: Ours: Java's client commits one-way, up to some milliseconds after it unregisters (bench/java_rebalance).
PARTING_MS: Final = 500
#: Ours: a client sends its next poll as soon as one is answered.
RETURN_MS_MAX: Final = 500

#: Ours: a reported epoch may exceed all known ones by this much, because a power cut may have lost the last
#: epochs; a rebalance uses only a few.
EPOCHS_LOST_MAX: Final = 1_000

#: The queues that members report to hold, by member in joining order.
Claims = Mapping[str, Mapping[MessageQueue, int]]


@dataclass(slots=True)
class GroupInquiry:
    """An inquiry under way. awaited: members not seen yet; epoch: the highest one seen.

    gone: members that have left, although fences may still name them. remnants: queues that absent members
    had open when the last inquiry ended; their members were awaited then, and are not awaited again.
    """

    state: State
    until_ms: MonotonicMs
    epoch: int
    awaited: dict[str, None] = field(default_factory=dict)
    openings: dict[MessageQueue, Holding] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    remnants: Mapping[MessageQueue, Holding] = field(default_factory=dict)

    def gathered(
        self,
        answers: Sequence[FenceReport],
        members: Mapping[str, int],
        unseen: Iterable[str] = (),
        *,
        now_ms: MonotonicMs,
    ) -> None:
        """Take the reports of the fences. members: the sessions of members already present.

        unseen: recorded members not seen yet, which are awaited. Openings of departed members are remnants,
        and their members are not awaited. If several partitioned coordinators used the same epoch, the
        members of all of them count. At a fence that no other coordinator has written to since, members also
        count for the queues they have open there.
        """
        current: set[str] = set()
        for answer in answers:
            openings = answer.openings.items()
            self.epoch = max([self.epoch, answer.epoch, *(opening.epoch for _, opening in openings)])
            if answer.members_epoch >= answer.epoch:
                current.update({opening.member for _, opening in openings} & set(answer.members or ()))
            for queue, opening in openings:
                known = self.openings.get(queue)
                if known is None or opening.epoch > known.epoch:
                    self.openings[queue] = Holding(opening.member, opening.epoch)
        self.state = State.AWAITING
        self.until_ms = now_ms + min(AWAIT_MS_MAX, max(members.values(), default=AWAIT_MS_MAX))
        newest = max((answer.members_epoch for answer in answers), default=0)
        in_the_end = {
            member for answer in answers if answer.members_epoch == newest for member in answer.members or ()
        }
        self.awaited = {
            holding.member: None
            for queue, holding in self.openings.items()
            if holding.member  # Otherwise an operator closed the queue.
            and self.remnants.get(queue) != holding
            and holding.member not in members
            and holding.member not in self.gone
            and (newest < self.epoch or holding.member in in_the_end or holding.member in current)
        } | dict.fromkeys(unseen)

    def left(self, member: str) -> None:
        """Stop waiting for a member that has left, even if fences still name it."""
        self.gone.add(member)
        self.awaited.pop(member, None)

    def holdings(self, claims: Claims) -> dict[MessageQueue, Holding]:
        """Return each queue's final holder: the member that claims it, unless another has opened it since.

        A member that claims a queue under the epoch of its opening at the fence keeps the queue: a
        partitioned coordinator may have granted it to another member since without being able to revoke it.
        Among other claims the highest epoch wins. A member that claims nothing has lost its state, and gets
        back the queues it had opened. If a member lists other queues but not an opened one, it has released
        that one since. A claim above the fence's epoch was not opened yet, or the fence has lost it.
        """
        held = {
            queue: holding
            for queue, holding in self.openings.items()
            if holding.member in claims
            and (not claims[holding.member] or claims[holding.member].get(queue) == holding.epoch)
        }
        for member, queues in claims.items():
            for queue, epoch in queues.items():
                if self.state is State.RETURNING:
                    held.setdefault(queue, Holding(member, self.epoch + 1))
                elif self._is_credible(queue, Holding(member, epoch)) and self._is_later(queue, held, epoch):
                    held[queue] = Holding(member, epoch)
        return held

    def _is_later(self, queue: MessageQueue, held: Mapping[MessageQueue, Holding], epoch: int) -> bool:
        """Return whether a claim supersedes the known holder: it is later, and the holder has no opening."""
        known = held.get(queue)
        return known is None or (known.epoch < epoch and known != self.openings.get(queue))

    def _is_credible(self, queue: MessageQueue, claim: Holding) -> bool:
        """Return whether a claim may be the last grant, judging by its fence's report."""
        opening = self.openings.get(queue)
        if opening is not None and claim.epoch <= opening.epoch:
            return claim == opening
        return 0 < claim.epoch <= self.epoch
