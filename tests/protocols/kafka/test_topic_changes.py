"""Topics get more partitions and lose their first records; their settings stay."""

from pathlib import Path
from typing import Any

import pytest

from libramq.catalog.topic_table import QUEUES_MAX
from libramq.kernel.effect import Thread
from libramq.wire.kafka.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
)
from libramq.wire.kafka.apis.topics import (
    BROKER,
    TOPIC,
    AlterConfigsRequest,
    AlteredResource,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    WantedSetting,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.schema import Topic
from tests.auth.guards import Guard
from tests.broker.brokers import Conversation
from tests.protocols.kafka.peers import KafkaEndpoint, KafkaPeer, record


def grow(peer: KafkaPeer, count: int, name: str = "T", version: int | None = None, **fields: Any) -> int:
    assignments = fields.pop("assignments", None)
    topics = (CreatePartitionsTopic(name=name, count=count, assignments=assignments),)
    (result,) = peer.ask(CreatePartitionsRequest(topics=topics, **fields), version).results
    code: int = result.error_code
    return code


def partitions(peer: KafkaPeer) -> int:
    (found,) = peer.ask(MetadataRequest(topics=(MetadataRequestTopic(name="T"),))).topics
    return len(found.partitions)


def begin_at(
    peer: KafkaPeer, offset: int, partition: int = 0, name: str = "T", version: int | None = None
) -> DeleteRecordsPartitionResult:
    wanted = (DeleteRecordsPartition(partition_index=partition, offset=offset),)
    topics = (Topic(name=name, partitions=wanted),)
    response = peer.ask(DeleteRecordsRequest(topics=topics), version)
    result: DeleteRecordsPartitionResult = response.topics[0].partitions[0]
    return result


@pytest.mark.parametrize("version", range(4))
def test_a_topic_gets_more_partitions(endpoint: KafkaEndpoint, version: int):
    peer = endpoint.peer()
    assert grow(peer, 5, version=version, validate_only=True) == 0
    assert partitions(peer) == 2
    assert grow(peer, 5, version=version) == 0
    assert partitions(peer) == 5
    assert peer.produce(record(), partition=4).error_code == 0


def test_impossible_topic_changes_are_refused(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    for count in (2, 1, 0, -1, QUEUES_MAX + 1):
        assert grow(peer, count) == ErrorCode.INVALID_PARTITIONS
    assert grow(peer, 5, "None") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assignments = (CreatePartitionsAssignment(broker_ids=(0,)),)
    assert grow(peer, 3, assignments=assignments) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert partitions(peer) == 2


@pytest.mark.parametrize("version", range(3))
def test_the_first_records_go(endpoint: KafkaEndpoint, version: int):
    peer = endpoint.peer()
    peer.produce(*(record(b"%d" % number) for number in range(4)))
    assert begin_at(peer, 2, version=version).low_watermark == 2
    assert [each.value for each in peer.records(2)] == [b"2", b"3"]
    assert peer.fetch(1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert begin_at(peer, 1, version=version).low_watermark == 2, "deleted records stay deleted"
    assert begin_at(peer, -1, version=version).low_watermark == 4
    assert peer.produce(record()).base_offset == 4


def test_records_are_gone_after_a_restart(tmp_path: Path):
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=2)
    peer = KafkaEndpoint(talk).peer()
    peer.produce(record(b"a"), record(b"b"))
    assert begin_at(peer, 1).low_watermark == 1
    talk.flush()
    talk.threads.run_all(Thread.DISK)
    talk.kill()
    talk = Conversation(tmp_path)
    assert talk.broker.store.min_offset("T", 0) == 1
    talk.close()


def test_records_that_are_not_there_cannot_be_deleted(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.produce(record())
    for offset in (2, -2):
        assert begin_at(peer, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    for name, partition in (("T", 7), ("None", 0), ("%RETRY%G", 0)):
        assert begin_at(peer, 0, partition, name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def altered(peer: KafkaPeer, kind: int, name: str, setting: str, value: str | None) -> int:
    """Change a setting with both kinds of request; return the code that both answer."""
    whole = AlteredResource(
        resource_type=kind, resource_name=name, configs=(WantedSetting(name=setting, value=value),)
    )
    some = AlteredResource(
        resource_type=kind, resource_name=name, configs=(IncrementalConfig(name=setting, value=value),)
    )
    codes = {
        peer.ask(request).responses[0].error_code
        for request in (
            AlterConfigsRequest(resources=(whole,)),
            IncrementalAlterConfigsRequest(resources=(some,)),
        )
    }
    (code,) = codes
    return int(code)


def test_settings_that_would_not_be_kept_are_refused(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    assert altered(peer, TOPIC, "T", "retention.ms", "1") == ErrorCode.INVALID_CONFIG
    assert altered(peer, TOPIC, "T", "cleanup.policy", "compact") == ErrorCode.INVALID_CONFIG
    assert altered(peer, TOPIC, "T", "cleanup.policy", "delete") == 0
    assert altered(peer, TOPIC, "None", "cleanup.policy", "delete") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert altered(peer, BROKER, "0", "num.partitions", "3") == ErrorCode.INVALID_CONFIG
    assert altered(peer, 32, "G", "x", "y") == ErrorCode.INVALID_REQUEST


def test_changes_are_authorised(tmp_path: Path):
    guard = Guard()
    talk = Conversation(tmp_path, authorizer=guard)
    talk.create_topic("T", queues=2)
    peer = KafkaEndpoint(talk).peer()
    guard.denied = {"Topic:T"}
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    codes = [grow(peer, 3), begin_at(peer, 0).error_code, altered(peer, TOPIC, "T", "retention.ms", "1")]
    assert codes == [denied] * 3
    talk.close()
