"""Frames: round trips, pieces, tails, bounds; everything else is a RemoteProtocolError and nothing worse."""

import itertools
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libramq.errors import LocalProtocolError, RemoteProtocolError
from libramq.remoting import frame as module
from libramq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, Serialization, reply_to
from libramq.remoting.connection import FrameReader
from libramq.remoting.frame import (
    FIELDS_MAX,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    LANGUAGE_NAMES,
    decode_binary_header,
    decode_frame,
    encode_binary_header,
    encode_frame,
    encode_head,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
COMMANDS = st.builds(
    Command,
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=INT32,
    flag=INT32,
    remark=st.none() | TEXT,
    ext=st.dictionaries(TEXT, TEXT, max_size=8),
    body=st.binary(max_size=200),
    language=st.sampled_from(LANGUAGE_NAMES),
    version=st.integers(0, 2**15 - 1),
    serialization=st.sampled_from(list(Serialization)),
)

# The vectors of the protocol notes, computed from its rules.
REQUEST = {"code": 105, "opaque": 1, "ext": {"topic": "T"}, "language": "PYTHON", "version": 479}
BINARY = bytes.fromhex(
    "00000025 01000021 0069 03 01df 00000001 00000000 00000000 0000000c 0005 746f706963 00000001 54"
)
JSON = bytes.fromhex("00000081 0000007d") + (
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"PYTHON","opaque":1,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)


def frame(header: bytes, *, form: int = Serialization.JSON, body: bytes = b"") -> bytes:
    return (4 + len(header) + len(body)).to_bytes(4) + (form << 24 | len(header)).to_bytes(4) + header + body


@pytest.mark.parametrize(("data", "form"), [(BINARY, Serialization.ROCKETMQ), (JSON, Serialization.JSON)])
def test_computed_vectors_are_read_and_written(data, form):
    decoded = decode_frame(data, 0)
    assert decoded == (Command(**REQUEST, serialization=form), len(data))
    if form == Serialization.ROCKETMQ:
        assert encode_frame(decoded[0]) == data


@given(COMMANDS)
def test_a_command_survives_the_wire(command):
    data = encode_frame(command)
    assert decode_frame(data, 0) == (command, len(data))


@given(COMMANDS, st.binary(max_size=20), st.binary(max_size=3))
def test_a_frame_is_found_amid_other_bytes(command, before, after):
    """A frame is decoded from where it begins, and the bytes after it are left alone."""
    data = encode_frame(command)
    assert decode_frame(before + data + after, len(before)) == (command, len(before) + len(data))


@given(st.lists(COMMANDS, min_size=1, max_size=4), st.data())
def test_a_stream_may_be_cut_anywhere(commands, data):
    stream = b"".join(map(encode_frame, commands))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=6)) | {0, len(stream)})
    reader, found = FrameReader(), []
    for start, end in itertools.pairwise(cuts):
        found += reader.receive(stream[start:end])
    assert found == commands
    assert reader.partial_bytes == 0


@given(COMMANDS)
def test_byte_by_byte_a_command_is_complete_with_its_last_byte(command):
    data = encode_frame(command)
    reader = FrameReader()
    for position in range(len(data) - 1):
        assert reader.receive(data[position : position + 1]) == []
        assert reader.partial_bytes == position + 1
    assert reader.receive(data[-1:]) == [command]


@given(COMMANDS, st.data())
def test_a_truncated_frame_is_never_read_past_its_end(command, data):
    """With the length corrected to the remaining bytes, the header's length is wrong or the body shorter."""
    whole = encode_frame(command)
    end = data.draw(st.integers(8, len(whole) - 1))
    cut = (end - 4).to_bytes(4) + whole[4:end]
    body_start = len(whole) - len(command.body)
    if end < body_start:
        with pytest.raises(RemoteProtocolError):
            decode_frame(cut, 0)
    else:
        decoded = decode_frame(cut, 0)
        assert decoded is not None
        assert decoded[0].body == command.body[: end - body_start]


@given(st.binary(max_size=300))
@example(b"\x00\x00\x00\x04\x00\x00\x00\x00")
@example(b"GET / HTTP/1.1\r\n\r\n")
@example(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
def test_garbage_raises_the_typed_error(data):
    with suppress(RemoteProtocolError):
        FrameReader().receive(data)


@given(st.binary(max_size=200), st.sampled_from([0, 1]))
def test_a_garbage_header_raises_the_typed_error(header, form):
    with suppress(RemoteProtocolError):
        decode_frame(frame(header, form=form), 0)


@given(COMMANDS, st.data())
def test_a_flipped_byte_is_read_or_refused(command, data):
    whole = bytearray(encode_frame(command))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(RemoteProtocolError):
        FrameReader().receive(bytes(whole))


@pytest.mark.parametrize("length", [0, 3, FRAME_BYTES_MAX - 3, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_its_bytes_arrive(length):
    with pytest.raises(RemoteProtocolError, match="frame of"):
        FrameReader().receive(length.to_bytes(4))


def test_the_longest_frame_that_upstream_reads_is_read():
    """NettyDecoder includes the four bytes of the length in its 16 MiB."""
    largest = frame(b'{"code":1}', body=bytes(FRAME_BYTES_MAX - 8 - 10))
    assert len(largest) == FRAME_BYTES_MAX
    assert decode_frame(largest, 0) is not None
    with pytest.raises(LocalProtocolError):
        encode_frame(Command(code=1, body=bytes(FRAME_BYTES_MAX)))


def test_a_header_longer_than_its_frame_is_refused():
    with pytest.raises(RemoteProtocolError, match="past its frame"):
        decode_frame(b"\x00\x00\x00\x08\x00\x00\x00\x05abcd", 0)


def test_a_header_over_its_limit_is_refused():
    with pytest.raises(RemoteProtocolError, match="header of"):
        decode_frame(frame(bytes(HEADER_BYTES_MAX + 1)), 0)


@pytest.mark.parametrize("serialization", Serialization)
def test_a_header_of_very_many_fields_is_refused(serialization):
    """A header of a hundred thousand fields took 0.2 s, before any signature was checked."""
    ext = {f"k{number}": "v" for number in range(FIELDS_MAX)}
    data = encode_frame(Command(code=1, ext=ext, serialization=serialization))
    decoded = decode_frame(data, 0)
    assert decoded is not None
    assert decoded[0].ext == ext
    with pytest.raises(RemoteProtocolError, match="fields"):
        decode_frame(encode_frame(Command(code=1, ext=ext | {"k": "v"}, serialization=serialization)), 0)


def test_null_fields_of_a_binary_header_count_too():
    ext = b"\x00\x00\x00\x00\x00\x00" * (FIELDS_MAX + 1)
    with pytest.raises(RemoteProtocolError, match="fields"):
        decode_binary_header(binary_header(ext=len(ext), tail=ext))


@pytest.mark.parametrize("form", [2, 22, 255])
def test_an_unknown_serialisation_is_refused(form):
    with pytest.raises(RemoteProtocolError, match=f"unknown header serialisation {form}"):
        decode_frame(frame(b"{}", form=form), 0)


def binary_header(*, remark: int = 0, ext: int = 0, tail: bytes = b"") -> bytes:
    fixed = bytes.fromhex("0069 03 01df 00000001 00000000")
    return fixed + (remark & 0xFFFF_FFFF).to_bytes(4) + (ext & 0xFFFF_FFFF).to_bytes(4) + tail


@pytest.mark.parametrize(
    "header",
    [
        b"",
        binary_header()[:-1],
        binary_header(remark=-1),
        binary_header(remark=5),
        binary_header(remark=2**31 - 1),
        binary_header(ext=-1),
        binary_header(ext=1),
        binary_header(ext=2**31 - 1),
        binary_header(ext=2, tail=b"\x00\x05"),  # A missing key.
        binary_header(ext=7, tail=b"\x00\x01k\x00\x00\x00\x01"),  # A missing value.
        binary_header(ext=7, tail=b"\x00\x01k\xff\xff\xff\xff"),  # A value of -1 bytes.
        binary_header(ext=8, tail=b"\x00\x01\xff\x00\x00\x00\x01v"),  # A key that is not UTF-8.
        binary_header(ext=8, tail=b"\xff\xffk\x00\x00\x00\x01v"),  # A key of 65535 bytes.
        b"\x00\x69\x03\x01\xdf\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\xff\x00\x00\x00\x00",
    ],
)
def test_impossible_counts_in_a_binary_header_are_refused(header):
    with pytest.raises(RemoteProtocolError):
        decode_frame(frame(header, form=Serialization.ROCKETMQ), 0)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"[]",
        b'{"code":"x"}',
        b'{"code":1,"opaque":2147483648}',
        b'{"code":1,"flag":-2147483649}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":{"a":{}}}',
        b'{"code":1,"remark":7}',
        b'{"code":1}{"code":2}',
        b'{"code":1,"remark":"\xff"}',
        b'{"code":1,"x":'
        + b"[" * 400_000
        + b"]" * 400_000
        + b"}",  # From Python 3.14 on, the stack's size limits the depth.
        b'{"code":99999999999999999999999999}',
    ],
)
def test_invalid_json_headers_are_refused(header):
    with pytest.raises(RemoteProtocolError):
        decode_frame(frame(header), 0)


def test_optional_fields_of_a_json_header_may_be_missing():
    decoded = decode_frame(frame(b'{"code":34,"extFields":{"a":null,"b":"c"},"unknown":[1]}'), 0)
    assert decoded is not None
    assert (decoded[0].code, decoded[0].opaque, decoded[0].ext) == (34, 0, {"b": "c"})


def test_an_empty_text_is_null_in_the_binary_header():
    """RocketMQSerializable: entries of length zero decode to null; null is not written."""
    command = Command(code=1, ext={"a": "", "b": "c"}, remark="", serialization=Serialization.ROCKETMQ)
    decoded = decode_frame(encode_frame(command), 0)
    assert decoded is not None
    assert decoded[0].ext == {"b": "c"}
    assert decoded[0].remark is None


def test_codes_beyond_16_bits_need_json():
    """POP_MESSAGE is 200050; Java would send 3442 instead and not notice."""
    assert decode_frame(encode_frame(Command(code=200_050)), 0) is not None
    with pytest.raises(LocalProtocolError, match="use JSON"):
        encode_frame(Command(code=200_050, serialization=Serialization.ROCKETMQ))


@pytest.mark.parametrize("form", list(Serialization))
def test_a_body_follows_what_is_encoded_before_it(form):
    command = Command(code=320, ext={"a": "b"}, body=b"body", serialization=form)
    assert encode_head(command) + command.body == encode_frame(command)


@pytest.mark.parametrize("form", list(Serialization))
def test_a_reply_has_the_serialisation_of_its_request(form):
    request = Command(code=105, opaque=-7, serialization=form)
    reply = reply_to(request, 17, remark="no")
    assert (reply.opaque, reply.serialization, reply.flag) == (-7, form, FLAG_RESPONSE)
    assert reply.is_response
    assert not reply.is_oneway
    assert Command(code=1, flag=FLAG_ONEWAY).is_oneway


NAMES = st.text(min_size=1, max_size=3)
FIELDS = st.dictionaries(NAMES, st.text(max_size=4), max_size=4)


def decoded(ext: dict[str, str]) -> dict[str, str]:
    command = Command(code=10, opaque=1, flag=0, ext=ext, serialization=Serialization.ROCKETMQ)
    return decode_binary_header(encode_binary_header(command)).ext


@given(st.lists(FIELDS, min_size=2, max_size=8))
def test_headers_are_read_as_written_after_any_others(headers: list[dict[str, str]]):
    """Small alphabets and sizes make layouts collide: the same size with other keys, or other lengths."""
    for ext in headers + headers:
        assert decoded(ext) == {key: value for key, value in ext.items() if value}


def test_values_of_one_layout_are_not_mixed_up():
    for number in range(3 * module.LAYOUT_MISSES_MAX):
        assert decoded({"a": f"{number:02}", "bc": "x"}) == {"a": f"{number:02}", "bc": "x"}
        assert decoded({"a": "x", "bc": f"{number:02}"}) == {"a": "x", "bc": f"{number:02}"}
        assert decoded({"ab": f"{number:02}", "c": "x"}) == {"ab": f"{number:02}", "c": "x"}
        assert decoded({"a": "é", "bc": "x"}) == {"a": "é", "bc": "x"}


def test_few_layouts_are_remembered_and_none_of_large_headers():
    for size in range(2 * module.LAYOUTS_MAX):
        assert decoded({"a": "x" * (size + 1)}) == {"a": "x" * (size + 1)}
    assert 0 < len(module._LAYOUTS) <= module.LAYOUTS_MAX
    assert max(module._LAYOUTS) <= module.LAYOUT_BYTES_MAX


def test_no_layout_of_very_many_fields_is_remembered():
    """A layout of 128 fields takes 20 KB."""
    ext = {f"k{number}": "v" for number in range(100)}
    for _ in range(3):
        assert decoded(ext) == ext
    fields = [len(layout.fields) for layout in module._LAYOUTS.values()]
    assert max(fields, default=0) <= module.LAYOUT_FIELDS_MAX
