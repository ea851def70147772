"""The flights are all there, in order of time, each under a key of its own."""

import json
from collections import Counter

import pytest

from libramq.demo import flights
from libramq.errors import ConfigError


@pytest.fixture(scope="module")
def rows() -> list[list[str]]:
    return flights.read_rows(flights.archive())


def test_every_flight_is_read_in_order(rows: list[list[str]]):
    assert len(rows) == flights.FLIGHT_COUNT
    times = [row[-1] for row in rows]
    assert times == sorted(times)
    assert (times[0], times[-1]) == ("2013-01-01T10:00:00Z", "2014-01-01T04:00:00Z")
    # Stable: the file's first flight is the first of its hour.
    assert flights.key_of(rows[0]) == "2013-01-01T10:00:00Z-UA-1545-EWR"


def test_keys_are_unique(rows: list[list[str]]):
    flights.check_unique(rows)
    with pytest.raises(ConfigError, match="3 flights have 2 different keys"):
        flights.check_unique([rows[0], rows[1], rows[0]])


def test_flights_of_one_aeroplane_share_a_queue(rows: list[list[str]]):
    without = [row for row in rows if row[11] == "NA"]
    assert len(without) == 2512
    by_tail: dict[str, set[int]] = {}
    counts: Counter[int] = Counter()
    for row in rows:
        queue_id = flights.queue_of(row, 16)
        by_tail.setdefault(row[9] + row[10] if row[11] == "NA" else row[11], set()).add(queue_id)
        counts[queue_id] += 1
    assert all(len(queues) == 1 for queues in by_tail.values())
    assert set(counts) == set(range(16))
    assert max(counts.values()) < 2 * min(counts.values())


def test_bodies_are_the_rows(rows: list[list[str]]):
    for row in (rows[0], rows[-1], next(row for row in rows if "NA" in row)):
        body = json.loads(flights.body_of(row))
        assert list(body) == list(flights.COLUMNS)
        for name, text in zip(flights.COLUMNS, row, strict=True):
            expected = None if text == "NA" else text if name in flights.TEXTS else int(text)
            assert body[name] == expected


def test_a_flight_becomes_a_message(rows: list[list[str]]):
    message = next(flights.messages(rows, 16))
    assert message.tag == "UA"
    assert message.queue_id == flights.queue_of(rows[0], 16)
    assert message.body == flights.body_of(rows[0])
