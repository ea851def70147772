"""Recovery: from any state of the files after a crash, it restores the complete messages and nothing else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import libramq
from libramq.message import decode_records
from libramq.store import MessageStore
from libramq.store.queues.consume_queue import UNIT
from tests.fakes import ManualClock
from tests.quick import quick
from tests.store.stores import Disk, bodies, copy_as_killed, flush, kill, message, open_store

LOG = Path("commitlog") / f"{0:020d}"


def three_records(root: Path) -> tuple[bytes, list[int]]:
    """Write a log of three records in two queues, not closed; return its bytes and where each record ends."""
    store = open_store(root)
    ends = [
        store.append_batch([message("first", tags="A")])[0].end,
        store.append_batch([message("second", queue_id=1)])[0].end,
        store.append_batch([message("third", tags="B")])[0].end,
    ]
    flush(store)
    kill(store)
    return (root / LOG).read_bytes(), ends


@pytest.mark.parametrize("step", quick([5, 1], 1))
def test_a_log_cut_at_every_byte_keeps_the_whole_records(tmp_path: Path, step: int):
    """A power cut tore the log: everything after the cut is zero. The queues were already on the disk."""
    original = tmp_path / "original"
    data, ends = three_records(original)
    around_ends = {end + by for end in (0, *ends) for by in range(-1, 3) if 0 <= end + by <= ends[-1]}
    for cut in sorted({*range(0, ends[-1], step), *around_ends}):
        root = copy_as_killed(original, tmp_path / "cut")
        (root / LOG).write_bytes(data[:cut] + bytes(len(data) - cut))
        store = open_store(root)
        # A record may itself end in zeroes, which need not have been written.
        whole = sum(end <= cut or not any(data[cut:end]) for end in ends)
        expected = [[], [b"first"], [b"first"], [b"first", b"third"]][whole]
        assert bodies(store) == expected, cut
        assert bodies(store, queue_id=1) == ([b"second"] if whole >= 2 else []), cut
        results = store.append_batch([message("next"), message("next", queue_id=1)])
        assert results[0].physical_offset == ([0, *ends][whole])
        assert [r.queue_offset for r in results] == [len(expected), int(whole >= 2)]
        store.close()
        again = open_store(root)
        assert bodies(again) == [*expected, b"next"]
        again.close()


def test_a_flipped_byte_ends_the_log_at_its_record(tmp_path: Path):
    """Any byte of the last record may flip, except those no check covers.

    The only effect is a shorter log.
    """
    original = tmp_path / "original"
    data, ends = three_records(original)
    lost = 0
    for position in range(ends[1], ends[2]):
        root = copy_as_killed(original, tmp_path / "flipped")
        changed = bytearray(data)
        changed[position] ^= 0x5A
        (root / LOG).write_bytes(changed)
        store = open_store(root)
        assert bodies(store)[:1] == [b"first"]
        assert bodies(store, queue_id=1) == [b"second"]
        lost += store.visible_offset == ends[1]
        store.close()
    # Size, magic, checksum, physical offset, lengths and body; the host bits move everything behind them.
    assert lost >= 4 + 4 + 4 + 8 + 4 + 5 + 1 + 2


@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
@pytest.mark.parametrize("damage", ["none", "deleted", "zeroed", "garbage", "cut short", "one unit"])
def test_queues_are_rebuilt_from_the_log(tmp_path: Path, damage: str, checkpoint: str):
    """In any state after a power cut, the consume queue agrees with the log after recovery."""
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    for i in range(25):  # Three queue files, several log files.
        store.append_batch([message(b"%d" % i + b"." * 500)])
        clock.advance(100)
    flush(store)
    kill(store)
    queue = tmp_path / "consumequeue" / "T" / "0"
    files = sorted(queue.iterdir())
    if checkpoint == "lost":
        (tmp_path / "checkpoint").unlink()
    if damage == "deleted":
        for file in files:
            file.unlink()
    elif damage == "zeroed":
        files[-1].write_bytes(bytes(200))
    elif damage == "garbage":
        files[-1].write_bytes(UNIT.pack(1 << 60, 100, 0) * 10)
    elif damage == "cut short":
        files[-1].write_bytes(b"")
    elif damage == "one unit":
        files[-1].write_bytes(bytes(20) + files[-1].read_bytes()[20:])
    again = open_store(tmp_path, clock=clock)
    if damage == "deleted" and checkpoint == "kept":
        # Only the part that the checkpoint does not cover is read again; upstream loses the same.
        again.close()
        return
    assert [int(body.rstrip(b".")) for body in bodies(again)] == list(range(25))
    again.close()


def test_recovery_begins_at_the_last_complete_flush(tmp_path: Path):
    store = open_store(tmp_path)
    end = 0
    for i in range(6):  # Two a file.
        result = store.append_batch([message(b"x" * 1900)])[0]
        if i == 3:
            flush(store)
            end = result.end
    kill(store)
    again = open_store(tmp_path)
    assert again.recovery is not None
    assert (again.recovery.start, again.recovery.record_count, again.recovery.clean) == (end, 2, False)
    assert len(bodies(again)) == 6
    again.close()


def test_a_file_created_and_not_sized_is_no_obstacle(tmp_path: Path):
    store = open_store(tmp_path)
    store.append_batch([message("x")])
    kill(store)
    (tmp_path / "commitlog" / f"{4096:020d}").touch()
    again = open_store(tmp_path)
    again.append_batch([message(b"y" * 3995)])
    assert len(bodies(again)) == 2
    again.close()


def test_a_crash_while_recovering_costs_nothing(tmp_path: Path):
    store = open_store(tmp_path)
    for i in range(30):
        store.append_batch([message(f"{i}" * 100)])
    kill(store)
    disk = Disk()
    disk.bytes_left = 150
    reading = open_store(tmp_path, disk=disk)  # The disk is full, but stored messages can be read.
    assert bodies(reading) == [(f"{i}" * 100).encode() for i in range(30)]
    assert not reading.append_batch([message("refused")])[0].is_ok
    kill(reading)
    again = open_store(tmp_path)
    assert bodies(again) == [(f"{i}" * 100).encode() for i in range(30)]
    again.close()


WRITER = """
import random, sys
from pathlib import Path
from libramq.clock import SystemClock
from libramq.filesystem import LocalFileSystem
from libramq.store import MessageStore
from libramq.store import StoreConfig
from libramq.store import StoreMessage
from libramq.store import run_flush
from tests.store.stores import plan_flush
filesystem, clock = LocalFileSystem(), SystemClock()
sizes = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 2000}
config = StoreConfig(root=Path(sys.argv[1]), **sizes)
store = MessageStore(config, filesystem, clock)
store.open()
rng = random.Random(int(sys.argv[2]))
number = 0
while True:
    batch = []
    for _ in range(rng.randint(1, 20)):
        batch.append(StoreMessage("T", number % 3, b"%d " % number + rng.randbytes(rng.randint(0, 2000))))
        number += 1
    results = store.append_batch(batch)
    lines = [f"{r.queue_offset} {m.queue_id} {m.body.split()[0].decode()}" for m, r in zip(batch, results)]
    sys.stdout.write("\\n".join(lines) + "\\n")
    sys.stdout.flush()
    if rng.random() < 0.1:
        plan = plan_flush(store, clock.monotonic_ms(), thorough=rng.random() < 0.3)
        if plan is not None:
            run_flush(filesystem, plan)
            store.complete_flush(plan)
"""


def test_acknowledged_messages_are_readable_after_kill_9(tmp_path: Path):
    """A real process is killed three times while it appends; no message that it acknowledged is missing."""
    acknowledged: dict[tuple[int, int], bytes] = {}
    environment = {**os.environ, "PYTHONPATH": str(Path(libramq.__file__).parents[1])}
    for generation in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "store"), str(generation)],
            stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            for _ in range(1500 + 700 * generation):
                line = process.stdout.readline()
                assert line.endswith(b"\n"), "the writer ended by itself"
                acknowledge(acknowledged, line)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            rest = process.stdout.read()
            process.wait()
            process.stdout.close()
        for line in rest.split(b"\n")[:-1]:  # The last one may be cut off.
            acknowledge(acknowledged, line)
        store = open_store(
            tmp_path / "store", mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000
        )
        assert store.recovery is not None
        assert not store.recovery.clean
        check(store, acknowledged)
        kill(store)


def acknowledge(acknowledged: dict[tuple[int, int], bytes], line: bytes) -> None:
    queue_offset, queue_id, body = line.split()
    acknowledged[int(queue_id), int(queue_offset)] = body


def check(store: MessageStore, acknowledged: dict[tuple[int, int], bytes]) -> None:
    stored: dict[tuple[int, int], bytes] = {}
    for queue_id in range(3):
        offset = 0
        while (result := store.read("T", queue_id, offset, 32)).count:
            for found in decode_records(b"".join(result.data)):
                stored[queue_id, found.queue_offset] = found.body.split(b" ")[0]
            offset = result.next_offset
    assert {key: stored.get(key) for key in acknowledged} == acknowledged
