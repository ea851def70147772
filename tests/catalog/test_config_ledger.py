"""The files of a table: recorded changes survive a crash at any moment."""

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.catalog.config_ledger import ConfigLedger
from libramq.catalog.topic_table import TopicRules, TopicsFile, TopicTable
from libramq.errors import ServiceNotAvailable, StoreCorrupt
from libramq.formats import fastjson
from libramq.formats.tables import TopicConfig
from libramq.offsets.fence import Opening
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.virtual_time import VirtualTime
from tests.store.stores import Disk


class Topics:
    """A topic table with its ledger, as the broker opens it."""

    def __init__(self, root: Path, disk: Disk | MemoryDisk | None = None) -> None:
        self.disk = disk or Disk()
        self.ledger = ConfigLedger(self.disk, root / "topics.json", TopicConfig)
        self.table = TopicTable(TopicRules(), self.ledger.load(TopicsFile), record=self.ledger.append)
        self.ledger.replay(lambda change: self.table.apply(change.name, change.config, change.version))

    def put(self, name: str, queues: int = 1) -> None:
        self.table.put(TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues), queues)

    def content(self) -> tuple[object, dict[str, TopicConfig]]:
        return self.table.data_version, {topic.topic_name: topic for topic in self.table}


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_change_costs_one_small_write(tmp_path):
    topics = Topics(tmp_path)
    topics.put("first")
    topics.disk.writes.clear()
    topics.put("T", 3)
    ((_, size),) = topics.disk.writes
    assert size < 500
    assert Topics(tmp_path).content() == topics.content()


def test_members_that_are_unknown_here_are_written_again(tmp_path):
    """Another version of Apache's broker finds its own settings; those of a deleted topic are gone."""
    disk = Disk()
    path = tmp_path / "topics.json"
    path.write_text(
        '{"dataVersion":{"counter":1,"epoch":7},"lite":{"a":[1]},"topicConfigTable":{'
        '"T":{"topicName":"T","weight":{"b":2}},"Gone":{"topicName":"Gone","weight":3}}}'
    )
    topics = Topics(tmp_path, disk)
    topics.table.delete("Gone", 1)
    topics.put("T", 3)
    topics.ledger.close(topics.table.file)
    written = fastjson.loads(path.read_text())
    assert written["lite"] == {"a": [1]}
    assert written["dataVersion"]["epoch"] == 7
    assert written["topicConfigTable"]["T"]["weight"] == {"b": 2}
    assert written["topicConfigTable"]["T"]["readQueueNums"] == 3
    assert "Gone" not in written["topicConfigTable"]
    assert Topics(tmp_path).content() == topics.content()


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_gets_the_name_of_a_removed_entry_has_nothing_unknown_of_it(tmp_path, is_killed):
    path = tmp_path / "topics.json"
    path.write_text(
        '{"topicConfigTable":{"T":{"topicName":"T","weight":2},"U":{"topicName":"U","weight":3}}}'
    )
    topics = Topics(tmp_path)
    topics.table.delete("T", 1)
    topics.put("T", 3)
    if is_killed:
        topics = Topics(tmp_path)
    topics.ledger.close(topics.table.file)
    table = fastjson.loads(path.read_text())["topicConfigTable"]
    assert table["T"]["readQueueNums"] == 3
    assert "weight" not in table["T"]
    assert table["U"]["weight"] == 3


def test_a_fold_writes_apaches_file_and_removes_the_journal(tmp_path):
    topics = Topics(tmp_path)
    topics.put("T", 3)
    plan = topics.ledger.plan_fold(topics.table.file)
    topics.put("U", 4)
    plan.write()
    assert '"U"' not in (tmp_path / "topics.json").read_text()
    plan.written()
    assert names(tmp_path) == ["topics.json", "topics.json.bak", "topics.json.journal.0000000002"]
    assert Topics(tmp_path).content() == topics.content()
    document = fastjson.loads((tmp_path / "topics.json").read_text())
    assert document["topicConfigTable"]["T"]["readQueueNums"] == 3
    assert document["dataVersion"]["counter"] == 1


def test_a_fold_waits_for_the_outcome_of_the_one_before(tmp_path):
    """A stopping broker receives no outcome, and folds all the same: its threads have ended."""
    topics = Topics(tmp_path)
    topics.put("T", 3)
    plan = topics.ledger.plan_fold(topics.table.file)
    plan.write()
    topics.put("U", 4)
    with pytest.raises(AssertionError, match=r"a fold of topics\.json\.journal\.\* is under way"):
        topics.ledger.plan_fold(topics.table.file)
    topics.put("V", 5)
    topics.ledger.close(topics.table.file)
    assert names(tmp_path) == ["topics.json", "topics.json.bak"]
    assert Topics(tmp_path).content()[1].keys() >= {"T", "U", "V"}


@pytest.mark.parametrize(
    "separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e", "\r", "\n"]
)
def test_names_from_clients_cannot_end_a_line_of_the_journal(tmp_path, separator):
    """Unicode has more line separators than the newline that ends a change."""
    ledger = ConfigLedger(Disk(), tmp_path / "groupFences.json", Opening)
    named = Opening(member=f"a{separator}b", epoch=1)
    ledger.append("T@G@0", named)
    ledger.append("T@G@1", Opening(member="after it", epoch=1))
    found: list[Opening | None] = []
    ConfigLedger(Disk(), tmp_path / "groupFences.json", Opening).replay(
        lambda change: found.append(change.config)
    )
    assert found == [named, Opening(member="after it", epoch=1)]


def test_nothing_is_folded_twice(tmp_path):
    topics = Topics(tmp_path)
    assert topics.ledger.plan_fold(topics.table.file) is None
    topics.put("T")
    topics.ledger.close(topics.table.file)
    assert names(tmp_path) == ["topics.json", "topics.json.bak"]
    again = Topics(tmp_path)
    assert again.ledger.plan_fold(again.table.file) is None
    assert again.content() == topics.content()


def test_a_failed_fold_keeps_the_journal_and_is_retried(tmp_path):
    topics = Topics(tmp_path)
    topics.put("T")
    plan = topics.ledger.plan_fold(topics.table.file)
    topics.disk.bytes_left = 0
    with pytest.raises(OSError, match="no space"):
        plan.write()
    plan.failed()
    topics.disk.bytes_left = None
    assert Topics(tmp_path).content() == topics.content()
    topics.ledger.close(topics.table.file)
    assert names(tmp_path)[0] == "topics.json"
    assert Topics(tmp_path).content() == topics.content()


def test_a_journal_that_an_operator_has_removed_stops_no_fold(tmp_path):
    topics = Topics(tmp_path)
    topics.put("T")
    (tmp_path / "topics.json.journal.0000000001").unlink()
    plan = topics.ledger.plan_fold(topics.table.file)
    plan.write()
    plan.written()
    assert Topics(tmp_path).content() == topics.content()


def test_a_power_cut_takes_back_nothing_that_a_fold_has_written():
    """A power cut may bring back removed journals, or their first lines."""
    root = Path("/config")
    for seed in range(50):
        disk = MemoryDisk(VirtualTime(), random.Random(seed))
        topics = Topics(root, disk)
        for queues in (1, 2, 3):
            topics.put("T", queues)
        plan = topics.ledger.plan_fold(topics.table.file)
        plan.write()
        plan.written()
        before = topics.content()
        disk.power_cut()
        assert Topics(root, disk).content() == before, seed


def refuse(*_: object) -> None:
    raise OSError(errno.EIO, "the disk does not work")


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_line_cut_off_by_a_full_disk_spoils_none_after_it(tmp_path, monkeypatch, is_cut):
    """This holds even if the disk keeps the part of the line that it accepted."""
    topics = Topics(tmp_path)
    topics.put("T")
    if not is_cut:
        monkeypatch.setattr(topics.disk, "truncate", refuse)
    topics.disk.bytes_left = 50
    with pytest.raises(ServiceNotAvailable, match="no space"):
        topics.put("U")
    topics.disk.bytes_left = None
    topics.put("V")
    assert Topics(tmp_path).content() == topics.content()
    assert "U" not in topics.table


def test_changes_that_a_full_disk_refuses_begin_no_files(tmp_path):
    """Clients repeat them, thousands a second."""
    topics = Topics(tmp_path)
    topics.disk.bytes_left = 0
    for _ in range(3):
        with pytest.raises(ServiceNotAvailable, match="no space"):
            topics.put("T")
    assert len(names(tmp_path)) == 1


def test_folds_that_a_full_disk_refuses_leave_no_files(tmp_path):
    """Two folds happen a second, each after another refused change."""
    topics = Topics(tmp_path)
    topics.put("T")
    topics.disk.bytes_left = 0
    for _ in range(3):
        with pytest.raises(ServiceNotAvailable, match="no space"):
            topics.put("U")
        fold = topics.ledger.plan_fold(topics.table.file)
        with pytest.raises(OSError, match="no space"):
            fold.write()
        fold.failed()
    assert len(list(tmp_path.glob("*.journal.*"))) == 2
    topics.disk.bytes_left = None
    topics.put("U")
    assert Topics(tmp_path).content() == topics.content()
    topics.ledger.close(topics.table.file)
    assert not list(tmp_path.glob("*.journal.*"))
    assert Topics(tmp_path).content() == topics.content()


def test_a_damaged_line_is_reported(tmp_path, caplog):
    topics = Topics(tmp_path)
    for name in ("T", "U", "V"):
        topics.put(name)
    (journal,) = tmp_path.glob("*.journal.*")
    journal.write_text(journal.read_text().replace('"name":"U"', '"name;"U"'))
    assert {"T", "U", "V"}.intersection(Topics(tmp_path).table.names()) == {"T", "V"}
    assert f"cannot be read and is lost path={journal}" in caplog.text


def test_a_crash_in_the_middle_of_a_line_loses_that_line_only(tmp_path, caplog):
    topics = Topics(tmp_path)
    topics.put("T")
    before = topics.content()
    topics.put("U")
    (journal,) = tmp_path.glob("*.journal.*")
    journal.write_bytes(journal.read_bytes()[:-7])
    again = Topics(tmp_path)
    assert again.content() == before
    assert "lost" not in caplog.text
    again.put("V")
    assert "V" in Topics(tmp_path).table


def test_a_damaged_file_is_replaced_by_its_backup(tmp_path):
    topics = Topics(tmp_path)
    topics.put("T")
    topics.ledger.close(topics.table.file)
    again = Topics(tmp_path)
    again.put("U")
    again.ledger.close(again.table.file)
    assert names(tmp_path) == ["topics.json", "topics.json.bak"]
    for broken in ("", "{", "null"):
        (tmp_path / "topics.json").write_text(broken)
        assert "T" in Topics(tmp_path).table


def test_an_unreadable_file_is_not_overwritten(tmp_path):
    (tmp_path / "topics.json").write_text("{broken")
    with pytest.raises(StoreCorrupt, match=r"topics\.json"):
        Topics(tmp_path)
    (tmp_path / "topics.json.bak").write_text("also broken")
    with pytest.raises(StoreCorrupt):
        Topics(tmp_path)


def test_apaches_own_file_is_read(tmp_path):
    (tmp_path / "topics.json").write_text(
        '{"dataVersion":{"counter":5,"stateVersion":0,"timestamp":9},"topicConfigTable":{"T":{"attributes":'
        '{"+message.type":"FIFO"},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T","topicSysFlag":0,"writeQueueNums":8}}}'
    )
    topics = Topics(tmp_path)
    assert topics.table.get("T").attributes == {"+message.type": "FIFO"}
    assert topics.table.data_version.counter == 5


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "delete", "plan", "run", "complete", "crash", "stop"]), st.integers(0, 3)
        ),
        max_size=25,
    )
)
def test_nothing_is_lost_by_any_sequence_of_changes_folds_and_crashes(tmp_path_factory, steps):
    root = tmp_path_factory.mktemp("config")
    topics = Topics(root)
    plan, has_run = None, False
    for step, number in steps:
        if step == "put":
            topics.put(f"T{number}", len(topics.table) % 7 + 1)
        elif step == "delete":
            topics.table.delete(f"T{number}", 1)
        elif step == "plan" and plan is None:
            plan, has_run = topics.ledger.plan_fold(topics.table.file), False
        elif step == "run" and plan is not None:
            plan.write()
            has_run = True
        elif step == "complete" and plan is not None and has_run:
            plan.written()
            plan = None
        elif step == "crash" or (step == "stop" and plan is None):
            before = topics.content()
            if step == "stop":
                topics.ledger.close(topics.table.file)
            topics, plan = Topics(root), None
            assert topics.content() == before
    before = topics.content()
    assert Topics(root).content() == before


def test_a_new_journal_does_not_list_the_directory(tmp_path, monkeypatch):
    """Each of five tables begins a journal after each fold, while a client waits for its change."""
    topics = Topics(tmp_path)
    topics.put("T")
    listed: list[Path] = []
    monkeypatch.setattr(topics.disk, "listdir", lambda path: listed.append(path) or [])
    plan = topics.ledger.plan_fold(topics.table.file)
    plan.write()
    topics.put("U")
    plan.written()
    assert listed == []
    assert names(tmp_path) == ["topics.json", "topics.json.bak", "topics.json.journal.0000000002"]
    assert Topics(tmp_path).content() == topics.content()
