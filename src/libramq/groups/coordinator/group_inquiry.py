"""The inquiry: what a coordinator has to find out before it may say who holds what.

It is what a group has in the states GATHERING, AWAITING, PARTING and RETURNING. Members go on reading
meanwhile: what they say they hold is what they are told to hold.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from libramq.clock import MonotonicMs
from libramq.fencing import FenceReport
from libramq.groups.coordinator.state import State
from libramq.groups.handover_ledger import Holding
from libramq.message.queue import MessageQueue

#: Ours: a broker that has not answered by then is as good as gone, and its fence will refuse us if we err.
GATHER_MS_MAX: Final = 5_000
#: The design's: one session of our clients as they come; less if those who came have shorter ones.
AWAIT_MS_MAX: Final = 10_000
#: Ours: Java's client commits one way, up to some milliseconds after its goodbye (bench/java_rebalance).
PARTING_MS: Final = 500
#: Ours: a poll that is answered is followed by the next one at once.
RETURN_MS_MAX: Final = 500

#: Ours: how far above all epochs known here one is believed: the disk may have lost the last ones with the
#: power, and a rebalance raises them by a few.
EPOCHS_LOST_MAX: Final = 1_000

#: What members say they hold, by member in the order they joined.
Claims = Mapping[str, Mapping[MessageQueue, int]]


@dataclass(slots=True)
class GroupInquiry:
    """One that is under way. awaited: members not heard of yet; epoch: the highest that was seen.

    gone: members that have come and gone meanwhile.
    """

    state: State
    until_ms: MonotonicMs
    epoch: int
    awaited: dict[str, None] = field(default_factory=dict)
    openings: dict[MessageQueue, Holding] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def gathered(
        self,
        answers: Sequence[FenceReport],
        members: Mapping[str, int],
        unheard: Iterable[str] = (),
        *,
        now_ms: MonotonicMs,
    ) -> None:
        """The fences have answered; these members are here already, with their sessions.

        unheard: members that were recorded, of whom nothing was heard since; they are awaited. Openings of
        members that were none any more in the end are left from before; nobody waits for those. Of several
        coordinators at one epoch, each alone with a part of the cluster, all members count.
        """
        for answer in answers:
            openings = answer.openings.items()
            self.epoch = max([self.epoch, answer.epoch, *(opening.epoch for _, opening in openings)])
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
            for holding in self.openings.values()
            if holding.member  # Else an operator closed the queue.
            and holding.member not in members
            and holding.member not in self.gone
            and (newest < self.epoch or holding.member in in_the_end)
        } | dict.fromkeys(unheard)

    def left(self, member: str) -> None:
        """A member has gone: nobody waits for it, whatever fences still know of it."""
        self.gone.add(member)
        self.awaited.pop(member, None)

    def holdings(self, claims: Claims) -> dict[MessageQueue, Holding]:
        """Return each queue's final holder: what members claim, unless somebody else has opened it since.

        Of several claims the one under the highest epoch. Who claims nothing has lost what it had, and gets
        back what it had opened. An opening that its member does not name among others is from before it gave
        that queue up. A claim above what its fence has seen was not opened yet, or is lost there.
        """
        held = {
            queue: holding
            for queue, holding in self.openings.items()
            if holding.member in claims and not claims[holding.member]
        }
        for member, queues in claims.items():
            for queue, epoch in queues.items():
                if self.state is State.RETURNING:
                    held.setdefault(queue, Holding(member, self.epoch + 1))
                elif self._is_credible(queue, Holding(member, epoch)) and (
                    queue not in held or held[queue].epoch < epoch
                ):
                    held[queue] = Holding(member, epoch)
        return held

    def _is_credible(self, queue: MessageQueue, claim: Holding) -> bool:
        """Return whether a claim may be what was granted last, by what its fence knows."""
        opening = self.openings.get(queue)
        if opening is not None and claim.epoch <= opening.epoch:
            return claim == opening
        return 0 < claim.epoch <= self.epoch
