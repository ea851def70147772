"""A broker with a Kafka side and a topic of two partitions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.brokers import Conversation
from tests.protocols.kafka.peers import KafkaEndpoint


@pytest.fixture
def queue_type() -> str:
    """The topic's storage type; test_batch_storage.py covers the other one."""
    return "SimpleCQ"


@pytest.fixture
def talk(tmp_path: Path, queue_type: str) -> Iterator[Conversation]:
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=2, attributes=f"+queue.type={queue_type}")
    yield talk
    talk.close()


@pytest.fixture
def endpoint(talk: Conversation) -> KafkaEndpoint:
    return KafkaEndpoint(talk)
