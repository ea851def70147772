"""The bytes of the HA protocol, split at any place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import RemoteProtocolError
from libramq.replication.blocks import (
    BLOCK_BYTES_MAX,
    Block,
    BlockReader,
    ReportReader,
    encode_block,
    encode_report,
)


def test_a_report_is_eight_bytes_and_a_block_has_twelve_before_its_data() -> None:
    """DefaultHAClient and DefaultHAConnection write them so."""
    assert encode_report(4660) == bytes.fromhex("0000000000001234")
    assert encode_block(4660, b"ab") == bytes.fromhex("0000000000001234 00000002 6162")
    assert encode_block(4660, b"") == bytes.fromhex("0000000000001234 00000000")


def test_of_several_reports_the_last_one_counts() -> None:
    reader = ReportReader()
    assert reader.receive(encode_report(1) + encode_report(2)[:3]) == [1]
    assert reader.partial_bytes == 3
    assert reader.receive(encode_report(2)[3:] + encode_report(3)) == [3]
    assert reader.receive(b"") == []


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 30), max_size=40))
def test_blocks_are_found_however_their_bytes_are_cut(pieces: list[bytes], cuts: list[int]) -> None:
    offset, blocks = 7, []
    for data in pieces:
        blocks.append(Block(offset, data))
        offset += len(data)
    stream = b"".join(encode_block(*block) for block in blocks)
    reader, found = BlockReader(), []
    for size in cuts:
        found += reader.receive(stream[:size])
        stream = stream[size:]
    assert found + reader.receive(stream) == blocks
    assert reader.partial_bytes == 0


@pytest.mark.parametrize(("offset", "size"), [(-1, 65), (-2, 3), (0, -1), (0, BLOCK_BYTES_MAX + 1)])
def test_an_impossible_block_is_refused_before_its_data_arrives(offset: int, size: int) -> None:
    head = offset.to_bytes(8, signed=True) + size.to_bytes(4, signed=True)
    with pytest.raises(RemoteProtocolError, match="block of"):
        BlockReader().receive(head)
