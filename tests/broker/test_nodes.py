"""The brokers as Kafka's clients see them: departing brokers, and the file of numberings."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.broker.cluster.kafka.nodes import FILE_NAME, REFRESH_MS, Nodes
from libramq.broker.cluster.peer_brokers import PeerLink
from libramq.catalog.numbering import Numbering, Run
from libramq.errors import ConnectFailed
from libramq.formats.tables import TopicConfig
from libramq.kernel.effect import Thread
from libramq.message.queue import MessageQueue
from libramq.remoting.body.kafka_cluster import PeerNode
from tests.broker.brokers import Conversation
from tests.quick import quick


@pytest.fixture
def nodes(talk: Conversation) -> Iterator[Nodes]:
    nodes = talk.broker.cluster.nodes
    nodes.serve("127.0.0.1", 9092)
    return nodes


def test_clients_that_wait_for_a_broker_which_leaves_the_cluster_are_answered(
    talk: Conversation, nodes: Nodes
):
    """Neither their requests nor later ones were ever answered."""
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
    """They were saved only with the next change; a restart of all brokers might number queues differently."""
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


def test_partitions_are_not_all_ours_after_a_restart(talk: Conversation, nodes: Nodes):
    """Until others answered, partition 1 was mistaken for this broker's queue 1, and got its commits."""
    config = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    talk.broker.topics.put(config, talk.clock.wall_ms())
    nodes.adopt("T", Numbering((Run("broker-b", 1), Run("broker-a", 2)), 7))
    assert nodes.place("T", 0) == MessageQueue("T", "broker-b", 0)
    assert nodes.place("T", 1) == MessageQueue("T", "broker-a", 0)
    assert nodes.partition(MessageQueue("T", "broker-a", 1)) == 2


def test_a_new_topic_waits_for_its_numberer_where_there_are_others(talk: Conversation, nodes: Nodes):
    """Another broker's queues may come first; meanwhile this broker's were partitions from 0."""
    config = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    talk.broker.topics.put(config, talk.clock.wall_ms())
    assert nodes.numbering("T").runs == (Run("broker-a", 2),)
    nodes._peers.links["broker-b"] = PeerLink("broker-b", "127.0.0.1:10921", talk.clock.monotonic_ms())
    assert nodes.place("T", 0) is None
    assert not nodes.is_settled("T")


def take(nodes: Nodes, name: str, answer: PeerNode) -> None:
    nodes._take(name, answer)
    nodes._settle()


def test_a_missed_deletion_is_remembered_of_a_broker_that_has_not_answered_since_the_start(
    talk: Conversation, nodes: Nodes
):
    """It was dropped with the numbering: another deletion found no topic, and it could be created again."""
    talk.create_topic("T", queues=1)
    both = Numbering((Run("broker-b", 2), Run("broker-a", 1)), 7)
    nodes.adopt("T", both)
    nodes.adopt("U", Numbering((Run("broker-b", 1),), 7))
    talk.broker.topics.delete("T", talk.clock.wall_ms())
    nodes.forget("T")
    nodes.refresh(lambda: None)
    assert nodes.counts("T") == {"broker-b": 2}
    assert nodes.numbering("T") == both
    assert nodes.counts("U") == {"broker-b": 1}
    nodes._peers.links["broker-b"] = PeerLink("broker-b", "127.0.0.1:10921", talk.clock.monotonic_ms())
    assert nodes.holders("V") == {"broker-b"}, "it has not answered"
    take(nodes, "broker-b", PeerNode(version=1, topics={"U": 1}))
    assert not nodes.counts("T")
    assert not nodes.holders("V")


def test_an_answer_to_an_earlier_query_does_not_end_the_memory_of_a_deletion(
    talk: Conversation, nodes: Nodes
):
    """A broker without changes is killed before the deletion arrives there."""
    take(nodes, "broker-b", PeerNode(version=1, topics={"T": 2}))
    nodes.forget("T")
    take(nodes, "broker-b", PeerNode(version=1))
    assert not nodes.counts("T")
    nodes.refresh(lambda: None)
    assert nodes.counts("T") == {"broker-b": 2}


@pytest.mark.parametrize("seed", quick(range(20), 6))
def test_what_has_changed_is_settled_as_if_everything_were_looked_at(
    talk: Conversation, nodes: Nodes, seed: int
):
    """Topics come, go and grow here and at another broker, which numbers some of them."""
    rng = random.Random(seed)
    topics = [f"t{each}" for each in range(6)]
    theirs: dict[str, int] = {}
    numbered: dict[str, Numbering] = {}
    for version in range(1, 60):
        topic = rng.choice(topics)
        action = rng.randrange(5)
        count = rng.randrange(1, 5)
        if action == 0:
            config = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
            talk.broker.topics.put(config, talk.clock.wall_ms())
        elif action == 1:
            talk.broker.topics.delete(topic, talk.clock.wall_ms())
            nodes.forget(topic)
        elif action == 2:
            theirs.pop(topic, None)
            numbered.pop(topic, None)
        else:
            theirs[topic] = count
            if action == 4:
                runs = (Run("broker-b", count), Run("broker-a", rng.randrange(1, 5)))
                numbered[topic] = Numbering(runs, version)
        take(nodes, "broker-b", PeerNode(version=version, topics=dict(theirs), numberings=dict(numbered)))
        found = dict(nodes._numberings)
        nodes._settled = None
        nodes._settle()
        assert nodes._numberings == found
        assert nodes.answer(0).numberings == found
        known = nodes.known["broker-b"]
        assert known.numberings == numbered


def test_a_change_of_one_topic_settles_no_other(
    talk: Conversation, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    """With 20,000 topics at two brokers, each change of one topic took a third of a second at both."""
    many = {f"t{each}": 2 for each in range(50)}
    for topic in many:
        talk.create_topic(topic, queues=2)
    take(nodes, "broker-b", PeerNode(version=1, topics=many))
    looked: list[str] = []
    counts = Nodes.counts

    def counted(nodes: Nodes, topic: str) -> dict[str, int]:
        looked.append(topic)
        return counts(nodes, topic)

    monkeypatch.setattr(Nodes, "counts", counted)
    talk.create_topic("here", queues=2)
    take(nodes, "broker-b", PeerNode(version=2, topics=many | {"there": 2}))
    assert set(looked) == {"here", "there"}
