"""Bodies about consumers: connected members, their queue locks, their offsets.

Upstream: body/GetConsumerListByGroupResponseBody.java, LockBatchRequestBody.java, ConsumerConnection.java,
admin/ConsumeStats.java, admin/TopicStatsTable.java.
"""

import msgspec

from libramq.filter.subscription import SubscriptionData
from libramq.formats.document import Document
from libramq.message.queue import MessageQueue


class ConsumerList(Document, frozen=True, kw_only=True):
    """The client ids of a group's members."""

    consumer_id_list: list[str] = []


class QueueRef(Document, frozen=True, kw_only=True):
    """A message queue as a JSON object."""

    topic: str
    broker_name: str
    queue_id: int

    @property
    def queue(self) -> MessageQueue:
        """Return the queue."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @classmethod
    def of(cls, queue: MessageQueue) -> "QueueRef":
        """The object for a queue."""
        return cls(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)


class LockBatchBody(Document, frozen=True, kw_only=True):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: queues that a client locks, or unlocks."""

    consumer_group: str
    client_id: str
    mq_set: list[QueueRef] = []
    only_this_broker: bool = False


class LockBatchReply(Document, frozen=True, kw_only=True):
    """The queues that the client holds now."""

    lock_ok_mq_set: list[QueueRef] = msgspec.field(name="lockOKMQSet", default_factory=list)


class ClientConnection(Document, frozen=True, kw_only=True):
    """One connected client (Connection.java).

    instance, queues: ours, which Java ignores. The name of a static member; the queues that it read last, by
    topic and broker.
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
    """A group's connected members and subscriptions. diagnoses: ours, which Java ignores.

    protocol, generation, strategy: ours too, of a group whose members speak another protocol than RocketMQ's.
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
    """A group's offset in one queue."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    last_timestamp: int = 0

    @property
    def behind(self) -> int:
        """Return how many messages of the queue the group has not consumed."""
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
