"""Typed headers and the table of requests: nothing forgotten, nothing taken on trust."""

from typing import get_type_hints

import pytest

from libramq.codes import RequestCode
from libramq.errors import RemoteProtocolError
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.remoting.frame import FRAME_BYTES_MAX
from libramq.remoting.headers import decode_header, encode_header
from libramq.rpc import request_table
from libramq.rpc.request_table import REQUESTS

#: Codes that are in codes.py because clients or replies use them, though none of our servers serves them yet.
NOT_SERVED = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,  # Sent to clients.
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PROBE,  # Sent to the holder of a name: any answer will do.
}


def test_every_request_code_is_in_the_table_or_listed_as_missing():
    assert {code for code in RequestCode if code not in REQUESTS} == NOT_SERVED


def test_the_table_is_complete():
    # No duplicate codes.
    assert len(request_table._BROKER_ROWS) == len(request_table.BROKER_REQUESTS)
    assert len(request_table._NAME_SERVER_ROWS) == len(request_table.NAME_SERVER_REQUESTS)
    for code, spec in REQUESTS.items():
        assert spec.code == code
        assert 0 <= spec.body_bytes_max < FRAME_BYTES_MAX


def header_types():
    return [kind for kind in vars(h).values() if isinstance(kind, type) and issubclass(kind, h.Header)]


@pytest.mark.parametrize("kind", header_types())
def test_a_header_survives_the_text_form(kind):
    values = {"2147483647": 2**31 - 1, "9223372036854775807": 2**63 - 1, "bool": True, "str": "text ü"}
    fields = {}
    for field, annotation in get_type_hints(kind, include_extras=True).items():
        fields[field] = next(value for name, value in values.items() if name in str(annotation))
    assert fields.keys() == set(kind.__struct_fields__)
    header = kind(**fields)
    assert decode_header(Command(code=1, ext=encode_header(header)), kind) == header


def test_values_become_text_as_in_java():
    header = h.RegisterBrokerHeader(
        broker_name="b", broker_addr="h:1", cluster_name="c", broker_id=0, enable_acting_master=True
    )
    ext = encode_header(header)
    assert ext["brokerId"] == "0"
    assert ext["enableActingMaster"] == "true"
    assert ext["compressed"] == "false"
    assert "heartbeatTimeoutMillis" not in ext


@pytest.mark.parametrize(
    ("ext", "field"),
    [
        ({"topic": "T"}, "queueId"),
        ({"queueId": "0"}, "topic"),
        ({"topic": "T", "queueId": "zero"}, "queueId"),
        ({"topic": "T", "queueId": ""}, "queueId"),
        ({"topic": "T", "queueId": "9" * 50}, "queueId"),
        ({"topic": "T", "queueId": "2147483648"}, "queueId"),
        ({"topic": "T", "queueId": "-2147483649"}, "queueId"),
        ({"topic": "T", "queueId": "1.5"}, "queueId"),
    ],
)
def test_a_missing_or_wrong_field_is_named(ext, field):
    with pytest.raises(RemoteProtocolError, match=field):
        decode_header(Command(code=30, ext=ext), h.QueueHeader)


def test_unknown_fields_are_ignored():
    ext = {"topic": "T", "queueId": "3", "bname": "b", "nsd": "true"}
    assert decode_header(Command(code=30, ext=ext), h.QueueHeader) == h.QueueHeader(topic="T", queue_id=3)
