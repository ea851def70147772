"""A group of Kafka's members, and what these do and are answered, as invariants see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from libramq.clock import MonotonicMs

#: The epoch of a member that joins.
JOINS: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaGroupPlan:
    """The settings of a group, common to its members. static_chance: that one has an instance id.

    rebalance_ms: how long a member may take to revoke; revoke_ms_max: how long one takes.
    """

    name: str
    topics: tuple[str, ...]
    members: int = 3
    assignor: str | None = None
    static_chance: float = 0.0
    rebalance_ms: int = 5_000
    revoke_ms_max: int = 50
    commit_ms: int = 1_000


class KafkaPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int


KafkaPartitions = frozenset[KafkaPartition]


class KafkaBeat(NamedTuple):
    """A heartbeat. life: which of the member's joins it follows; owned: None where that is as it was."""

    group: str
    member: str
    life: int
    broker: str
    epoch: int
    owned: KafkaPartitions | None
    sent_ms: MonotonicMs


class KafkaCommit(NamedTuple):
    """A commit; number: of its member's.

    is_stale: under an epoch that the member has left behind, to see it refused.
    """

    group: str
    member: str
    life: int
    broker: str
    epoch: int
    number: int
    offsets: Mapping[KafkaPartition, int]
    is_stale: bool
    sent_ms: MonotonicMs
