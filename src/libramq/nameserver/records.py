"""Records of the route table: a broker process, a broker name, and topics added or removed in slices."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from libramq.clock import MonotonicMs
from libramq.formats.route import QueueData
from libramq.formats.tables import PERM_WRITE, DataVersion, TopicConfig


@dataclass(slots=True)
class Liveness:
    """The broker at an address: its last heartbeat, connection and topic table."""

    cluster: str
    broker_name: str
    owner: object
    data_version: DataVersion
    ha_address: str
    timeout_ms: int
    last_seen_ms: MonotonicMs


@dataclass(slots=True)
class BrokerRecord:
    """A broker name: a master and its slaves, and their topics."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    queues: dict[str, QueueData] = field(default_factory=dict)
    mappings: dict[str, Any] = field(default_factory=dict)
    acting_master: bool = False
    #: Its master has left a slave that acts for it: nothing is written to its topics, whatever they say.
    is_wiped: bool = False
    zone: str | None = None

    @property
    def lowest_id(self) -> int:
        return min(self.addresses)

    def offered(self, topic: str) -> QueueData:
        """Return the queues of a topic as routes have them: read-only where the master has left."""
        held = self.queues[topic]
        return msgspec.structs.replace(held, perm=held.perm & ~PERM_WRITE) if self.is_wiped else held


@dataclass(frozen=True, slots=True, eq=False)
class PendingTopics:
    """A broker's topics that are still to be registered, without those deleted meanwhile."""

    broker_name: str
    topics: dict[str, TopicConfig]
    mappings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RouteTables:
    """The tables: broker names, the broker names of each cluster, and the broker names that have a topic.

    changed: the names whose addresses may have changed, with the HA address of who registered last.
    """

    brokers: dict[str, BrokerRecord] = field(default_factory=dict)
    clusters: dict[str, set[str]] = field(default_factory=dict)
    topics: dict[str, dict[str, None]] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class AbsentBroker:
    """A broker that is away, and the topics that it had. since_ms: None until it was noticed."""

    cluster: str
    topics: set[str]
    since_ms: MonotonicMs | None = None


class TopicsLeft(NamedTuple):
    """Topics of a departed broker that are still in the table of topics."""

    broker_name: str
    queues: dict[str, QueueData]
