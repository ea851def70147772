"""Typed headers of administration: what mqadmin sends to name servers and brokers, beside `headers.py`.

Upstream: remoting/protocol/header/namesrv/*.java, header/*.java.
"""

from typing import Final

from libramq.formats.document import Int, Long
from libramq.remoting.headers import Header

# Name server.


class KVHeader(Header):
    """GET_KV_CONFIG, DELETE_KV_CONFIG: one value by its namespace and key."""

    namespace: str
    key: str


class PutKVHeader(KVHeader):
    """PUT_KV_CONFIG."""

    value: str


class KVNamespaceHeader(Header):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str


class BrokerNameHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class BrokerMemberGroupHeader(Header):
    """GET_BROKER_MEMBER_GROUP."""

    cluster_name: str
    broker_name: str


# Broker.


class CloneOffsetsHeader(Header):
    """CLONE_GROUP_OFFSET.

    topic: blank for all that the source has read. offline: whatever its members subscribe to.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class CorrectionOffsetHeader(Header):
    """QUERY_CORRECTION_OFFSET. filter_groups: left out, separated by commas."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class GroupAndTopicHeader(Header):
    """QUERY_CONSUME_TIME_SPAN."""

    group: str
    topic: str


class SubscriptionHeader(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str | None = None


class GroupForbiddenHeader(Header):
    """UPDATE_AND_GET_GROUP_FORBIDDEN. readable: whether the group may read the topic; None: leave it."""

    group: str
    topic: str
    readable: bool | None = None


class ConsumeQueueHeader(Header):
    """QUERY_CONSUME_QUEUE: `count` units of a queue from `index` on."""

    topic: str
    queue_id: Int
    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


class BrokerConsumeStatsHeader(Header):
    """GET_BROKER_CONSUME_STATS. is_order: ordered topics only."""

    is_order: bool = False


#: BrokerStatsManager: the statistics that mqadmin statsAll asks for.
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"


class StatsDataHeader(Header):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class RunningInfoHeader(Header):
    """GET_CONSUMER_RUNNING_INFO."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


#: In CONSUME_MESSAGE_DIRECTLY to a member: it is a retry of the group, and no operator's test.
PASSED_ON: Final = "lbPassedOn"
#: In the member's answer: how the retry comes again.
DELAY_LEVEL: Final = "lbDelayLevel"
UNCOUNTED: Final = "lbUncounted"


class ConsumeDirectlyHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY. msg_id: the offset id of a message here."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


class ConsumerStatusHeader(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS. client_addr: a client id, blank for all."""

    group: str
    topic: str
    client_addr: str | None = None


class ResumeCheckHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE. msg_id: the offset id in the topic of those that were given up."""

    topic: str | None = None
    msg_id: str | None = None


class MasterFlushOffsetHeader(Header):
    """RESET_MASTER_FLUSH_OFFSET."""

    master_flush_offset: Long | None = None


class LowestIdHeader(Header):
    """NOTIFY_MIN_BROKER_ID_CHANGE. offline_broker_addr: who has left; ha_broker_addr: of who has come."""

    min_broker_id: Long
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class HAInfoHeader(Header):
    """EXCHANGE_BROKER_HA_INFO and its answer. A master that starts names itself; a slave sends no field."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None
