"""The bodies about consumers: connected members, queue locks, assigned queues, offsets, resets and running
infos.

Members of a running info that mqadmin reads unchecked are always present; unmeasured values (rates and times
by topic) are left out.

Upstream: body/GetConsumerListByGroupResponseBody.java, LockBatchRequestBody.java, ConsumerConnection.java,
QueryAssignmentRequestBody.java, QueryAssignmentResponseBody.java, SetMessageRequestModeRequestBody.java,
ConsumerRunningInfo.java, ProcessQueueInfo.java, common/message/MessageQueueAssignment.java,
admin/ConsumeStats.java, admin/TopicStatsTable.java.
"""

from collections.abc import Sequence

import msgspec

from libramq.filter.subscription import CLUSTERING, SubscriptionData
from libramq.formats.document import Document
from libramq.formats.tables import MODE_PULL
from libramq.message.queue import MessageQueue


class ConsumerList(Document, frozen=True, kw_only=True):
    """The client ids of a group's members."""

    consumer_id_list: list[str] = []


class QueueFields(Document, frozen=True, kw_only=True):
    """The fields that name a message queue in a JSON object."""

    topic: str
    broker_name: str
    queue_id: int

    @property
    def queue(self) -> MessageQueue:
        """Return the queue."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class QueueRef(QueueFields, frozen=True, kw_only=True):
    """A message queue as a JSON object."""

    @classmethod
    def of(cls, queue: MessageQueue) -> "QueueRef":
        """Return the object for a queue."""
        return cls(**queue._asdict())


class LockBatchBody(Document, frozen=True, kw_only=True):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: queues for a client to lock or unlock."""

    consumer_group: str
    client_id: str
    mq_set: list[QueueRef] = []
    only_this_broker: bool = False


class LockBatchReply(Document, frozen=True, kw_only=True):
    """The queues that the client now holds."""

    lock_ok_mq_set: list[QueueRef] = msgspec.field(name="lockOKMQSet", default_factory=list)


class ClientConnection(Document, frozen=True, kw_only=True):
    """One connected client (Connection.java).

    instance, queues: ours, ignored by Java: a static member's name; the queues it read last, by topic and
    broker.
    """

    client_id: str
    client_addr: str
    language: str
    version: int
    instance: str | None = None
    queues: dict[str, dict[str, list[int]]] = {}


class GroupDiagnosis(Document, frozen=True, kw_only=True):
    """A problem of a group. about: a client id, or "" for the whole group."""

    kind: str
    about: str = ""
    text: str = ""


class ConsumerConnection(Document, frozen=True, kw_only=True):
    """A group's connected members and subscriptions. diagnoses: ours, ignored by Java.

    protocol, generation, strategy: also ours, for a group whose members use another protocol than RocketMQ's.
    """

    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    diagnoses: list[GroupDiagnosis] = []
    protocol: str | None = None
    generation: int | None = None
    strategy: str | None = None


class ProducerConnection(Document, frozen=True, kw_only=True):
    """A producer group's connected members."""

    connection_set: list[ClientConnection] = []


class OffsetWrapper(Document, frozen=True, kw_only=True):
    """A group's offset in one queue.

    is_unknown: ours, ignored by Java: the group has neither committed nor, as far as known, read there.
    """

    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    last_timestamp: int = 0
    is_unknown: bool | None = None

    @property
    def behind(self) -> int:
        """Return the number of the queue's messages that the group has not consumed."""
        return self.broker_offset - self.consumer_offset


class ConsumeStats(Document, frozen=True, kw_only=True):
    """A group's offsets, queue by queue."""

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: float = 0.0


class ResetOffsetBody(Document, frozen=True, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET, its reply, and RESET_CONSUMER_CLIENT_OFFSET: the new offsets."""

    offset_table: dict[MessageQueue, int] = {}


class TopicOffset(Document, frozen=True, kw_only=True):
    """The first and last offset of one queue."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class TopicStatsTable(Document, frozen=True, kw_only=True):
    """The first and last offsets of a topic's queues."""

    offset_table: dict[MessageQueue, TopicOffset] = {}
    topic_put_tps: float = 0.0


class CheckClientBody(Document, frozen=True, kw_only=True):
    """CHECK_CLIENT_CONFIG: whether a broker supports a subscription."""

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None


class QueryAssignmentBody(Document, frozen=True, kw_only=True):
    """QUERY_ASSIGNMENT: a member queries its queues of a topic. strategy_name: its group's strategy."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = ""
    message_model: str = CLUSTERING


class QueueAssignment(Document, frozen=True, kw_only=True):
    """A queue and how to read it."""

    message_queue: QueueRef
    mode: str = MODE_PULL

    @classmethod
    def of(cls, queue: MessageQueue, mode: str = MODE_PULL) -> "QueueAssignment":
        """Return the assignment of a queue."""
        return cls(message_queue=QueueRef.of(queue), mode=mode)


class QueryAssignmentReply(Document, frozen=True, kw_only=True):
    """The member's queues; None if it should keep its current ones."""

    message_queue_assignments: list[QueueAssignment] | None = None

    @classmethod
    def of(cls, queues: Sequence[MessageQueue] | None, mode: str = MODE_PULL) -> "QueryAssignmentReply":
        """Return the body of a reply."""
        if queues is None:
            return cls()
        return cls(message_queue_assignments=[QueueAssignment.of(queue, mode) for queue in queues])

    def value(self) -> list[MessageQueue] | None:
        """Return the queues, or None."""
        assigned = self.message_queue_assignments
        return None if assigned is None else [each.message_queue.queue for each in assigned]


class ProcessQueueInfo(Document, frozen=True, kw_only=True):
    """One queue of a consumer, with its unfinished messages.

    last_consume_timestamp: None if not measured, as by our consumers.
    """

    commit_offset: int
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = msgspec.field(name="cachedMsgSizeInMiB", default=0)
    locked: bool = False
    last_lock_timestamp: int = 0
    dropped: bool = msgspec.field(name="droped", default=False)  # Apache's spelling.
    last_pull_timestamp: int = 0
    last_consume_timestamp: int | None = None


class ConsumerRunningInfo(Document, frozen=True, kw_only=True):
    """A consumer: its settings, subscriptions and queues; jstack: its threads' stacks, if requested."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None
