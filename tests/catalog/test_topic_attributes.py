"""A topic's attributes, as mqadmin changes them."""

import pytest

from libramq.catalog.topic_attributes import changed_attributes, parse_changes
from libramq.codes import ResponseCode
from libramq.errors import BrokerError

POSSIBLE = [
    ("", None, {}),
    ("+message.type=FIFO", None, {"message.type": "FIFO"}),
    ("+message.type=FIFO,+reserve.time=-1", {}, {"message.type": "FIFO", "reserve.time": "-1"}),
    ("+message.type=DELAY", {"message.type": "FIFO"}, {"message.type": "DELAY"}),
    ("-message.type", {"message.type": "FIFO"}, {}),
    ("", {"message.type": "FIFO"}, {"message.type": "FIFO"}),
    (
        "+queue.type=SimpleCQ,+cleanup.policy=DELETE",
        None,
        {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"},
    ),
]
IMPOSSIBLE = [
    ("message.type=FIFO", None, "add/alter attribute format is wrong: message.type"),
    ("message.type", None, "delete attribute format is wrong: message.type"),
    ("+message.type=FIFO,+message.type=DELAY", None, "key duplication: +message.type"),
    (
        "+message.type=FIFO,-message.type",
        {"message.type": "DELAY"},
        "alter duplication key. key: message.type",
    ),
    ("-message.type", None, "only add attribute is supported while creating topic. key: message.type"),
    ("-message.type", {}, "attempt to delete a nonexistent key: message.type"),
    ("+colour=red", None, "unsupported key: colour"),
    ("+message.type=RED", None, "value is not in set"),
    ("+reserve.time=soon", None, "value is not in range"),
    ("+reserve.time=-2", None, "value is not in range"),
    ("+reserve.time=", None, "value is not in range"),
    ("+queue.type=SimpleCQ", {}, "attempt to update an unchangeable attribute. key: queue.type"),
    ("+queue.type=BatchCQ", {}, "create another topic with it, or delete this one first"),
    ("+queue.type=RocksDBCQ", None, "value is not in set: [SimpleCQ, BatchCQ]"),
    ("+=x", None, "kv string format wrong."),
    ("+a-b=x", None, "kv string format wrong."),
    ("+" + "k" * 2_000 + "=x", None, "1024 are allowed"),
]


@pytest.mark.parametrize(("text", "current", "result"), POSSIBLE)
def test_a_possible_change(text, current, result):
    assert changed_attributes(current, parse_changes(text)) == result


@pytest.mark.parametrize(("text", "current", "remark"), IMPOSSIBLE)
def test_an_impossible_change_is_refused_with_apaches_words(text, current, remark):
    with pytest.raises(BrokerError) as refused:
        changed_attributes(current, parse_changes(text))
    assert refused.value.response_code == ResponseCode.SYSTEM_ERROR
    assert remark in refused.value.remark


def test_mixed_message_types_are_an_invalid_parameter():
    with pytest.raises(BrokerError, match="MIXED message type is not supported") as refused:
        changed_attributes(None, parse_changes("+message.type=MIXED"))
    assert refused.value.response_code == ResponseCode.INVALID_PARAMETER
