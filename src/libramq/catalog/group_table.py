"""The group table: every consumer group with its configuration and forbidden topics, creation on first use,
and limits.

Upstream: broker/subscription/SubscriptionGroupManager.java; file config/subscriptionGroup.json.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from libramq.catalog.config_table import ConfigTable
from libramq.catalog.topic_table import QUEUES_MAX
from libramq.clock import WallMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.formats.tables import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from libramq.message import names

#: The bit of a forbidden table's value that forbids reading (1 << PermName.INDEX_PERM_READ).
FORBIDS_READING: Final = 1 << 2
#: Ours: forbidden topics of one group; the table is written as a whole.
FORBIDDEN_MAX: Final = 1_000
#: Ours: each group has a retry topic, so groups take at most half of the topics.
GROUPS_MAX: Final = 25_000


class GroupTable(ConfigTable[SubscriptionGroupConfig]):
    """Groups by name. has_light: light groups (enableLmq) are created on first use."""

    def __init__(
        self,
        *,
        auto_create: bool = True,
        groups_max: int = GROUPS_MAX,
        has_light: bool = False,
        loaded: SubscriptionGroupWrapper | None = None,
        record: Callable[[str, SubscriptionGroupConfig | None, DataVersion], None] = lambda *_: None,
    ) -> None:
        loaded = loaded or SubscriptionGroupWrapper()
        super().__init__(loaded.subscription_group_table, loaded.data_version, record)
        #: Whether a group is created on first use.
        self.creates_on_use = auto_create
        self._groups_max = groups_max
        self._has_light = has_light
        self._forbidden = dict(loaded.forbidden_table)
        #: The protocol of groups whose members do not speak RocketMQ's.
        self._taken: dict[str, str] = {}
        for group in names.SYSTEM_GROUPS:
            self._entries.setdefault(group, SubscriptionGroupConfig(group_name=group))

    def __contains__(self, group: str) -> bool:
        return group in self._entries

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's configuration; None if there is no such group."""
        return self._entries.get(group)

    def may_read(self, group: str, topic: str) -> bool:
        """Return whether a group may read a topic, which `forbid` controls."""
        return not self._forbidden.get(group, {}).get(topic, 0) & FORBIDS_READING

    def forbid(self, group: str, topic: str, wall_ms: WallMs, *, is_forbidden: bool) -> None:
        """Forbid a group to read a topic, or allow it again (SubscriptionGroupManager.updateForbidden).

        Raises SubscriptionGroupNotExist, and the errors of `names.validate_topic`.
        """
        config = self.require(group, wall_ms)
        names.validate_topic(topic)
        topics = dict(self._forbidden.get(group, {}))
        bits = topics.pop(topic, 0)
        bits = bits | FORBIDS_READING if is_forbidden else bits & ~FORBIDS_READING
        if bits > 0:
            topics[topic] = bits
        if len(topics) > FORBIDDEN_MAX:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"group {group} is forbidden {FORBIDDEN_MAX} topics, the limit",
            )
        if topics != self._forbidden.get(group, {}):
            self._change(group, msgspec.structs.replace(config, forbidden_topics=topics), wall_ms)

    def copy_forbidden(self, table: Mapping[str, Mapping[str, int]]) -> None:
        """Copy the forbidden topics of the master's groups, at a slave."""
        for group, config in list(self._entries.items()):
            topics = dict(table.get(group, {}))
            if topics != self._forbidden.get(group, {}):
                self.copy(group, msgspec.structs.replace(config, forbidden_topics=topics))

    def find(self, group: str, wall_ms: WallMs) -> SubscriptionGroupConfig | None:
        """Return the group's configuration, created on first use if that is allowed; None otherwise."""
        config = self._entries.get(group)
        creates = self.creates_on_use or (self._has_light and names.is_light(group))
        if config is None and creates and names.is_valid_group(group):
            if len(self._entries) >= self._groups_max:
                return None
            config = SubscriptionGroupConfig(group_name=group)
            self._change_by_use(group, config, wall_ms)
        return config

    def require(self, group: str, wall_ms: WallMs) -> SubscriptionGroupConfig:
        """Return the group's configuration; raises SubscriptionGroupNotExist if there is no such group."""
        config = self.find(group, wall_ms)
        if config is None:
            raise broker_error(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist"
            )
        return config

    def take(self, group: str, protocol: str) -> None:
        """Reserve a group for members of another protocol than RocketMQ's; the refusal names the protocol."""
        self._taken[group] = protocol

    def release(self, group: str) -> None:
        """Allow members of RocketMQ's protocol in a group again."""
        self._taken.pop(group, None)

    def require_not_taken(self, group: str) -> None:
        """Raise BrokerError if a group has members of another protocol, which assign queues differently."""
        protocol = self._taken.get(group)
        if protocol is not None:
            raise broker_error(
                ResponseCode.NO_PERMISSION,
                f"group {group} has members of {protocol} clients: stop those first, or use another group",
            )

    def put(self, config: SubscriptionGroupConfig, wall_ms: WallMs) -> None:
        """Create or change a group; raises InvalidName, or InvalidParameter for invalid numbers."""
        self.check(config)
        config = self._with_attributes(config)
        if config.group_name not in self._entries and len(self._entries) >= self._groups_max:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"{len(self._entries)} groups exist, which is the limit; delete some first",
            )
        if self._entries.get(config.group_name) != config:
            self._change(config.group_name, config, wall_ms)

    def check(self, config: SubscriptionGroupConfig) -> None:
        """Raise InvalidName, or InvalidParameter for invalid numbers."""
        names.validate_group(config.group_name)
        known = self._entries.get(config.group_name)
        if config.attributes and (known is None or config.attributes != known.attributes):
            # SubscriptionGroupAttributes.ALL is empty.
            raise broker_error(
                ResponseCode.SYSTEM_ERROR, f"unsupported key: {min(config.attributes).lstrip('+-')}"
            )
        if not 0 <= config.retry_queue_nums <= QUEUES_MAX:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"group {config.group_name} with {config.retry_queue_nums} retry queues; 0 to {QUEUES_MAX}"
                " are allowed",
            )

    def _with_attributes(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Return a changed group with its existing attributes, which no request can change."""
        known = self._entries.get(config.group_name)
        attributes = known.attributes if known is not None else {}
        return msgspec.structs.replace(config, attributes=attributes, forbidden_topics=None)

    def apply(self, name: str, config: SubscriptionGroupConfig | None, version: DataVersion) -> None:
        """Apply a recorded change."""
        if config is None:
            self._forbidden.pop(name, None)
        elif config.forbidden_topics is not None:
            self._forbidden[name] = config.forbidden_topics
            if not config.forbidden_topics:
                del self._forbidden[name]
            config = msgspec.structs.replace(config, forbidden_topics=None)
        super().apply(name, config, version)

    def wrapper(self) -> SubscriptionGroupWrapper:
        """Return the content of config/subscriptionGroup.json and GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return SubscriptionGroupWrapper(
            data_version=self.data_version,
            subscription_group_table=dict(self._entries),
            forbidden_table=dict(self._forbidden),
        )
