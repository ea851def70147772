"""The requests that administer topics: CreateTopics, DeleteTopics, DeleteRecords, CreatePartitions; and their
settings: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.
"""

from typing import Annotated, Final, Generic, TypeVar

from libramq.wire.kafka.schema import (
    Boolean,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Remark,
    Request,
    String,
    Topic,
    Versions,
)

C = TypeVar("C")


# CreateTopics (19). 4 allows the broker's defaults (-1); 5 is flexible and returns the created topics; 7
# returns ids.
class ReplicaAssignment(Message, frozen=True, kw_only=True):
    """The brokers of a partition."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


class WantedSetting(Message, frozen=True, kw_only=True):
    """A setting of a topic or a broker; None: its default."""

    name: String
    value: NullableString = None


class CreatableTopic(Message, frozen=True, kw_only=True):
    """A topic to create."""

    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[WantedSetting, ...] = ()


class CreateTopicsRequest(Request, frozen=True, kw_only=True):
    """A request to create topics, or only to check whether they could be created."""

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32 = 0
    validate_only: Annotated[Boolean, Versions(1)] = False


class CreatedSetting(Message, frozen=True, kw_only=True):
    """A setting of a created topic."""

    name: String
    value: NullableString
    read_only: Boolean
    config_source: Int8
    is_sensitive: Boolean


class CreatedTopic(Message, frozen=True, kw_only=True):
    """A created topic, or the reason why it was not created."""

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


# DeleteTopics (20). 4 is flexible, 5 adds error messages; 6 identifies topics by id.
class DeleteTopicsRequest(Request, frozen=True, kw_only=True):
    """A request to delete topics."""

    topic_names: tuple[String, ...]
    timeout_ms: Int32 = 0


class DeletedTopic(Message, frozen=True, kw_only=True):
    """A deleted topic, or the reason why it was not deleted."""

    name: String
    error_code: Int16 = 0
    error_message: Annotated[Remark, Versions(5)] = None


class DeleteTopicsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    responses: tuple[DeletedTopic, ...]


# DeleteRecords (21): moves the beginnings of partitions forward. 2 is flexible.
#: The end of the partition.
HIGH_WATERMARK: Final = -1


class DeleteRecordsPartition(Message, frozen=True, kw_only=True):
    """A partition and its new beginning."""

    partition_index: Int32
    offset: Int64


class DeleteRecordsRequest(Request, frozen=True, kw_only=True):
    """A request to delete the first records of partitions."""

    topics: tuple[Topic[DeleteRecordsPartition], ...]
    timeout_ms: Int32 = 60_000


class DeleteRecordsPartitionResult(Message, frozen=True, kw_only=True):
    """The new beginning of a partition."""

    partition_index: Int32
    low_watermark: Int64 = -1
    error_code: Int16 = 0


class DeleteRecordsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Int32 = 0
    topics: tuple[Topic[DeleteRecordsPartitionResult], ...]


# CreatePartitions (37): adds partitions to topics. 2 is flexible.
class CreatePartitionsAssignment(Message, frozen=True, kw_only=True):
    """The brokers of a new partition."""

    broker_ids: tuple[Int32, ...]


class CreatePartitionsTopic(Message, frozen=True, kw_only=True):
    """A topic and its new number of partitions."""

    name: String
    count: Int32
    assignments: tuple[CreatePartitionsAssignment, ...] | None = None


class CreatePartitionsRequest(Request, frozen=True, kw_only=True):
    """A request for more partitions."""

    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: Int32 = 60_000
    validate_only: Boolean = False


class CreatePartitionsTopicResult(Message, frozen=True, kw_only=True):
    """The result for a topic."""

    name: String
    error_code: Int16 = 0
    error_message: Remark = None


class CreatePartitionsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsTopicResult, ...]


# DescribeConfigs (32): the settings of topics and brokers. 1 adds synonyms, 3 documentation; 4 is flexible.
TOPIC: Final = 2
BROKER: Final = 4
#: The sources of a value, and its types, as far as used (ConfigEntry.java).
DEFAULT_CONFIG: Final = 5
TYPE_STRING: Final = 2
TYPE_LONG: Final = 5


class DescribedResource(Message, frozen=True, kw_only=True):
    """A topic or a broker, and the requested settings; None: all of them."""

    resource_type: Int8
    resource_name: String
    configuration_keys: tuple[String, ...] | None = None


class DescribeConfigsRequest(Request, frozen=True, kw_only=True):
    """A request for settings."""

    resources: tuple[DescribedResource, ...]
    include_synonyms: Annotated[Boolean, Versions(1)] = False
    include_documentation: Annotated[Boolean, Versions(3)] = False


class Synonym(Message, frozen=True, kw_only=True):
    """Another source with a value for a setting."""

    name: String
    value: NullableString
    source: Int8


class Setting(Message, frozen=True, kw_only=True):
    """A setting and its value."""

    name: String
    value: NullableString
    read_only: Boolean = True
    config_source: Annotated[Int8, Versions(1)] = DEFAULT_CONFIG
    is_sensitive: Boolean = False
    synonyms: Annotated[tuple[Synonym, ...], Versions(1)] = ()
    config_type: Annotated[Int8, Versions(3)] = TYPE_STRING
    documentation: Annotated[NullableString, Versions(3)] = None


class DescribedConfigs(Message, frozen=True, kw_only=True):
    """The settings of one resource."""

    error_code: Int16 = 0
    error_message: Remark = None
    resource_type: Int8
    resource_name: String
    configs: tuple[Setting, ...] = ()


class DescribeConfigsResponse(Message, frozen=True, kw_only=True):
    """The settings, in the order of the request."""

    throttle_time_ms: Int32 = 0
    results: tuple[DescribedConfigs, ...]


# AlterConfigs (33): replaces all settings of topics and brokers. 2 is flexible.
class AlteredResource(Message, Generic[C], frozen=True, kw_only=True):
    """A topic or a broker, and its settings or their changes."""

    resource_type: Int8
    resource_name: String
    configs: tuple[C, ...]


class AlterConfigsRequest(Request, frozen=True, kw_only=True):
    """A request to replace settings."""

    resources: tuple[AlteredResource[WantedSetting], ...]
    validate_only: Boolean = False


class AlterConfigsResourceResponse(Message, frozen=True, kw_only=True):
    """The result for a resource."""

    error_code: Int16 = 0
    error_message: Remark = None
    resource_type: Int8
    resource_name: String


class AlterConfigsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]


# IncrementalAlterConfigs (44): changes single settings of topics and brokers. 1 is flexible.
#: The operation that sets the value. Others delete it, or add and remove list entries.
SET: Final = 0


class IncrementalConfig(Message, frozen=True, kw_only=True):
    """A change of one setting."""

    name: String
    config_operation: Int8 = SET
    value: NullableString = None


class IncrementalAlterConfigsRequest(Request, frozen=True, kw_only=True):
    """A request to change settings."""

    resources: tuple[AlteredResource[IncrementalConfig], ...]
    validate_only: Boolean = False


class IncrementalAlterConfigsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]
