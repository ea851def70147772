"""The typed headers of requests: the ext fields of each request, and the refusal of a missing or invalid one.

Field names on the wire are camelCase and all values are text; `decode_header` turns them into typed values.
Client requests come first, then POP's, then administration's, which mqadmin sends to name servers and
brokers.
Upstream: remoting/protocol/header/*.java, header/namesrv/*.java.
"""

from typing import Final, TypeVar

import msgspec

from libramq.errors import RemoteProtocolError
from libramq.formats.document import Int, Long
from libramq.remoting.command import Command


class Header(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=False, gc=False):
    """The base of typed headers."""


H = TypeVar("H", bound=Header)


def decode_header(command: Command, kind: type[H]) -> H:
    """Decode a request's header; RemoteProtocolError names the missing or invalid field."""
    try:
        return msgspec.convert(command.ext, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"{kind.__name__}: {error}") from None


def encode_header(header: Header) -> dict[str, str]:
    """Encode a header as ext fields, without the null ones."""
    ext = {}
    for name, field in zip(header.__struct_encode_fields__, header.__struct_fields__, strict=True):
        value = getattr(header, field)
        if type(value) is str:
            ext[name] = value
        elif value is not None:
            ext[name] = "true" if value is True else "false" if value is False else str(value)
    return ext


class TopicHeader(Header):
    """A request about one topic."""

    topic: str


class GroupHeader(Header):
    """A request about one consumer group."""

    consumer_group: str


class NoHeader(Header):
    """A request without fields."""


class QueueHeader(TopicHeader):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    queue_id: Int


class GroupQueueHeader(GroupHeader):
    """A request of a group about a queue, such as POLLING_INFO (PollingInfoRequestHeader.java)."""

    topic: str
    queue_id: Int


class SendMessageHeader(Header):
    """SEND_MESSAGE, long names (SendMessageRequestHeader.java)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int | None = None
    lb_inner: bool | None = None  # Ours: one id suffices for a batch stored as one record.


class SendMessageHeaderV2(SendMessageHeader):
    """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: the same under one-letter names."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: Int = msgspec.field(name="d")
    queue_id: Int = msgspec.field(name="e")
    sys_flag: Int = msgspec.field(name="f")
    born_timestamp: Long = msgspec.field(name="g")
    flag: Int = msgspec.field(name="h")
    properties: str | None = msgspec.field(name="i", default=None)
    reconsume_times: Int | None = msgspec.field(name="j", default=None)
    unit_mode: bool | None = msgspec.field(name="k", default=None)
    max_reconsume_times: Int | None = msgspec.field(name="l", default=None)
    batch: bool | None = msgspec.field(name="m", default=None)


class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK: redeliver this message later. lb_uncounted: this delivery was no attempt.

    lb_pass_on_ms: the member has no handler for its topic; try for this long to deliver it to one that
    subscribes. lb_error_type, lb_error_text: the handler's exception, stored in a dead letter's properties.
    """

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    max_reconsume_times: Int | None = None
    lb_uncounted: bool | None = None
    lb_pass_on_ms: Int | None = None
    lb_error_type: str | None = None
    lb_error_text: str | None = None


class EndTransactionHeader(Header):
    """END_TRANSACTION: commit or roll back a half message (EndTransactionRequestHeader.java)."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    topic: str | None = None
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


class CheckTransactionStateHeader(Header):
    """CHECK_TRANSACTION_STATE: query a transaction's outcome (CheckTransactionStateRequestHeader.java)."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


class PullMessageHeader(GroupQueueHeader):
    """PULL_MESSAGE and LITE_PULL_MESSAGE (PullMessageRequestHeader.java)."""

    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long = 0
    suspend_timeout_millis: Long = 0
    sub_version: Long = 0
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int | None = None
    # Ours: the pulling member of a coordinated group, the epoch of its grant, and its opening's topic start.
    lb_member: str | None = None
    lb_queue_epoch: Long | None = None
    lb_topic_start: Long | None = None
    lb_takes_batches: bool | None = None  # Ours: it unwraps inner batches, which may begin before the offset.


class QueryConsumerOffsetHeader(GroupQueueHeader):
    """QUERY_CONSUMER_OFFSET."""

    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(GroupQueueHeader):
    """UPDATE_CONSUMER_OFFSET. lb_returned: a slave returns a commit made there, which moves nothing back.

    lb_mirrored: a program that keeps its position elsewhere mirrors it here; no reset by an operator moves
    it.
    """

    commit_offset: Long
    lb_member: str | None = None
    lb_queue_epoch: Long | None = None
    lb_returned: bool | None = None
    lb_mirrored: bool | None = None


class MaxOffsetHeader(QueueHeader):
    """GET_MAX_OFFSET. lb_since: ours: also return where the last deleted topic of this name ended."""

    lb_since: bool | None = None


class SearchOffsetHeader(QueueHeader):
    """SEARCH_OFFSET_BY_TIMESTAMP."""

    timestamp: Long
    boundary_type: str | None = None


class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID."""

    offset: Long
    topic: str | None = None
    # Ours: the SHA-256 of the slave's record there.
    lb_sha256: str | None = None


class QueryMessageHeader(TopicHeader):
    """QUERY_MESSAGE. is_unique_key: the key is a unique id, which producers give each message."""

    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    is_unique_key: bool = msgspec.field(name="_UNIQUE_KEY_QUERY", default=False)


class RecallMessageHeader(TopicHeader):
    """RECALL_MESSAGE. recall_handle: from the answer to the send."""

    recall_handle: str
    producer_group: str | None = None


class UnregisterClientHeader(Header):
    """UNREGISTER_CLIENT."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class CreateTopicHeader(TopicHeader):
    """UPDATE_AND_CREATE_TOPIC. lb_abandon_unread: remove queues even if groups have not read all of them."""

    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    default_topic: str | None = None
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int | None = None
    order: bool | None = None
    attributes: str | None = None
    lb_abandon_unread: bool | None = None


class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool = False


class ResetOffsetHeader(TopicHeader):
    """INVOKE_BROKER_TO_RESET_OFFSET, RESET_CONSUMER_CLIENT_OFFSET.

    To an offset, else to a time (-1: the end). queue_id -1: all queues. is_force: also move forwards.
    """

    group: str
    queue_id: Int = -1
    offset: Long | None = None
    timestamp: Long = -1
    is_force: bool = False


class GroupByNameHeader(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG, QUERY_TOPICS_BY_CONSUMER."""

    group: str


class GetAllTopicsHeader(Header):
    """GET_ALL_TOPIC_CONFIG; clients before 5.1 send none of these fields, and get everything."""

    topic_seq: Int | None = None
    data_version: str | None = None
    max_topic_num: Int | None = None


class GetAllGroupsHeader(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG; clients before 5.1 send none of these fields, and get everything."""

    group_seq: Int | None = None
    data_version: str | None = None
    max_group_num: Int | None = None


class ConsumeStatsHeader(GroupHeader):
    """GET_CONSUME_STATS."""

    topic: str | None = None
    topic_list: str | None = None


class ProducerConnectionHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class BrokerHeader(Header):
    """A request about one broker at a name server, such as UNREGISTER_BROKER, QUERY_DATA_VERSION."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class RegisterBrokerHeader(BrokerHeader):
    """REGISTER_BROKER. lb_whole: the body lists all topics of the broker."""

    ha_server_addr: str = ""
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int = 0
    lb_whole: bool | None = None


class BrokerHeartbeatHeader(Header):
    """BROKER_HEARTBEAT."""

    cluster_name: str
    broker_addr: str
    broker_name: str


class SlaveProgressHeader(Header):
    """SLAVE_PROGRESS: a slave asks another slave of its master for its progress. Ours."""

    broker_id: Long


class RouteHeader(TopicHeader):
    """GET_ROUTEINFO_BY_TOPIC."""

    accept_standard_json_only: bool | None = None


class DeleteTopicInNamesrvHeader(TopicHeader):
    """DELETE_TOPIC_IN_NAMESRV: in one cluster, or everywhere."""

    cluster_name: str | None = None


class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class GroupJoinHeader(GroupHeader):
    """GROUP_JOIN. lb_member: our former id, if we return to a coordinator that may have lost it.

    lb_revoke_timeout_ms: how long we may take to release a queue.
    lb_if_free: do not take the place of a static member that now has our name.
    lb_takes_openings: hold the answer until there is an assignment, and include the queues opened with it.
    """

    client_id: str = msgspec.field(name="clientID")
    lb_session_ms: Int
    lb_revoke_timeout_ms: Int | None = None
    lb_instance: str | None = None
    lb_member: str | None = None
    lb_if_free: bool | None = None
    lb_takes_openings: bool | None = None


class GroupMemberHeader(GroupHeader):
    """GROUP_RELEASE, GROUP_LEAVE: requests of a member."""

    lb_member: str


class GroupRemoveHeader(GroupHeader):
    """GROUP_REMOVE. lb_name: a static member's name, or a client id. lb_operator: the sender."""

    lb_name: str
    lb_operator: str | None = None


class GroupPollHeader(GroupMemberHeader):
    """GROUP_POLL. lb_epoch: that of the member's assignment. lb_takes_openings: as in GROUP_JOIN.

    lb_hold_ms: how long to hold it, for a long network path to the coordinator; since 0.2.0.
    """

    lb_epoch: Long
    lb_takes_openings: bool | None = None
    lb_hold_ms: Int | None = None


class GroupBeginHeader(GroupHeader):
    """GROUP_BEGIN: a member asks whether its group is new to a topic.

    lb_begins: if so, the group begins at the ends of queues here. timestamp: at the messages of a time
    instead.
    """

    topic: str
    lb_begins: bool | None = None
    timestamp: Long | None = None


class OpenQueueHeader(GroupQueueHeader):
    """OPEN_QUEUE: a member opens a queue that it was granted."""

    lb_member: str
    lb_queue_epoch: Long


class PushReplyHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: another client's reply to a request (ReplyMessageRequestHeader.java)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    born_host: str
    store_host: str
    store_timestamp: Long
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool | None = None


#: Ours: the number of messages of each check point of a pop, in the order of `startOffsetInfo` and of the
#: body. Our brokers send it in reply to `lbMaxMsgNums`; by this field clients recognise them.
MESSAGE_COUNTS: Final = "lbMsgCounts"
#: Ours: how long a broker had a pop before it took the messages, which are invisible from then on. With
#: another clock, a client cannot tell this from `popTime`.
HELD_MS: Final = "lbHeldMs"


class PopMessageHeader(GroupQueueHeader):
    """POP_MESSAGE (PopMessageRequestHeader.java). init_mode: where a new group begins: 0 first, 1 last.

    born_time: by the client's clock; 0: the time at which the broker reads it, at Apache's brokers as well.

    lb_max_msg_nums: ours, the number of messages that one of our brokers may return; Apache's uses only
    max_msg_nums, and refuses more than 32.
    """

    max_msg_nums: Int
    invisible_time: Long
    poll_time: Long
    init_mode: Int
    born_time: Long = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    lb_max_msg_nums: Int | None = None


class AckMessageHeader(GroupQueueHeader):
    """ACK_MESSAGE (AckMessageRequestHeader.java). extra_info: the message's POP_CK."""

    extra_info: str
    offset: Long


class ChangeInvisibleTimeHeader(AckMessageHeader):
    """CHANGE_MESSAGE_INVISIBLETIME (ChangeInvisibleTimeRequestHeader.java).

    lb_unseen: ours; no program has seen the message, so its next delivery does not count as another attempt.
    """

    invisible_time: Long
    lb_unseen: bool | None = None


class NotificationHeader(GroupQueueHeader):
    """NOTIFICATION: answer once there is a message (NotificationRequestHeader.java)."""

    poll_time: Long
    born_time: Long = 0
    order: bool | None = None
    attempt_id: str | None = None


class PeekMessageHeader(GroupQueueHeader):
    """PEEK_MESSAGE (PeekMessageRequestHeader.java)."""

    max_msg_nums: Int


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

    topic: blank for all topics the source has read. offline: regardless of its members' subscriptions.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class CorrectionOffsetHeader(TopicHeader):
    """QUERY_CORRECTION_OFFSET. filter_groups: excluded groups, separated by commas."""

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


class GroupForbiddenHeader(GroupAndTopicHeader):
    """UPDATE_AND_GET_GROUP_FORBIDDEN. readable: whether the group may read the topic; None: unchanged."""

    readable: bool | None = None


class ConsumeQueueHeader(QueueHeader):
    """QUERY_CONSUME_QUEUE: `count` units of a queue from `index` on."""

    index: Long = 0
    count: Int = 0
    consumer_group: str | None = None


class BrokerConsumeStatsHeader(Header):
    """GET_BROKER_CONSUME_STATS. is_order: ordered topics only."""

    is_order: bool = False


#: BrokerStatsManager: the statistics queried by mqadmin statsAll.
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"


class StatsDataHeader(Header):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class RunningInfoHeader(GroupHeader):
    """GET_CONSUMER_RUNNING_INFO."""

    client_id: str
    jstack_enable: bool = False


#: In CONSUME_MESSAGE_DIRECTLY to a member: this is a retry of the group, not an operator's test.
PASSED_ON: Final = "lbPassedOn"
#: In the member's answer: the delay level of the next redelivery.
DELAY_LEVEL: Final = "lbDelayLevel"
UNCOUNTED: Final = "lbUncounted"  # In the member's answer: this was no attempt.


class ConsumeDirectlyHeader(GroupHeader):
    """CONSUME_MESSAGE_DIRECTLY. msg_id: the offset id of a message here."""

    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


class ConsumerStatusHeader(GroupAndTopicHeader):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS. client_addr: a client id, blank for all."""

    client_addr: str | None = None


class ResumeCheckHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE. msg_id: the offset id in the topic of abandoned half messages."""

    topic: str | None = None
    msg_id: str | None = None


class MasterFlushOffsetHeader(Header):
    """RESET_MASTER_FLUSH_OFFSET."""

    master_flush_offset: Long | None = None


class LowestIdHeader(Header):
    """NOTIFY_MIN_BROKER_ID_CHANGE: the lowest id among the brokers of a name has changed.

    offline_broker_addr: that of a broker that left; ha_broker_addr: that of one that came.
    """

    min_broker_id: Long
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class HAInfoHeader(Header):
    """EXCHANGE_BROKER_HA_INFO and its answer. A starting master names itself; a slave sends no field."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


class UserHeader(Header):
    """A request about one user (CreateUserRequestHeader.java and its kin)."""

    username: str


class UserFilterHeader(Header):
    """AUTH_LIST_USER: users with this in their name, or all (ListUsersRequestHeader.java)."""

    filter: str | None = None


class SubjectHeader(Header):
    """A request about one subject's policies (CreateAclRequestHeader.java and its kin)."""

    subject: str


class DeletePoliciesHeader(SubjectHeader):
    """AUTH_DELETE_ACL: the entry for a resource, or all (DeleteAclRequestHeader.java)."""

    policy_type: str | None = None
    resource: str | None = None


class PolicyFilterHeader(Header):
    """AUTH_LIST_ACL: filtered by subjects and resources (ListAclsRequestHeader.java)."""

    subject_filter: str | None = None
    resource_filter: str | None = None
