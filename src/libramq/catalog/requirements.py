"""The requirements on topics and groups before a read, open, commit or write: existence and permissions, with
the order of the checks and the code of each refusal.

The order of the checks, their codes and remarks are upstream's: PullMessageProcessor.java,
ConsumerManageProcessor.java, AbstractSendMessageProcessor.java.
"""

from libramq.catalog.group_table import GroupTable
from libramq.catalog.topic_table import TopicTable
from libramq.clock import WallMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.formats.tables import PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from libramq.message import names


class Requirements:
    """Raises BrokerError if topics or groups are missing or do not permit a request."""

    def __init__(self, topics: TopicTable, groups: GroupTable) -> None:
        self._topics = topics
        self._groups = groups

    def group(self, group: str) -> None:
        """Require that a group exists, and is not the broker's own."""
        require_not_own(group)
        if group not in self._groups:
            raise broker_error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")

    def consuming_group(self, group: str, wall_ms: WallMs) -> SubscriptionGroupConfig:
        """Require a group that may consume, created on first use if allowed; return its configuration."""
        require_not_own(group)
        config = self._groups.require(group, wall_ms)
        if not config.consume_enable:
            raise broker_error(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {config.group_name}"
            )
        return config

    def topic_allowed(self, group: str, topic: str) -> None:
        """Require that a topic is not forbidden to a group."""
        if not self._groups.may_read(group, topic):
            raise topic_forbidden(group, topic)

    def queue_to_read(self, topic: str, queue_id: int, reader: str) -> None:
        """Require a queue whose topic permits reading. reader: the reader's address."""
        config = self._topics.require(topic)
        if not config.readable:
            raise broker_error(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= queue_id < config.read_queue_nums:
            raise _illegal(config, queue_id, reader)

    def queue_to_open(self, topic: str, queue_id: int) -> None:
        """Require a read queue; each pull checks whether the topic permits reading."""
        config = self._topics.require(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise _illegal(config, queue_id)

    def queue_to_commit(self, topic: str, queue_id: int) -> None:
        """Require a read or write queue: a queue may have been read before its number was reduced."""
        config = self._topics.require(topic)
        if not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums):
            raise _illegal(config, queue_id)

    def queue_to_write(self, topic: str, queue_id: int) -> None:
        """Require a queue whose topic permits writing."""
        require_sendable(topic)
        config = self._topics.require(topic)
        require_writable(config)
        if not 0 <= queue_id < config.write_queue_nums:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}]"
                f" topicConfig.writeQueueNums:[{config.write_queue_nums}]",
            )


def topic_forbidden(group: str, topic: str) -> BrokerError:
    """Return the error for a topic that is forbidden to a group."""
    return broker_error(
        ResponseCode.NO_PERMISSION, f"the consumer group[{group}] is forbidden for topic[{topic}]"
    )


def require_not_own(group: str) -> None:
    """Require a group that is not the broker's own: only the broker moves its offsets."""
    if group in names.OWN_GROUPS:
        raise broker_error(ResponseCode.NO_PERMISSION, f"the group {group} is the broker's own; use another")


def require_sendable(topic: str) -> None:
    """Require a topic that is not reserved for the broker's own messages."""
    if not names.is_sendable(topic):
        raise broker_error(ResponseCode.NO_PERMISSION, f"sending to topic[{topic}] is forbidden")


def require_writable(config: TopicConfig) -> None:
    """Require a topic that permits writing."""
    if not config.perm & PERM_WRITE:
        raise broker_error(
            ResponseCode.NO_PERMISSION, f"the topic[{config.topic_name}] sending message is forbidden"
        )


def _illegal(config: TopicConfig, queue_id: int, reader: str | None = None) -> BrokerError:
    remark = (
        f"queueId[{queue_id}] is illegal, topic:[{config.topic_name}]"
        f" topicConfig.readQueueNums:[{config.read_queue_nums}]"
    )
    if reader is not None:
        remark += f" consumer:[{reader}]"
    return broker_error(ResponseCode.INVALID_PARAMETER, remark)
