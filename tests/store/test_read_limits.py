"""Limits of a read: without a filter, units are read as columns, with the same result as one by one."""

import random
from pathlib import Path

import pytest

from libramq.message import decode_records, tag_code
from libramq.store import StoreMessage
from libramq.store.reading.read import PART_BYTES
from tests.store.stores import make_store

BULK = 256 * 1024 + 1
TAG = tag_code("A")
BIG_FILES = {"mapped_file_size_commit_log": 1 << 22, "mapped_file_size_consume_queue": 20_000}


def filled(root: Path, sizes, **options):
    store = make_store(root, **BIG_FILES, **options)
    store.open()
    for number, size in enumerate(sizes):
        body = bytes([number % 256]) * size
        store.append_batch(
            [StoreMessage("T", 0, body, b"TAGS\x01A\x02", TAG), StoreMessage("T", 1, b"", b"", 0)]
        )
    return store


@pytest.mark.parametrize("in_memory_bytes", [0, 60_000, 1 << 30])
@pytest.mark.parametrize("bytes_max", [1, 800, 20_000, BULK])
def test_a_limit_cuts_columns_where_it_cuts_the_loop_over_units(tmp_path: Path, bytes_max, in_memory_bytes):
    chance = random.Random(bytes_max + in_memory_bytes)
    limits = {"in_memory_bytes": in_memory_bytes, "bulk_transfer_bytes": 30_000}
    store = filled(tmp_path, [chance.randrange(700) for _ in range(300)], **limits)
    for offset in range(0, 300, 7):
        columns = store.read("T", 0, offset, 200, bytes_max)
        loop = store.read("T", 0, offset, 200, bytes_max, frozenset([TAG]))
        assert (columns.count, columns.size, columns.next_offset) == (loop.count, loop.size, loop.next_offset)
        assert b"".join(columns.data) == b"".join(loop.data)
    store.close()


@pytest.mark.parametrize(
    "sizes", [[1024] * 900, [200, 1600] * 450, [*[50] * 400, PART_BYTES + 1, *[50] * 400]]
)
def test_a_large_read_is_made_in_parts_that_lack_nothing(tmp_path: Path, sizes):
    store = filled(tmp_path, sizes, bulk_transfer_bytes=1 << 21, bulk_transfer_count=1000)
    result = store.read("T", 0, 0, 1000, 1 << 21)
    assert [len(m.body) for m in decode_records(b"".join(result.data), check_crc=True)] == sizes
    assert all(len(part) <= PART_BYTES + 1024 for part in result.data)
    assert len(result.data) <= 2 * result.size // PART_BYTES + 2
    store.close()
