"""The checksum equals zlib's with every library."""

import sys
import zlib

import pytest

from libramq.message import checksum


@pytest.mark.parametrize("size", [0, 1, 15, 100, 1_023, 70_000])
def test_every_library_computes_the_same(size: int):
    deflate = pytest.importorskip("deflate")
    body = bytes(number * 7 % 251 for number in range(size))
    assert checksum._fastest() is deflate.crc32
    assert checksum.crc32(body) == checksum.crc32(memoryview(body)) == zlib.crc32(body)


def test_without_the_extra_it_is_zlib(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "deflate", None)
    assert checksum._fastest() is zlib.crc32
