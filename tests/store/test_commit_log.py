"""The tail returns runs of records from a ring that overwrites its oldest bytes."""

from libramq.message.record import RECORD_BYTES_MIN
from libramq.store.log.commit_log import Tail

SIZE = RECORD_BYTES_MIN


def ring(records: int) -> Tail:
    """Return a tail with room for four records, after a number of records were written to it."""
    tail = Tail(4 * SIZE)
    for number in range(records):
        tail.append(number * SIZE, bytes([number]) * SIZE)
    return tail


def test_records_are_read_without_the_bytes_between_them():
    assert ring(4).read_runs([(0, SIZE), (2 * SIZE, SIZE)]) == (bytes(SIZE), bytes([2]) * SIZE)


def test_an_overwritten_record_is_not_found():
    tail = ring(6)
    assert tail.read_runs([(SIZE, SIZE), (4 * SIZE, SIZE)]) is None
    assert tail.read_runs([(2 * SIZE, SIZE)]) == (bytes([2]) * SIZE,)


def test_what_is_not_held_is_left_to_a_closer_check():
    tail = ring(4)
    for missing in ((SIZE, 10 * SIZE), (4 * SIZE, SIZE), (3 * SIZE, SIZE + 1)):
        assert tail.read_runs([(0, SIZE), missing]) is None


def test_a_run_across_the_end_of_the_ring_is_joined():
    tail = ring(6)
    all_four = b"".join(bytes([number]) * SIZE for number in (2, 3, 4, 5))
    assert tail.read_runs([(2 * SIZE, 4 * SIZE)]) == (all_four,)
