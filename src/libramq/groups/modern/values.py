"""The values of a modern group (KIP-848): its members' requests, and the answers."""

from typing import Final, NamedTuple

from libramq.groups.rebalance_event import Reason

#: The epochs of members that join, leave, and leave for a while (ConsumerGroupHeartbeatRequest.java).
JOINS: Final = 0
LEAVES: Final = -1
LEAVES_FOR_A_WHILE: Final = -2


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int


Partitions = frozenset[Partition]
NO_PARTITIONS: Final[Partitions] = frozenset()


class Heartbeat(NamedTuple):
    """A member's heartbeat. None: unchanged.

    pattern: matches further topics besides the named ones; empty: no longer any. owned: the member's
    partitions. is_full: the client requests its whole assignment again.
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    is_full: bool = False


class HeartbeatAnswer(NamedTuple):
    """The answer to a heartbeat. assigned: None if the member already has it."""

    member_id: str
    epoch: int
    assigned: Partitions | None = None


class Change(NamedTuple):
    """The cause of a rebalance. name: the causing member's in the group's history, or a topic's."""

    reason: Reason
    name: str
