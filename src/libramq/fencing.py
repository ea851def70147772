"""Fencing: the values exchanged by a coordinator and the fences of its queues (grants, reports, claims), and
how far ahead an epoch may be to be believed.

    coordinator ── FenceGrant ──►  fence      who may open which queue, under which epoch
    coordinator ◄── FenceReport ── fence      who has opened which queue, and the highest epoch it has seen

Plain values; `remoting.body.coordination` has their form between brokers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from libramq.message.queue import MessageQueue

#: The group mode in which the coordinator assigns its queues.
MODE_EPOCHS: Final = "epochs"
#: The group mode in which every member allocates for itself, because one of them is a stock client.
MODE_CLIENT: Final = "client"
#: Ours: how far above all known epochs a broker accepts another one's. A broker that knows nothing of a group
#: may have to accept all epochs the group ever had: a rebalance every 20 ms for over two years makes fewer.
#: Much higher epochs would leave none above themselves, and shut the group out for good.
EPOCHS_AHEAD_MAX: Final = 1 << 32


class Claim(NamedTuple):
    """A member, and the epoch of its grant of a queue."""

    member: str
    epoch: int


class Attempts(NamedTuple):
    """The attempts that the message at an offset has had, if its queue is read in order."""

    offset: int = 0
    times: int = 0


NO_ATTEMPTS: Final = Attempts()


class OpenedQueue(NamedTuple):
    """A fence's answer to an opening.

    offset: where the group continues; None: it has committed nothing, and the member may choose.
    former_epoch: the one under which the same member had the queue open until now; 0: it had not; None: the
    broker does not say.
    recovered_end: the end of the queue when its broker was restarted after a kill, if messages that the
    member has read may have been lost; later messages reuse their offsets.
    topic_start: where in the log the topic begins, if another one of its name was deleted; 0: none was.
    attempts: those of the message at `offset`, if the queue is read in order.
    is_initial: the group has committed nothing; `offset` is 0 because the queue is young.
    """

    offset: int | None
    former_epoch: int | None = None
    recovered_end: int | None = None
    topic_start: int = 0
    attempts: int = 0
    is_initial: bool = False


#: Members and epochs by queue.
Claims = Mapping[MessageQueue, Claim]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceGrant:
    """A coordinator's grant to a fence: the owners of its queues.

    epoch: the group's. complete: these are all of the group's queues at this broker; others have no owner.
    client_ids: by member, when members begin to allocate for themselves; these take precedence for locks.
    attempts: of the messages at which ordered queues were released.
    """

    group: str
    epoch: int
    mode: str = MODE_EPOCHS
    claims: Claims = field(default_factory=dict)
    complete: bool = False
    client_ids: Mapping[str, str] = field(default_factory=dict)
    attempts: Mapping[MessageQueue, Attempts] = field(default_factory=dict)

    @property
    def highest_epoch(self) -> int:
        """Return the highest epoch in it."""
        return max([self.epoch, *(claim.epoch for claim in self.claims.values())])


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReport:
    """The state of a fence: the highest epoch it has seen, and the members that have its queues open.

    A queue open to a member with an empty name was closed by an operator. members: the group's members as the
    coordinator at the same broker knew them under members_epoch; None if the broker does not remember
    coordinating the group.
    """

    epoch: int = 0
    openings: Claims = field(default_factory=dict)
    members: Sequence[str] | None = None
    members_epoch: int = 0

    @property
    def highest_epoch(self) -> int:
        """Return the highest epoch in it."""
        return max([self.epoch, self.members_epoch, *(claim.epoch for claim in self.openings.values())])
