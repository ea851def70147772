"""Beginnings of groups without commits: how many queues are remembered, and for how long."""

from pathlib import Path

from libramq.broker.files import beginnings
from libramq.broker.files.beginnings import Beginnings
from libramq.clock import WallMs
from libramq.filesystem import LocalFileSystem
from libramq.offsets.consumer_offset import ConsumerOffset
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer


def opened(directory: Path, committed: ConsumerOffset) -> Beginnings:
    return Beginnings(LocalFileSystem(), directory, committed)


def test_the_oldest_groups_are_forgotten_beyond_the_bound(tmp_path, monkeypatch):
    """Queues with a commit since then are dropped first."""
    monkeypatch.setattr(beginnings, "UNCHECKED_MAX", 10)
    monkeypatch.setattr(beginnings, "QUEUES_MAX", 50)
    committed = ConsumerOffset()
    table = opened(tmp_path, committed)
    for number in range(30):
        table.note_pull("committed", "T", number, 0)
        committed.commit("committed", "T", number, 1, 1)
    for number in range(60):
        table.note_pull(f"G{number}", "T", 0, number)
    assert table.topics_of_group("committed") == set()
    known = [number for number in range(60) if table.pulled_from(f"G{number}", "T", 0) is not None]
    assert known == list(range(60 - len(known), 60))
    assert 40 <= len(known) <= 50


def test_what_is_deleted_is_forgotten_in_the_file_too(tmp_path):
    committed = ConsumerOffset()
    table = opened(tmp_path, committed)
    for group in ("stays", "goes"):
        for topic in ("T", "deleted"):
            table.note_pull(group, topic, 0, 7)
    table.note_pull("stays", "T", 0, 9)
    table.remove_topic("deleted")
    table.remove_group("goes")
    progress = table.source.take(WallMs(0))
    assert progress is not None
    progress.write()
    again = opened(tmp_path, committed)
    assert (again.topics_of_group("stays"), again.topics_of_group("goes")) == ({"T"}, set())
    assert again.pulled_from("stays", "T", 0) == 7


def test_offsets_before_the_first_message_change_nothing(tmp_path):
    """Each pull with a lower offset used to rewrite the whole file."""
    talk, peer = Conversation(tmp_path), FakePeer()
    talk.create_topic("T", 1)
    talk.send(peer, queue_id=0)
    talk.beat(peer, "alice")
    for offset in (0, -1, -2):
        talk.pull(peer, queue_id=0, queue_offset=offset)
        assert talk.broker.offsets.read_from("G", "T", 0) == 0
    talk.close()


def test_removed_offsets_leave_no_beginning(tmp_path):
    """Otherwise the group's lag would count from its first pull, although its next position is unknown."""
    talk, peer = Conversation(tmp_path), FakePeer()
    talk.create_topic("T", 2)
    talk.beat(peer, "alice")
    for queue_id in range(2):
        talk.send(peer, queue_id=queue_id)
        talk.pull(peer, queue_id=queue_id, queue_offset=0)
    offsets = talk.broker.offsets
    offsets.commit("G", "T", 0, 1)
    offsets.remove_queues("G", "T", {0})
    assert [offsets.read_from("G", "T", queue_id) for queue_id in range(2)] == [None, 0]
    offsets.remove_queues("G", "T", {1, 7})
    assert offsets.topics_read("G") == set()
    talk.close()
