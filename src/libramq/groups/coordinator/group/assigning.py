"""The assigning: a target assignment that is to be made, of a group as it was; any thread may make it.

small group    made within the turn that needs it
large group    made on a thread (effect `Assign`), while the group goes on; what has changed meanwhile is
               left out of it, and is the cause of the next one
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from libramq.balance import Strategy
from libramq.balance.group import counts
from libramq.groups.coordinator.group.saved_state import MemberProfile
from libramq.groups.coordinator.group.target_assignment import Target, fewest_moves, target_assignment
from libramq.groups.handover_ledger import Holding
from libramq.message.queue import MessageQueue

#: Ours: what is assigned within a turn of the loop, in some 10 ms, as in groups of KIP-848. A thousand
#: members that subscribe to different ones of a thousand topics take 0.3 to 1.7 s.
SUBSCRIPTIONS_AT_ONCE_MAX: Final = 200
QUEUES_AT_ONCE_MAX: Final = 1_000


class Made(NamedTuple):
    """An assignment that was made. minimum: the fewest moves since the rebalance began; None: not counted."""

    target: Target
    minimum: int | None = None


class Assigning(NamedTuple):
    """The input of an assignment. queues: those that can be opened; existing: all that carry load.

    before: the holders when the rebalance began.
    """

    group: str
    strategy: Strategy
    profiles: Sequence[MemberProfile]
    queues: Sequence[MessageQueue]
    holdings: Mapping[MessageQueue, Holding]
    existing: Sequence[MessageQueue]
    before: Mapping[MessageQueue, str]

    @property
    def is_large(self) -> bool:
        """Return whether it takes more than some milliseconds."""
        subscriptions = sum(len(profile.subscriptions) for profile in self.profiles)
        return subscriptions > SUBSCRIPTIONS_AT_ONCE_MAX or len(self.queues) > QUEUES_AT_ONCE_MAX

    def made(self) -> Made:
        """Make the assignment; of a large group, count the fewest moves as well, which takes as long."""
        openable = set(self.queues)
        held = [item for item in self.holdings.items() if item[0] in openable]
        # Longest held first: if some of a member's queues have to move, those stay.
        held.sort(key=lambda item: (item[1].granted_at_ms, item[1].epoch, item[0]))
        owned: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue, holding in held:
            owned[holding.member].append(queue)
        target = target_assignment(self.group, self.strategy, self.profiles, self.queues, owned.__getitem__)
        if not self.is_large:
            return Made(target)
        counted = [queue for queue in self.existing if counts(queue.topic)]
        return Made(target, fewest_moves(self.group, self.profiles, counted, self.before))
