"""`libra store check`, `libra store copy` and `libra store unbatch` as a shell runs them."""

import json
import threading
from pathlib import Path

from libramq.client.queue_reader import QueueReader, refuse_loss
from libramq.message import Message, decode_records
from libramq.sync import Producer
from tests.cli.commands import end, libra, one_line, start
from tests.interop.ports import free_broker_port, free_port
from tests.store.stores import message, open_store
from tests.store.test_unbatching import Apaches, item


def test_a_check_prints_its_findings_and_exits_with_a_code(tmp_path: Path):
    store = open_store(tmp_path)
    for number in range(20):
        store.append_batch([message(b"%02d" % number + b"." * 400, tags="A")])
    store.close()
    checked = libra("store", "check", str(tmp_path), "--dump")
    lines = checked.out.splitlines()
    records, (state, log_line, queues_line, next_line, result) = lines[:20], lines[20:]
    assert "closed" in state
    assert checked.code == 0, checked
    found = [json.loads(line) for line in records]
    assert [record["queueOffset"] for record in found] == list(range(20))
    assert found[0]["properties"] == {"TAGS": "A"}
    assert "20 records" in log_line
    assert "1 with 20 units; 0 are missing" in queues_line
    assert "reads 0 records" in next_line
    assert result.split() == ["result", "no", "damage"]

    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    checked = libra("store", "check", str(tmp_path))
    assert checked.code == 1
    assert "at 0, one record: a body" in checked.out
    as_json = json.loads(libra("store", "check", str(tmp_path), "--json").out)
    assert as_json["isDamaged"] is True
    assert [damage["offset"] for damage in as_json["damages"]] == [0]

    nothing = libra("store", "check", str(tmp_path / "config"))
    assert nothing.code == 2
    assert "is no store directory" in nothing.err


def test_batches_of_apaches_are_unwrapped_in_a_copy(tmp_path: Path):
    store = Apaches(tmp_path / "apaches")
    store.add_batch(0, item("a"), item("b"), item("c"))
    root = str(store.write())
    done = libra("store", "unbatch", root, str(tmp_path / "to"))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[:2] == [
        "topics      B",
        "commit log  1 records, 1 of them batches; now 3",
    ]
    as_json = json.loads(libra("store", "unbatch", root, str(tmp_path / "again"), "--json").out)
    assert as_json == {"topics": ["B"], "read": 1, "batches": 1, "written": 3}
    refused = libra("store", "unbatch", root, str(tmp_path / "to"))
    assert refused.code == 2
    assert "is not empty" in refused.err


def sent_bodies(namesrv: str, topic: str) -> set[bytes]:
    reader = QueueReader([namesrv], group="TOOLS_CONSUMER")
    try:
        queues = reader.queues(topic)
        ends = reader.max_offsets(queues)
        return {
            message.body
            for queue in queues
            for stretch in reader.read(queue, 0, ends[queue], lost=refuse_loss)
            for message in decode_records(stretch.body)
        }
    finally:
        reader.close()


def test_a_broker_started_on_a_copy_has_all_acknowledged_messages(up, tmp_path: Path):
    """The copy is made while a producer sends to a topic that was created just before."""
    producer = Producer(group="copied", namesrv=up.namesrv)
    producer.start()
    acknowledged: list[bytes] = []
    enough, stopped = threading.Event(), threading.Event()

    def send() -> None:
        number = 0
        while not stopped.is_set():
            body = b"%d" % number
            producer.send(Message(topic="Copied", body=body))
            acknowledged.append(body)
            number += 1
            if number == 300:
                enough.set()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        assert enough.wait(60)
        before = set(acknowledged)
        copied = libra("store", "copy", up.data, str(tmp_path / "copy"), "--json")
    finally:
        stopped.set()
        sender.join(60)
        producer.stop()
    assert copied.code == 0, copied
    report = json.loads(copied.out)
    assert report["isClosed"] is False
    assert any(name.startswith("topics.json") for name in report["tables"])
    assert report["logEnd"] > 0

    port = free_port()
    ports = ["--nameserver-port", str(port), "--broker-port", str(free_broker_port())]
    process = start(["up", *ports, "--data", str(tmp_path / "copy")])
    try:
        assert process.stdout is not None
        assert "is up" in process.stdout.readline()
        found = sent_bodies(f"127.0.0.1:{port}", "Copied")
    finally:
        end(process)
    assert before <= found <= set(acknowledged)

    again = libra("store", "copy", up.data, str(tmp_path / "copy"))
    assert "is not empty" in one_line(again)
    inside = libra("store", "copy", up.data, str(Path(up.data) / "copy"))
    assert "is inside" in one_line(inside)
