"""Idempotent producers: a batch that is resent is stored once, no matter what happened in between."""

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from libramq.batches.kafka_batch import PRODUCER
from libramq.kernel.effect import Thread
from libramq.protocols.kafka.api22_producers import FILE_NAME
from libramq.protocols.kafka.idempotent_producers import BATCHES_MAX
from libramq.wire.kafka.apis.produce import InitProducerIdRequest, ProducedPartition
from libramq.wire.kafka.apis.topics import DeleteTopicsRequest
from libramq.wire.kafka.error_code import ErrorCode
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.protocols.kafka.peers import KafkaEndpoint, KafkaPeer, batch, record

_CRC_FROM, _STAMP_AT = 21, 43


def stamped(data: bytes, producer_id: int, epoch: int, first: int) -> bytes:
    """Return a batch numbered as by an idempotent producer."""
    stamp = struct.pack(">qhi", producer_id, epoch, first)
    checked = data[_CRC_FROM:_STAMP_AT] + stamp + data[_STAMP_AT + len(stamp) :]
    return data[:17] + struct.pack(">I", google_crc32c.value(checked)) + checked


class IdempotentProducer:
    """A producer that numbers the records it sends to a partition of T; tests may set `epoch`."""

    def __init__(self, peer: KafkaPeer) -> None:
        self.peer = peer
        response = peer.ask(InitProducerIdRequest())
        assert response.error_code == 0
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch

    def send(self, first: int, *values: bytes, partition: int = 0) -> ProducedPartition:
        data = stamped(batch(*map(record, values)), self.producer_id, self.epoch, first)
        response = self.peer.ask(self.peer.produce_request(data, partition=partition))
        result: ProducedPartition = response.responses[0].partitions[0]
        return result

    def offset(self, first: int, *values: bytes, partition: int = 0) -> int:
        """Send records, and return the offset at which they are stored."""
        result = self.send(first, *values, partition=partition)
        assert result.error_code == 0, result
        return result.base_offset

    def code(self, first: int, *values: bytes) -> int:
        return self.send(first, *values).error_code


@pytest.fixture
def producer(endpoint: KafkaEndpoint) -> IdempotentProducer:
    return IdempotentProducer(endpoint.peer())


def stored(talk: Conversation, topic: str = "T") -> list[bytes]:
    return [message.body for message in talk.messages(topic)]


def test_every_producer_has_an_id_of_its_own(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    found = [peer.ask(InitProducerIdRequest(), version) for version in range(6)]
    assert len({each.producer_id for each in found}) == 6
    assert {(each.error_code, each.producer_epoch) for each in found} == {(0, 0)}
    assert all(each.producer_id >= 0 for each in found)


def test_a_transactional_producer_is_refused(endpoint: KafkaEndpoint):
    response = endpoint.peer().ask(InitProducerIdRequest(transactional_id="t"))
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_a_batch_that_is_sent_again_is_answered_with_its_first_offset(
    talk: Conversation, producer: IdempotentProducer
):
    assert producer.offset(0, b"a", b"b") == 0
    assert producer.offset(2, b"c") == 2
    assert producer.offset(0, b"a", b"b") == 0
    assert producer.offset(2, b"c") == 2
    assert stored(talk) == [b"a", b"b", b"c"]


def test_the_last_five_batches_are_known(talk: Conversation, producer: IdempotentProducer):
    for number in range(BATCHES_MAX + 1):
        producer.offset(number, b"%d" % number)
    assert [producer.offset(number, b"x") for number in range(1, 6)] == [1, 2, 3, 4, 5]
    assert producer.code(0, b"0") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(stored(talk)) == 6


def test_a_batch_after_a_lost_one_is_refused_until_that_is_sent(
    talk: Conversation, producer: IdempotentProducer
):
    producer.offset(0, b"a")
    assert producer.code(2, b"c") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.offset(1, b"b") == 1
    assert producer.offset(2, b"c") == 2
    assert stored(talk) == [b"a", b"b", b"c"]


def test_partitions_and_producers_are_numbered_apart(endpoint: KafkaEndpoint, producer: IdempotentProducer):
    other = IdempotentProducer(endpoint.peer("127.0.0.1:60001"))
    assert [producer.offset(0, b"a"), producer.offset(0, b"a", partition=1), other.offset(0, b"b")] == [
        0,
        0,
        1,
    ]
    assert [producer.offset(0, b"a"), producer.offset(0, b"a", partition=1), other.offset(0, b"b")] == [
        0,
        0,
        1,
    ]


def test_an_epoch_begins_at_zero_and_ends_the_one_before(talk: Conversation, producer: IdempotentProducer):
    producer.offset(0, b"a")
    producer.epoch = 1
    assert producer.code(1, b"b") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.offset(0, b"b") == 1
    producer.epoch = 0
    assert producer.code(1, b"c") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.code(0, b"a") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert stored(talk) == [b"a", b"b"]


def test_sequences_continue_behind_the_largest(talk: Conversation, producer: IdempotentProducer):
    producer.offset((1 << 31) - 2, b"a", b"b")
    assert producer.offset(0, b"c") == 2
    assert producer.offset((1 << 31) - 2, b"a", b"b") == 0
    assert len(stored(talk)) == 3


def test_a_new_topic_of_the_same_name_knows_no_batches(endpoint: KafkaEndpoint, producer: IdempotentProducer):
    producer.offset(0, b"a")
    assert producer.peer.ask(DeleteTopicsRequest(topic_names=("T",))).responses[0].error_code == 0
    producer.peer.create("T")
    assert producer.offset(0, b"a") == 0
    assert stored(endpoint.talk) == [b"a"]


def test_the_numbers_are_no_header(producer: IdempotentProducer):
    producer.offset(0, b"a")
    (found,) = producer.peer.records()
    assert not found.headers


def test_a_repeated_batch_is_answered_when_the_first_one_is_safe(tmp_path: Path):
    talk = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    talk.create_topic("T", queues=2)
    producer = IdempotentProducer(KafkaEndpoint(talk).peer())
    peer = producer.peer
    data = stamped(batch(record(b"a")), producer.producer_id, 0, 0)
    peer.tell(peer.produce_request(data))
    peer.tell(peer.produce_request(data))
    assert peer.answers() == []
    talk.flush()
    assert [each.responses[0].partitions[0].base_offset for each in peer.answers()] == [0, 0]
    talk.flush()
    assert stored(talk) == [b"a"]
    talk.close()


class Restarts:
    """A broker that is restarted repeatedly."""

    def __init__(self, path: Path, queue_type: str) -> None:
        self.path = path
        self.attributes = f"+queue.type={queue_type}"
        self.talk = Conversation(path)
        self.talk.create_topic("T", queues=2, attributes=self.attributes)
        self.producer = IdempotentProducer(KafkaEndpoint(self.talk).peer())

    def start(self) -> None:
        self.talk = Conversation(self.path)
        self.producer.peer = KafkaEndpoint(self.talk).peer()

    def kill(self) -> None:
        self.talk.kill()
        self.start()

    def save(self) -> None:
        """Wait until the file is written."""
        for _ in range(3):
            self.talk.advance(5_000)
            self.talk.flush()
            self.talk.threads.run_all(Thread.DISK)

    @property
    def file(self) -> Path:
        return self.path / "config" / FILE_NAME


@pytest.fixture
def restarts(tmp_path: Path, queue_type: str) -> Iterator[Restarts]:
    restarts = Restarts(tmp_path, queue_type)
    yield restarts
    restarts.talk.close()


def test_batches_are_known_after_a_kill(restarts: Restarts):
    restarts.producer.offset(0, b"a", b"b")
    restarts.producer.offset(2, b"c")
    assert not restarts.file.exists()
    restarts.kill()
    assert restarts.producer.offset(2, b"c") == 2
    assert restarts.producer.offset(0, b"a", b"b") == 0
    assert restarts.producer.offset(3, b"d") == 3
    restarts.kill()
    assert restarts.producer.offset(3, b"d") == 3
    assert stored(restarts.talk) == [b"a", b"b", b"c", b"d"]


def test_batches_are_known_from_the_file_and_from_the_log_behind_it(restarts: Restarts):
    restarts.producer.offset(0, b"a", b"b")
    restarts.save()
    assert restarts.file.exists()
    restarts.producer.offset(2, b"c")
    restarts.kill()
    assert restarts.producer.offset(0, b"a", b"b") == 0
    assert restarts.producer.offset(2, b"c") == 2
    assert restarts.producer.code(4, b"x") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert stored(restarts.talk) == [b"a", b"b", b"c"]


def test_batches_are_known_after_a_clean_stop(restarts: Restarts):
    restarts.producer.offset(0, b"a")
    restarts.talk.close()
    restarts.start()
    assert restarts.producer.offset(0, b"a") == 0
    assert stored(restarts.talk) == [b"a"]


def test_batches_are_known_from_the_log_where_the_file_is_damaged(restarts: Restarts):
    restarts.producer.offset(0, b"a")
    restarts.save()
    restarts.talk.close()
    for path in restarts.file.parent.glob(f"{FILE_NAME}*"):
        path.write_text("{")
    restarts.start()
    assert restarts.producer.offset(0, b"a") == 0
    assert stored(restarts.talk) == [b"a"]


def test_the_file_is_not_written_before_its_messages_are_on_the_disk(restarts: Restarts):
    restarts.producer.offset(0, b"a")
    restarts.talk.advance(1_000)
    restarts.talk.threads.run_all(Thread.DISK)
    assert restarts.talk.broker.store.flushed_offset == 0
    assert not restarts.file.exists()


def test_a_file_that_knows_more_than_the_log_is_not_believed(restarts: Restarts, tmp_path: Path):
    """A log that lost its end has no batch that the answer to a retry could refer to."""
    restarts.producer.offset(0, b"a")
    restarts.save()
    other = tmp_path / "other"
    (other / "config").mkdir(parents=True)
    shutil.copy(restarts.file, other / "config")
    restarts.talk.close()
    restarts.path = other
    restarts.start()
    restarts.talk.create_topic("T", queues=2, attributes=restarts.attributes)
    for _ in range(2):
        restarts.producer.peer.produce(record(b"other"))
    assert restarts.producer.offset(0, b"a") == 2


def cut(restarts: Restarts, records: int) -> None:
    """Simulate a kill during a write that left only the first records of the log."""
    offset = restarts.talk.messages("T")[records].physical_offset
    restarts.talk.kill()
    (log,) = (restarts.path / "commitlog").iterdir()
    data = log.read_bytes()
    log.write_bytes(data[:offset] + bytes(len(data) - offset))
    restarts.start()
    assert len(stored(restarts.talk)) == records


def test_a_retry_adds_records_lost_by_a_kill_during_the_write(restarts: Restarts):
    restarts.producer.offset(0, b"a", b"b", b"c", b"d")
    cut(restarts, 2)
    assert restarts.producer.code(4, b"e") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert restarts.producer.offset(0, b"a", b"b", b"c", b"d") == 0
    assert restarts.producer.offset(0, b"a", b"b", b"c", b"d") == 0
    restarts.kill()
    assert restarts.producer.offset(0, b"a", b"b", b"c", b"d") == 0
    assert restarts.producer.offset(4, b"e") == 4
    assert stored(restarts.talk) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_retry_adds_missing_records_after_those_of_others(restarts: Restarts):
    restarts.producer.offset(0, b"a", b"b", b"c")
    cut(restarts, 1)
    restarts.producer.peer.produce(record(b"other"))
    assert restarts.producer.offset(0, b"a", b"b", b"c") == 0
    restarts.kill()
    assert restarts.producer.offset(0, b"a", b"b", b"c") == 0
    assert restarts.producer.offset(3, b"d") == 4
    assert stored(restarts.talk) == [b"a", b"other", b"b", b"c", b"d"]


def test_a_copy_of_a_message_does_not_count(restarts: Restarts):
    """A program that resends a consumed message copies its properties as well."""
    restarts.producer.offset(0, b"a")
    restarts.producer.offset(1, b"b")
    (first, _) = restarts.talk.messages("T")
    assert PRODUCER in first.properties
    restarts.talk.send(FakePeer(), "T", b"a", properties={PRODUCER: first.properties[PRODUCER]})
    restarts.kill()
    assert restarts.producer.offset(2, b"c") == 3
