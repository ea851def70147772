"""Produce, Fetch and ListOffsets, and RocketMQ's clients on the same topics."""

import gc
import gzip
import random
import tracemalloc
from typing import Any, cast

import google_crc32c
import pytest

from libramq.broker.messages.fetching import (
    PACE_MS,
    READS_AT_ONCE_MAX,
    READS_PER_MS,
    Fetch,
    QueueRead,
)
from libramq.codes import RequestCode
from libramq.codes import ResponseCode as C
from libramq.kernel.effect import Thread
from libramq.message import decode_records
from libramq.protocols.kafka import api00_produce as producing
from libramq.protocols.kafka import api01_fetch as fetching
from libramq.protocols.kafka import api02_list_offsets as list_offsets
from libramq.remoting.headers import TopicHeader
from libramq.runtime import performer
from libramq.wire.kafka.apis.fetch import (
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from libramq.wire.kafka.apis.produce import (
    ProducePartition,
    ProduceRequest,
)
from libramq.wire.kafka.apis.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import DECOMPRESSED_BYTES_MAX, GZIP, HEADER_BYTES, RECORDS_MAX
from libramq.wire.kafka.schema import Topic
from tests.broker.brokers import answer
from tests.fakes import FakePeer, turns_of
from tests.protocols.kafka.peers import KafkaEndpoint, KafkaPeer, batch, fetched, record


def values(peer: KafkaPeer, offset: int = 0) -> list[bytes | None]:
    return [each.value for each in peer.records(offset)]


@pytest.mark.parametrize("version", range(3, 10))
def test_produced_records_are_fetched(endpoint: KafkaEndpoint, version: int):
    peer = endpoint.peer()
    sent = [
        record(b"a", b"k", headers=[("h", b"1")]),
        record(None),
        record(b"", b"\xff", headers=[("x", None)]),
    ]
    response = peer.ask(peer.produce_request(batch(*sent)), version)
    (produced,) = response.responses[0].partitions
    assert (produced.error_code, produced.base_offset) == (0, 0)
    found = peer.records()
    assert [(each.key, each.value, each.raw_headers) for each in found] == [
        (each.key, each.value, each.raw_headers) for each in sent
    ]
    assert [each.offset for each in found] == [0, 1, 2]
    assert {each.timestamp_ms for each in found} == {sent[0].timestamp_ms}


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_of_fetch_is_answered(endpoint: KafkaEndpoint, version: int):
    peer = endpoint.peer()
    peer.produce(record(b"a"))
    (partition,) = peer.ask(peer.fetch_request(), version).responses[0].partitions
    assert [each.value for each in fetched(partition)] == [b"a"]
    assert partition.high_watermark == 1


def test_records_without_a_time_come_back_without_one(endpoint: KafkaEndpoint):
    """Kafka's NO_TIMESTAMP is -1; mirrors and converters pass it on."""
    peer, sent = endpoint.peer(), [record(timestamp_ms=-1), record(), record(timestamp_ms=-1)]
    for each in (sent, sent[:1]):
        assert peer.produce(*each).error_code == 0
    assert [each.timestamp_ms for each in peer.records()] == [-1, record().timestamp_ms, -1, -1]
    assert [each.body for each in endpoint.talk.messages("T")] == [b"v"] * 4
    assert listed(peer, 0) == (0, 1, record().timestamp_ms)


def test_offsets_continue_from_batch_to_batch(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    assert [peer.produce(record(), record()).base_offset for _ in range(3)] == [0, 2, 4]
    assert [each.offset for each in peer.records(3)] == [3, 4, 5]


def test_a_rocketmq_client_consumes_kafkas_records(endpoint: KafkaEndpoint):
    endpoint.peer().produce(record(b"hello", b"order-7", headers=[("colour", b"blue")]))
    pulled = endpoint.talk.pull(FakePeer())
    assert pulled is not None
    (message,) = decode_records(pulled.body)
    assert (message.body, message.properties["KEYS"]) == (b"hello", "order-7")
    assert message.properties["colour"] == "blue"
    assert message.born_timestamp_ms == record().timestamp_ms


def test_a_kafka_client_consumes_rocketmqs_messages(endpoint: KafkaEndpoint):
    properties = {"KEYS": "order-7", "TAGS": "paid", "colour": "blue"}
    endpoint.talk.send(FakePeer(), body=b"hello", properties=properties)
    (found,) = endpoint.peer().records()
    assert (found.key, found.value) == (b"order-7", b"hello")
    assert list(found.headers) == [("TAGS", b"paid"), ("colour", b"blue")]
    assert found.timestamp_ms == 12_345


def test_a_held_fetch_wakes_in_the_turn_of_a_rocketmq_send(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.tell(peer.fetch_request(max_wait_ms=5_000))
    assert peer.answers() == []
    endpoint.talk.send(FakePeer(), body=b"at last")
    (response,) = peer.answers()
    assert [each.value for each in fetched(response.responses[0].partitions[0])] == [b"at last"]
    endpoint.talk.advance(10_000)
    assert peer.answers() == []


def test_fetches_that_one_message_wakes_are_run_in_slices(
    endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch
):
    """Thousands of fetches waiting for one partition do not delay everybody else."""
    endpoint.talk.broker.kernel.workload.begin_turn = turns_of(2)
    peers = [endpoint.peer() for _ in range(5)]
    for peer in peers:
        peer.tell(peer.fetch_request(max_wait_ms=5_000))
    endpoint.talk.send(FakePeer(), body=b"at last")
    counts = [sum(len(peer.answers()) for peer in peers)]
    while sum(counts) < 5 and len(counts) < 9:
        endpoint.talk.tick()
        counts.append(sum(len(peer.answers()) for peer in peers))
    assert max(counts) <= 2
    assert sum(counts) == 5


def test_a_held_rocketmq_pull_wakes_in_the_turn_of_a_produce(endpoint: KafkaEndpoint):
    rocketmq = FakePeer()
    command = endpoint.talk.pull_command(suspend_timeout_millis=5_000)
    endpoint.talk.give(rocketmq, command)
    assert rocketmq.replies == []
    endpoint.peer().produce(record(b"at last"))
    assert answer(rocketmq, command).code == C.SUCCESS


def test_a_held_fetch_ends_on_time(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.tell(peer.fetch_request(max_wait_ms=5_000))
    endpoint.talk.advance(4_999)
    assert peer.answers() == []
    endpoint.talk.advance(1)
    (response,) = peer.answers()
    assert response.responses[0].partitions[0].records == b""
    assert len(endpoint.talk.broker.purgatory) == 0


def test_a_fetch_waits_for_enough_bytes_or_its_time(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.tell(peer.fetch_request(max_wait_ms=5_000, min_bytes=2_000))
    producer = endpoint.peer()
    producer.produce(record(b"x" * 1_000))
    endpoint.talk.advance(100)
    assert peer.answers() == []
    producer.produce(record(b"y" * 1_000))
    endpoint.talk.advance(100)
    (response,) = peer.answers()
    assert len(fetched(response.responses[0].partitions[0])) == 2
    peer.tell(peer.fetch_request(offset=2, max_wait_ms=5_000, min_bytes=2_000))
    producer.produce(record(b"z"))
    endpoint.talk.advance(5_000)
    (response,) = peer.answers()
    assert [each.value for each in fetched(response.responses[0].partitions[0])] == [b"z"]


def both(peer: KafkaPeer, *limits: int, bytes_max: int = 1 << 20) -> list[list[Any]]:
    """Fetch partitions 0 and 1; return the records of each."""
    wanted = tuple(
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=limit)
        for number, limit in enumerate(limits)
    )
    topics = (Topic(name="T", partitions=wanted),)
    response = peer.ask(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=bytes_max, topics=topics))
    return [fetched(partition) for partition in response.responses[0].partitions]


def test_a_fetch_reads_several_partitions_within_its_limits(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    for partition in (0, 1):
        peer.produce(*(record(b"x" * 1_000) for _ in range(10)), partition=partition)
    assert [len(each) for each in both(peer, 1 << 20, 1 << 20)] == [10, 10]
    first, second = both(peer, 3_000, 1 << 20)
    assert 1 <= len(first) < 10
    assert len(second) == 10
    assert [len(each) for each in both(peer, 1 << 20, 1 << 20, bytes_max=1)] == [1, 0], "KIP-74: at least one"


def many_partitions(offset: int = 0, **fields: Any) -> FetchRequest:
    """Return a fetch of enough partitions of a topic to be read in steps."""
    wanted = tuple(
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
        for number in range(READS_AT_ONCE_MAX + 1)
    )
    topics = (Topic(name="Many", partitions=wanted),)
    return FetchRequest(**({"min_bytes": 1, "max_wait_ms": 0, "topics": topics} | fields))


def test_a_fetch_of_many_partitions_is_read_in_steps(endpoint: KafkaEndpoint):
    """A fetch of 10,000 partitions blocked other clients for 0.4 s, fifty times a second."""
    endpoint.talk.create_topic("Many", queues=READS_AT_ONCE_MAX + 1)
    peer = endpoint.peer()
    peer.produce(record(b"last"), topic="Many", partition=READS_AT_ONCE_MAX)
    fetching = endpoint.talk.broker.reads.fetching
    read: list[None] = []
    reading = fetching._read_each(
        Fetch(
            waiter=cast(Any, None),
            reads=[QueueRead("Many", number, 0, 1) for number in range(READS_AT_ONCE_MAX + 1)],
            bytes_min=1,
            bytes_max=1,
            hold_ms=0,
        ),
        cast(Any, read),
    )
    next(reading)
    assert len(read) == 1
    response = peer.ask(many_partitions())
    counts = [len(fetched(partition)) for partition in response.responses[0].partitions]
    assert counts == [0] * READS_AT_ONCE_MAX + [1]


def test_a_waiting_fetch_of_many_partitions_finds_new_records(endpoint: KafkaEndpoint):
    endpoint.talk.create_topic("Many", queues=READS_AT_ONCE_MAX + 1)
    consumer, producer = endpoint.peer("127.0.0.1:60001"), endpoint.peer()
    consumer.tell(many_partitions(max_wait_ms=5_000))
    assert consumer.answers() == []
    producer.produce(record(b"new"), topic="Many")
    endpoint.talk.advance(1 + max(PACE_MS, READS_AT_ONCE_MAX // READS_PER_MS))
    consumer.compute()
    (response,) = consumer.answers()
    assert [each.value for each in fetched(response.responses[0].partitions[0])] == [b"new"]
    consumer.tell(many_partitions(1, max_wait_ms=5_000, min_bytes=1 << 20))
    consumer.end()
    endpoint.talk.advance(10_000)
    assert len(endpoint.talk.broker.purgatory) == 0


def test_a_fetch_beyond_the_ends_is_out_of_range(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    assert peer.fetch(1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    peer.produce(record())
    assert peer.fetch(1).error_code == 0
    assert peer.fetch(2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert peer.fetch(-1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("topic", "partition"), [("Nowhere", 0), ("T", 2), ("T", -1), ("TBW102", 0), ("a.b", 0)]
)
def test_an_unknown_partition_is_refused_at_once(endpoint: KafkaEndpoint, topic: str, partition: int):
    peer = endpoint.peer()
    code = peer.fetch(0, topic, partition, max_wait_ms=5_000).error_code
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    produced = peer.produce(record(), topic=topic, partition=partition)
    assert produced.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


def test_a_held_fetch_notices_that_its_topic_is_deleted_when_its_time_is_up(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.tell(peer.fetch_request(max_wait_ms=5_000))
    endpoint.peer().ask(DeleteTopicsRequest(topic_names=("T",)))
    endpoint.talk.advance(5_000)
    (response,) = peer.answers()
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


#: maxMessageSize is 4 MiB.
LARGE = bytes((4 << 20) + 1)


def corrupt(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (corrupt(batch(record())), ErrorCode.CORRUPT_MESSAGE),
        (batch(record()) * 2, ErrorCode.INVALID_RECORD),
        (batch(record(timestamp_ms=1_900_000_000_000)), ErrorCode.INVALID_TIMESTAMP),
        (batch(record(timestamp_ms=-2)), ErrorCode.INVALID_TIMESTAMP),
        (batch(record(LARGE)), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(record(), record(LARGE)), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["empty", "corrupt", "two batches", "ahead", "negative", "large", "one large"],
)
def test_a_refused_batch_leaves_the_other_partition_alone(endpoint: KafkaEndpoint, records: bytes, code: int):
    peer = endpoint.peer()
    partitions = (
        ProducePartition(index=0, records=records),
        ProducePartition(index=1, records=batch(record())),
    )
    request = ProduceRequest(acks=1, timeout_ms=1, topics=(Topic(name="T", partitions=partitions),))
    refused, stored = peer.ask(request).responses[0].partitions
    assert (refused.error_code, stored.error_code) == (code, 0)
    assert refused.error_message
    assert (values(peer), endpoint.talk.messages("T", 1)[0].body) == ([], b"v")


def test_the_records_of_one_request_are_bounded(endpoint: KafkaEndpoint):
    """Each record becomes a message, and a request of 16 MiB could contain two million."""
    peer = endpoint.peer()
    half = batch(*(record(b"") for _ in range(RECORDS_MAX // 2 + 1)))
    partitions = tuple(ProducePartition(index=index, records=half) for index in (0, 1))
    request = ProduceRequest(acks=1, timeout_ms=1, topics=(Topic(name="T", partitions=partitions),))
    stored, refused = peer.ask(request).responses[0].partitions
    assert (stored.error_code, refused.error_code) == (0, ErrorCode.MESSAGE_TOO_LARGE)
    assert "send smaller batches" in refused.error_message


def test_acks_0_has_no_answer_and_others_are_refused(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.tell(peer.produce_request(batch(record(b"a")), acks=0))
    assert peer.answers() == []
    response = peer.ask(peer.produce_request(batch(record()), acks=2))
    assert response.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert values(peer) == [b"a"]


def test_a_refused_request_with_acks_0_ends_the_connection(endpoint: KafkaEndpoint):
    """Nothing else shows a producer that its broker does not lead the partition."""
    peer = endpoint.peer()
    peer.tell(peer.produce_request(batch(record(b"a")), topic="unknown", acks=0))
    assert (peer.is_open, peer.answers()) == (False, [])


@pytest.mark.parametrize("offset", [5, -5])
def test_a_fetch_outside_an_empty_partition_is_answered_at_once(endpoint: KafkaEndpoint, offset: int):
    peer = endpoint.peer()
    fetched = peer.fetch(offset, max_wait_ms=500)
    assert fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    peer.tell(peer.fetch_request(0, max_wait_ms=500))
    assert peer.answers() == []


def test_large_requests_and_answers_are_worked_on_by_a_thread(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    large = [record(b"x" * 30_000) for _ in range(3)]
    assert max(producing.AT_ONCE_BYTES_MAX, fetching.AT_ONCE_BYTES_MAX) < 3 * 30_000
    frame = peer.frame(peer.produce_request(batch(*large)), 9)
    peer._entrance.received(peer, [frame])
    assert [each[0] for each in endpoint.talk.threads.work] == [Thread.COMPUTE]
    assert peer.answers() == []
    peer.compute()
    assert peer.answers()[0].responses[0].partitions[0].base_offset == 0
    assert len(peer.records()) == 3


@pytest.mark.parametrize("count", [1, 1_000])
def test_batches_that_may_expand_are_decoded_by_a_thread(endpoint: KafkaEndpoint, count: int):
    """A compressed batch of some kilobytes, or many small records, blocked the broker's loop for 0.4 s."""
    peer = endpoint.peer()
    data = bytearray(batch(*(record(b"") for _ in range(count))))
    if count == 1:
        data[HEADER_BYTES:] = gzip.compress(data[HEADER_BYTES:])
        data[8:12] = (len(data) - 12).to_bytes(4)
        data[22] |= GZIP
        data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4)
    peer._entrance.received(peer, [peer.frame(peer.produce_request(bytes(data)), 9)])
    assert [each[0] for each in endpoint.talk.threads.work] == [Thread.COMPUTE]
    peer.compute()
    (response,) = peer.answers()
    assert response.responses[0].partitions[0].error_code == 0
    assert len(values(peer)) == count


def test_a_refused_batch_leaves_nothing_in_memory(endpoint: KafkaEndpoint):
    """The error kept the decoded records in a reference cycle: two clients made a broker grow by 900 MB."""
    peer = endpoint.peer()
    data = bytearray(batch(record(b"")))
    data[HEADER_BYTES:] = gzip.compress(bytes(DECOMPRESSED_BYTES_MAX + 1))
    data[8:12] = (len(data) - 12).to_bytes(4)
    data[22] |= GZIP
    data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4)
    frame = peer.frame(peer.produce_request(bytes(data)), 9)
    gc.disable()
    tracemalloc.start()
    try:
        peer.give(frame)
        left_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    (response,) = peer.answers()
    assert response.responses[0].partitions[0].error_code == ErrorCode.INVALID_RECORD
    assert left_bytes < 1 << 20 < DECOMPRESSED_BYTES_MAX <= peak_bytes


def test_a_producer_that_goes_while_a_thread_decodes_is_not_answered(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    frame = peer.frame(peer.produce_request(batch(*(record(b"x" * 30_000) for _ in range(3)))), 9)
    peer._entrance.received(peer, [frame])
    peer.end()
    peer.compute()
    assert peer.frames == []
    assert len(endpoint.talk.broker.purgatory) == 0


def listed(peer: KafkaPeer, timestamp: int, partition: int = 0, topic: str = "T") -> tuple[int, int, int]:
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    response = peer.ask(ListOffsetsRequest(topics=(Topic(name=topic, partitions=(wanted,)),)))
    (found,) = response.topics[0].partitions
    return found.error_code, found.offset, found.timestamp


def test_the_ends_of_a_partition_are_listed(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    assert (listed(peer, -1), listed(peer, -2)) == ((0, 0, -1), (0, 0, -1))
    peer.produce(record(), record())
    assert (listed(peer, -1), listed(peer, -2)) == ((0, 2, -1), (0, 0, -1))
    assert listed(peer, -3)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert listed(peer, -1, partition=2)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert listed(peer, -1, topic="Nowhere")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_many_partitions_are_listed_in_the_order_of_the_request(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.produce(record(), partition=1)
    numbers = [0, 1, 2] * 20
    wanted = tuple(ListOffsetsPartition(partition_index=number, timestamp=-1) for number in numbers)
    topics = tuple(Topic(name="T", partitions=wanted) for _ in range(2))
    response = peer.ask(ListOffsetsRequest(topics=topics))
    for topic in response.topics:
        assert [each.partition_index for each in topic.partitions] == numbers
        assert [each.offset for each in topic.partitions[:3]] == [0, 1, -1]


def test_the_first_record_of_a_time_is_listed(endpoint: KafkaEndpoint):
    """Records 0 … 4 are created 10 ms apart, and stored 5 ms later."""
    peer, clock = endpoint.peer(), endpoint.talk.clock
    times = []
    for _ in range(5):
        times.append(int(clock.wall_ms()))
        clock.advance(5)
        peer.produce(record(timestamp_ms=times[-1]))
        clock.advance(5)
    for number, made_ms in enumerate(times):
        assert listed(peer, made_ms) == (0, number, made_ms)
    assert listed(peer, times[1] + 1) == (0, 2, times[2])
    assert listed(peer, 0) == (0, 0, times[0])
    assert listed(peer, times[4] + 1) == (0, -1, -1)


DAY_MS = 86_400_000


def imported(endpoint: KafkaEndpoint, count: int = 10_000, each_ms: int = 10) -> int:
    """Store records created three days ago, 10 ms apart; return the time of the first."""
    peer, first_ms = endpoint.peer(), int(endpoint.talk.clock.wall_ms()) - 3 * DAY_MS
    for at in range(0, count, 500):
        made = (record(timestamp_ms=first_ms + each_ms * number) for number in range(at, at + 500))
        assert peer.produce(*made).error_code == 0
    return first_ms


def test_imported_records_are_found_by_the_time_at_which_they_were_made(endpoint: KafkaEndpoint):
    """Only the first 4,096 were searched; a consumer that takes "none" for the end skips the rest."""
    first_ms, peer = imported(endpoint), endpoint.peer()
    for number in (9_999, 5_000, 0, 4_097, 9_501):
        made_ms = first_ms + 10 * number
        assert listed(peer, made_ms) == (0, number, made_ms)
        assert listed(peer, made_ms - 9) == (0, number, made_ms)
    assert listed(peer, first_ms + 100_000) == (0, -1, -1)
    peer.produce(record(timestamp_ms=first_ms + 100_000))
    assert listed(peer, first_ms + 100_000) == (0, 10_000, first_ms + 100_000)


def test_records_of_clocks_that_are_ahead_or_behind_are_found(endpoint: KafkaEndpoint):
    """The first record at or after a time may be stored before it, and behind younger records."""
    peer, now_ms = endpoint.peer(), int(endpoint.talk.clock.wall_ms())
    made = [now_ms, now_ms + 3_599_000, now_ms - DAY_MS, now_ms + 1, now_ms + 1_800_000]
    for made_ms in made:
        peer.produce(record(timestamp_ms=made_ms))
    endpoint.talk.clock.advance(3_000_000)
    peer.produce(*(record(timestamp_ms=now_ms + 3_000_000) for _ in range(2_000)))
    for _ in range(2):  # The second search uses the cached stretches.
        for wanted, number in (
            (now_ms - 2 * DAY_MS, 0),
            (now_ms, 0),
            (now_ms + 1, 1),
            (now_ms + 3_599_000, 1),
        ):
            assert listed(peer, wanted) == (0, number, made[number])
        assert listed(peer, now_ms + 3_599_001) == (0, -1, -1)


def test_times_of_a_deleted_topic_do_not_apply_to_its_successor(endpoint: KafkaEndpoint):
    first_ms, peer = imported(endpoint, 2_500), endpoint.peer()
    assert listed(peer, first_ms + 25_000) == (0, -1, -1)
    queue_type = endpoint.talk.broker.topics.require("T").attributes
    endpoint.talk.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic="T"))
    endpoint.talk.create_topic("T", 2, attributes=f"+queue.type={queue_type['queue.type']}")
    for at in range(0, 2_500, 500):
        peer.produce(*(record(timestamp_ms=first_ms + 50_000 + at + number) for number in range(500)))
    assert listed(peer, first_ms + 25_000) == (0, 0, first_ms + 50_000)


def test_times_of_records_that_are_gone_do_not_count(endpoint: KafkaEndpoint):
    """Deleted records are never returned, and the cache of their stretch hides no others."""
    first_ms, peer = imported(endpoint, 2_500, each_ms=-10), endpoint.peer()
    assert listed(peer, first_ms) == (0, 0, first_ms)
    assert listed(peer, first_ms + 1) == (0, -1, -1)
    partitions = (DeleteRecordsPartition(partition_index=0, offset=1_500),)
    peer.ask(DeleteRecordsRequest(topics=(Topic(name="T", partitions=partitions),)))
    assert listed(peer, first_ms - 15_000) == (0, 1_500, first_ms - 15_000)
    assert listed(peer, first_ms - 20_000) == (0, 1_500, first_ms - 15_000)
    assert listed(peer, first_ms - 14_999) == (0, -1, -1)


@pytest.mark.parametrize("seed", range(4))
def test_a_search_by_time_is_exact(endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch, seed: int):
    """Compare with a scan of all records: times in any order, batches of any size, some records deleted."""
    monkeypatch.setattr(list_offsets, "STRETCH", 16)
    monkeypatch.setattr(list_offsets, "STRETCHES_MAX", 30)
    monkeypatch.setattr(list_offsets, "_BYTES_PER_STEP", 3_000)
    chance, peer, clock = random.Random(seed), endpoint.peer(), endpoint.talk.clock
    made: list[int] = []
    first = 0
    for _ in range(25):
        now_ms = int(clock.wall_ms())
        times = [now_ms + chance.randint(-DAY_MS, 3_600_000) for _ in range(chance.choice((1, 2, 5, 40)))]
        peer.produce(*(record(timestamp_ms=each) for each in times))
        made += times
        clock.advance(chance.choice((0, 60_000, DAY_MS // 2)))
        if chance.random() < 0.2:
            first = chance.randint(first, len(made))
            partitions = (DeleteRecordsPartition(partition_index=0, offset=first),)
            peer.ask(DeleteRecordsRequest(topics=(Topic(name="T", partitions=partitions),)))
        for _ in range(8):
            wanted = chance.choice(made) + chance.choice((-1, 0, 1))
            live = ((0, number, made[number]) for number in range(first, len(made)) if made[number] >= wanted)
            assert listed(peer, wanted) == next(live, (0, -1, -1))


def test_a_partition_is_searched_once_in_a_request(endpoint: KafkaEndpoint):
    """A 4.8 KB request with one partition four hundred times took the broker 46 s; Kafka refuses it."""
    peer = endpoint.peer()
    first_ms = imported(endpoint, 500)
    wanted = tuple(
        ListOffsetsPartition(partition_index=0, timestamp=first_ms + number) for number in range(400)
    )
    (topic,) = peer.ask(ListOffsetsRequest(topics=(Topic(name="T", partitions=wanted),))).topics
    assert [each.error_code for each in topic.partitions] == [0] + [ErrorCode.INVALID_REQUEST] * 399
    assert topic.partitions[0].offset == 0


def test_others_are_served_while_a_partition_is_searched(
    endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(performer, "TURN_US_MAX", 0)
    first_ms, peer, other = imported(endpoint, 5_000), endpoint.peer(), endpoint.peer()
    wanted = (ListOffsetsPartition(partition_index=0, timestamp=first_ms + 49_990),)
    request = ListOffsetsRequest(topics=(Topic(name="T", partitions=wanted),))
    peer._entrance.received(peer, [peer.frame(request, 6)])
    assert peer.frames == []
    ends = Topic(name="T", partitions=(ListOffsetsPartition(partition_index=0, timestamp=-1),))
    other._entrance.received(other, [other.frame(ListOffsetsRequest(topics=(ends,)), 6)])
    while not other.frames:
        turn = endpoint.talk.performer.turns.timer
        assert turn is not None
        turn.cancel()
        turn.action()  # type: ignore[attr-defined]
    assert peer.frames == []
    peer.compute()
    assert peer.answers()[0].topics[0].partitions[0].offset == 4_999
