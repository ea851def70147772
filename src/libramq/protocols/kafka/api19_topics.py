"""CreateTopics (19), DeleteTopics (20), DeleteRecords (21), CreatePartitions (37), DescribeConfigs (32),
AlterConfigs (33, 44): changes of topics, and the settings that are refused.

    topics      CreateTopics (19), DeleteTopics (20), CreatePartitions (37)
    records     DeleteRecords (21)
    settings    DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44)

A setting without effect is refused rather than accepted silently: the store keeps all topics for the same
time, and compacts none. Topics have no settings of their own, so a change is refused unless it sets the value
that every topic has. `queue.type` is RocketMQ's attribute: with BatchCQ, record batches are stored unchanged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from zlib import crc32

from libramq.auth.audit import Changed, Kind
from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Action, Manage, cluster, topic
from libramq.broker.cluster.kafka.nodes import is_visible
from libramq.broker.cluster.kafka.topics import ClusterTopics, TopicChange
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
from libramq.errors import BrokerError
from libramq.formats.tables import TopicConfig
from libramq.kernel.connection import Principal
from libramq.kernel.work import Work
from libramq.message import names
from libramq.protocols.kafka.answers import Slot, serves
from libramq.protocols.kafka.node import KafkaNodes
from libramq.protocols.kafka.refusals import REFUSALS, Refused, code_of
from libramq.store.message_store import MessageStore
from libramq.wire.kafka.apis import topics as wire
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.schema import Message, by_topic, partitions_of

T = TypeVar("T")
R = TypeVar("R")

#: The settings of every topic; other values, and other settings, are refused.
ALWAYS: Final = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
#: Ours: settings of a resource; Kafka's topics have about forty, its brokers about three hundred.
SETTINGS_MAX: Final = 1_000
_REPLICATION_FACTOR: Final = 1
_DEFAULT: Final = -1

_Result = tuple[ErrorCode, str | None]
_DONE: _Result = (ErrorCode.NONE, None)


class TopicRequests:
    """Answers requests about topics, their records, and the settings of topics and brokers."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        cluster: ClusterTopics,
        authorizer: Authorizer,
        clock: Clock,
        kafka_nodes: KafkaNodes,
        changed: Changed,
        store: MessageStore,
    ) -> None:
        self._store = store
        self._kafka_nodes = kafka_nodes
        self._config = config
        self._topics = topics
        self._nodes = kafka_nodes.cluster
        self._cluster_topics = cluster
        self._authorizer = authorizer
        self._clock = clock
        self._changed = changed

    def _change_each(
        self,
        slot: Slot,
        items: Sequence[T],
        change: Callable[[T, Callable[[R], None]], None],
        respond: Callable[[list[R]], Message],
    ) -> None:
        """Refresh the topics known to other brokers, make the changes, and answer with their results."""

        def answer(results: list[R]) -> None:
            slot.answer_with(lambda: respond(results), len(results))

        self._nodes.refresh(slot.guarded(partial(slot.begin_each, items, change, answer)))

    @serves(wire.CreateTopicsRequest)
    def create(self, request: wire.CreateTopicsRequest, slot: Slot) -> None:
        """Create topics; a refused one does not affect the others."""
        create = partial(self._create, slot.principal, validate_only=request.validate_only)
        self._change_each(
            slot, request.topics, create, lambda created: wire.CreateTopicsResponse(topics=tuple(created))
        )

    def _create(
        self,
        principal: Principal,
        wanted: wire.CreatableTopic,
        put: Callable[[wire.CreatedTopic], None],
        *,
        validate_only: bool,
    ) -> None:
        name = wanted.name
        try:
            self._require(principal, Action.CREATE, name)
            queues = self._queues(wanted)
            names.validate_topic(name)
            if not is_visible(name):
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"the name {name} is the broker's own")
            if self._nodes.counts(name):
                raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
            self._topics.check(TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues))
        except REFUSALS as refused:
            put(wire.CreatedTopic(name=name, error_code=code_of(refused), error_message=str(refused)))
            return

        factor = _REPLICATION_FACTOR
        answer = wire.CreatedTopic(name=name, num_partitions=queues, replication_factor=factor, configs=())

        def created(change: TopicChange) -> None:
            code, message = self._outcome(Kind.CREATED, principal, "CreateTopics", name, change)
            failed = wire.CreatedTopic(name=name, error_code=code, error_message=message)
            put(failed if change.failures else answer)

        if validate_only:
            put(answer)
            return
        # The order depends on the topic, so that the brokers with one queue more differ.
        live = sorted(self._nodes.live(), key=lambda each: crc32(f"{name} {each}".encode()))
        shares = {each: count for each, count in spread(queues, dict.fromkeys(live, 0)).items() if count}
        runs = tuple(Run(each, count) for each, count in shares.items())
        numbering = Numbering(runs, int(self._clock.wall_ms())) if len(live) > 1 else Numbering()
        kinds = [each.value for each in wanted.configs if each.name == QUEUE_TYPE and each.value]
        attributes = attributes_of(kinds[0] if kinds else self._config.kafka_queue_type)
        self._cluster_topics.change(name, shares, numbering, created, attributes=attributes)

    def _queues(self, wanted: wire.CreatableTopic) -> int:
        """Return the number of partitions; raises Refused for unsupported options."""
        if wanted.assignments:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "replicas cannot be assigned to brokers")
        if wanted.replication_factor not in (_DEFAULT, _REPLICATION_FACTOR):
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "the replication factor is 1: slaves copy a whole broker, not a topic",
            )
        for setting in wanted.configs:
            is_kind = setting.name == QUEUE_TYPE and setting.value in (SIMPLE_QUEUES, BATCH_QUEUES)
            if not is_kind and setting.value != ALWAYS.get(setting.name):
                raise Refused(
                    ErrorCode.INVALID_CONFIG, f"{setting.name}={setting.value} is not supported for topics"
                )
        count = wanted.num_partitions
        if count == _DEFAULT:
            return self._config.default_topic_queue_nums
        if not 0 < count <= QUEUES_MAX:
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"{count} partitions; 1 to {QUEUES_MAX} are allowed")
        return count

    @serves(wire.DeleteTopicsRequest)
    def delete(self, request: wire.DeleteTopicsRequest, slot: Slot) -> None:
        """Delete topics."""
        self._change_each(
            slot,
            request.topic_names,
            partial(self._delete, slot.principal),
            lambda deleted: wire.DeleteTopicsResponse(responses=tuple(deleted)),
        )

    def _delete(self, principal: Principal, name: str, put: Callable[[wire.DeletedTopic], None]) -> None:
        try:
            self._require(principal, Action.DELETE, name)
        except REFUSALS as refused:
            put(wire.DeletedTopic(name=name, error_code=code_of(refused), error_message=str(refused)))
            return
        if not self._nodes.counts(name) or not is_visible(name):
            put(wire.DeletedTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return

        def deleted(change: TopicChange) -> None:
            code, message = self._outcome(Kind.DELETED, principal, "DeleteTopics", name, change)
            put(wire.DeletedTopic(name=name, error_code=code, error_message=message))

        self._cluster_topics.change(name, dict.fromkeys(self._nodes.holders(name), 0), Numbering(), deleted)

    @serves(wire.DescribeConfigsRequest)
    def describe(self, request: wire.DescribeConfigsRequest, slot: Slot) -> None:
        """Describe topics and this broker, with the settings that have an effect here."""
        wanted = {(each.resource_type, each.resource_name): each for each in request.resources}
        slot.answer_each(
            list(wanted.values()),
            partial(self._described, slot.principal),
            lambda described: wire.DescribeConfigsResponse(results=tuple(described)),
        )

    def _described(self, principal: Principal, wanted: wire.DescribedResource) -> wire.DescribedConfigs:
        kind, name = wanted.resource_type, wanted.resource_name
        try:
            if kind == wire.TOPIC:
                self._require_topic(principal, Action.GET, name)
            elif kind == wire.BROKER:
                if name not in ("", str(self._kafka_nodes.own_id)):
                    raise Refused(ErrorCode.INVALID_REQUEST, f"there is no broker {name}")
                self._require_cluster(principal, Action.GET)
            else:
                raise Refused(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here")
        except REFUSALS as refused:
            code, text = code_of(refused), str(refused)
            return wire.DescribedConfigs(
                resource_type=kind, resource_name=name, error_code=code, error_message=text
            )
        keys = wanted.configuration_keys
        settings = (self._topic_settings(name) if kind == wire.TOPIC else self._broker_settings()).items()
        return wire.DescribedConfigs(
            resource_type=kind,
            resource_name=name,
            configs=tuple(
                wire.Setting(
                    name=setting,
                    value=value,
                    config_type=wire.TYPE_LONG if value.isdecimal() else wire.TYPE_STRING,
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

    def _require_topic(self, principal: Principal, action: Action, name: str) -> None:
        """Require that a topic exists, and that the principal may perform this action on it."""
        self._require(principal, action, name)
        if not self._kafka_nodes.partitions(name):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")

    def _require_cluster(self, principal: Principal, action: Action) -> None:
        try:
            require_permission(self._authorizer, Manage(principal, action, (cluster(),)))
        except BrokerError as denied:
            raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, str(denied)) from None

    @serves(wire.CreatePartitionsRequest)
    def create_partitions(self, request: wire.CreatePartitionsRequest, slot: Slot) -> None:
        """Add partitions to topics; a refused topic does not affect the others."""
        grow = partial(self._grow, slot.principal, validate_only=request.validate_only)
        self._change_each(
            slot, request.topics, grow, lambda results: wire.CreatePartitionsResponse(results=tuple(results))
        )

    def _grow(
        self,
        principal: Principal,
        wanted: wire.CreatePartitionsTopic,
        put: Callable[[wire.CreatePartitionsTopicResult], None],
        *,
        validate_only: bool,
    ) -> None:
        def answer(code: ErrorCode, message: str | None) -> None:
            put(wire.CreatePartitionsTopicResult(name=wanted.name, error_code=code, error_message=message))

        try:
            self._require_growth(wanted, principal)
        except REFUSALS as refused:
            answer(code_of(refused), str(refused))
            return
        if validate_only:
            answer(*_DONE)
            return
        counts = self._nodes.counts(wanted.name)
        live = {name: counts.get(name, 0) for name in sorted(self._nodes.live())}
        away = sum(count for name, count in counts.items() if name not in live)
        shares = spread(wanted.count - away, live)
        more = {name: count for name, count in shares.items() if count != counts.get(name, 0)}
        numbering = self._nodes.numbering(wanted.name).extended({**counts, **shares})

        def grown(change: TopicChange) -> None:
            answer(*self._outcome(Kind.CHANGED, principal, "CreatePartitions", wanted.name, change))

        self._cluster_topics.change(wanted.name, more, numbering, grown)

    def _outcome(self, kind: Kind, principal: Principal, api: str, name: str, change: TopicChange) -> _Result:
        """Audit a change that at least some brokers have made; return the answer about it."""
        result = (
            (code_of(change.failures[0]), "; ".join(map(str, change.failures))) if change.failures else _DONE
        )
        if change.made:
            self._changed(kind, principal, api, [str(topic(name))], result[1])
        return result

    def _require_growth(self, wanted: wire.CreatePartitionsTopic, principal: Principal) -> None:
        self._require_topic(principal, Action.UPDATE, wanted.name)
        if wanted.assignments is not None:
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "replicas cannot be assigned to brokers")
        present, count = self._kafka_nodes.partitions(wanted.name), wanted.count
        if not present < count <= QUEUES_MAX:
            raise Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {wanted.name} has {present} partitions; the number can only grow, to at most"
                f" {QUEUES_MAX}; {count} were requested",
            )

    @serves(wire.AlterConfigsRequest)
    def alter(self, request: wire.AlterConfigsRequest, slot: Slot) -> None:
        """Refuse settings, except those that every topic has."""

        def alter(each: wire.AlteredResource[wire.WantedSetting]) -> wire.AlterConfigsResourceResponse:
            refused = (setting for setting in each.configs if not _is_always(setting))
            return self._altered(each, refused, slot.principal)

        slot.answer_each(
            request.resources, alter, lambda altered: wire.AlterConfigsResponse(responses=tuple(altered))
        )

    @serves(wire.IncrementalAlterConfigsRequest)
    def alter_some(self, request: wire.IncrementalAlterConfigsRequest, slot: Slot) -> None:
        """Refuse changes of settings, except to the values that every topic has."""

        def alter(each: wire.AlteredResource[wire.IncrementalConfig]) -> wire.AlterConfigsResourceResponse:
            refused = (
                setting
                for setting in each.configs
                if setting.config_operation != wire.SET or not _is_always(setting)
            )
            return self._altered(each, refused, slot.principal)

        slot.answer_each(
            request.resources,
            alter,
            lambda altered: wire.IncrementalAlterConfigsResponse(responses=tuple(altered)),
        )

    def _altered(
        self,
        resource: wire.AlteredResource[Any],
        refused: Iterable[wire.WantedSetting | wire.IncrementalConfig],
        principal: Principal,
    ) -> wire.AlterConfigsResourceResponse:
        """Return the answer for a resource. refused: its unsupported settings."""
        kind, name, count = resource.resource_type, resource.resource_name, len(resource.configs)
        code, message = _DONE
        try:
            if count > SETTINGS_MAX:
                remark = f"{count} settings of one resource; at most {SETTINGS_MAX} are read"
                raise Refused(ErrorCode.INVALID_REQUEST, remark)
            self._require_alteration(principal, kind, name, [f"{each.name}={each.value}" for each in refused])
        except REFUSALS as error:
            code, message = code_of(error), str(error)
        return wire.AlterConfigsResourceResponse(
            error_code=code, error_message=message, resource_type=kind, resource_name=name
        )

    def _require_alteration(self, principal: Principal, kind: int, name: str, refused: Sequence[str]) -> None:
        if kind == wire.TOPIC:
            self._require_topic(principal, Action.UPDATE, name)
            if refused:
                raise Refused(ErrorCode.INVALID_CONFIG, f"{', '.join(refused)}: not supported for topics")
        elif kind == wire.BROKER:
            self._require_cluster(principal, Action.UPDATE)
            raise Refused(ErrorCode.INVALID_CONFIG, "a broker's settings are in its broker.conf")
        else:
            raise Refused(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here")

    @serves(wire.DeleteRecordsRequest)
    def delete_records(self, request: wire.DeleteRecordsRequest, slot: Slot) -> None:
        """Raise the first offsets of partitions; a thread reads from the disk.

        As in Kafka, a power cut may bring the records back: the new first offsets are flushed a little later.
        """
        wanted = partitions_of(request.topics)

        def answer(results: Sequence[wire.DeleteRecordsPartitionResult]) -> None:
            slot.answer_with(
                lambda: wire.DeleteRecordsResponse(topics=by_topic(request.topics, results)),
                len(results) + len(request.topics),
            )

        slot.proceed(self._delete_records(wanted, answer, slot.principal))

    def _delete_records(
        self,
        wanted: Sequence[tuple[str, wire.DeleteRecordsPartition]],
        answer: Callable[[Sequence[wire.DeleteRecordsPartitionResult]], None],
        principal: Principal,
    ) -> Work[None]:
        results: list[wire.DeleteRecordsPartitionResult] = []
        for each in wanted:
            results.append((yield from self._store.reading(partial(self._begin_later, principal, *each))))
            yield None
        pairs = zip(wanted, results, strict=True)
        for name in dict.fromkeys(name for (name, _), result in pairs if not result.error_code):
            self._changed(Kind.DELETED, principal, "DeleteRecords", [str(topic(name))], None)
        answer(results)

    def _begin_later(
        self, principal: Principal, name: str, wanted: wire.DeleteRecordsPartition
    ) -> wire.DeleteRecordsPartitionResult:
        result = partial(wire.DeleteRecordsPartitionResult, partition_index=wanted.partition_index)
        try:
            self._require_topic(principal, Action.DELETE, name)
        except REFUSALS as refused:
            return result(error_code=code_of(refused))
        config = self._topics.get(name)
        queue_id = self._kafka_nodes.queue(name, wanted.partition_index)
        if isinstance(queue_id, ErrorCode):
            return result(error_code=queue_id)
        if config is None or not 0 <= queue_id < config.read_queue_nums:
            return result(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        end = self._store.max_offset(name, queue_id)
        offset = end if wanted.offset == wire.HIGH_WATERMARK else wanted.offset
        if not 0 <= offset <= end:
            return result(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        try:
            return result(low_watermark=self._store.raise_min_offset(name, queue_id, offset))
        except OSError:
            return result(error_code=ErrorCode.KAFKA_STORAGE_ERROR)


def _is_always(setting: wire.WantedSetting | wire.IncrementalConfig) -> bool:
    """Return whether a setting has the value of every topic."""
    return ALWAYS.get(setting.name) == setting.value
