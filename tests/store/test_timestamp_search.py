"""The timestamp search is compared with a search through every message."""

import random
from pathlib import Path

import pytest

from libramq.store.queues.consume_queue import Boundary
from tests.fakes import ManualClock
from tests.store.stores import flush, message, open_store, remove_old_files


def brute_force(times: list[int], first: int, wanted: int, boundary: Boundary) -> int:
    """Apply the rules of store.md §7 to every message in turn."""
    if boundary is Boundary.LOWER:
        return next((first + i for i, time in enumerate(times) if time >= wanted), first + len(times))
    return max((first + i for i, time in enumerate(times) if time <= wanted), default=first)


@pytest.mark.parametrize("seed", range(6))
def test_both_boundaries_agree_with_brute_force(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    clock = ManualClock(wall_ms=1000)
    store = open_store(tmp_path, clock=clock)
    times = []
    for _ in range(rng.choice([1, 2, 11, 40])):  # Some within one queue file, some over several.
        store.append_batch([message(b"x" * 300), message("other", queue_id=1)])
        times.append(clock.wall_ms())
        clock.advance(rng.choice([0, 0, 1, 2, 5]))
        if rng.random() < 0.2:
            flush(store)
    for removed in (False, True):
        first = store.min_offset("T", 0)
        for wanted in range(990, clock.wall_ms() + 10):
            for boundary in Boundary:
                expected = brute_force(times[first:], first, wanted, boundary)
                assert store.offset_by_timestamp("T", 0, wanted, boundary) == expected, (wanted, boundary)
        assert store.earliest_store_time("T", 0) == times[first]
        if not removed:
            flush(store)
            remove_old_files(store)
    assert store.offset_by_timestamp("T", 9, 5) == 0
    assert store.earliest_store_time("T", 9) == -1
    store.close()
