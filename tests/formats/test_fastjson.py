"""fastjson's dialect: what Java writes is read, and what we write Java reads."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import RemoteProtocolError
from libramq.formats import fastjson
from libramq.formats.document import decode_body, encode_body
from libramq.formats.route import BrokerData
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ConsumeStats, OffsetWrapper

QUEUE = MessageQueue("T", "b", 0)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    SCALARS | FLOATS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
QUEUES = st.builds(MessageQueue, st.text(), st.text(), st.integers(0, 2**31 - 1))
LOOSE = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.integers(-(2**63), 2**63 - 1), inner, max_size=4)
        | st.dictionaries(QUEUES, inner, max_size=4)
    ),
)


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(element) for element in value]
    return value


@given(LOOSE)
def test_the_dialect_round_trips(value):
    """The exceptions are null members, which fastjson omits, and {"$ref": …}, which is a reference."""
    assert fastjson.loads(fastjson.dumps(value)) == without_nulls(value)
    assert fastjson.loads(fastjson.dumps(value, indent=True)) == without_nulls(value)


@given(PLAIN)
def test_standard_json_is_part_of_it(value):
    assert fastjson.loads(json.dumps(value)) == value
    assert json.loads(fastjson.dumps_standard(value)) == without_nulls(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",-1:"b"}', {0: "a", -1: "b"}),
        ('{"brokerAddrs":{0:"10.0.0.1:10911"}}', {"brokerAddrs": {0: "10.0.0.1:10911"}}),
        ('{{"brokerName":"b","queueId":0,"topic":"T"}:5}', {QUEUE: 5}),
        ('{{"topic":"T","queueId":0,"brokerName":"b"}:{"x":1}}', {QUEUE: {"x": 1}}),
        ("{name:'single \\' quotes'}", {"name": "single ' quotes"}),
        ('{"text":"{0:\\"not a key\\"}",1:2}', {"text": '{0:"not a key"}', 1: 2}),
        ("{0:true,1:false,2:null}", {0: True, 1: False, 2: None}),
        ("{0:1.5,1:-2e3}", {0: 1.5, 1: -2000.0}),
        ("{0:9223372036854775807}", {0: 2**63 - 1}),
        (" [ 1 , { 2 : [ ] } ] ", [1, {2: []}]),
        ("{0:'\\u4f60\\x41\\n'}", {0: "你A\n"}),
        ("{0:'\\ud83d\\ude00'}", {0: "😀"}),
        ("{0:'\\ud83d'}", {0: "�"}),
    ],
)
def test_java_output_is_read(text, value):
    assert fastjson.loads(text) == value
    assert fastjson.loads(text.encode()) == value


def test_references_are_resolved():
    """fastjson writes an object that it has written before as a path to it."""
    text = '{0:1,"a":{"x":[{"y":7}]},"b":{"$ref":"$.a"},"c":{"$ref":"$.a.x[0]"}}'
    assert fastjson.loads(text) == {0: 1, "a": {"x": [{"y": 7}]}, "b": {"x": [{"y": 7}]}, "c": {"y": 7}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{0",
        "{0:",
        "{0:1",
        "{0:1,",
        "{0:1}}",
        "{0:1} 2",
        "{0:'open",
        "{0:'\\u00",
        "{0:'\\uzzzz'}",
        "{0:nothing}",
        "{[1]:2}",
        "{{1:2,a:3}:4}",
        '{{a:{{"topic":"T","brokerName":"b","queueId":0}:1}}:4}',
        "[1,,0:]",
        '{0:{"$ref":"$.nowhere"}}',
        '{0:{"$ref":"$"}}',
        '{0:1,"a":{"$ref":"$.a"}}',
        "{0:" + "9" * 5000 + "}",
        "[" * 65 + "'" + "]" * 65,
        "{0:" * 100_000,
        "[" * 100_000,
    ],
)
def test_invalid_json_is_refused(text):
    with pytest.raises(RemoteProtocolError):
        fastjson.loads(text)


def test_nesting_is_bounded():
    depth = fastjson.DEPTH_MAX
    assert fastjson.loads("[" * depth + "'x'" + "]" * depth)
    with pytest.raises(RemoteProtocolError, match="nested deeper"):
        fastjson.loads("[" * (depth + 1) + "'x'" + "]" * (depth + 1))


def test_references_cannot_multiply_without_bound():
    """Each level names the one before twice: 40 levels would be a million million objects."""
    levels = ",".join(
        f'"l{level}":[{{"$ref":"$.l{level - 1}"}},{{"$ref":"$.l{level - 1}"}}]' for level in range(1, 41)
    )
    with pytest.raises(RemoteProtocolError):
        fastjson.loads('{0:0,"l0":[1],' + levels + "}")


@given(
    st.text(st.sampled_from("{}[]:,'\"0123456789\\u$abnulltruefsr- .eE"), max_size=60)
    | st.binary(max_size=60)
)
def test_garbage_raises_the_typed_error(data):
    with suppress(RemoteProtocolError):
        fastjson.loads(data)


def test_maps_keyed_by_queues_are_written_in_javas_form():
    """Java reads the unquoted form only."""
    stats = ConsumeStats(offset_table={QUEUE: OffsetWrapper(broker_offset=9, consumer_offset=4)})
    body = encode_body(stats)
    assert b'{{"brokerName":"b","queueId":0,"topic":"T"}:{"brokerOffset":9' in body
    assert decode_body(body, ConsumeStats) == stats


def test_standard_json_becomes_a_typed_value_without_the_dialects_reader(monkeypatch):
    """Numbers in texts included; the bound holds all the same."""
    monkeypatch.setattr(fastjson, "loads", lambda *_: pytest.fail("it is standard JSON"))
    text = b'{"cluster":"c","brokerName":"b","brokerAddrs":{"0":"h:1"},"unknown":[{"x":1.5}]}'
    assert decode_body(text, BrokerData).broker_addrs == {0: "h:1"}
    offsets = decode_body(b'{"brokerOffset":"9","consumerOffset":4}', OffsetWrapper)
    assert (offsets.broker_offset, offsets.consumer_offset) == (9, 4)
    with pytest.raises(pytest.fail.Exception):
        decode_body(text, BrokerData, fastjson.Bounds(3, 3, 100))


def test_integer_keys_may_be_quoted():
    for text in (
        b'{"brokerName":"b","brokerAddrs":{"0":"h:1"}}',
        b'{"brokerName":"b","brokerAddrs":{0:"h:1"}}',
    ):
        assert decode_body(text, BrokerData).broker_addrs == {0: "h:1"}


def test_members_are_sorted_and_nulls_left_out():
    assert fastjson.dumps({"b": None, "c": 1, "a": [None]}) == b'{"a":[null],"c":1}'


@pytest.mark.parametrize(
    "text", [b"[]", b"7", b'{"brokerAddrs":{}}', b'{"brokerName":"b","brokerAddrs":{"x":"y"}}']
)
def test_a_body_that_does_not_fit_names_its_type(text):
    with pytest.raises(RemoteProtocolError, match="BrokerData"):
        decode_body(text, BrokerData)


def test_marks_are_counted_a_part_at_a_time_and_no_further_than_needed():
    """One look at 4 MiB kept the interpreter from the event loop for 10 ms, and there were two."""
    text = b'{"a":[' + b"1," * 100_000 + b"1]}"
    assert fastjson.count_marks(text, 1_000_000) == 100_003
    assert 5 < fastjson.count_marks(text, 5) <= 64 * 1024
    with pytest.raises(RemoteProtocolError, match="over 5 commas"):
        fastjson.loads(text, fastjson.Bounds(5, 5, 100))
