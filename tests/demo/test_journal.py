"""What the members wrote down adds up, whoever died on the way."""

from pathlib import Path

from libramq.demo.member import SUFFIX, Journal, consumed, entry


def body(carrier: str, dest: str, delay: int | None) -> bytes:
    late = "null" if delay is None else str(delay)
    return f'{{"carrier":"{carrier}","origin":"JFK","dest":"{dest}","arr_delay":{late},"year":2013}}'.encode()


def test_a_journal_without_members_is_valid(tmp_path: Path):
    assert consumed(tmp_path).total == 0


def test_duplicates_are_counted_and_their_delays_are_not(tmp_path: Path):
    first, second = Journal(tmp_path / f"first{SUFFIX}"), Journal(tmp_path / f"second{SUFFIX}")
    first.append([entry(0, 0, body("UA", "LAX", 30)), entry(15, 1, body("UA", "ORD", -10))])
    second.append([entry(0, 0, body("UA", "LAX", 30)), entry(0, 1, body("9E", "LAX", None))])
    second.append([entry(0, 2, body("9E", "LAX", 15))])
    first.close()
    second.close()
    found = consumed(tmp_path)
    assert (found.total, found.distinct, found.duplicate_count) == (5, 4, 1)
    assert found.by_member == {"first": 2, "second": 3}
    assert found.by_carrier == [("UA", 2, 10.0, 0.5), ("9E", 1, 15.0, 1.0)]
    assert found.by_destination == [("LAX", 2, 22.5, 1.0), ("ORD", 1, -10.0, 0.0)]


def test_entry_cut_off_by_a_kill_is_not_counted(tmp_path: Path):
    path = tmp_path / f"killed{SUFFIX}"
    journal = Journal(path)
    journal.append([entry(0, offset, body("UA", "LAX", 0)) for offset in range(3)])
    journal.close()
    path.write_bytes(path.read_bytes()[:-1])
    assert consumed(tmp_path).total == 2
