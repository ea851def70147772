"""The group table: every consumer group with its configuration, whether a group is created on first use, how
many there may be, which topics one is forbidden, and which changes (attributes) are refused.

Upstream: broker/subscription/SubscriptionGroupManager.java; file config/subscriptionGroup.json.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from libramq.catalog.topic_table import QUEUES_MAX
from libramq.catalog.unrecorded import RecordByUse, refused_without_room
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
#: Ours: each of them is in the table that is written as a whole.
FORBIDDEN_MAX: Final = 1_000
#: Ours: each group brings a retry topic, so at most half of the topics.
GROUPS_MAX: Final = 25_000


Record = Callable[[str, SubscriptionGroupConfig | None, DataVersion], None]


class GroupTable:
    """Groups by name. record: as in TopicTable. has_light: light groups (enableLmq) are created by use."""

    def __init__(
        self,
        *,
        auto_create: bool = True,
        groups_max: int = GROUPS_MAX,
        has_light: bool = False,
        loaded: SubscriptionGroupWrapper | None = None,
        record: Record = lambda *_: None,
    ) -> None:
        #: Whether a group is created on first use.
        self.creates_on_use = auto_create
        self._groups_max = groups_max
        self._has_light = has_light
        self._groups = dict(loaded.subscription_group_table) if loaded else {}
        self._forbidden = dict(loaded.forbidden_table) if loaded else {}
        self.data_version = loaded.data_version if loaded else DataVersion()
        self._record = record
        self._record_by_use = RecordByUse()
        #: Groups with members of another protocol, and whose.
        self._taken: dict[str, str] = {}
        for group in names.SYSTEM_GROUPS:
            self._groups.setdefault(group, SubscriptionGroupConfig(group_name=group))

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def names(self) -> list[str]:
        """Return the names of all groups."""
        return list(self._groups)

    def copy(self, group: str, config: SubscriptionGroupConfig | None) -> None:
        """Take over a group of a slave's master as it is; None: the master has none of that name."""
        self._record(group, config, self.data_version)
        self.apply(group, config, self.data_version)

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's configuration; None if there is no such group."""
        return self._groups.get(group)

    def may_read(self, group: str, topic: str) -> bool:
        """Return whether a group may read a topic; see `forbid`."""
        return not self._forbidden.get(group, {}).get(topic, 0) & FORBIDS_READING

    def forbid(self, group: str, topic: str, wall_ms: WallMs, *, is_forbidden: bool) -> None:
        """Forbid a group to read a topic, or allow it again (SubscriptionGroupManager.updateForbidden).

        Raises SubscriptionGroupNotExist, or what `names.validate_topic` raises.
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
        """Take over what a slave's master forbids its groups."""
        for group, config in list(self._groups.items()):
            topics = dict(table.get(group, {}))
            if topics != self._forbidden.get(group, {}):
                self.copy(group, msgspec.structs.replace(config, forbidden_topics=topics))

    def find(self, group: str, wall_ms: WallMs) -> SubscriptionGroupConfig | None:
        """Return the group's configuration, created on first use if that is allowed; else None."""
        config = self._groups.get(group)
        creates = self.creates_on_use or (self._has_light and names.is_light(group))
        if config is None and creates and names.is_valid_group(group):
            if len(self._groups) >= self._groups_max:
                return None
            config = SubscriptionGroupConfig(group_name=group)
            version = self.data_version.next(wall_ms)
            self._record_by_use(self._record, group, config, version)
            self.apply(group, config, version)
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
        """Keep a group for members of another protocol than RocketMQ's; protocol: whose, for the refusal."""
        self._taken[group] = protocol

    def release(self, group: str) -> None:
        """Let members of RocketMQ's protocol into a group again."""
        self._taken.pop(group, None)

    def require_not_taken(self, group: str) -> None:
        """Raise BrokerError if a group has members of another protocol: they divide queues by other rules."""
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
        if config.group_name not in self._groups and len(self._groups) >= self._groups_max:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"{len(self._groups)} groups exist, which is the limit; delete some first",
            )
        if self._groups.get(config.group_name) != config:
            self._change(config.group_name, config, wall_ms)

    def check(self, config: SubscriptionGroupConfig) -> None:
        """Raise InvalidName, or InvalidParameter for invalid numbers."""
        names.validate_group(config.group_name)
        known = self._groups.get(config.group_name)
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
        """Return a changed group with the attributes that it has; no request changes those."""
        known = self._groups.get(config.group_name)
        attributes = known.attributes if known is not None else {}
        return msgspec.structs.replace(config, attributes=attributes, forbidden_topics=None)

    def delete(self, group: str, wall_ms: WallMs) -> bool:
        """Remove a group; return whether it existed."""
        if group not in self._groups:
            return False
        self._change(group, None, wall_ms)
        return True

    def apply(self, group: str, config: SubscriptionGroupConfig | None, version: DataVersion) -> None:
        """Apply a recorded change."""
        if config is None:
            self._groups.pop(group, None)
            self._forbidden.pop(group, None)
        elif config.forbidden_topics is None:
            self._groups[group] = config
        else:
            self._groups[group] = msgspec.structs.replace(config, forbidden_topics=None)
            self._forbidden[group] = config.forbidden_topics
            if not config.forbidden_topics:
                del self._forbidden[group]
        self.data_version = version

    def wrapper(self) -> SubscriptionGroupWrapper:
        """Return the content of config/subscriptionGroup.json and GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return SubscriptionGroupWrapper(
            data_version=self.data_version,
            subscription_group_table=dict(self._groups),
            forbidden_table=dict(self._forbidden),
        )

    def _change(self, group: str, config: SubscriptionGroupConfig | None, wall_ms: WallMs) -> None:
        version = self.data_version.next(wall_ms)
        with refused_without_room(group):
            self._record(group, config, version)
        self.apply(group, config, version)
