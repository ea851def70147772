"""The brokers as Kafka's clients see them: brokers that leave, and the file of the numberings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.broker.cluster.nodes import FILE_NAME, REFRESH_MS, Nodes
from libramq.broker.cluster.peer_link import PeerLink
from libramq.catalog.numbering import Numbering, Run
from libramq.errors import ConnectFailed
from libramq.kernel.effect import Thread
from tests.broker.brokers import Conversation


@pytest.fixture
def nodes(talk: Conversation) -> Iterator[Nodes]:
    nodes = talk.broker.other_nodes.nodes
    nodes.serve("127.0.0.1", 9092)
    return nodes


def test_clients_that_wait_for_a_broker_which_leaves_the_cluster_are_answered(
    talk: Conversation, nodes: Nodes
):
    """Their requests were never answered, nor were those behind them."""
    links = nodes._peers.links
    links["broker-b"] = PeerLink("broker-b", "127.0.0.1:10921", talk.clock.monotonic_ms())
    done: list[str] = []
    nodes.refresh(lambda: done.append("first"))
    nodes.refresh(lambda: done.append("second"))
    talk.performer.follow()
    (question,) = [each for each in talk.performer.asked if each.address == "127.0.0.1:10921"]
    assert done == []
    del links["broker-b"]
    question.done(ConnectFailed("it is away"))
    assert done == ["first", "second"]


def test_numbers_of_partitions_that_could_not_be_saved_are_saved_later(
    talk: Conversation, nodes: Nodes, tmp_path: Path
):
    """They were saved with the next change only; a restart of all brokers might number queues otherwise."""
    file = Path(talk.config.store_path) / "config" / FILE_NAME
    talk.disk.bytes_left = 0
    nodes.adopt("T", Numbering((Run("broker-b", 1), Run("broker-a", 1)), 7))
    talk.performer.follow()
    talk.threads.run_all(Thread.DISK)
    assert not file.exists()
    talk.disk.bytes_left = None
    talk.advance(REFRESH_MS)
    talk.threads.run_all(Thread.DISK)
    assert file.exists()
