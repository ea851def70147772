"""Damage in durable data: nothing after it is lost unless an operator decides so."""

import shutil
from pathlib import Path

import pytest

from libramq.errors import StoreDamaged
from libramq.message.ids import encode_host
from libramq.message.record import encode_blank, encode_record
from libramq.store import MessageStore
from libramq.store.checkpoint import RecoveryPoint, RecoveryPointFile
from libramq.store.config import Damaged
from libramq.store.log.log_scan import Damage, LogScan
from libramq.store.reader import Span, StoreReader
from tests.fakes import ManualClock
from tests.store.stores import Disk, bodies, copy_as_killed, flush, kill, message, open_store, read_all

FILE_SIZE = 4096
BODY = b"." * 300


def text(number: int) -> bytes:
    return b"%03d" % number + BODY


def fill(root: Path, count: int = 40) -> list[int]:
    """Fill a store of several log files, flush and kill it; return where each record begins."""
    store = open_store(root)
    places = [store.append_batch([message(text(number))])[0].physical_offset for number in range(count)]
    flush(store)
    kill(store)
    return places


def flip(root: Path, offset: int, bit: int = 0x10) -> None:
    path = root / "commitlog" / f"{offset // FILE_SIZE * FILE_SIZE:020d}"
    data = bytearray(path.read_bytes())
    data[offset % FILE_SIZE] ^= bit
    path.write_bytes(data)


def numbers(store: MessageStore) -> list[int]:
    """Return the numbers of a queue's messages, pulled from its beginning; every pull must make progress."""
    return [int(found.body[:3]) for found in read_all(store)]


def lose_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


# The flipped bytes: in the record's size, magic, physical offset, body length and body.
FRAME = {"size": 1, "magic": 4, "physical offset": 33, "body length": 85}
BODY_AT = 84 + 4 + 10


@pytest.mark.parametrize("field", FRAME)
@pytest.mark.parametrize("stop", ["killed", "closed"])
def test_a_bit_that_flips_in_old_data_costs_one_message(tmp_path: Path, field: str, stop: str):
    """Neither a restart nor a consumer stops at the damage, which once hid 900 later messages."""
    places = fill(tmp_path)
    if stop == "closed":
        open_store(tmp_path).close()
    flip(tmp_path, places[7] + FRAME[field])
    store = open_store(tmp_path)
    assert numbers(store) == [*range(7), *range(8, 40)]
    assert store.statistics().unreadable_count == 1
    assert store.message_at(places[7]) is None
    assert [store.offset_by_timestamp("T", 0, 0), store.max_offset("T", 0)] == [0, 40]
    kill(store)


@pytest.mark.parametrize("marked", ["ours", "somebody else's"])
def test_an_unreadable_record_is_skipped_where_the_next_one_is_confirmed(tmp_path: Path, marked: str):
    """Its queues are lost too, so that the whole log is read again."""
    places = fill(tmp_path)
    lose_queues(tmp_path)
    if marked != "ours":
        (tmp_path / "abort").write_text("4711")
    flip(tmp_path, places[7] + BODY_AT)
    flip(tmp_path, places[20] + 50)  # The born host, which no check covers.
    store = open_store(tmp_path)
    assert store.recovery is not None
    (damage,) = store.recovery.damages
    assert (damage.offset, damage.end, damage.is_proven) == (places[7], places[8], True)
    assert numbers(store) == [*range(7), *range(8, 40)]
    assert store.append_batch([message(text(40))])[0].queue_offset == 40
    kill(store)


def test_the_last_record_of_a_queue_keeps_its_number_when_its_body_cannot_be_read(tmp_path: Path):
    """A group that consumed the message has committed the next number."""
    places = fill(tmp_path)
    lose_queues(tmp_path)
    flip(tmp_path, places[-1] + BODY_AT)
    store = open_store(tmp_path)
    assert numbers(store) == list(range(39))
    assert store.append_batch([message(text(40))])[0].queue_offset == 40
    store.close()
    again = open_store(tmp_path)
    assert numbers(again) == [*range(39), 40]
    again.close()


@pytest.mark.parametrize("where", ["size", "magic"])
def test_an_unreadable_blank_costs_nothing(tmp_path: Path, where: str):
    places = fill(tmp_path)
    lose_queues(tmp_path)
    size = places[1] - places[0]
    last = max(place for place in places if place < FILE_SIZE)
    flip(tmp_path, last + size + (3 if where == "size" else 5))
    store = open_store(tmp_path)
    assert store.recovery is not None
    assert [damage.is_blank for damage in store.recovery.damages] == [True]
    assert numbers(store) == list(range(40))
    kill(store)


def test_unproven_damage_stops_the_start_and_names_the_cost_of_each_remedy(tmp_path: Path):
    places = fill(tmp_path)
    lose_queues(tmp_path)
    flip(tmp_path, places[7] + FRAME["size"])
    for _ in range(2):
        with pytest.raises(StoreDamaged) as refused:
            open_store(tmp_path)
        said = str(refused.value)
        assert f"at offset {places[7]} " in said
        assert f"--damaged=skip loses {places[8] - places[7]} bytes, which are at least 1 messages" in said
        assert "keeps the 32 messages behind them" in said
        assert f"--damaged=cut loses those 32 messages ({32 * (places[1] - places[0])} bytes) too" in said
    skipped = open_store(tmp_path, damaged=Damaged.SKIP)
    assert numbers(skipped) == [*range(7), *range(8, 40)]
    skipped.close()
    again = open_store(tmp_path)  # Once is enough.
    assert numbers(again) == [*range(7), *range(8, 40)]
    again.close()


def test_bytes_cut_by_an_operator_are_kept_aside(tmp_path: Path):
    places = fill(tmp_path)
    lose_queues(tmp_path)
    flip(tmp_path, places[7] + FRAME["size"])
    behind = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[places[7] :]
    second = (tmp_path / "commitlog" / f"{FILE_SIZE:020d}").read_bytes()
    store = open_store(tmp_path, damaged=Damaged.CUT)
    assert numbers(store) == list(range(7))
    kept = tmp_path / "damaged"
    assert (kept / f"{places[7]:020d}.0").read_bytes() == behind.rstrip(b"\0")
    assert (kept / f"{FILE_SIZE:020d}.0").read_bytes() == second.rstrip(b"\0")
    assert store.append_batch([message(text(7))])[0].physical_offset == places[7]
    kill(store)
    again = open_store(tmp_path)
    assert numbers(again) == list(range(8))
    again.close()


def test_a_refused_start_leaves_a_closed_store_closed(tmp_path: Path):
    places = fill(tmp_path)
    open_store(tmp_path).close()
    lose_queues(tmp_path)
    flip(tmp_path, places[7] + FRAME["size"])
    with pytest.raises(StoreDamaged):
        open_store(tmp_path)
    assert not (tmp_path / "abort").exists()
    flip(tmp_path, places[7] + FRAME["size"])  # The file was brought back.
    store = open_store(tmp_path)
    assert store.recovery is not None
    assert store.recovery.clean
    assert numbers(store) == list(range(40))
    store.close()


def test_a_torn_end_that_is_cut_is_kept_aside(tmp_path: Path):
    fill(tmp_path, 3)
    store = open_store(tmp_path)
    end = store.append_batch([message(text(3))])[0].end
    kill(store)
    flip(tmp_path, end - 20)
    again = open_store(tmp_path)
    assert numbers(again) == [0, 1, 2]
    (kept,) = (tmp_path / "damaged").iterdir()
    assert kept.name.endswith(".torn")
    again.close()


def test_queues_with_unreadable_units_are_rebuilt(tmp_path: Path):
    """A page of zeroes in a queue's file, below the recovery point, would cut off all later units."""
    fill(tmp_path)
    path = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())[-2]
    data = bytearray(path.read_bytes())
    data[60:80] = bytes(20)
    path.write_bytes(data)
    store = open_store(tmp_path)
    assert numbers(store) == list(range(40))
    kill(store)


@pytest.mark.parametrize("unit", [b"\x7f" * 20, bytes(8) + (5000).to_bytes(4) + bytes(8)])
def test_a_unit_that_leads_nowhere_costs_its_own_message(tmp_path: Path, unit: bytes):
    fill(tmp_path)
    path = min((tmp_path / "consumequeue" / "T" / "0").iterdir())
    data = bytearray(path.read_bytes())
    data[60:80] = unit
    path.write_bytes(data)
    store = open_store(tmp_path)
    assert numbers(store) == [0, 1, 2, *range(4, 40)]
    kill(store)


def test_spark_skips_unreadable_records_and_reports_them(tmp_path: Path):
    places = fill(tmp_path)
    open_store(tmp_path).close()
    flip(tmp_path, places[7] + FRAME["body length"])
    lost: list[tuple[tuple[str, int], int, int]] = []
    reader = StoreReader(tmp_path)
    spans = [Span(key, at.min_offset, at.max_offset, at) for key, at in reader.survey().items()]
    found = [
        int(window.data[start + 88 : start + 91])
        for window in reader.windows(spans, lambda *stretch: lost.append(stretch))
        for start in window.starts.tolist()
    ]
    reader.close()
    assert found == [*range(7), *range(8, 40)]
    assert lost == [(("T", 0), 7, 8)]


# NULs.


def log_of(root: Path, properties: list[bytes]) -> None:
    """Write a log like a broker that accepts NULs, whose machine lost power before it had queues."""
    data = b""
    for number, text_ in enumerate(properties):
        record = encode_record(
            topic="T", queue_id=0, queue_offset=number, physical_offset=len(data), body=b"%d" % number,
            properties=text_, store_host=encode_host(("127.0.0.1", 10911)),
        )  # fmt: skip
        data += record
    (root / "commitlog").mkdir()
    (root / "abort").write_text("4711")
    (root / "commitlog" / f"{0:020d}").write_bytes(data + bytes(FILE_SIZE - len(data)))


def test_a_message_with_nuls_hides_none_of_those_behind_it(tmp_path: Path):
    nuls = b"k\x01" + bytes(512) + b"\x02"
    log_of(tmp_path, [b"", nuls, b"k\x01v\x02", nuls, b""])
    store = open_store(tmp_path)
    assert bodies(store) == [b"0", b"1", b"2", b"3", b"4"]
    kill(store)
    shutil.rmtree(tmp_path / "consumequeue")
    again = open_store(tmp_path)  # Now all of them are known to have been on the disk.
    assert bodies(again) == [b"0", b"1", b"2", b"3", b"4"]
    again.close()


def test_a_message_with_nuls_at_the_end_of_the_log_was_torn(tmp_path: Path):
    log_of(tmp_path, [b"", b"k\x01" + bytes(512) + b"\x02"])
    store = open_store(tmp_path)
    assert bodies(store) == [b"0"]
    store.close()


def test_the_store_takes_no_nuls(tmp_path: Path):
    store = open_store(tmp_path)
    bad = message("x")
    bad.properties_text = b"k\x01\0\x02"
    good, refused = store.append_batch([message("good"), bad])
    assert (good.is_ok, refused.is_ok) == (True, False)
    assert bodies(store) == [b"good"]
    store.close()


# The clock.


@pytest.mark.parametrize("back_ms", [10_000, 3_600_000])
def test_a_clock_that_was_set_back_hides_no_messages(tmp_path: Path, back_ms: int):
    """Messages follow the queues' last flush, then a file whose first message looks older than that."""
    clock = ManualClock()
    store = open_store(tmp_path / "live", clock=clock)
    for number in range(4):
        store.append_batch([message(text(number))])
        clock.advance(10_000)
    flush(store)
    for number in range(4, 8):
        store.append_batch([message(text(number))])
        clock.advance(10_000)
    clock.set_wall(-back_ms - 60_000)
    for number in range(8, 30):
        store.append_batch([message(text(number))])
    kill(store)
    assert numbers(open_store(tmp_path / "live", clock=clock)) == list(range(30))


# Files that are gone.


@pytest.mark.parametrize("stop", ["killed", "closed"])
@pytest.mark.parametrize("lost", ["all files", "the last files"])
def test_a_log_that_is_shorter_than_it_was_stops_the_start(tmp_path: Path, stop: str, lost: str):
    places = fill(tmp_path)
    if stop == "closed":
        open_store(tmp_path).close()
    files = sorted((tmp_path / "commitlog").iterdir())
    for path in files if lost == "all files" else files[-2:]:
        path.rename(tmp_path / f"away-{path.name}")
    with pytest.raises(StoreDamaged, match="removed, or their disk is not mounted") as refused:
        open_store(tmp_path)
    gone = 40 if lost == "all files" else sum(place >= FILE_SIZE * (len(files) - 2) for place in places)
    assert f" {gone} messages of the queues are gone" in str(refused.value)
    for path in tmp_path.glob("away-*"):
        path.rename(tmp_path / "commitlog" / path.name.removeprefix("away-"))
    store = open_store(tmp_path)
    assert numbers(store) == list(range(40))
    kill(store)


@pytest.mark.parametrize("damaged", Damaged)
def test_a_store_without_its_log_follows_the_operators_choice(tmp_path: Path, damaged: Damaged):
    """With "skip" no number is assigned twice, so that positions stored elsewhere stay valid."""
    places = fill(tmp_path)
    open_store(tmp_path).close()
    shutil.rmtree(tmp_path / "commitlog")
    store = open_store(tmp_path, damaged=damaged)
    first = 40 if damaged is Damaged.SKIP else 0
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (first, first)
    result = store.append_batch([message(text(1))])[0]
    assert result.queue_offset == first
    assert (result.physical_offset > places[-1]) == (damaged is Damaged.SKIP)
    assert numbers(store) == [1]
    kill(store)
    again = open_store(tmp_path)
    assert numbers(again) == [1]
    again.close()


def test_a_log_that_lost_its_last_files_ends_there(tmp_path: Path):
    places = fill(tmp_path)
    open_store(tmp_path).close()
    last = max((tmp_path / "commitlog").iterdir())
    left = [number for number, place in enumerate(places) if place < int(last.name)]
    last.unlink()
    store = open_store(tmp_path, damaged=Damaged.CUT)
    assert numbers(store) == left
    assert store.append_batch([message(text(len(left)))])[0].queue_offset == len(left)
    store.close()


# The recovery point.


def test_a_recovery_point_belongs_to_the_broker_that_marked_it(tmp_path: Path):
    point = RecoveryPoint(7, 1_700, 10, 5, 2)
    assert point.is_of("4711\nLibraMQ 7 1700\n")
    for text_ in ("", "4711", "4711\n", "4711\nLibraMQ 6 1700\n", "LibraMQ 7 1700"):
        assert not point.is_of(text_)


def test_of_two_recovery_points_the_newest_whole_one_counts(tmp_path: Path):
    disk = Disk()
    file = RecoveryPointFile(disk, tmp_path)
    assert file.load() is None
    for number in range(5):
        file.save(RecoveryPoint(1, 2, number, number, 3), sync=True)
    file.close()
    assert RecoveryPointFile(disk, tmp_path).load() == RecoveryPoint(1, 2, 4, 4, 3)
    path = tmp_path / "libra.checkpoint"
    data = bytearray(path.read_bytes())
    data[4096 + 30] ^= 1  # The fifth one is in the second slot.
    path.write_bytes(data)
    assert RecoveryPointFile(disk, tmp_path).load() == RecoveryPoint(1, 2, 3, 3, 3)
    path.write_bytes(b"short")
    assert RecoveryPointFile(disk, tmp_path).load() is None


def test_a_store_last_written_by_another_program_is_read_from_its_first_file(tmp_path: Path):
    fill(tmp_path / "live")
    copy = copy_as_killed(tmp_path / "live", tmp_path / "copy")
    store = open_store(copy)
    assert store.recovery is not None
    assert (store.recovery.start, store.recovery.record_count) == (0, 40)
    kill(store)
    again = open_store(copy)  # Now it is ours.
    assert again.recovery is not None
    assert again.recovery.record_count == 0
    kill(again)


def test_a_blank_at_the_end_of_the_files_is_whole(tmp_path: Path):
    record = encode_record(
        topic="T", queue_id=0, queue_offset=0, physical_offset=0, body=b"x", properties=b""
    )
    blank = encode_blank(FILE_SIZE - len(record))
    log_of(tmp_path, [])
    data = record + blank
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(data + bytes(FILE_SIZE - len(data)))
    store = open_store(tmp_path)
    assert bodies(store) == [b"x"]
    assert store.append_batch([message("y")])[0].physical_offset == FILE_SIZE
    assert [isinstance(found, Damage) for found in LogScan(store._log.segments, 0)] == [False, False]
    store.close()
