"""Topics: CreateTopics, DeleteTopics, DescribeConfigs.

A setting that would be a silent lie is refused: the store keeps all topics for the same time, and compacts
none.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from libramq.auth.authorizer import require_permission
from libramq.auth.operation import Manage
from libramq.auth.principal import ANONYMOUS
from libramq.auth.resource import Action, cluster, topic
from libramq.broker.broker import Broker
from libramq.catalog.topic_table import QUEUES_MAX
from libramq.errors import BrokerError, InvalidName
from libramq.formats.tables import TopicConfig
from libramq.message import names
from libramq.protocols.kafka.answers import CHANGES_PER_STEP, ITEMS_PER_STEP, Slot
from libramq.protocols.kafka.metadata import is_visible
from libramq.protocols.kafka.node import NODE_ID
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

    def __init__(self, broker: Broker) -> None:
        self._config = broker.config
        self._topics = broker.topics
        self._removal = broker.removal
        self._authorizer = broker.authorizer
        self._clock = broker.kernel.clock

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {
            CreateTopicsRequest: self.create,
            DeleteTopicsRequest: self.delete,
            DescribeConfigsRequest: self.describe,
        }

    def create(self, request: CreateTopicsRequest, slot: Slot) -> None:
        """Create topics; those that are refused leave the others alone."""
        slot.each(
            request.topics,
            partial(self._created, validate_only=request.validate_only),
            lambda created: slot.answer_with(
                lambda: CreateTopicsResponse(topics=tuple(created)), is_large=len(created) > ITEMS_PER_STEP
            ),
            per_step=CHANGES_PER_STEP,
        )

    def _created(self, wanted: CreatableTopic, *, validate_only: bool) -> CreatedTopic:
        name = wanted.name
        try:
            self._require(Action.CREATE, name)
            queues = self._queues(wanted)
            names.validate_topic(name)
            if not is_visible(name):
                raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"the name {name} is the broker's own")
            if name in self._topics:
                raise _Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
            config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
            self._topics.check(config)
            if not validate_only:
                self._topics.put(config, self._clock.wall_ms())
        except _Refused as refused:
            return CreatedTopic(name=name, error_code=refused.code, error_message=str(refused))
        except (BrokerError, InvalidName) as refused:
            return CreatedTopic(name=name, error_code=code_of(refused), error_message=str(refused))
        return CreatedTopic(
            name=name, num_partitions=queues, replication_factor=_REPLICATION_FACTOR, configs=()
        )

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
            if setting.value != ALWAYS.get(setting.name):
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
        slot.each(
            request.topic_names,
            self._deleted,
            lambda deleted: slot.answer_with(
                lambda: DeleteTopicsResponse(responses=tuple(deleted)), is_large=len(deleted) > ITEMS_PER_STEP
            ),
            per_step=CHANGES_PER_STEP,
        )

    def _deleted(self, name: str) -> DeletedTopic:
        try:
            self._require(Action.DELETE, name)
        except BrokerError as refused:
            return DeletedTopic(name=name, error_code=code_of(refused), error_message=str(refused))
        if name not in self._topics or not is_visible(name):
            return DeletedTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._removal.remove(name, self._clock.wall_ms())
        return DeletedTopic(name=name)

    def describe(self, request: DescribeConfigsRequest, slot: Slot) -> None:
        """Describe topics and this broker, with the settings that mean something here."""
        wanted = {(each.resource_type, each.resource_name): each for each in request.resources}
        slot.each(
            list(wanted.values()),
            self._described,
            lambda described: slot.answer_with(
                lambda: DescribeConfigsResponse(results=tuple(described)),
                is_large=len(described) > ITEMS_PER_STEP,
            ),
        )

    def _described(self, wanted: DescribedResource) -> DescribedConfigs:
        kind, name = wanted.resource_type, wanted.resource_name
        try:
            if kind == TOPIC:
                self._require(Action.GET, name)
                if name not in self._topics or not is_visible(name):
                    raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            elif kind == BROKER:
                if name not in ("", str(NODE_ID)):
                    raise _Refused(ErrorCode.INVALID_REQUEST, f"there is no broker {name}")
                require_permission(self._authorizer, Manage(ANONYMOUS, Action.GET, (cluster(),)))
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
        settings = (self._topic_settings() if kind == TOPIC else self._broker_settings()).items()
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

    def _topic_settings(self) -> Mapping[str, str]:
        config = self._config
        return ALWAYS | {
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

    def _require(self, action: Action, name: str) -> None:
        require_permission(self._authorizer, Manage(ANONYMOUS, action, (topic(name),)))
