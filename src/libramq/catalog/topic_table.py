"""The topic table: every topic of this broker, creation (by a first send, for a group or for its retries),
and limits.

Upstream: broker/topic/TopicConfigManager.java; file config/topics.json.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from libramq.catalog.config_table import ConfigTable
from libramq.clock import WallMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.formats.document import Document
from libramq.formats.tables import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    SubscriptionGroupConfig,
    TopicConfig,
)
from libramq.message import names
from libramq.message.queue import MessageQueue

#: Ours: a broker registers its whole table at every name server after each change.
TOPICS_MAX: Final = 50_000
#: Ours: four times the queues of BenchmarkTest, upstream's largest system topic.
QUEUES_MAX: Final = 4096
#: DLQ_NUMS_PER_GROUP, AbstractSendMessageProcessor.java.
DLQ_QUEUES: Final = 1


class TopicsFile(Document, frozen=True, kw_only=True):
    """The content of config/topics.json."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The topic settings of BrokerConfig.java."""

    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 8
    broker_name: str = "broker-a"
    cluster_name: str = "DefaultCluster"
    topics_max: int = TOPICS_MAX
    has_light: bool = False  # enableLmq: every name of a light topic is a topic.
    has_audit: bool = False


class TopicTable(ConfigTable[TopicConfig]):
    """Topics by name."""

    def __init__(
        self,
        rules: TopicRules,
        loaded: TopicsFile | None = None,
        *,
        record: Callable[[str, TopicConfig | None, DataVersion], None] = lambda *_: None,
    ) -> None:
        loaded = loaded or TopicsFile()
        super().__init__(loaded.topic_config_table, loaded.data_version, record)
        self._rules = rules
        self.broker_name = rules.broker_name
        self._observers: list[Callable[[str], None]] = []
        own = system_topics(rules)
        self._own = {config.topic_name for config in own}
        for config in own:
            self._entries.setdefault(config.topic_name, config)
        if not rules.auto_create_topic_enable:
            self._entries.pop(names.AUTO_CREATE_TOPIC, None)

    def __contains__(self, topic: str) -> bool:
        return topic in self._entries or (self._rules.has_light and names.is_light(topic))

    def get(self, topic: str) -> TopicConfig | None:
        """Return the topic's configuration; None if there is no such topic."""
        config = self._entries.get(topic)
        if config is None and self._rules.has_light and names.is_light(topic):
            # LmqTopicConfigManager.simpleLmqTopicConfig
            return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
        return config

    def require(self, topic: str) -> TopicConfig:
        """Return the topic's configuration; raises TopicNotExist."""
        config = self.get(topic)
        if config is None:
            raise broker_error(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        return config

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the topic's readable queues here, in order; none if there is no such topic."""
        config = self.get(topic)
        count = config.read_queue_nums if config is not None else 0
        return [MessageQueue(topic, self.broker_name, queue_id) for queue_id in range(count)]

    def observe(self, observer: Callable[[str], None]) -> None:
        """Register a function to be called with a topic's name after each change of the topic."""
        self._observers.append(observer)

    def file(self) -> TopicsFile:
        """Return the content of config/topics.json."""
        return TopicsFile(data_version=self.data_version, topic_config_table=dict(self._entries))

    def put(self, config: TopicConfig, wall_ms: WallMs) -> None:
        """Create or change a topic; raises InvalidName, or InvalidParameter for invalid numbers.

        This counts as a change even if nothing differs: a name server that deleted the topic gets it again.
        """
        self.check(config)
        self._store(config, wall_ms)

    def check(self, config: TopicConfig) -> None:
        """Raise InvalidName, or InvalidParameter for invalid numbers."""
        names.validate_topic(config.topic_name)
        if self._rules.has_light and names.is_light(config.topic_name):
            # Apache's broker accepts the request and ignores it.
            raise broker_error(
                ResponseCode.INVALID_PARAMETER, f"{config.topic_name} is a light topic: it exists as it is"
            )
        for count in (config.read_queue_nums, config.write_queue_nums):
            if not 0 < count <= QUEUES_MAX:
                raise broker_error(
                    ResponseCode.INVALID_PARAMETER,
                    f"topic {config.topic_name} with {count} queues; 1 to {QUEUES_MAX} are allowed",
                )

    def for_send(
        self,
        topic: str,
        default_topic: str,
        queue_nums: int,
        wall_ms: WallMs,
        *,
        unit: bool = False,
        before_creation: Callable[[], None] = lambda: None,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicConfig:
        """Return the topic that a producer names, created from its template if that may be inherited.

        attributes: of a newly created topic.

        Raises TopicNotExist, InvalidName, and the errors of `before_creation`.
        """
        config = self.get(topic)
        if config is not None:
            return config
        is_retry = topic.startswith(names.RETRY_PREFIX)
        # POP's newer form of retry topics contains "+", which no other name may.
        names.validate_topic(topic.replace("+", "_", 1) if is_retry else topic)
        _, mark, popped = topic.partition("+")
        if mark and popped not in self._entries:  # Consumers may send to it, but not create topics.
            raise broker_error(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{popped}] not exist, so {topic} does not"
            )
        template = self._entries.get(default_topic)
        if is_retry:
            retry = TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
            before_creation()
            self._store(retry, wall_ms)
            return retry
        if template is None or not template.perm & PERM_INHERIT:
            raise broker_error(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        queues = max(1, min(queue_nums, template.write_queue_nums))
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=template.perm & ~PERM_INHERIT,
            topic_sys_flag=1 if unit else 0,
            topic_filter_type=template.topic_filter_type,
            attributes=dict(attributes or {}),
        )
        before_creation()
        self._store(config, wall_ms)
        return config

    def for_group(self, topic: str, queue_nums: int, perm: int, wall_ms: WallMs) -> TopicConfig:
        """Return the retry or dead-letter topic of an existing group, created if it is missing.

        Such topics are limited by the number of groups, so a client that fills the table with topics cannot
        stop consumption.
        """
        config = self._entries.get(topic)
        if config is None:
            queues = max(1, min(queue_nums, QUEUES_MAX))
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            self._change_by_use(topic, config, wall_ms)
        return config

    def for_retries(self, group: SubscriptionGroupConfig, wall_ms: WallMs) -> TopicConfig:
        """Return the retry topic of an existing group, created if it is missing."""
        topic = names.retry_topic(group.group_name)
        return self.for_group(topic, group.retry_queue_nums, PERM_READ | PERM_WRITE, wall_ms)

    def _store(self, config: TopicConfig, wall_ms: WallMs) -> None:
        topic = config.topic_name
        if topic not in self._entries and len(self._entries) >= self._rules.topics_max:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"{len(self._entries)} topics exist, which is the limit; delete some first",
            )
        self._change(topic, config, wall_ms)

    def is_own(self, topic: str) -> bool:
        """Return whether a topic is this broker's own, such as those named after its cluster and itself."""
        return names.is_system_topic(topic) or topic in self._own

    def apply(self, name: str, config: TopicConfig | None, version: DataVersion) -> None:
        """Apply a recorded change and call the observers; at startup there are none yet."""
        super().apply(name, config, version)
        for observer in self._observers:
            observer(name)


def system_topics(rules: TopicRules) -> list[TopicConfig]:
    """Return the topics of every broker (TopicConfigManager's constructor)."""
    read_write = PERM_READ | PERM_WRITE
    numbers = [
        (names.SELF_TEST_TOPIC, 1, read_write),
        (names.BENCHMARK_TOPIC, 1024, read_write),
        (rules.cluster_name, 16, read_write | PERM_INHERIT),
        (rules.broker_name, 1, read_write | PERM_INHERIT),
        (names.OFFSET_MOVED_EVENT_TOPIC, 1, read_write),
        (names.SCHEDULE_TOPIC, 18, read_write),
        (names.TIMER_TOPIC, 1, read_write),
        (names.reply_topic(rules.cluster_name), 1, read_write),
        (names.REBALANCE_EVENTS_TOPIC, 1, PERM_READ),
    ]
    if rules.has_audit:
        numbers.append((names.AUDIT_TOPIC, 1, PERM_READ))
    if rules.auto_create_topic_enable:
        queues = rules.default_topic_queue_nums
        numbers.append((names.AUTO_CREATE_TOPIC, queues, read_write | PERM_INHERIT))
    return [
        TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        for topic, queues, perm in numbers
    ]
