"""The tables that all coordinated groups of a broker share: topics, connections, timers, records."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from libramq.groups.coordinator.group_state import Record
from libramq.groups.coordinator.member_connections import MemberConnections, MemberKey
from libramq.groups.coordinator.timers import Timers
from libramq.groups.coordinator.watched_topics import WatchedTopics

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SharedTables(Generic[P]):
    """Each table is its owner's to change; a group touches its own entries only."""

    record: Record
    topics: WatchedTopics = field(default_factory=WatchedTopics)
    connections: MemberConnections[P] = field(default_factory=MemberConnections)
    timers: Timers[MemberKey] = field(default_factory=Timers)
