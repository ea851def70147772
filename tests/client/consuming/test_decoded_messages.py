"""Tests of the properties that pulled messages have beyond the stored ones."""

import pytest

from libramq.client.consuming.pulling.pulling import Pull
from libramq.message.compression import compress_body
from libramq.message.queue import MessageQueue
from libramq.message.record import encode_record
from libramq.message.sys_flag import COMPRESSED, COMPRESSION_ZLIB
from libramq.rpc.broker_calls import PullReply


@pytest.mark.parametrize("accepts_damaged", [False, True])
def test_messages_carry_the_bounds_of_their_queue(accepts_damaged):
    """Programs that measure lag use MIN_OFFSET and MAX_OFFSET; a compressed message has them too."""
    plain = encode_record(
        topic="T", queue_id=0, queue_offset=7, physical_offset=0, body=b"plain", properties=b"a\x01b\x02"
    )
    packed = encode_record(
        topic="T", queue_id=0, queue_offset=8, physical_offset=200, body=compress_body(b"packed"),
        properties=b"", sys_flag=COMPRESSED | COMPRESSION_ZLIB,
    )  # fmt: skip
    pull = Pull(
        MessageQueue("T", "broker-a", 0), 7, None, 0, as_records=False, accepts_damaged=accepts_damaged
    )
    messages = pull.messages(PullReply(0, 9, 3, 100, 0, plain + packed))
    assert [message.body for message in messages] == [b"plain", b"packed"]
    assert [dict(message.properties) for message in messages] == [
        {"a": "b", "MIN_OFFSET": "3", "MAX_OFFSET": "100"},
        {"MIN_OFFSET": "3", "MAX_OFFSET": "100"},
    ]
    assert {message.broker_name for message in messages} == {"broker-a"}
