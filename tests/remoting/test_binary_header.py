"""Tests of binary headers whose ext fields have a layout that was seen before, or nearly."""

from hypothesis import given
from hypothesis import strategies as st

from libramq.remoting import frame
from libramq.remoting.command import Command, Serialization
from libramq.remoting.frame import decode_binary_header, encode_binary_header

NAMES = st.text(min_size=1, max_size=3)
FIELDS = st.dictionaries(NAMES, st.text(max_size=4), max_size=4)


def decoded(ext: dict[str, str]) -> dict[str, str]:
    command = Command(code=10, opaque=1, flag=0, ext=ext, serialization=Serialization.ROCKETMQ)
    return decode_binary_header(encode_binary_header(command)).ext


@given(st.lists(FIELDS, min_size=2, max_size=8))
def test_headers_are_read_as_written_whatever_was_read_before(headers: list[dict[str, str]]):
    """Small alphabets and sizes make layouts meet: the same size with other keys, or other lengths."""
    for ext in headers + headers:
        assert decoded(ext) == {key: value for key, value in ext.items() if value}


def test_values_of_one_layout_are_not_mixed_up():
    for number in range(3 * frame.LAYOUT_MISSES_MAX):
        assert decoded({"a": f"{number:02}", "bc": "x"}) == {"a": f"{number:02}", "bc": "x"}
        assert decoded({"a": "x", "bc": f"{number:02}"}) == {"a": "x", "bc": f"{number:02}"}
        assert decoded({"ab": f"{number:02}", "c": "x"}) == {"ab": f"{number:02}", "c": "x"}
        assert decoded({"a": "é", "bc": "x"}) == {"a": "é", "bc": "x"}


def test_few_layouts_are_remembered_and_none_of_large_headers():
    for size in range(2 * frame.LAYOUTS_MAX):
        assert decoded({"a": "x" * (size + 1)}) == {"a": "x" * (size + 1)}
    assert 0 < len(frame._LAYOUTS) <= frame.LAYOUTS_MAX
    assert max(frame._LAYOUTS) <= frame.LAYOUT_BYTES_MAX


def test_no_layout_of_very_many_fields_is_remembered():
    """One of 128 takes 20 KB."""
    ext = {f"k{number}": "v" for number in range(100)}
    for _ in range(3):
        assert decoded(ext) == ext
    fields = [len(layout.fields) for layout in frame._LAYOUTS.values()]
    assert max(fields, default=0) <= frame.LAYOUT_FIELDS_MAX
