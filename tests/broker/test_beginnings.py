"""Where groups began that have committed nothing: how many queues are remembered, and for how long."""

from pathlib import Path

from libramq.broker.files import beginnings
from libramq.broker.files.beginnings import Beginnings
from libramq.filesystem import LocalFileSystem
from libramq.offsets.consumer_offset import ConsumerOffset


def opened(directory: Path, committed: ConsumerOffset) -> Beginnings:
    return Beginnings(LocalFileSystem(), directory, committed)


def test_the_oldest_groups_are_forgotten_beyond_the_bound(tmp_path, monkeypatch):
    """Queues in which a group has committed since make room first."""
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
    progress = table.take()
    assert progress is not None
    progress.write()
    again = opened(tmp_path, committed)
    assert (again.topics_of_group("stays"), again.topics_of_group("goes")) == ({"T"}, set())
    assert again.pulled_from("stays", "T", 0) == 7
