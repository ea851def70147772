"""The offset ledger and its journal: acknowledged commits survive any crash."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import libramq
from libramq.errors import StoreCorrupt
from libramq.filesystem import FileSystem, LocalFileSystem
from libramq.formats import fastjson
from libramq.offsets.journal import (
    OffsetJournal,
    OffsetRecord,
    RecordKind,
    decode_offset_record,
    encode_offset_record,
)
from libramq.offsets.ledger import OffsetLedger
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.virtual_time import VirtualTime
from tests.fakes import OwnFiles

records = st.builds(
    OffsetRecord, st.sampled_from(RecordKind), st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1),
)  # fmt: skip


class FailingDisk(OwnFiles):
    """A file system that can refuse to replace a text file."""

    is_full = False

    def replace_text(self, path: Path, text: str, *, backup: bool = True) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left")
        super().replace_text(path, text, backup=backup)


def open_ledger(directory: Path, filesystem: FileSystem | None = None) -> OffsetLedger:
    ledger = OffsetLedger(filesystem or OwnFiles(), directory)
    ledger.open(wall_ms=1)
    return ledger


def commit(ledger: OffsetLedger, group: str, topic: str, queue_id: int, offset: int) -> None:
    """Commit an offset as a turn of the event loop does."""
    change = ledger.offsets.commit(group, topic, queue_id, offset, 1 << 62)
    ledger.append([change] if change else [])


@given(st.lists(records, max_size=5))
def test_records_round_trip_and_stop_where_they_are_cut(written: list[OffsetRecord]):
    data = b"".join(map(encode_offset_record, written))
    found, start = [], 0
    while (decoded := decode_offset_record(data, start)) is not None:
        found.append(decoded[0])
        start = decoded[1]
    assert (found, start) == (written, len(data))
    if written:
        last = encode_offset_record(written[-1])
        for end in range(len(last)):
            assert decode_offset_record(last[:end], 0) is None


@given(st.binary(max_size=60))
def test_garbage_is_no_record(data: bytes):
    assert decode_offset_record(data, 0) is None


def test_journalled_commits_are_read_back(tmp_path: Path):
    ledger = open_ledger(tmp_path)
    commit(ledger, "g", "T", 0, 5)
    commit(ledger, "g", "T", 1, 6)
    commit(ledger, "g", "T", 0, 8)
    commit(ledger, "gone", "T", 0, 8)
    ledger.append(ledger.offsets.remove_group("gone"))
    ledger.append([ledger.offsets.reset("g", "U", 2, 3, 10)])
    again = open_ledger(tmp_path)  # The first one was killed.
    assert again.offsets.tables() == {
        "offsetTable": {"T@g": {0: 8, 1: 6}, "U@g": {2: 3}},
        "resetOffsetTable": {"U@g": {2: 3}},
    }


def test_a_torn_journal_keeps_every_whole_record(tmp_path: Path):
    ledger = open_ledger(tmp_path / "original")
    for offset in range(1, 5):
        commit(ledger, "g", "T", 0, offset)
    (journal,) = (tmp_path / "original").glob("*.journal.*")
    data = journal.read_bytes()
    size = len(data) // 4
    for cut in range(len(data) + 1):
        shutil.rmtree(tmp_path / "cut", ignore_errors=True)
        shutil.copytree(tmp_path / "original", tmp_path / "cut")
        (tmp_path / "cut" / journal.name).write_bytes(data[:cut])
        again = open_ledger(tmp_path / "cut")
        assert again.offsets.query("g", "T", 0) == (cut // size or None)
        commit(again, "g", "T", 0, 77)
        assert open_ledger(tmp_path / "cut").offsets.query("g", "T", 0) == 77


def test_a_damaged_commit_in_a_journal_hides_none_behind_it(tmp_path: Path, caplog):
    """What came behind it was dropped without a line in the log."""
    ledger = open_ledger(tmp_path)
    for offset in range(1, 4):
        commit(ledger, "g", "T", offset, offset)
    (journal,) = tmp_path.glob("*.journal.*")
    data = journal.read_bytes()
    for at in range(len(data) // 3, 2 * len(data) // 3):
        caplog.clear()
        journal.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert open_ledger(tmp_path).offsets.tables()["offsetTable"] == {"T@g": {1: 1, 3: 3}}
        assert f"cannot be read and is lost path={journal}" in caplog.text


def test_a_page_of_a_journal_that_is_lost_hides_none_behind_it(tmp_path: Path, caplog):
    ledger = open_ledger(tmp_path)
    for offset in range(1, 601):
        commit(ledger, "g", "T", offset, offset)
    (journal,) = tmp_path.glob("*.journal.*")
    data = journal.read_bytes()
    journal.write_bytes(data[:4096] + bytes(4096) + data[8192:])
    offsets = open_ledger(tmp_path).offsets.tables()["offsetTable"]["T@g"]
    assert {1, 600} <= offsets.keys()
    assert len(offsets) < 600
    assert f"cannot be read and is lost path={journal} at=" in caplog.text


def test_the_file_has_apaches_format(tmp_path: Path):
    """It has unquoted integer keys, the members of ConsumerOffsetManager, and a backup."""
    ledger = open_ledger(tmp_path)
    commit(ledger, "g", "T", 0, 5)
    ledger.persist(wall_ms=1234)
    commit(ledger, "g", "T", 3, 6)
    ledger.persist(wall_ms=2345)
    text = "".join((tmp_path / "consumerOffset.json").read_text().split())
    assert text == (
        '{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":2345},'
        '"offsetTable":{"T@g":{0:5,3:6}},"resetOffsetTable":{}}'
    )
    assert "".join((tmp_path / "consumerOffset.json.bak").read_text().split()) == text
    ledger.close(wall_ms=3)


@pytest.mark.parametrize(
    "text",
    [
        '{"dataVersion":{"counter":9},"offsetTable":{"T@g":{0:5,1:6}}}',
        '{"offsetTable":{"T@g":{"0":5,"1":6}},"pullOffsetTable":{"T@g":{0:99}}}',
        '{\n\t"offsetTable":{\n\t\t"T@g":{0:5,\n1:6,-1:4,2:-3}\n\t}\n}',
    ],
)
def test_files_of_other_writers_are_read(tmp_path: Path, text: str):
    (tmp_path / "consumerOffset.json").write_text(text)
    assert open_ledger(tmp_path).offsets.offsets("g", "T") == {0: 5, 1: 6}


def test_members_that_are_unknown_here_are_written_again(tmp_path: Path):
    path = tmp_path / "consumerOffset.json"
    path.write_text('{"offsetTable":{"T@g":{0:5}},"pullOffsetTable":{"T@g":{0:99}},"groups":{"g":["T"]}}')
    ledger = open_ledger(tmp_path)
    commit(ledger, "g", "T", 0, 6)
    ledger.close(wall_ms=2)
    written = fastjson.loads(path.read_text())
    assert written["groups"] == {"g": ["T"]}
    assert written["offsetTable"] == {"T@g": {0: 6}}
    assert "pullOffsetTable" not in written  # It would be older than what was read since.


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"offsetTable":{"T@g":{0:"x"}}}', "\x80"])
def test_a_damaged_file_gives_way_to_its_backup(tmp_path: Path, broken: str):
    (tmp_path / "consumerOffset.json").write_bytes(broken.encode("latin-1"))
    (tmp_path / "consumerOffset.json.bak").write_text('{"offsetTable":{"T@g":{0:5}}}')
    assert open_ledger(tmp_path).offsets.query("g", "T", 0) == 5
    if broken:
        (tmp_path / "consumerOffset.json").write_bytes(broken.encode("latin-1"))
        (tmp_path / "consumerOffset.json.bak").unlink(missing_ok=True)
        with pytest.raises(StoreCorrupt, match="cannot be read"):
            open_ledger(tmp_path)


def test_commits_made_while_a_fold_is_written_are_kept(tmp_path: Path):
    ledger = open_ledger(tmp_path)
    commit(ledger, "g", "T", 0, 5)
    plan = ledger.take(wall_ms=1)
    assert plan is not None
    commit(ledger, "g", "T", 0, 6)  # The thread is writing.
    crashed = shutil.copytree(tmp_path, tmp_path.parent / "before")
    assert open_ledger(crashed).offsets.query("g", "T", 0) == 6
    plan.write()
    crashed = shutil.copytree(tmp_path, tmp_path.parent / "between")
    assert open_ledger(crashed).offsets.query("g", "T", 0) == 6
    plan.written()
    assert open_ledger(tmp_path).offsets.query("g", "T", 0) == 6


def test_a_power_cut_takes_back_nothing_that_a_fold_has_written():
    """It may bring back journals that were removed, or the first commits of them."""
    for seed in range(50):
        disk = MemoryDisk(VirtualTime(), random.Random(seed))
        ledger = open_ledger(Path("/config"), disk)
        for offset in (1, 2, 3):
            commit(ledger, "g", "T", 0, offset)
        ledger.persist(wall_ms=1)
        disk.power_cut()
        assert open_ledger(Path("/config"), disk).offsets.query("g", "T", 0) == 3, seed


def test_a_failed_fold_loses_nothing_and_is_retried(tmp_path: Path):
    disk = FailingDisk()
    ledger = open_ledger(tmp_path, disk)
    assert ledger.take(wall_ms=1) is None
    commit(ledger, "g", "T", 0, 5)
    disk.is_full = True
    for wall_ms in (2, 3, 4):
        with pytest.raises(OSError, match="no space"):
            ledger.persist(wall_ms)
    assert len(list(tmp_path.glob("*.journal.*"))) == 2
    disk.is_full = False
    commit(ledger, "g", "T", 1, 6)
    crashed = shutil.copytree(tmp_path, tmp_path.parent / "crashed")
    assert open_ledger(crashed).offsets.offsets("g", "T") == {0: 5, 1: 6}
    ledger.persist(wall_ms=5)
    assert len(list(tmp_path.glob("*.journal.*"))) == 1
    assert ledger.take(wall_ms=6) is None


def test_a_journal_that_an_operator_has_removed_stops_no_fold(tmp_path: Path):
    ledger = open_ledger(tmp_path)
    commit(ledger, "g", "T", 0, 5)
    (journal,) = tmp_path.glob("*.journal.*")
    journal.unlink()
    ledger.persist(wall_ms=2)
    commit(ledger, "g", "T", 0, 6)
    ledger.persist(wall_ms=3)
    assert '"T@g":{0:6}' in "".join((tmp_path / "consumerOffset.json").read_text().split())


@pytest.mark.parametrize("seed", range(10))
def test_any_history_with_crashes_ends_in_the_same_table(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    ledger, model = open_ledger(tmp_path), {}
    for step in range(200):
        topic, group, queue_id = rng.choice("AB"), rng.choice("gh"), rng.randint(0, 3)
        action = rng.random()
        if action < 0.7:
            offset = rng.randint(0, 1000)
            commit(ledger, group, topic, queue_id, offset)
            model.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        elif action < 0.8:
            ledger.append(ledger.offsets.remove_group(group))
            model = {key: value for key, value in model.items() if not key.endswith("@" + group)}
        elif action < 0.9:
            ledger.persist(wall_ms=step)
        else:
            ledger = open_ledger(tmp_path)
        assert ledger.offsets.tables()["offsetTable"] == model
    assert len(list(tmp_path.glob("*.journal.*"))) <= 2


WRITER = """
import sys
from pathlib import Path
from libramq.filesystem import LocalFileSystem
from libramq.offsets.ledger import OffsetLedger
ledger = OffsetLedger(LocalFileSystem(), Path(sys.argv[1]))
ledger.open(0)
offset = (ledger.offsets.query("g", "T", 0) or 0) + 1
while True:
    changes = [ledger.offsets.commit("g", "T", queue_id, offset, 1 << 62) for queue_id in (2, 1, 0)]
    ledger.append([change for change in changes if change is not None])
    sys.stdout.write(f"{offset}\\n")
    sys.stdout.flush()
    offset += 1
    if offset % 50 == 0:
        ledger.persist(offset)
"""


def test_an_acknowledged_commit_outlives_kill_9(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(Path(libramq.__file__).parents[1])}
    acknowledged = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=environment
        )
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(400)]
        finally:
            os.kill(process.pid, signal.SIGKILL)
            lines += process.stdout.read().split(b"\n")[:-1]
            process.wait()
            process.stdout.close()
        acknowledged = max(acknowledged, *map(int, lines))
        offsets = open_ledger(tmp_path).offsets.offsets("g", "T")
        assert min(offsets.values()) >= acknowledged
    assert acknowledged >= 1200


def test_journal_numbers_continue_after_a_restart(tmp_path: Path):
    journal = OffsetJournal(LocalFileSystem(), tmp_path)
    journal.begin()
    journal.append([OffsetRecord(RecordKind.COMMIT, "T@g", 0, 1)])
    journal.begin()
    journal.append([OffsetRecord(RecordKind.COMMIT, "T@g", 0, 2)])
    assert [record.offset for record in journal.replay()] == [1, 2]
    journal.remove(1)
    assert [record.offset for record in journal.replay()] == [2]
    journal.close()
    again = OffsetJournal(LocalFileSystem(), tmp_path)
    again.begin()
    assert again.numbers == [2, 3]


def test_a_fold_holds_the_commits_of_the_moment_it_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Encoding 400,000 offsets takes more than a second, which is too long for the event loop."""
    ledger = open_ledger(tmp_path)
    commit(ledger, "g", "T", 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(fastjson, "dumps", lambda *_, **__: pytest.fail("encoded on the event loop"))
        plan = ledger.take(wall_ms=2)
    assert plan is not None
    commit(ledger, "g", "T", 0, 6)
    commit(ledger, "g", "U", 0, 1)
    plan.write()
    plan.written()
    assert '"offsetTable":{"T@g":{0:5}}' in "".join((tmp_path / "consumerOffset.json").read_text().split())
    again = open_ledger(tmp_path)
    assert (again.offsets.query("g", "T", 0), again.offsets.query("g", "U", 0)) == (6, 1)
