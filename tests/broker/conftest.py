"""A broker to talk to, for every test of this directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.brokers import Conversation
from tests.fakes import FakePeer


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversation]:
    conversation = Conversation(tmp_path / "data")
    yield conversation
    conversation.close()


@pytest.fixture
def peer() -> FakePeer:
    return FakePeer("10.0.0.7:4711")
