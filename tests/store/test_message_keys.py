"""What a record is found by; of an inner batch, what each of its messages is."""

import pytest

from libramq.message import inner_batch
from libramq.message import sys_flag as flags
from libramq.message.batch import BatchItem
from libramq.message.record import peek_record
from libramq.store.key_index import keys_of_all, with_key
from tests.message.inner_batches import wrapped

EVEN = [BatchItem(0, b"z", b"UNIQ_KEY\x01U%02d\x02KEYS\x01k%02d all\x02" % (n, n)) for n in range(20)]
UNEVEN = [BatchItem(0, b"zz", "KEYS\x01schl\u00fcssel all".encode()), BatchItem(0, b"", b"k07\x01KEYS\x02")]
ALL_TIME = 0, 2**62


@pytest.mark.parametrize("compression", [None, flags.COMPRESSION_ZLIB])
def test_only_the_messages_with_a_key_are_made(compression, monkeypatch):
    """A batch may have 32,767, and a search looks into each batch that has the key."""
    made = []
    encode = inner_batch.encode_record
    monkeypatch.setattr(
        inner_batch, "encode_record", lambda **f: made.append(f["queue_offset"]) or encode(**f)
    )
    record = wrapped([*EVEN, *UNEVEN], 100, compression=compression)
    for key, offsets in {
        "k07": [107], "U19": [119], "schl\u00fcssel": [120], "all": [*range(100, 121)], "k0": [], "zz": [],
    }.items():  # fmt: skip
        made.clear()
        found = [head for _, data in with_key(record, "T", key, *ALL_TIME) if (head := peek_record(data))]
        assert made == [head.queue_offset for head in found] == offsets, key
        assert [place >> 48 for place, _ in with_key(record, "T", key, *ALL_TIME)] == [
            offset - 100 for offset in offsets
        ]
    head = peek_record(bytes(50) + record, 50)  # A scan's heads have places in its window.
    assert head is not None
    assert sorted(keys_of_all(record, head)) == sorted(
        {"all", "schl\u00fcssel", *(f"{kind}{number:02}" for kind in "kU" for number in range(20))}
    )


@pytest.mark.parametrize("body", [b"\xff" * 400, b"", b"\0" * 30])
def test_a_batch_that_cannot_be_read_has_no_keys(body):
    record = wrapped(EVEN, 100, body=body)
    head = peek_record(record)
    assert head is not None
    assert keys_of_all(record, head) == []
    assert with_key(record, "T", "all", *ALL_TIME) == []
