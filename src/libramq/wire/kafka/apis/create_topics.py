"""CreateTopics (19). 4 allows the broker's defaults (-1); 5 is flexible and answers what was created; 7
answers an id.
"""

from typing import Annotated

from libramq.wire.kafka.schema import (
    Boolean,
    Int8,
    Int16,
    Int32,
    Message,
    NullableString,
    Remark,
    Request,
    String,
    Versions,
)


class ReplicaAssignment(Message, frozen=True, kw_only=True):
    """The brokers of a partition."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


class TopicSetting(Message, frozen=True, kw_only=True):
    """A setting of a topic."""

    name: String
    value: NullableString


class CreatableTopic(Message, frozen=True, kw_only=True):
    """A topic to be created."""

    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[TopicSetting, ...] = ()


class CreateTopicsRequest(Request, frozen=True, kw_only=True):
    """Creates topics, or only checks whether they could be."""

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32 = 0
    validate_only: Annotated[Boolean, Versions(1)] = False


class CreatedSetting(Message, frozen=True, kw_only=True):
    """A setting of a topic that was created."""

    name: String
    value: NullableString
    read_only: Boolean
    config_source: Int8
    is_sensitive: Boolean


class CreatedTopic(Message, frozen=True, kw_only=True):
    """A topic that was created, or why it was not."""

    name: String
    error_code: Int16 = 0
    error_message: Annotated[Remark, Versions(1)] = None
    num_partitions: Annotated[Int32, Versions(5)] = -1
    replication_factor: Annotated[Int16, Versions(5)] = -1
    configs: Annotated[tuple[CreatedSetting, ...] | None, Versions(5)] = None


class CreateTopicsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(2)] = 0
    topics: tuple[CreatedTopic, ...]
