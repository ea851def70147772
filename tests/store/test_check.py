"""A check of a store reports its damage and what the next start would do."""

import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from msgspec.structs import replace

from libramq.errors import StoreCorrupt, StoreError, StoreLocked
from libramq.filesystem import LocalFileSystem
from libramq.message import decode_records, tag_code
from libramq.message.names import SCHEDULE_TOPIC
from libramq.message.properties import encode_properties
from libramq.message.record import RecordHead
from libramq.store.check import StoreReport, check_store
from libramq.store.deletions import Deletions
from libramq.store.log.log_scan import Damage
from tests.store.stores import Disk, bodies, flush, kill, message, open_store, remove_old_files


def check(root: Path) -> StoreReport:
    return check_store(root, LocalFileSystem())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store: sixty messages in two queues, nine in each file of the log."""
    store = open_store(tmp_path)
    for number in range(60):
        store.append_batch([message(b"%03d" % number + b"." * 400, queue_id=number % 2, tags="A")])
    store.close()
    return tmp_path


def flip(path: Path, at: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def in_log(root: Path, physical_offset: int) -> tuple[Path, int]:
    start = physical_offset - physical_offset % 4096
    return root / "commitlog" / f"{start:020d}", physical_offset - start


def test_a_store_that_was_closed_has_nothing_to_repair(root: Path):
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    seen: list[RecordHead | Damage] = []
    report = check_store(root, LocalFileSystem(), seen.append)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert not report.is_damaged
    assert report.state == "closed by its broker"
    assert (report.record_count, report.queues.unit_count, report.queues.queue_count) == (60, 60, 2)
    repairs = (report.recovered_record_count, report.recovered_unit_count, report.cut_bytes)
    assert repairs == (0, 0, 0)
    assert report.log_end == report.known_end
    assert [(found.queue_id, found.queue_offset) for found in seen if isinstance(found, RecordHead)] == [
        (number % 2, number // 2) for number in range(60)
    ]


def test_the_check_of_a_killed_store_predicts_its_recovery(root: Path):
    store = open_store(root)
    for number in range(7):
        store.append_batch([message(b"later %d" % number)])
    end = store.end
    kill(store)
    path, at = in_log(root, end)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\0\0\1\0torn")
    report = check(root)
    assert not report.is_damaged
    assert report.state.startswith("not closed: its broker was killed")
    assert (report.recovered_record_count, report.recovered_unit_count, report.cut_bytes) == (7, 7, 8)
    recovery = open_store(root).recovery
    assert recovery is not None
    assert recovery.record_count == report.recovered_record_count
    assert (recovery.start, recovery.end) == (report.recovered_from, report.log_end)
    assert recovery.cut_bytes == report.cut_bytes


def test_a_flipped_bit_in_a_body_is_found_wherever_it_is(root: Path):
    """Recovery after a clean stop does not read that part of the log."""
    flip(*in_log(root, 100))
    report = check(root)
    assert report.is_damaged
    (damage,) = report.damages
    assert (damage.offset, damage.is_proven) == (0, True)
    assert "checksum" in damage.reason
    assert (report.queues.missing_count, report.queues.wrong_count, report.queues.stray_count) == (0, 0, 0)


@pytest.mark.parametrize(
    ("at", "counts"),
    [(7, (0, 1, 1)), (5, (0, 1, 0)), (11, (0, 1, 0)), (19, (0, 1, 0))],
    ids=["physical offset", "behind the log", "size", "tag code"],
)
def test_a_flipped_bit_in_a_unit_is_found(root: Path, at: int, counts: tuple[int, int, int]):
    flip(root / "consumequeue" / "T" / "1" / f"{200:020d}", 3 * 20 + at)
    report = check(root)
    queues = report.queues
    assert (queues.missing_count, queues.wrong_count, queues.stray_count) == counts
    assert report.is_damaged


def test_a_unit_that_turned_to_zeroes_is_missing(root: Path):
    path = root / "consumequeue" / "T" / "1" / f"{200:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:60] + bytes(20) + data[80:])
    report = check(root)
    assert report.queues.missing_count == 1
    assert report.is_damaged


def test_lost_queues_can_be_rebuilt(root: Path):
    shutil.rmtree(root / "consumequeue" / "T" / "0")
    report = check(root)
    assert report.is_damaged
    assert report.queues.missing_count == 30
    assert (report.recovered_from, report.recovered_record_count, report.recovered_unit_count) == (0, 60, 30)
    recovery = open_store(root).recovery
    assert recovery is not None
    assert recovery.record_count == 60


def test_lost_files_are_damage(root: Path):
    last = max((root / "commitlog").iterdir())
    last.unlink()
    report = check(root)
    assert report.is_damaged
    assert report.log_end < report.known_end
    assert report.cut_unit_count > 0
    middle = sorted((root / "commitlog").iterdir())[1]
    middle.unlink()
    with pytest.raises(StoreCorrupt, match="one is missing"):
        check(root)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_lost_first_file_is_damage_and_the_start_says_so_once(root: Path, caplog, *, is_killed: bool):
    """The check reported "no damage" and the start nothing, although nine messages were gone."""
    store = open_store(root)
    kill(store) if is_killed else store.close()
    min((root / "commitlog").iterdir()).unlink()
    report = check(root)
    assert report.is_damaged
    assert report.lost_bytes == report.log_start == 4096
    for is_first in (True, False):
        caplog.clear()
        open_store(root).close()
        assert ("the first files of the commit log were lost" in caplog.text) is is_first
    assert not check(root).is_damaged


def test_a_delay_level_of_the_brokers_own_is_no_damage(tmp_path: Path):
    """The check compared with Apache's default levels."""
    store = open_store(tmp_path)
    delayed = message("later", SCHEDULE_TOPIC, 1)
    delayed.properties_text, delayed.tag_code = encode_properties({"DELAY": "2"}), 2**41
    store.append_batch([delayed])
    store.close()
    assert not check(tmp_path).is_damaged


def test_a_queue_that_lacks_a_file_is_damage(root: Path):
    (root / "consumequeue" / "T" / "0" / f"{200:020d}").unlink()
    report = check(root)
    assert report.queues.missing_count == report.recovered_unit_count == 10
    assert report.is_damaged


def test_a_queue_without_any_file_is_damage_in_a_store_that_was_not_ours(root: Path):
    """The check ended with a ZeroDivisionError."""
    (root / "libra.checkpoint").unlink()
    for path in (root / "consumequeue" / "T" / "0").iterdir():
        path.unlink()
    report = check(root)
    assert report.is_damaged
    assert report.queues.missing_count == report.recovered_unit_count == 30
    store = open_store(root)
    assert len(bodies(store, "T", 0)) == 30
    store.close()


def test_a_queue_file_that_holds_no_whole_units_is_damage(root: Path):
    """Such a file was cut short while it was copied."""
    path = root / "consumequeue" / "T" / "0" / f"{400:020d}"
    path.write_bytes(path.read_bytes()[:39])
    report = check(root)
    assert report.queues.missing_count == report.recovered_unit_count == 9
    assert report.is_damaged
    store = open_store(root)
    assert len(bodies(store, "T", 0)) == 30
    store.close()


def test_a_check_needs_no_descriptor_a_queue(root: Path):
    """A store with ten thousand topics could not be checked with the usual limit of 1,024 open files."""
    store = open_store(root)
    for number in range(50):
        store.append_batch([message("one", f"T{number}")])
    store.close()
    disk = CountingDisk()
    assert not check_store(root, disk).is_damaged
    assert disk.most_open <= 20  # The files of the log, and one more.


class CountingDisk(LocalFileSystem):
    """A disk that counts open descriptors."""

    def __init__(self) -> None:
        self.open_count = self.most_open = 0

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        self.open_count += 1
        self.most_open = max(self.most_open, self.open_count)
        return super().open(path, write=write, create=create)

    def close(self, file: int) -> None:
        self.open_count -= 1
        super().close(file)


def test_an_empty_file_before_others_is_damage(root: Path):
    min((root / "commitlog").iterdir()).write_bytes(b"")
    with pytest.raises(StoreCorrupt, match="is empty"):
        check(root)


def test_a_topic_that_was_made_again_is_no_damage_for_a_store_without_notes_of_deletions(root: Path):
    """Apache's brokers leave such stores."""
    store = open_store(root)
    store.append_batch([message("old", "Deleted")])
    store.delete_topic("Deleted")
    store.append_batch([message("new", "Deleted")])
    store.close()
    (root / "libra.deletions").unlink()
    report = check(root)
    assert (report.deleted_count, report.is_damaged) == (1, False)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("lost", ["checkpoint", "bit", "end"])
def test_what_was_deleted_stays_deleted_and_is_no_damage(root: Path, lost: str, *, is_killed: bool, caplog):
    """Without libra.checkpoint or after a flipped bit it reappeared, and the check reported it missing."""
    store = open_store(root)
    assert store.raise_min_offset("T", 0, 25) == 25
    store.append_batch([message("old", "Deleted")])
    store.delete_topic("Deleted")
    store.append_batch([message("new", "Deleted")])
    flush(store)
    assert remove_old_files(store, 1) == 1
    kill(store) if is_killed else store.close()
    if lost == "checkpoint":
        (root / "libra.checkpoint").unlink()
    elif lost == "bit":
        flip(root / "libra.deletions", 12)
    else:
        with (root / "libra.deletions").open("ab") as file:
            file.write(b"00000000 12")
    report = check(root)
    assert not report.is_damaged, asdict(report)
    assert ("notes of deletions cannot be read" in caplog.text) is (lost == "bit")
    store = open_store(root)
    assert len(bodies(store, "T", 0)) == 5
    assert bodies(store, "Deleted") == [b"new"]
    store.close()
    caplog.clear()
    assert not check(root).is_damaged
    assert not caplog.text


def test_no_flipped_bit_brings_back_what_was_deleted(tmp_path: Path):
    """A flipped bit between two lines of deletion notes joined them, and both were lost."""
    store = open_store(tmp_path / "store")
    store.append_batch([message("old", "Deleted")])
    store.delete_topic("Deleted")
    store.close()
    notes = (tmp_path / "store" / "libra.deletions").read_bytes()
    (tmp_path / "libra.deletions").write_bytes(notes)
    end = notes.split()[1]
    for bit in range(8 * len(notes)):
        (tmp_path / "libra.deletions").write_bytes(notes)
        flip(tmp_path / "libra.deletions", bit // 8, 1 << bit % 8)
        deletions = Deletions(LocalFileSystem(), tmp_path)
        deletions.load()
        assert (deletions.end_of("Deleted"), deletions.is_stale) == (int(end), True), bit


@pytest.mark.parametrize("is_killed", [False, True])
def test_each_deletion_keeps_its_own_offset(root: Path, *, is_killed: bool):
    """Opening a store moved all deletions to the offset of the last one in the file, where that was lower."""
    store = open_store(root)
    store.append_batch([message("old", "Deleted")])
    store.delete_topic("Deleted")
    assert store.raise_min_offset("T", 0, 25) == 25
    ends = store.deletions.ends()
    assert ends["Deleted"] > ends["T/0"]
    kill(store) if is_killed else store.close()
    (root / "libra.checkpoint").unlink()
    assert not check(root).is_damaged
    store = open_store(root)
    assert (store.deletions.ends(), bodies(store, "Deleted")) == (ends, [])
    store.close()


def test_deletions_behind_the_end_of_what_they_hold_for_are_lowered_to_it(tmp_path: Path):
    deletions = Deletions(LocalFileSystem(), tmp_path)
    deletions.note("Later", 900)
    deletions.note("Earlier", 100)
    for end, later, earlier in [(None, 900, 100), (1_000, 900, 100), (500, 500, 100), (50, 50, 50)]:
        deletions = Deletions(LocalFileSystem(), tmp_path)
        deletions.load(end=end)
        assert deletions.ends() == {"Later": later, "Earlier": earlier}
        assert deletions.is_stale is (later < 900)


def test_deleted_files_are_no_damage(root: Path, caplog):
    store = open_store(root)
    store.append_batch([message("kept", "Other")])
    flush(store)
    assert remove_old_files(store, 2) == 2
    store.raise_min_offset("T", 0, 20)
    store.append_batch([message("gone", "Deleted")])
    store.delete_topic("Deleted")
    store.append_batch([message("anew", "Deleted")])
    store.close()
    report = check(root)
    assert not report.is_damaged, asdict(report)
    assert report.deleted_count == 1
    assert report.log_start == 2 * 4096
    open_store(root).close()
    assert "were lost" not in caplog.text


def test_files_that_are_deleted_while_the_disk_is_full_are_no_damage(root: Path, caplog):
    """The log's beginning could not be written then; the next flush writes it."""
    disk = Disk()
    store = open_store(root, disk=disk)
    disk.bytes_left = 0
    assert remove_old_files(store, 2) == 2
    disk.bytes_left = None
    store.append_batch([message("after", "Other")])
    store.close()
    assert not check(root).is_damaged
    open_store(root).close()
    assert "were lost" not in caplog.text


def test_only_an_unused_store_is_checked(root: Path, tmp_path_factory: pytest.TempPathFactory):
    store = open_store(root)
    with pytest.raises(StoreLocked, match="in use by a broker"):
        check(root)
    store.close()
    with pytest.raises(StoreError, match="no commitlog"):
        check(tmp_path_factory.mktemp("empty"))


def test_a_tag_code_in_a_lost_extension_is_no_damage_and_matches_any_tag(tmp_path: Path) -> None:
    """With enableConsumeQueueExt a unit has, instead of the code, a position in another file."""
    store = open_store(tmp_path)
    elsewhere = replace(message("a", tags="A"), tag_code=-(1 << 63) + 40)
    for sent in (elsewhere, message("b", tags="B"), message("c", tags="C")):
        assert store.append_batch([sent])[0].is_ok
    wanted = frozenset({tag_code("C")})
    found = store.read("T", 0, 0, 32, tag_codes=wanted)
    assert [decoded.body for decoded in decode_records(b"".join(found.data))] == [b"a", b"c"]
    assert store.tag_codes("T", 0, 0, end=3) is None, "unknown without reading"
    assert store.tag_codes("T", 0, 1, end=3) == {tag_code("B"), tag_code("C")}
    store.close()
    report = check(tmp_path)
    assert not report.is_damaged
    assert report.queues.wrong_count == 0


def test_the_next_file_that_apache_has_made_already_is_no_damage(root: Path) -> None:
    """A store that its broker did not close may have no record in its last file."""
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    after = int(names[-1]) + 4096
    (root / "commitlog" / f"{after:020d}").write_bytes(bytes(4096))
    (root / "libra.checkpoint").unlink()
    (root / "abort").write_text("17")
    report = check(root)
    assert report.record_count == 60
    assert not report.damages
    assert not report.is_damaged
