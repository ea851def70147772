"""Metadata: this broker, and the topics that clients may know, created on first use where that is allowed."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from libramq.auth.authorizer import require_permission
from libramq.auth.operation import Manage
from libramq.auth.principal import ANONYMOUS
from libramq.auth.resource import Action, topic
from libramq.broker.broker import Broker
from libramq.errors import BrokerError, InvalidName
from libramq.formats.tables import TopicConfig
from libramq.message import names
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.node import LEADER_EPOCH, NODE_ID, Node
from libramq.protocols.kafka.refusals import code_of
from libramq.wire.kafka.apis.metadata import (
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from libramq.wire.kafka.error_code import ErrorCode

#: Ours: topics that are described at once, in some milliseconds; more on a thread.
AT_ONCE_MAX: Final = 64
#: Ours: their partitions, at 2 µs each.
PARTITIONS_AT_ONCE_MAX: Final = 1_000
#: Ours: in one answer, 2.6 MB; topics beyond have an error. A broker of Kafka's carries some thousands.
#: Without a limit, 50,000 topics of 4,096 queues each would be an answer of 5 GB.
PARTITIONS_MAX: Final = 100_000


class Metadata:
    """Answers Metadata."""

    def __init__(self, broker: Broker, node: Node) -> None:
        self._topics = broker.topics
        self._creations = broker.creations
        self._queues = broker.config.default_topic_queue_nums
        self._authorizer = broker.authorizer
        self._clock = broker.kernel.clock
        self._node = node

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {MetadataRequest: self.describe}

    def describe(self, request: MetadataRequest, slot: Slot) -> None:
        """Answer with the topics that were asked for, or all."""
        assert slot.call is not None, "a request has a call"
        is_all = request.topics is None or (not request.topics and slot.call.header.version == 0)
        found: list[TopicConfig | MetadataTopic]
        if is_all:
            found = [config for config in self._topics if self._may_list(config.topic_name)]
        else:
            creates = request.allow_auto_topic_creation
            wanted = dict.fromkeys(each.name for each in request.topics or ())
            found = [self._named(name, slot, creates=creates) for name in wanted]
        partitions = sum(each.read_queue_nums for each in found if isinstance(each, TopicConfig))
        is_large = len(found) > AT_ONCE_MAX or partitions > PARTITIONS_AT_ONCE_MAX
        slot.answer_with(partial(self._response, found), is_large=is_large)

    def _response(self, topics: Sequence[TopicConfig | MetadataTopic]) -> MetadataResponse:
        described = []
        left = PARTITIONS_MAX
        for each in topics:
            if isinstance(each, TopicConfig):
                left -= each.read_queue_nums
                described.append(_described(each) if left >= 0 else _left_out(each))
            else:
                described.append(each)
        return MetadataResponse(
            brokers=(self._node.broker,),
            cluster_id=self._node.cluster_id,
            controller_id=NODE_ID,
            topics=tuple(described),
        )

    def _may_list(self, name: str) -> bool:
        """Return whether a topic is in the list of all."""
        if not is_visible(name):
            return False
        try:
            self._require(name)
        except BrokerError:
            return False
        return True

    def _named(self, name: str, slot: Slot, *, creates: bool) -> TopicConfig | MetadataTopic:
        if not names.is_valid_topic(name):
            return MetadataTopic(name=name, error_code=ErrorCode.INVALID_TOPIC_EXCEPTION)
        try:
            self._require(name)
            config = self._topics.get(name)
            if config is None and creates:
                config = self._create(name, slot)
        except (BrokerError, InvalidName) as refused:
            return MetadataTopic(name=name, error_code=code_of(refused))
        if config is None or not is_visible(name):
            return MetadataTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return config

    def _create(self, name: str, slot: Slot) -> TopicConfig:
        """Create a topic as a RocketMQ producer's first send would; raises BrokerError if that is not
        allowed.
        """
        clock = self._clock
        take = partial(self._creations.take, slot.connection, name, clock.monotonic_ms())
        return self._topics.for_send(
            name, names.AUTO_CREATE_TOPIC, self._queues, clock.wall_ms(), before_creation=take
        )

    def _require(self, name: str) -> None:
        require_permission(self._authorizer, Manage(ANONYMOUS, Action.GET, (topic(name),)))


def is_visible(name: str) -> bool:
    """Return whether Kafka's clients see a topic: not the broker's own, nor those of RocketMQ's groups."""
    return not names.is_system_topic(name) and not name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))


def _described(config: TopicConfig) -> MetadataTopic:
    return MetadataTopic(name=config.topic_name, partitions=_partitions(config.read_queue_nums))


def _left_out(config: TopicConfig) -> MetadataTopic:
    return MetadataTopic(name=config.topic_name, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)


@lru_cache(maxsize=16)
def _partitions(count: int) -> tuple[MetadataPartition, ...]:
    return tuple(
        MetadataPartition(
            partition_index=queue_id,
            leader_id=NODE_ID,
            leader_epoch=LEADER_EPOCH,
            replica_nodes=(NODE_ID,),
            isr_nodes=(NODE_ID,),
        )
        for queue_id in range(count)
    )
