"""The bodies of administrators' requests: lists of topics and groups, offsets, queues, statistics.

Upstream: remoting/protocol/body/*.java, admin/*.java.
"""

import msgspec

from libramq.filter.subscription import SubscriptionData
from libramq.formats.document import Document
from libramq.formats.tables import SubscriptionGroupConfig, TopicConfig
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ConsumeStats, QueueRef


class TopicConfigList(Document, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC_LIST. The keys of attributes have a sign: `+message.type`."""

    topic_config_list: list[TopicConfig] = []


class GroupConfigList(Document, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig] = []


class GroupForbidden(Document, frozen=True, kw_only=True):
    """The reply to UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str
    topic: str
    readable: bool


class CorrectionOffsets(Document, frozen=True, kw_only=True):
    """QUERY_CORRECTION_OFFSET: the smallest committed offset of each queue."""

    correction_offsets: dict[int, int] = {}


class QueueTimeSpan(Document, frozen=True, kw_only=True):
    """The store times of a queue's first, last and last consumed messages."""

    message_queue: QueueRef
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int = 0


class ConsumeTimeSpans(Document, frozen=True, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = []


class SubscriptionReply(Document, frozen=True, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str | None = None
    subscription_data: SubscriptionData | None = None


class ConsumeQueueData(Document, frozen=True, kw_only=True):
    """One unit of a consume queue."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False


class ConsumeQueueReply(Document, frozen=True, kw_only=True):
    """QUERY_CONSUME_QUEUE."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = []
    max_queue_index: int
    min_queue_index: int


class ConsumeStatsList(Document, frozen=True, kw_only=True):
    """GET_BROKER_CONSUME_STATS: the progress of each group, topic by topic."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    broker_addr: str
    total_diff: int = 0
    total_inflight_diff: int = 0


class ProducerInfo(Document, frozen=True, kw_only=True):
    """One connected producer."""

    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: int
    last_update_timestamp: int


class ProducerTable(Document, frozen=True, kw_only=True):
    """GET_ALL_PRODUCER_INFO: connected producers by group."""

    data: dict[str, list[ProducerInfo]] = {}


class BrokerStatsItem(Document, frozen=True, kw_only=True):
    """A count in a window, and its rate a second."""

    sum: int
    tps: float
    avgpt: float = 0.0


class BrokerStatsData(Document, frozen=True, kw_only=True):
    """VIEW_BROKER_STATS_DATA."""

    stats_minute: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_day: BrokerStatsItem


class ConsumerStatus(Document, frozen=True, kw_only=True):
    """Offsets held by clients: of one, by queue (GET_CONSUMER_STATUS_FROM_CLIENT), or by client and queue."""

    message_queue_table: dict[MessageQueue, int] = {}
    consumer_table: dict[str, dict[MessageQueue, int]] = {}


class ConsumeDirectlyResult(Document, frozen=True, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY: what the handler did with the message."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: int = 0


class SlaveStatus(Document, frozen=True, kw_only=True):
    """One slave as seen by its master (HAConnectionRuntimeInfo). diff: the bytes it lacks."""

    addr: str
    slave_ack_offset: int
    diff: int
    in_sync: bool
    transferred_byte_in_second: int
    transfer_from_where: int


class HAStatus(Document, frozen=True, kw_only=True):
    """A master with its slaves."""

    master: bool
    master_commit_log_max_offset: int
    in_sync_slave_nums: int
    ha_connection_info: list[SlaveStatus] = []
