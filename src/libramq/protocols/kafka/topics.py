"""Topics: CreateTopics, DeleteTopics, DescribeConfigs.

A setting that would be a silent lie is refused: the store keeps all topics for the same time, and compacts
none. `queue.type` is RocketMQ's attribute: with BatchCQ, what Kafka's clients produce is stored as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from zlib import crc32

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Manage
from libramq.auth.resource import Action, cluster, topic
from libramq.broker.cluster.cluster_topics import ClusterTopics
from libramq.broker.cluster.nodes import is_visible
from libramq.broker.config import BrokerConfig
from libramq.catalog.numbering import Numbering, Run, spread
from libramq.catalog.topic_attributes import (
    BATCH_QUEUES,
    QUEUE_TYPE,
    SIMPLE_QUEUES,
    attributes_of,
    is_of_batches,
)
from libramq.catalog.topic_table import QUEUES_MAX, TopicTable
from libramq.clock import Clock
from libramq.errors import BrokerError, InvalidName
from libramq.formats.tables import TopicConfig
from libramq.kernel.connection import Principal
from libramq.message import names
from libramq.protocols.kafka.answers import Results, Slot
from libramq.protocols.kafka.node import KafkaNodes
from libramq.protocols.kafka.refusals import code_of
from libramq.wire.kafka.apis.create_topics import (
    CreatableTopic,
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from libramq.wire.kafka.apis.delete_topics import DeletedTopic, DeleteTopicsRequest, DeleteTopicsResponse
from libramq.wire.kafka.apis.describe_configs import (
    BROKER,
    TOPIC,
    TYPE_LONG,
    TYPE_STRING,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfigs,
    DescribedResource,
    Setting,
)
from libramq.wire.kafka.error_code import ErrorCode

#: What every topic has, whether it is asked for or not; other values of these, and other settings, are
#: refused.
ALWAYS: Final = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
_REPLICATION_FACTOR: Final = 1
_DEFAULT: Final = -1


class _Refused(Exception):
    """A topic that is not created, and why."""

    def __init__(self, code: ErrorCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


class TopicRequests:
    """Answers requests that create, delete and describe topics."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        cluster: ClusterTopics,
        authorizer: Authorizer,
        clock: Clock,
        kafka_nodes: KafkaNodes,
    ) -> None:
        self._kafka_nodes = kafka_nodes
        self._config = config
        self._topics = topics
        self._nodes = kafka_nodes.cluster
        self._cluster_topics = cluster
        self._authorizer = authorizer
        self._clock = clock

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {
            CreateTopicsRequest: self.create,
            DeleteTopicsRequest: self.delete,
            DescribeConfigsRequest: self.describe,
        }

    def create(self, request: CreateTopicsRequest, slot: Slot) -> None:
        """Create topics; those that are refused leave the others alone."""

        def answer(created: Sequence[CreatedTopic]) -> None:
            slot.answer_with(lambda: CreateTopicsResponse(topics=tuple(created)), len(created))

        def begin() -> None:
            results: Results[CreatedTopic] = Results(len(request.topics), slot.guarded(answer))

            def create(wanted: tuple[int, CreatableTopic]) -> None:
                put = partial(results.put, wanted[0])
                self._create(wanted[1], slot.principal, put, validate_only=request.validate_only)

            slot.each(list(enumerate(request.topics)), create, lambda _: None)

        self._nodes.refresh(slot.guarded(begin))

    def _create(
        self,
        wanted: CreatableTopic,
        principal: Principal,
        put: Callable[[CreatedTopic], None],
        *,
        validate_only: bool,
    ) -> None:
        name = wanted.name
        try:
            self._require(principal, Action.CREATE, name)
            queues = self._queues(wanted)
            names.validate_topic(name)
            if not is_visible(name):
                raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"the name {name} is the broker's own")
            if self._nodes.counts(name):
                raise _Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
            self._topics.check(TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues))
        except _Refused as refused:
            put(CreatedTopic(name=name, error_code=refused.code, error_message=str(refused)))
            return
        except (BrokerError, InvalidName) as refused:
            put(CreatedTopic(name=name, error_code=code_of(refused), error_message=str(refused)))
            return

        def created(failures: Sequence[Exception]) -> None:
            if failures:
                code, message = code_of(failures[0]), "; ".join(map(str, failures))
                put(CreatedTopic(name=name, error_code=code, error_message=message))
                return
            factor = _REPLICATION_FACTOR
            put(CreatedTopic(name=name, num_partitions=queues, replication_factor=factor, configs=()))

        if validate_only:
            created([])
            return
        # Whichever brokers get one queue more: others for each topic.
        live = sorted(self._nodes.live(), key=lambda each: crc32(f"{name} {each}".encode()))
        shares = {each: count for each, count in spread(queues, dict.fromkeys(live, 0)).items() if count}
        runs = tuple(Run(each, count) for each, count in shares.items())
        numbering = Numbering(runs, int(self._clock.wall_ms())) if len(live) > 1 else Numbering()
        self._cluster_topics.change(name, shares, numbering, created, attributes=self._attributes(wanted))

    def _attributes(self, wanted: CreatableTopic) -> dict[str, str]:
        """Return the attributes of RocketMQ's that a topic is created with."""
        named = [each.value for each in wanted.configs if each.name == QUEUE_TYPE and each.value]
        return attributes_of(named[0] if named else self._config.kafka_queue_type)

    def _queues(self, wanted: CreatableTopic) -> int:
        """Return the number of partitions; raises _Refused for what cannot be had."""
        if wanted.assignments:
            raise _Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "replicas cannot be assigned to brokers")
        if wanted.replication_factor not in (_DEFAULT, _REPLICATION_FACTOR):
            raise _Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "the replication factor is 1: slaves copy a whole broker, not a topic",
            )
        for setting in wanted.configs:
            is_kind = setting.name == QUEUE_TYPE and setting.value in (SIMPLE_QUEUES, BATCH_QUEUES)
            if not is_kind and setting.value != ALWAYS.get(setting.name):
                raise _Refused(
                    ErrorCode.INVALID_CONFIG, f"{setting.name}={setting.value} is not supported for topics"
                )
        count = wanted.num_partitions
        if count == _DEFAULT:
            return self._config.default_topic_queue_nums
        if not 0 < count <= QUEUES_MAX:
            raise _Refused(ErrorCode.INVALID_PARTITIONS, f"{count} partitions; 1 to {QUEUES_MAX} are allowed")
        return count

    def delete(self, request: DeleteTopicsRequest, slot: Slot) -> None:
        """Delete topics."""

        def answer(deleted: Sequence[DeletedTopic]) -> None:
            slot.answer_with(lambda: DeleteTopicsResponse(responses=tuple(deleted)), len(deleted))

        def begin() -> None:
            results: Results[DeletedTopic] = Results(len(request.topic_names), slot.guarded(answer))

            def delete(wanted: tuple[int, str]) -> None:
                self._delete(wanted[1], slot.principal, partial(results.put, wanted[0]))

            slot.each(list(enumerate(request.topic_names)), delete, lambda _: None)

        self._nodes.refresh(slot.guarded(begin))

    def _delete(self, name: str, principal: Principal, put: Callable[[DeletedTopic], None]) -> None:
        try:
            self._require(principal, Action.DELETE, name)
        except BrokerError as refused:
            put(DeletedTopic(name=name, error_code=code_of(refused), error_message=str(refused)))
            return
        counts = self._nodes.counts(name)
        if not counts or not is_visible(name):
            put(DeletedTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return

        def deleted(failures: Sequence[Exception]) -> None:
            code = code_of(failures[0]) if failures else ErrorCode.NONE
            put(DeletedTopic(name=name, error_code=code, error_message="; ".join(map(str, failures)) or None))

        self._cluster_topics.change(name, dict.fromkeys(counts, 0), Numbering(), deleted)

    def describe(self, request: DescribeConfigsRequest, slot: Slot) -> None:
        """Describe topics and this broker, with the settings that mean something here."""
        wanted = {(each.resource_type, each.resource_name): each for each in request.resources}
        slot.each(
            list(wanted.values()),
            partial(self._described, slot.principal),
            lambda described: slot.answer_with(
                lambda: DescribeConfigsResponse(results=tuple(described)), len(described)
            ),
        )

    def _described(self, principal: Principal, wanted: DescribedResource) -> DescribedConfigs:
        kind, name = wanted.resource_type, wanted.resource_name
        try:
            if kind == TOPIC:
                self._require(principal, Action.GET, name)
                if not self._kafka_nodes.partitions(name):
                    raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            elif kind == BROKER:
                if name not in ("", str(self._kafka_nodes.own_id)):
                    raise _Refused(ErrorCode.INVALID_REQUEST, f"there is no broker {name}")
                require_permission(self._authorizer, Manage(principal, Action.GET, (cluster(),)))
            else:
                raise _Refused(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here")
        except _Refused as refused:
            return DescribedConfigs(
                resource_type=kind,
                resource_name=name,
                error_code=refused.code,
                error_message=str(refused),
            )
        except BrokerError as denied:
            code = code_of(denied) if kind == TOPIC else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return DescribedConfigs(
                resource_type=kind, resource_name=name, error_code=code, error_message=str(denied)
            )
        keys = wanted.configuration_keys
        settings = (self._topic_settings(name) if kind == TOPIC else self._broker_settings()).items()
        return DescribedConfigs(
            resource_type=kind,
            resource_name=name,
            configs=tuple(
                Setting(
                    name=setting, value=value, config_type=TYPE_LONG if value.isdecimal() else TYPE_STRING
                )
                for setting, value in settings
                if keys is None or setting in keys
            ),
        )

    def _topic_settings(self, name: str) -> Mapping[str, str]:
        config, topic_config = self._config, self._topics.get(name)
        is_batched = topic_config is not None and is_of_batches(topic_config)
        return ALWAYS | {
            QUEUE_TYPE: BATCH_QUEUES if is_batched else SIMPLE_QUEUES,
            "retention.ms": str(config.file_reserved_hours * 3_600_000),
            "max.message.bytes": str(config.max_message_size),
        }

    def _broker_settings(self) -> Mapping[str, str]:
        config = self._config
        return {
            "num.partitions": str(config.default_topic_queue_nums),
            "auto.create.topics.enable": str(config.auto_create_topic_enable).lower(),
            "message.max.bytes": str(config.max_message_size),
        }

    def _require(self, principal: Principal, action: Action, name: str) -> None:
        require_permission(self._authorizer, Manage(principal, action, (topic(name),)))
