"""Changes of topics: CreatePartitions, DeleteRecords, AlterConfigs, IncrementalAlterConfigs.

No topic has settings of its own: a change of one is refused, unless it sets what every topic has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Manage
from libramq.auth.resource import Action, cluster, topic
from libramq.broker.cluster.cluster_topics import ClusterTopics
from libramq.catalog.numbering import spread
from libramq.catalog.topic_table import QUEUES_MAX, TopicTable
from libramq.errors import BrokerError
from libramq.kernel.connection import Principal
from libramq.kernel.effect import Effects
from libramq.kernel.work import Work
from libramq.protocols.kafka.answers import Results, Slot
from libramq.protocols.kafka.node import KafkaNodes
from libramq.protocols.kafka.refusals import code_of
from libramq.protocols.kafka.topics import ALWAYS
from libramq.store.message_store import MessageStore
from libramq.wire.kafka.apis.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from libramq.wire.kafka.apis.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from libramq.wire.kafka.apis.delete_records import (
    HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from libramq.wire.kafka.apis.describe_configs import BROKER, TOPIC
from libramq.wire.kafka.apis.incremental_alter_configs import (
    SET,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
)
from libramq.wire.kafka.error_code import ErrorCode

#: Ours: settings of a resource; Kafka's topics have some forty, its brokers some three hundred.
SETTINGS_MAX: Final = 1_000

_Result = tuple[ErrorCode, str | None]
_DONE: _Result = (ErrorCode.NONE, None)


class TopicChanges:
    """Answers requests that change topics."""

    def __init__(
        self,
        topics: TopicTable,
        store: MessageStore,
        cluster: ClusterTopics,
        authorizer: Authorizer,
        effects: Effects,
        nodes: KafkaNodes,
    ) -> None:
        self._nodes = nodes
        self._cluster = nodes.cluster
        self._cluster_topics = cluster
        self._topics = topics
        self._store = store
        self._authorizer = authorizer
        self._effects = effects

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {
            CreatePartitionsRequest: self.create_partitions,
            DeleteRecordsRequest: self.delete_records,
            AlterConfigsRequest: self.alter,
            IncrementalAlterConfigsRequest: self.alter_some,
        }

    def create_partitions(self, request: CreatePartitionsRequest, slot: Slot) -> None:
        """Add partitions to topics; those that are refused leave the others alone."""

        def answer(results: Sequence[CreatePartitionsTopicResult]) -> None:
            slot.answer_with(lambda: CreatePartitionsResponse(results=tuple(results)), len(results))

        def begin() -> None:
            results: Results[CreatePartitionsTopicResult] = Results(len(request.topics), slot.guarded(answer))

            def grow(each: tuple[int, CreatePartitionsTopic]) -> None:
                at, wanted = each

                def put(code: ErrorCode, message: str | None) -> None:
                    result = CreatePartitionsTopicResult(
                        name=wanted.name, error_code=code, error_message=message
                    )
                    results.put(at, result)

                self._more_partitions(wanted, slot.principal, put, validate_only=request.validate_only)

            slot.each(list(enumerate(request.topics)), grow, lambda _: None)

        self._cluster.refresh(slot.guarded(begin))

    def _more_partitions(
        self,
        wanted: CreatePartitionsTopic,
        principal: Principal,
        put: Callable[[ErrorCode, str | None], None],
        *,
        validate_only: bool,
    ) -> None:
        refusal = self._growth_refusal(wanted, principal)
        if refusal is not None or validate_only:
            put(*(refusal or _DONE))
            return
        counts = self._cluster.counts(wanted.name)
        live = {name: counts.get(name, 0) for name in sorted(self._cluster.live())}
        away = sum(count for name, count in counts.items() if name not in live)
        shares = spread(wanted.count - away, live)
        more = {name: count for name, count in shares.items() if count != counts.get(name, 0)}
        numbering = self._cluster.numbering(wanted.name).extended({**counts, **shares})

        def grown(failures: Sequence[Exception]) -> None:
            put(*((code_of(failures[0]), "; ".join(map(str, failures))) if failures else _DONE))

        self._cluster_topics.change(wanted.name, more, numbering, grown)

    def _growth_refusal(self, wanted: CreatePartitionsTopic, principal: Principal) -> _Result | None:
        refusal = self._refusal(principal, Action.UPDATE, wanted.name)
        if refusal is not None:
            return refusal
        if wanted.assignments is not None:
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, "replicas cannot be assigned to brokers"
        present, count = self._nodes.partitions(wanted.name), wanted.count
        if not present < count <= QUEUES_MAX:
            return ErrorCode.INVALID_PARTITIONS, (
                f"topic {wanted.name} has {present} partitions and gets more only, at most"
                f" {QUEUES_MAX}; {count} were asked for"
            )
        return None

    def alter(self, request: AlterConfigsRequest, slot: Slot) -> None:
        """Refuse settings."""

        def alter(each: AlterConfigsResource) -> AlterConfigsResourceResponse:
            refused = (setting for setting in each.configs if not _is_always(setting))
            return self._altered(each, refused, slot.principal)

        slot.each(
            request.resources,
            alter,
            lambda altered: slot.answer_with(
                lambda: AlterConfigsResponse(responses=tuple(altered)), len(altered)
            ),
        )

    def alter_some(self, request: IncrementalAlterConfigsRequest, slot: Slot) -> None:
        """Refuse changes of settings."""

        def alter(each: IncrementalAlterConfigsResource) -> AlterConfigsResourceResponse:
            refused = (
                setting
                for setting in each.configs
                if setting.config_operation != SET or not _is_always(setting)
            )
            return self._altered(each, refused, slot.principal)

        slot.each(
            request.resources,
            alter,
            lambda altered: slot.answer_with(
                lambda: IncrementalAlterConfigsResponse(responses=tuple(altered)), len(altered)
            ),
        )

    def _altered(
        self,
        resource: AlterConfigsResource | IncrementalAlterConfigsResource,
        refused: Iterable[AlterableConfig | IncrementalConfig],
        principal: Principal,
    ) -> AlterConfigsResourceResponse:
        """Return the answer for a resource. refused: the settings that it cannot have."""
        kind, name, count = resource.resource_type, resource.resource_name, len(resource.configs)
        if count > SETTINGS_MAX:
            code = ErrorCode.INVALID_REQUEST
            message: str | None = f"{count} settings of one resource; at most {SETTINGS_MAX} are read"
        else:
            settings = [f"{each.name}={each.value}" for each in refused]
            code, message = self._alteration(principal, kind, name, settings)
        return AlterConfigsResourceResponse(
            error_code=code, error_message=message, resource_type=kind, resource_name=name
        )

    def _alteration(self, principal: Principal, kind: int, name: str, refused: Sequence[str]) -> _Result:
        if kind == TOPIC:
            refusal = self._refusal(principal, Action.UPDATE, name)
            if refusal is not None:
                return refusal
            if not refused:
                return _DONE
            return ErrorCode.INVALID_CONFIG, f"{', '.join(refused)}: not supported for topics"
        if kind != BROKER:
            return ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here"
        try:
            require_permission(self._authorizer, Manage(principal, Action.UPDATE, (cluster(),)))
        except BrokerError as denied:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, str(denied)
        return (
            ErrorCode.INVALID_CONFIG,
            "a broker's settings are in its broker.conf",
        )

    # DeleteRecords.

    def delete_records(self, request: DeleteRecordsRequest, slot: Slot) -> None:
        """Have partitions begin later; a thread reads what is not in memory.

        As in Kafka, a power cut at once may bring the records back: the next flush has the beginnings.
        """
        wanted = [(each.name, partition) for each in request.topics for partition in each.partitions]

        def answer(results: Sequence[DeleteRecordsPartitionResult]) -> None:
            slot.answer_with(
                lambda: DeleteRecordsResponse(topics=tuple(_of_topics(request, iter(results)))),
                len(results) + len(request.topics),
            )

        slot.proceed(self._delete(wanted, answer, slot.principal))

    def _delete(
        self,
        wanted: Sequence[tuple[str, DeleteRecordsPartition]],
        answer: Callable[[Sequence[DeleteRecordsPartitionResult]], None],
        principal: Principal,
    ) -> Work[None]:
        results: list[DeleteRecordsPartitionResult] = []
        for each in wanted:
            results.append((yield from self._store.reading(partial(self._begin_later, principal, *each))))
            yield None
        answer(results)

    def _begin_later(
        self, principal: Principal, name: str, wanted: DeleteRecordsPartition
    ) -> DeleteRecordsPartitionResult:
        index = wanted.partition_index
        refusal = self._refusal(principal, Action.DELETE, name)
        if refusal is not None:
            return DeleteRecordsPartitionResult(partition_index=index, error_code=refusal[0])
        config = self._topics.get(name)
        queue_id = self._nodes.queue(name, index)
        if isinstance(queue_id, ErrorCode):
            return DeleteRecordsPartitionResult(partition_index=index, error_code=queue_id)
        if config is None or not 0 <= queue_id < config.read_queue_nums:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return DeleteRecordsPartitionResult(partition_index=index, error_code=code)
        end = self._store.max_offset(name, queue_id)
        offset = end if wanted.offset == HIGH_WATERMARK else wanted.offset
        if not 0 <= offset <= end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
            return DeleteRecordsPartitionResult(partition_index=index, error_code=code)
        try:
            beginning = self._store.raise_min_offset(name, queue_id, offset)
        except OSError:
            code = ErrorCode.KAFKA_STORAGE_ERROR
            return DeleteRecordsPartitionResult(partition_index=index, error_code=code)
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=beginning)

    def _refusal(self, principal: Principal, action: Action, name: str) -> _Result | None:
        """Return why a topic may not be changed, if so."""
        try:
            require_permission(self._authorizer, Manage(principal, action, (topic(name),)))
        except BrokerError as denied:
            return code_of(denied), str(denied)
        if not self._nodes.partitions(name):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}"
        return None


def _is_always(setting: AlterableConfig | IncrementalConfig) -> bool:
    """Return whether a setting has the value that it has in every topic."""
    return ALWAYS.get(setting.name) == setting.value


def _of_topics(
    request: DeleteRecordsRequest, results: Iterator[DeleteRecordsPartitionResult]
) -> Iterator[DeleteRecordsTopicResult]:
    for each in request.topics:
        partitions = tuple(islice(results, len(each.partitions)))
        yield DeleteRecordsTopicResult(name=each.name, partitions=partitions)
