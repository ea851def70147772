"""Metadata (3): brokers, topics, and the leaders of their partitions.

In version 0 an empty list requests all topics; later versions request all by null, and none by an empty list.
Version 9 is flexible; 10 adds topic ids, which 12 accepts in requests; 13 has a top-level error code.
"""

from typing import Annotated, Final

from libramq.wire.kafka.schema import (
    Boolean,
    Int16,
    Int32,
    Message,
    NullableString,
    Request,
    String,
    Uuid,
    Versions,
)

#: The authorized operations if a client did not request them.
NOT_REQUESTED = -(1 << 31)
#: The id of a topic that does not exist, or is requested by name.
NO_ID: Final = bytes(16)


class MetadataRequestTopic(Message, frozen=True, kw_only=True):
    """A requested topic. name: None if it is requested by id."""

    topic_id: Annotated[Uuid, Versions(10)] = NO_ID
    name: NullableString


class MetadataRequest(Request, frozen=True, kw_only=True):
    """A request for topics."""

    topics: tuple[MetadataRequestTopic, ...] | None = None
    allow_auto_topic_creation: Annotated[Boolean, Versions(4)] = True
    include_cluster_authorized_operations: Annotated[Boolean, Versions(8, 10)] = False
    include_topic_authorized_operations: Annotated[Boolean, Versions(8)] = False


class MetadataBroker(Message, frozen=True, kw_only=True):
    """A broker, with the address for clients."""

    node_id: Int32
    host: String
    port: Int32
    rack: Annotated[NullableString, Versions(1)] = None


class MetadataPartition(Message, frozen=True, kw_only=True):
    """A partition and its leader."""

    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, Versions(7)] = -1
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    offline_replicas: Annotated[tuple[Int32, ...], Versions(5)] = ()


class MetadataTopic(Message, frozen=True, kw_only=True):
    """A topic, or the reason why there is none."""

    error_code: Int16 = 0
    name: NullableString
    topic_id: Annotated[Uuid, Versions(10)] = NO_ID
    is_internal: Annotated[Boolean, Versions(1)] = False
    partitions: tuple[MetadataPartition, ...] = ()
    topic_authorized_operations: Annotated[Int32, Versions(8)] = NOT_REQUESTED


class MetadataResponse(Message, frozen=True, kw_only=True):
    """The requested part of the cluster."""

    throttle_time_ms: Annotated[Int32, Versions(3)] = 0
    brokers: tuple[MetadataBroker, ...]
    cluster_id: Annotated[NullableString, Versions(2)] = None
    controller_id: Annotated[Int32, Versions(1)] = -1
    topics: tuple[MetadataTopic, ...]
    cluster_authorized_operations: Annotated[Int32, Versions(8, 10)] = NOT_REQUESTED
    error_code: Annotated[Int16, Versions(13)] = 0
