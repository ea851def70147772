"""Fencing: what the coordinator of a group and the fences of its queues tell each other.

    coordinator ── FenceGrant ──►  fence      who may open which queue, under which epoch
    coordinator ◄── FenceReport ── fence      who has opened which queue, and the highest epoch it has seen

Plain values; `remoting.body.coordination` has their form between brokers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from libramq.message.queue import MessageQueue

#: How a group's queues are shared: the coordinator assigns them, or every member allocates for itself because
#: one of them is a stock client.
MODE_EPOCHS: Final = "epochs"
MODE_CLIENT: Final = "client"
#: Ours: how far above all epochs that a broker knows it believes another one's. A broker that knows nothing
#: of a group takes it over with all epochs that it ever had: a rebalance every 20 ms for over two years
#: makes fewer. Much higher ones would leave none above themselves, and shut the group out for good.
EPOCHS_AHEAD_MAX: Final = 1 << 32


class Claim(NamedTuple):
    """A member and the epoch under which it was granted a queue."""

    member: str
    epoch: int


#: Members and epochs by queue.
Claims = Mapping[MessageQueue, Claim]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceGrant:
    """A grant from a coordinator to a fence: the owners of its queues.

    epoch: the group's. complete: these are all queues of the group at this broker; others are nobody's.
    client_ids: by member, where the members begin to allocate for themselves: they come first at locks.
    """

    group: str
    epoch: int
    mode: str = MODE_EPOCHS
    claims: Claims = field(default_factory=dict)
    complete: bool = False
    client_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def highest_epoch(self) -> int:
        """The highest epoch it names."""
        return max([self.epoch, *(claim.epoch for claim in self.claims.values())])


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReport:
    """The state of a fence: the highest epoch it has seen, and to whom its queues are open.

    A queue that is open to a member without a name was closed by an operator. members: those of the group, as
    its coordinator at the same broker knew them under members_epoch; None: the group did not live there as
    long as anybody there remembers.
    """

    epoch: int = 0
    openings: Claims = field(default_factory=dict)
    members: Sequence[str] | None = None
    members_epoch: int = 0

    @property
    def highest_epoch(self) -> int:
        """The highest epoch it names."""
        return max([self.epoch, self.members_epoch, *(claim.epoch for claim in self.openings.values())])
