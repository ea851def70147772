"""Kafka batches stored unchanged (queue.type=BatchCQ) behave like other topics."""

import struct
import zlib
from pathlib import Path

import google_crc32c
import pytest

from libramq.codes import RequestCode
from libramq.errors import StoreError
from libramq.kernel.effect import Thread
from libramq.message import decode_records
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.message import MessageExt
from libramq.message.record import peek_record
from libramq.message.sys_flag import INNER_BATCH, NEED_UNWRAP
from libramq.protocols.kafka.records import fetched_records
from libramq.remoting.headers import SendBackHeader
from libramq.store import StoreMessage
from libramq.store.reading.read import ReadStatus
from libramq.wire.kafka.apis.metadata import MetadataRequest, MetadataRequestTopic
from libramq.wire.kafka.apis.topics import (
    TOPIC,
    CreatableTopic,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribedResource,
    WantedSetting,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import RECORDS_MAX, InvalidBatch, check_batch
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.protocols.kafka import test_idempotence, test_records, test_topic_changes
from tests.protocols.kafka.peers import KafkaEndpoint, KafkaPeer, batch, record
from tests.protocols.kafka.test_idempotence import producer, restarts
from tests.store.stores import BORN

__all__ = ["producer", "restarts"]

#: Tests for the other storage type only: there, batches are decoded when stored and trimmed to the exact
#: bytes when fetched.
OTHERS = {
    "test_a_fetch_reads_several_partitions_within_its_limits",
    "test_the_records_of_one_request_are_bounded",
    "test_batches_that_may_expand_are_decoded_by_a_thread",
    "test_a_refused_batch_leaves_nothing_in_memory",
    "test_a_producer_that_goes_while_a_thread_decodes_is_not_answered",
    "test_a_retry_adds_records_lost_by_a_kill_during_the_write",
    "test_a_retry_adds_missing_records_after_those_of_others",
    "test_a_copy_of_a_message_does_not_count",
}

for _module in (test_records, test_idempotence, test_topic_changes):
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") and _name not in OTHERS:
            globals()[_name] = _test


@pytest.fixture
def queue_type() -> str:
    return "BatchCQ"


def compressed(data: bytes) -> bytes:
    """Return a batch with its records compressed by gzip."""
    packed = zlib.compressobj(wbits=31)
    body = packed.compress(data[61:]) + packed.flush()
    checked = struct.pack(">h", 1) + data[23:61] + body
    head = data[:8] + struct.pack(">iib", len(checked) + 9, 0, 2)
    return head + struct.pack(">I", google_crc32c.value(checked)) + checked


def produced(peer: KafkaPeer, data: bytes) -> int:
    (topic,) = peer.ask(peer.produce_request(data)).responses
    assert topic.partitions[0].error_code == 0, topic
    return int(topic.partitions[0].base_offset)


def messages(talk: Conversation, offset: int = 0) -> list[MessageExt]:
    """Read the queue the way RocketMQ clients do."""
    found: list[MessageExt] = []
    while True:
        result = talk.broker.store.read("T", 0, offset, 32)
        if result.status is not ReadStatus.FOUND:
            return found
        found += decode_records(b"".join(result.data))
        offset = result.next_offset


def test_a_batch_is_one_record_and_comes_back_byte_for_byte(endpoint: KafkaEndpoint):
    peer, store = endpoint.peer(), endpoint.talk.broker.store
    data = compressed(batch(*(record(b"%d" % number, b"k") for number in range(5))))
    assert [produced(peer, data) for _ in range(3)] == [0, 5, 10]
    stored = store.read("T", 0, 0, 32, as_stored=True)
    heads, bodies, start, whole = [], [], 0, b"".join(stored.data)
    while start < len(whole):
        head = peek_record(whole, start)
        assert head is not None
        heads.append(head)
        bodies.append(whole[head.body_start : head.body_end])
        start += head.size
    assert [head.queue_offset for head in heads] == [0, 5, 10]
    assert bodies == [data] * 3
    fetched = peer.fetch(7).records
    assert fetched is not None
    assert fetched[8:] == data[8:] + struct.pack(">q", 10) + data[8:]
    assert fetched[:8] == struct.pack(">q", 5)
    assert peer.fetch(7).high_watermark == 15


def test_a_search_by_time_looks_into_compressed_batches(endpoint: KafkaEndpoint):
    """The second batch announces a later time than its records have; the search inspects and skips them."""
    peer, now_ms = endpoint.peer(), int(endpoint.talk.clock.wall_ms())
    times = [now_ms + number for number in (5, 0, 9, 3)]
    data = batch(*(record(timestamp_ms=each) for each in times))
    produced(peer, compressed(data))
    produced(peer, compressed(data[:35] + struct.pack(">q", now_ms + 1_000) + data[43:]))
    produced(peer, compressed(batch(record(timestamp_ms=now_ms), record(timestamp_ms=now_ms + 500))))
    for wanted, number in ((0, 0), (now_ms + 6, 2), (now_ms + 10, 9), (now_ms + 500, 9), (now_ms + 501, -1)):
        assert test_records.listed(peer, wanted)[:2] == (0, number)


def test_every_record_is_a_message_to_clients_of_rocketmq(endpoint: KafkaEndpoint):
    peer, talk = endpoint.peer(), endpoint.talk
    records = [
        record(b"a", b"key", headers=[("colour", b"blue")], timestamp_ms=1_700_000_000_000),
        record(None, b"\xff", timestamp_ms=1_700_000_000_007),
        record(b"c", headers=[("x", b"1"), ("x", b"2")], timestamp_ms=1_700_000_000_003),
    ]
    produced(peer, compressed(batch(*records)))
    talk.send(FakePeer(), body=b"from RocketMQ", queue_id=0)
    produced(peer, batch(*records))
    found = messages(talk)
    assert [message.queue_offset for message in found] == list(range(7))
    assert [message.body for message in found] == [b"a", b"", b"c", b"from RocketMQ", b"a", b"", b"c"]
    assert found[0].properties["KEYS"] == "key"
    assert found[0].properties["colour"] == "blue"
    assert [message.born_timestamp_ms - 1_700_000_000_000 for message in found[:3]] == [0, 7, 3]
    assert len({message.physical_offset for message in found}) == 7
    for message in found:
        again = talk.broker.store.message_at(message.physical_offset)
        assert again is not None
        assert again.queue_offset == message.queue_offset
    hidden = {"INNER_NUM", "KAFKA_BATCH", "__KAFKA_PRODUCER"}
    assert not any(hidden & message.properties.keys() for message in found)
    kafka = peer.records()
    assert [each.value for each in kafka] == [b"a", None, b"c", b"from RocketMQ", b"a", None, b"c"]
    assert [each.offset for each in kafka] == list(range(7))
    assert (kafka[0].key, kafka[1].key) == (b"key", b"\xff")
    assert kafka[2].headers == (("x", b"1"), ("x", b"2"))


def test_a_pull_begins_amid_a_batch(endpoint: KafkaEndpoint):
    produced(endpoint.peer(), batch(*(record(b"%d" % number) for number in range(5))))
    command = endpoint.talk.pull(FakePeer(), queue_offset=3)
    assert command is not None
    assert [each.body for each in decode_records(command.body)] == [b"3", b"4"]


def test_a_message_that_is_sent_back_is_the_one_of_the_batch(endpoint: KafkaEndpoint):
    produced(endpoint.peer(), batch(*(record(b"%d" % number) for number in range(5))))
    place = messages(endpoint.talk)[3].physical_offset
    header = SendBackHeader(group="G", offset=place, delay_level=-1, origin_topic="T")
    endpoint.talk.beat(FakePeer(), "c")
    assert endpoint.talk.ask(FakePeer(), RequestCode.CONSUMER_SEND_MSG_BACK, header).code == 0
    (again,) = endpoint.talk.messages("%DLQ%G")
    assert again.body == b"3"
    assert "INNER_BASE" not in again.properties


def test_a_batch_that_cannot_be_unpacked_is_passed_over_by_clients_of_rocketmq(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    produced(peer, batch(record(b"a")))
    data = compressed(batch(record(b"b"), record(b"c")))
    broken = bytearray(data)
    broken[-12] ^= 0xFF
    checked = bytes(broken[21:])
    produced(peer, data[:17] + struct.pack(">I", google_crc32c.value(checked)) + checked)
    produced(peer, batch(record(b"d")))
    assert [(each.queue_offset, each.body) for each in messages(endpoint.talk)] == [(0, b"a"), (3, b"d")]


@pytest.mark.parametrize("announced", [1, 3])
def test_a_batch_of_rocketmqs_with_another_number_than_it_announces_is_passed_over(
    endpoint: KafkaEndpoint, announced: int
):
    """If a batch has fewer messages than offsets, a fetch of the other offsets would return it forever."""
    inner = encode_batch([BatchItem(0, b"a", b""), BatchItem(0, b"b", b"")])
    store = endpoint.talk.broker.store
    stored = StoreMessage(
        "T", 0, inner, b"INNER_NUM\x01%d\x02" % announced, count=announced, born_host=BORN,
        sys_flag=INNER_BATCH | NEED_UNWRAP,
    )  # fmt: skip
    store.append_batch([stored])
    found = fetched_records(store.read("T", 0, 0, 32, as_stored=True).data)
    base, last_delta, count = struct.unpack_from(">q15xi30xi", found)
    assert (base, last_delta, count, len(found)) == (0, announced - 1, 0, 61)


def test_a_batch_of_many_records_is_checked_by_a_thread(endpoint: KafkaEndpoint):
    """Checking 32,767 records takes 10 ms."""
    peer = endpoint.peer()
    data = batch(*(record(b"") for _ in range(RECORDS_MAX)))
    peer._entrance.received(peer, [peer.frame(peer.produce_request(data), 9)])
    assert [each[0] for each in endpoint.talk.threads.work] == [Thread.COMPUTE]
    peer.compute()
    (response,) = peer.answers()
    assert response.responses[0].partitions[0].error_code == 0
    assert peer.fetch().high_watermark == RECORDS_MAX


def test_small_batches_are_stored_at_once(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    data = compressed(batch(*(record(b"x" * 1_000) for _ in range(1_000))))
    peer._entrance.received(peer, [peer.frame(peer.produce_request(data), 9)])
    assert not endpoint.talk.threads.work
    assert len(peer.answers()) == 1


@pytest.mark.parametrize("cut", range(62, 150, 7))
def test_records_that_do_not_fill_their_batch_are_refused(cut: int):
    data = batch(record(b"a" * 30), record(b"b" * 50))
    checked = data[21:cut]
    head = data[:8] + struct.pack(">i", len(checked) + 9) + data[12:17]
    with pytest.raises(InvalidBatch, match="does not have the 2 records"):
        check_batch(head + struct.pack(">I", google_crc32c.value(checked)) + checked)
    assert check_batch(data).records == 2


def test_a_topic_is_created_with_its_kind_of_queues(endpoint: KafkaEndpoint):
    peer = endpoint.peer()

    def create(name: str, value: str) -> int:
        settings = (WantedSetting(name="queue.type", value=value),)
        wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=settings)
        return int(peer.ask(CreateTopicsRequest(topics=(wanted,))).topics[0].error_code)

    assert create("New", "BatchCQ") == 0
    assert create("Plain", "SimpleCQ") == 0
    assert create("Odd", "RocksDBCQ") == ErrorCode.INVALID_CONFIG
    kinds = {}
    for name in ("New", "Plain"):
        resource = DescribedResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
        (described,) = peer.ask(DescribeConfigsRequest(resources=(resource,))).results
        kinds[name] = {each.name: each.value for each in described.configs}["queue.type"]
    assert kinds == {"New": "BatchCQ", "Plain": "SimpleCQ"}
    assert endpoint.talk.broker.store.is_in_batches("New")
    assert not endpoint.talk.broker.store.is_in_batches("Plain")


@pytest.mark.parametrize("queue_type", ["SimpleCQ", "BatchCQ"])
def test_topics_that_kafkas_clients_create_are_of_the_configured_kind(tmp_path: Path, queue_type: str):
    talk = Conversation(tmp_path, kafka_queue_type=queue_type)
    peer = KafkaEndpoint(talk).peer()
    peer.create("Created")
    wanted = (MetadataRequestTopic(name="Used"),)
    peer.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=True))
    for name in ("Created", "Used"):
        assert talk.broker.store.is_in_batches(name) == (queue_type == "BatchCQ")
        topic = talk.broker.topics.get(name)
        assert topic is not None
        assert topic.attributes == ({"queue.type": "BatchCQ"} if queue_type == "BatchCQ" else {})
    talk.close()


def test_without_kafkas_codecs_the_error_names_the_missing_one(endpoint: KafkaEndpoint, monkeypatch):
    import sys

    from libramq.batches.formats import unwrap

    produced(endpoint.peer(), batch(record(b"a")))
    (data,) = endpoint.talk.broker.store.read("T", 0, 0, 1, as_stored=True).data
    head = peek_record(bytes(data))
    assert head is not None
    monkeypatch.setitem(sys.modules, "libramq.batches.kafka_batch", None)
    with pytest.raises(StoreError, match=r"install libramq\[kafka\]"):
        unwrap(bytes(data), head)
