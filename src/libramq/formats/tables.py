"""Topic and consumer-group configuration (permissions, queues, retries), as in config files and
registrations.

Upstream: common/TopicConfig.java, remoting/protocol/DataVersion.java, SubscriptionGroupConfig.java.
"""

from typing import Any, Final

from libramq.clock import WallMs
from libramq.formats.document import Document

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1


class DataVersion(Document, frozen=True, kw_only=True):
    """The version of a table; a newer version has a greater counter or timestamp."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, wall_ms: WallMs) -> "DataVersion":
        """Return the version after a change at `wall_ms`."""
        return DataVersion(state_version=self.state_version, timestamp=int(wall_ms), counter=self.counter + 1)


#: TopicSysFlag.FLAG_UNIT, FLAG_UNIT_SUB.
FLAG_UNIT: Final = 1
FLAG_UNIT_SUBSCRIPTION: Final = 2


class TopicConfig(Document, frozen=True, kw_only=True):
    """One topic at one broker."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @property
    def readable(self) -> bool:
        """Return whether consumers may pull."""
        return self.perm & PERM_READ != 0


#: A group's way of reading a topic; MessageRequestMode.java.
MODE_PULL: Final = "PULL"
MODE_POP: Final = "POP"


class MessageRequestMode(Document, frozen=True, kw_only=True):
    """A group's way of reading a topic under server-side assignment (SetMessageRequestModeRequestBody.java).

    pop_share_queue_num: the number of other members with which a member shares its queues; 0 or less for all.
    """

    topic: str
    consumer_group: str
    mode: str = MODE_PULL
    pop_share_queue_num: int = 0


class SubscriptionGroupConfig(Document, frozen=True, kw_only=True):
    """One consumer group at one broker.

    group_retry_policy, subscription_data_set: Apache's, kept unchanged; None if absent.
    forbidden_topics: LibraMQ's, only in journals: the group's entry in the forbidden table, if that was
    changed.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    group_retry_policy: Any = None
    subscription_data_set: Any = None
    attributes: dict[str, str] = {}
    forbidden_topics: dict[str, int] | None = None


class TopicConfigSerializeWrapper(Document, frozen=True, kw_only=True):
    """A broker's whole topic table."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}
    mapping_data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, Any] = {}
    topic_queue_mapping_detail_map: dict[str, Any] = {}


class SubscriptionGroupWrapper(Document, frozen=True, kw_only=True):
    """A broker's whole group table."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    forbidden_table: dict[str, dict[str, int]] = {}
