"""This broker's groups as Kafka's requests see them, and the refusals of requests (coordinated elsewhere,
loading, RocketMQ's members).

classic      groups of the classic protocol      JoinGroup, SyncGroup
modern       groups of KIP-848                   ConsumerGroupHeartbeat
table        all groups of the broker, including those without members and those with RocketMQ's members
"""

from contextlib import suppress
from typing import Final, TypeVar

from libramq.auth.authorizer import Authorizer, is_permitted, require_permission
from libramq.auth.operation import Action, Consume, Locate, Manage, group
from libramq.broker.cluster.kafka.group_copies import GroupLoad
from libramq.broker.groups.coordination import Coordination
from libramq.catalog.group_table import GroupTable
from libramq.catalog.topic_table import TopicTable
from libramq.clock import WallMs
from libramq.errors import BrokerError
from libramq.groups.classic.group import ClassicGroup
from libramq.groups.modern.group import ModernGroup
from libramq.groups.protocol_groups import Groups
from libramq.kernel.connection import Principal
from libramq.message import names
from libramq.protocols.kafka.node import KafkaNodes
from libramq.wire.kafka.error_code import ErrorCode

#: The name of the protocol, for tools.
PROTOCOL: Final = "Kafka"

#: A group of either protocol.
G = TypeVar("G", ClassicGroup, ModernGroup)


class BrokerGroups:
    """The groups, and the refusals of requests about them.

    nodes: the brokers that coordinate them. load: until it ends, other brokers may hand groups over.
    """

    def __init__(
        self,
        table: GroupTable,
        topics: TopicTable,
        coordination: Coordination,
        nodes: KafkaNodes,
        authorizer: Authorizer,
        load: GroupLoad,
    ) -> None:
        self.classic: Groups[ClassicGroup] = Groups(ClassicGroup)
        self.modern: Groups[ModernGroup] = Groups(ModernGroup)
        self.table = table
        self._topics = topics
        self.coordination = coordination
        self.nodes = nodes
        self._authorizer = authorizer
        self._load = load

    def names(self) -> set[str]:
        """Return the names of the groups visible to clients."""
        known = (name for name in self.table.names() if name not in names.SYSTEM_GROUPS)
        return {*known, *self.classic.names(), *self.modern.names()}

    def exists(self, name: str) -> bool:
        """Return whether a group of this name is visible to clients."""
        return (
            self.classic.get(name) is not None
            or self.modern.get(name) is not None
            or (name in self.table and name not in names.SYSTEM_GROUPS)
        )

    def has_foreign_members(self, name: str) -> bool:
        """Return whether a group has members of RocketMQ's protocol, which assign queues differently."""
        return self.coordination.has_clients(name)

    def has_members(self, name: str) -> bool:
        """Return whether a group has members of any protocol."""
        is_known = self.classic.get(name) is not None or self.modern.get(name) is not None
        return is_known or self.has_foreign_members(name)

    # Refusals of requests.

    def refusal(self, name: str, principal: Principal) -> ErrorCode | None:
        """Return the error if requests of a group are refused."""
        if not names.is_valid_group(name):
            return ErrorCode.INVALID_GROUP_ID
        is_allowed = is_permitted(self._authorizer, Consume(principal, name))
        return None if is_allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED

    def member_refusal(self, name: str, principal: Principal) -> ErrorCode | None:
        """Return the error if requests to a group's coordinator are refused."""
        refusal = self.refusal(name, principal) or self.nodes.coordinator_refusal(name)
        # After a start, another broker may be about to hand the members over.
        is_missing = self._load.is_under_way and not self.has_members(name)
        return refusal or (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_missing else None)

    def delete_refusal(self, name: str, principal: Principal) -> ErrorCode | None:
        """Return the error if a group, or its offsets, may not be deleted."""
        refusal = self.member_refusal(name, principal)
        if refusal is not None:
            return refusal
        deletion = Manage(principal, Action.DELETE, (group(name),))
        is_allowed = is_permitted(self._authorizer, deletion)
        return None if is_allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED

    def may_read(self, name: str, topic: str, principal: Principal) -> bool:
        """Return whether a group may read a topic."""
        return is_permitted(self._authorizer, Consume(principal, name, (topic,)))

    def may_locate(self, topic: str, principal: Principal) -> bool:
        """Return whether a principal may look a topic up."""
        return is_permitted(self._authorizer, Locate(principal, topic))

    def require_may_read(self, name: str, topic: str, principal: Principal) -> None:
        """Raise BrokerError if a group may not read a topic."""
        require_permission(self._authorizer, Consume(principal, name, (topic,)))

    # A group's entry in the broker's table.

    def take(self, name: str) -> None:
        """Reserve a group for Kafka's members."""
        self.table.take(name, f"{PROTOCOL}'s")

    def keep(self, name: str, wall_ms: WallMs) -> None:
        """Create the group's retry topic, by which tools find groups."""
        config = self.table.find(name, wall_ms)
        if config is not None:
            with suppress(BrokerError):  # With too many topics, the group works without it.
                self._topics.for_retries(config, wall_ms)
