"""Apache's message store and ours open one directory in turn, after clean stops and kills."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from libramq.filesystem import LocalFileSystem
from libramq.message import MessageExt, decode_records, tag_code
from libramq.message.ids import encode_host
from libramq.message.properties import encode_properties
from libramq.message.record import MAGIC_V2
from libramq.store import MessageStore, StoreMessage
from libramq.store.check import check_store
from libramq.store.queues.consume_queue import Boundary
from tests.fakes import ManualClock
from tests.interop.apache import java
from tests.store.stores import BORN, flush, kill, open_store, remove_old_files

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

TOPIC, QUEUES = "Shared", 3
COMMIT_LOG_FILE, CONSUME_QUEUE_FILE = 1 << 16, 20 * 100
JAVA_TIMEOUT_S = 90.0


def open_ours(root: Path, clock: ManualClock, **options: object) -> MessageStore:
    return open_store(
        root,
        clock=clock,
        mapped_file_size_commit_log=COMMIT_LOG_FILE,
        mapped_file_size_consume_queue=CONSUME_QUEUE_FILE,
        **options,
    )


def append_ours(
    store: MessageStore, clock: ManualClock, count: int, *, topic: str = TOPIC, born: bytes = BORN
) -> None:
    for i in range(count):
        properties = encode_properties({"TAGS": "libra", "KEYS": f"key{i}"})
        body = b"libra %d" % i + b"." * 200
        sent = StoreMessage(topic, i % QUEUES, body, properties, tag_code("libra"), born_host=born)
        assert store.append_batch([sent])[0].is_ok
        clock.advance(i % 3)


def read_ours(
    store: MessageStore, topic: str = TOPIC, tag_codes: frozenset[int] | None = None
) -> list[MessageExt]:
    messages: list[MessageExt] = []
    for queue_id in range(QUEUES):
        offset = store.min_offset(topic, queue_id)
        while (result := store.read(topic, queue_id, offset, 32, tag_codes=tag_codes)).count:
            messages += decode_records(b"".join(result.data))
            offset = result.next_offset
    return messages


def run_apache(root: Path, home: Path, **properties: object) -> list[dict[str, Any]]:
    """Let Apache's store open the directory and append; return the events that it reports."""
    home.mkdir(exist_ok=True)
    settings = {
        "root": root,
        "topic": TOPIC,
        "queues": QUEUES,
        "commitLogFile": COMMIT_LOG_FILE,
        "consumeQueueFile": CONSUME_QUEUE_FILE,
        **properties,
    }
    command = java("Store", home=home, properties=settings)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False, cwd=home
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def said(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the messages that Apache read, in the form of `seen`."""
    return [
        (
            line["queue"],
            line["offset"],
            line["physical"],
            line["body"],
            line["tags"],
            line["id"],
            line["stored"],
        )
        for line in lines
        if line["event"] == "message"
    ]


def seen(store: MessageStore, topic: str = TOPIC) -> list[tuple[Any, ...]]:
    return [
        (
            m.queue_id,
            m.queue_offset,
            m.physical_offset,
            m.body.decode(),
            m.tags,
            m.message_id,
            m.store_timestamp_ms,
        )
        for m in read_ours(store, topic)
    ]


def test_each_broker_reads_and_continues_the_others_store(tmp_path: Path) -> None:
    root, home, clock = tmp_path / "store", tmp_path / "home", ManualClock()
    store = open_ours(root, clock)
    append_ours(store, clock, 400)
    expected = seen(store)
    store.close()

    found = run_apache(root, home, append=31)
    assert set(expected) < set(said(found))
    assert len(said(found)) == 431

    store = open_ours(root, clock)
    assert store.recovery is not None
    assert store.recovery.clean
    assert seen(store) == said(found)
    append_ours(store, clock, 50)
    expected = seen(store)
    flush(store)
    append_ours(store, clock, 7)
    expected = seen(store)
    kill(store)

    found = run_apache(root, home, append=5, halt=True)  # It recovers from our kill, and is killed itself.
    assert set(expected) < set(said(found))
    assert len(said(found)) == 431 + 57 + 5

    store = open_ours(root, clock)
    assert store.recovery is not None
    assert not store.recovery.clean
    assert seen(store) == said(found)
    store.close()


def test_apache_serves_queues_that_were_built_again(tmp_path: Path) -> None:
    """A different file of each queue is lost: the first, one in the middle, the last."""
    root, home, clock = tmp_path / "store", tmp_path / "home", ManualClock()
    store = open_ours(root, clock)
    append_ours(store, clock, 1500)
    expected = seen(store)
    store.close()
    for queue_id, file in ((0, 0), (1, 2), (2, 4)):
        (root / "consumequeue" / TOPIC / str(queue_id) / f"{file * CONSUME_QUEUE_FILE:020d}").unlink()
    store = open_ours(root, clock)
    assert seen(store) == expected
    assert remove_old_files(store, 2) == 2
    expected = seen(store)
    store.close()
    min((root / "consumequeue" / TOPIC / "0").iterdir()).unlink()
    store = open_ours(root, clock)
    assert seen(store) == expected
    store.close()

    found = run_apache(root, home, append=9)
    assert set(expected) < set(said(found))
    assert len(said(found)) == len(expected) + 9
    first = min((root / "consumequeue" / TOPIC / "1").iterdir())
    first.unlink()  # Written by Apache's store, which records no count of units.
    store = open_ours(root, clock)
    assert seen(store) == said(found)
    store.close()

    found = run_apache(root, home, append=6)
    for queue_id in (0, 1):
        max((root / "consumequeue" / TOPIC / str(queue_id)).iterdir()).unlink()
    report = check_store(root, LocalFileSystem())
    assert report.queues.missing_count >= 6
    store = open_ours(root, clock)
    assert seen(store) == said(found)
    store.close()
    assert not check_store(root, LocalFileSystem()).is_damaged


@pytest.mark.parametrize("end", ["clean stop", "kill"])
def test_apache_serves_the_messages_left_after_our_cleaning(tmp_path: Path, end: str) -> None:
    """Old files of the commit log are removed, and the consume queue files that refer to them."""
    root, home, clock = tmp_path / "store", tmp_path / "home", ManualClock()
    store = open_ours(root, clock)
    append_ours(store, clock, 1500)
    flush(store)
    assert remove_old_files(store, 5) == 5
    assert min(int(path.name) for path in (root / "consumequeue" / TOPIC / "0").iterdir()) > 0
    first = {queue_id: store.min_offset(TOPIC, queue_id) for queue_id in range(QUEUES)}
    assert min(first.values()) > 100
    expected = seen(store)
    store.close() if end == "clean stop" else kill(store)

    found = run_apache(root, home, append=9)
    assert set(expected) < set(said(found))
    assert len(said(found)) == len(expected) + 9

    store = open_ours(root, clock)
    assert seen(store) == said(found)
    assert {queue_id: store.min_offset(TOPIC, queue_id) for queue_id in range(QUEUES)} == first
    assert remove_old_files(store, 1) == 1
    store.close()


def test_a_timestamp_search_returns_apaches_offsets(tmp_path: Path) -> None:
    """This holds within one consume queue file; upstream first chooses a file by its times."""
    root, clock = tmp_path / "store", ManualClock()
    store = open_ours(root, clock)
    append_ours(store, clock, 120)
    times = [m.store_timestamp_ms for m in read_ours(store) if m.queue_id == 0]
    store.close()
    wanted = (times[0] - 5, times[0], times[7], times[7] + 1, times[-1], times[-1] + 5)
    lines = run_apache(root, tmp_path / "home", timestamps=",".join(map(str, wanted)))
    found = {line["timestamp"]: line for line in lines if line["event"] == "at"}
    assert found.keys() == set(wanted)
    store = open_ours(root, clock)
    for timestamp_ms, line in found.items():
        for boundary in Boundary:
            ours = store.offset_by_timestamp(TOPIC, 0, timestamp_ms, boundary)
            assert ours == line[boundary.value], (timestamp_ms, boundary)
    store.close()


def test_long_topics_and_ipv6_hosts_are_read_by_the_other(tmp_path: Path) -> None:
    """Such records have the second format: two bytes for the topic's length, and hosts of 20 bytes."""
    root, home, clock = tmp_path / "store", tmp_path / "home", ManualClock()
    topic, host = "%RETRY%" + "g" * 200, ("2001:db8::17", 10911)
    store = open_ours(root, clock, store_host=host)
    append_ours(store, clock, 40, topic=topic, born=encode_host(("2001:db8::42", 4567)))
    expected = seen(store, topic)
    assert len(expected) == 40
    store.close()
    data = (root / "commitlog" / f"{0:020d}").read_bytes()
    assert data[4:8] == MAGIC_V2.to_bytes(4)

    found = run_apache(root, home, append=20, topic=topic, host="::1")
    assert set(expected) < set(said(found))
    assert len(said(found)) == 60
    hosts = {line["born"] for line in found if line["event"] == "message"}
    assert hosts == {"/[2001:db8:0:0:0:0:0:42]:4567", "/[0:0:0:0:0:0:0:1]:4321"}

    store = open_ours(root, clock, store_host=host)
    assert seen(store, topic) == said(found)
    assert {m.born_host for m in read_ours(store, topic)} == {("2001:db8::42", 4567), ("::1", 4321)}
    append_ours(store, clock, 5, topic=topic, born=encode_host(("2001:db8::42", 4567)))
    flush(store)
    kill(store)
    found = run_apache(root, home, append=5, topic=topic, host="::1", halt=True)
    store = open_ours(root, clock, store_host=host)
    assert len(said(found)) == 70
    assert seen(store, topic) == said(found)
    store.close()


@pytest.mark.parametrize("end", ["clean stop", "kill"])
def test_messages_whose_tag_codes_are_in_apaches_extension_are_found_by_tag(tmp_path: Path, end: str) -> None:
    """With enableConsumeQueueExt a unit has the address of the code; ours appends units with codes."""
    root, home, clock = tmp_path / "store", tmp_path / "home", ManualClock()
    found = run_apache(root, home, append=40, ext=True, halt=end == "kill")
    assert (root / "consumequeue_ext").is_dir()
    assert not check_store(root, LocalFileSystem()).is_damaged
    store = open_ours(root, clock)
    even = [line[3] for line in said(found) if line[4] == "even"]
    assert len(even) == 20
    matched = read_ours(store, tag_codes=frozenset({tag_code("even")}))
    assert [m.body.decode() for m in matched] == even
    append_ours(store, clock, 7)
    store.close() if end == "clean stop" else kill(store)
    found = run_apache(root, home, append=4, ext=True, halt=end == "kill")
    assert len(said(found)) == 51
    store = open_ours(root, clock)
    assert seen(store) == said(found)
    counts = {"even": 22, "odd": 22, "libra": 7}
    for tag, count in counts.items():
        matched = read_ours(store, tag_codes=frozenset({tag_code(tag)}))
        assert [m.tags for m in matched] == [tag] * count
    store.close()
