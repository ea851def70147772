"""Produced records are stored as runs: work common to one queue and one time is done once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.store.log.append import MessageRun, StoreMessage
from tests.broker.brokers import Conversation
from tests.protocols.kafka.peers import KafkaEndpoint, KafkaPeer, batch, record
from tests.protocols.kafka.test_idempotence import IdempotentProducer

MS = 1_700_000_000_000
KEYS = [b"one", b"two", b"three", b"four", b"five"]


class Appended:
    """The messages and runs appended to the store."""

    def __init__(self, talk: Conversation) -> None:
        self.batches: list[list[StoreMessage | MessageRun]] = []
        store, log = talk.broker.store, talk.broker.files.log
        append = log.append

        def noted(messages):
            self.batches.append(list(messages))
            return append(messages)

        store.append_batch = log.append = noted  # The store halves oversized batches itself.

    @property
    def sizes(self) -> list[int]:
        """The sizes of the runs in the last batch; 0 for a single message."""
        return [len(each.bodies) if isinstance(each, MessageRun) else 0 for each in self.batches[-1]]


@pytest.fixture
def large_talk(tmp_path: Path) -> Iterator[Conversation]:
    talk = Conversation(tmp_path, commit_log_file_bytes=1 << 24)
    talk.create_topic("T", queues=2)
    yield talk
    talk.close()


@pytest.fixture
def peer(large_talk: Conversation) -> KafkaPeer:
    return KafkaEndpoint(large_talk).peer()


def produce(peer: KafkaPeer, data: bytes) -> int:
    (result,) = peer.ask(peer.produce_request(data)).responses[0].partitions
    assert result.error_code == 0, result
    return result.base_offset


def test_records_of_one_time_are_one_run(large_talk, peer):
    appended = Appended(large_talk)
    sent = [record(key, key, timestamp_ms=MS + number // 2) for number, key in enumerate(KEYS)]
    assert produce(peer, batch(*sent)) == 0
    assert appended.sizes == [2, 2, 1]
    assert produce(peer, batch(*sent)) == 5
    found = peer.records()
    assert [each.offset for each in found] == list(range(10))
    assert [(each.key, each.value, each.timestamp_ms) for each in found[:5]] == [
        (each.key, each.value, each.timestamp_ms) for each in sent
    ]
    messages = large_talk.messages("T")
    assert len({message.properties["UNIQ_KEY"] for message in messages}) == 10
    assert messages[0].born_host == ("127.0.0.1", 60000)


@pytest.mark.parametrize(
    "odd",
    [
        record(b"v", "größe".encode()),
        record(b"v", b"TAGS"),
        record(b"v", b"TIMER_DEL_UNIQKEY"),
    ],
    ids=["not ASCII", "the name of a property", "a name that the broker looks for"],
)
def test_a_record_that_has_to_be_looked_at_is_stored_alike(large_talk, peer, odd):
    appended = Appended(large_talk)
    produce(peer, batch(record(b"a", b"k")))
    assert appended.sizes == [1]
    produce(peer, batch(record(b"b", b"k"), odd))
    assert appended.sizes == [0, 0]
    _, second, last = peer.records()
    assert (last.key, last.value, last.raw_headers) == (odd.key, odd.value, odd.raw_headers)
    assert (second.key, second.value) == (b"k", b"b")
    one, other, _ = (dict(message.properties) for message in large_talk.messages("T"))
    del one["UNIQ_KEY"], other["UNIQ_KEY"]
    assert one == other


def test_runs_larger_than_a_file_are_stored_message_by_message(talk, endpoint):
    """A run is stored whole or not at all; a batch that needs two files may be stored in part."""
    appended = Appended(talk)
    sent = [record(b"v" * 100_000, b"k") for _ in range(12)]
    assert produce(endpoint.peer(), batch(*sent)) == 0
    assert {size for each in appended.batches for size in [len(each)]} >= {6}
    assert not any(isinstance(each, MessageRun) for messages in appended.batches for each in messages)
    assert len(talk.messages("T")) == 12


def test_a_batch_of_runs_is_known_when_it_is_sent_again(large_talk):
    endpoint = KafkaEndpoint(large_talk)
    producer = IdempotentProducer(endpoint.peer())
    appended = Appended(large_talk)
    assert producer.offset(0, *KEYS) == 0
    assert appended.sizes == [5]
    assert producer.offset(0, *KEYS) == 0
    assert producer.offset(5, b"six") == 5
    assert [message.body for message in large_talk.messages("T")] == [*KEYS, b"six"]
    assert len(appended.batches) == 2


def test_a_body_above_the_brokers_limit_refuses_the_batch(tmp_path):
    talk = Conversation(tmp_path, commit_log_file_bytes=1 << 24, max_message_size=1_000)
    talk.create_topic("T", queues=2)
    peer = KafkaEndpoint(talk).peer()
    response = peer.ask(peer.produce_request(batch(record(b"a"), record(b"v" * 1_001))))
    assert response.responses[0].partitions[0].error_code != 0
    assert talk.broker.store.max_offset("T", 0) == 0
    talk.close()
