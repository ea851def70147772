"""The group fence: what one group's coordinator has granted here, and who has opened what."""

from dataclasses import dataclass, field
from typing import Final

from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.fencing import MODE_EPOCHS, Attempts, Claim

#: The opening of a queue that nobody has opened: every epoch is above it.
NOBODY: Final = Claim("", 0)


@dataclass(slots=True)
class GroupFence:
    """One group's queues here. is_grant_complete: the coordinator has sent the owners of all of them.

    unconfirmed: queues whose readers have to open them again. recovered_ends: where these ended then.
    void: queues whose grant was unused when a coordinator gathered; until they are granted again, their last
    reader need not be their owner. attempts: what the coordinator has passed on from former owners.
    """

    epoch: int = 0
    mode: str = MODE_EPOCHS
    is_grant_complete: bool = False
    grants: dict[tuple[str, int], Claim] = field(default_factory=dict)
    openings: dict[tuple[str, int], Claim] = field(default_factory=dict)
    unconfirmed: set[tuple[str, int]] = field(default_factory=set)
    recovered_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    void: set[tuple[str, int]] = field(default_factory=set)
    attempts: dict[tuple[str, int], Attempts] = field(default_factory=dict)
    #: The newest connection over which a queue was committed, and under which opening. It is in no file,
    #: since no connection outlives the process.
    committed_over: dict[tuple[str, int], tuple[Claim, int]] = field(default_factory=dict)


def not_yet_granted(group: str, topic: str, queue_id: int, claim: Claim, known: Claim) -> BrokerError:
    """Return the refusal of a claim that may be granted later."""
    return broker_error(
        ResponseCode.NOT_YET_GRANTED,
        f"{topic}-{queue_id} of group {group}: epoch {claim.epoch} is not known here yet;"
        f" the latest is {known.epoch}",
    )


def fenced(group: str, topic: str, queue_id: int, claim: Claim, known: Claim) -> BrokerError:
    """Return the refusal of a claim whose queue has another owner."""
    return broker_error(
        ResponseCode.FENCED,
        f"{topic}-{queue_id} of group {group}: not owned by {claim.member} under epoch {claim.epoch};"
        f" its epoch is {known.epoch}",
    )
