"""`libra store check` as a shell runs it."""

import json
from pathlib import Path

from tests.cli.commands import libra
from tests.store.stores import message, open_store


def test_a_check_prints_what_it_found_and_ends_with_a_code(tmp_path: Path):
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
