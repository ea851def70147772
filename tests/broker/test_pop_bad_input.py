"""POP's requests with bad input: each is answered with its code, and the broker continues."""

from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

POP = {
    "consumerGroup": "G",
    "topic": "T",
    "queueId": "-1",
    "maxMsgNums": "32",
    "invisibleTime": "10000",
    "pollTime": "0",
    "bornTime": "0",
    "initMode": "0",
}
ACK = {
    "consumerGroup": "G",
    "topic": "T",
    "queueId": "0",
    "offset": "0",
    "extraInfo": "0 1 10000 0 0 broker-a 0 0",
}
CHANGE = {**ACK, "invisibleTime": "1000"}
NOTIFICATION = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "pollTime": "0", "bornTime": "0"}
POLLING = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
PEEK = {**POLLING, "maxMsgNums": "1"}
HUGE = "9" * 30


@pytest.fixture
def broker(tmp_path: Path):
    conversation = Conversation(tmp_path)
    conversation.create_topic("T", queues=1)
    conversation.send(FakePeer(), body=b"a")
    yield conversation
    conversation.close()


@pytest.mark.parametrize(
    ("code", "good"),
    [
        (R.POP_MESSAGE, POP),
        (R.ACK_MESSAGE, ACK),
        (R.CHANGE_MESSAGE_INVISIBLETIME, CHANGE),
        (R.NOTIFICATION, NOTIFICATION),
        (R.POLLING_INFO, POLLING),
        (R.PEEK_MESSAGE, PEEK),
    ],
)
def test_fields_that_are_missing_or_no_numbers_are_refused(broker: Conversation, code: int, good: dict):
    peer = FakePeer()
    for name, value in good.items():
        if name != "bornTime":
            missing = {key: each for key, each in good.items() if key != name}
            assert broker.ask(peer, code, missing).code == C.SYSTEM_ERROR, name
        if name not in ("consumerGroup", "topic", "extraInfo"):
            for wrong in ("", "x", "1.5", HUGE):
                reply = broker.ask(peer, code, {**good, name: wrong})
                assert reply.code == C.SYSTEM_ERROR, (name, wrong, value)
    assert len(broker.broker.files.pop.in_flight) == 0


@pytest.mark.parametrize(
    ("code", "header", "expected"),
    [
        (R.POP_MESSAGE, {**POP, "topic": "Unknown"}, C.TOPIC_NOT_EXIST),
        (R.POP_MESSAGE, {**POP, "topic": ""}, C.TOPIC_NOT_EXIST),
        (R.POP_MESSAGE, {**POP, "consumerGroup": ""}, C.SUBSCRIPTION_GROUP_NOT_EXIST),
        (R.POP_MESSAGE, {**POP, "consumerGroup": "a b"}, C.SUBSCRIPTION_GROUP_NOT_EXIST),
        (R.POP_MESSAGE, {**POP, "queueId": "1"}, C.INVALID_PARAMETER),
        (R.POP_MESSAGE, {**POP, "maxMsgNums": "33"}, C.INVALID_PARAMETER),
        (R.POP_MESSAGE, {**POP, "maxMsgNums": "0"}, C.INVALID_PARAMETER),
        (R.POP_MESSAGE, {**POP, "maxMsgNums": "-1"}, C.INVALID_PARAMETER),
        (R.POP_MESSAGE, {**POP, "invisibleTime": "-1"}, C.INVALID_PARAMETER),
        (R.POP_MESSAGE, {**POP, "invisibleTime": str(1 << 60)}, C.INVALID_PARAMETER),
        (R.POP_MESSAGE, {**POP, "exp": "||", "expType": "TAG"}, C.SUBSCRIPTION_PARSE_FAILED),
        (R.POP_MESSAGE, {**POP, "exp": "a >", "expType": "SQL92"}, C.SUBSCRIPTION_PARSE_FAILED),
        (R.POP_MESSAGE, {**POP, "bornTime": "1"}, C.POLLING_TIMEOUT),
        (R.ACK_MESSAGE, {**ACK, "topic": "Unknown"}, C.TOPIC_NOT_EXIST),
        (R.ACK_MESSAGE, {**ACK, "queueId": "1"}, C.MESSAGE_ILLEGAL),
        (R.ACK_MESSAGE, {**ACK, "queueId": "-1"}, C.MESSAGE_ILLEGAL),
        (R.ACK_MESSAGE, {**ACK, "offset": "-1"}, C.NO_MESSAGE),
        (R.ACK_MESSAGE, {**ACK, "offset": "2"}, C.NO_MESSAGE),
        (R.ACK_MESSAGE, {**ACK, "extraInfo": ""}, C.INVALID_PARAMETER),
        (R.ACK_MESSAGE, {**ACK, "extraInfo": "0 1"}, C.INVALID_PARAMETER),
        (R.ACK_MESSAGE, {**ACK, "extraInfo": "a b c d e f g h"}, C.INVALID_PARAMETER),
        (R.ACK_MESSAGE, {**ACK, "extraInfo": f"{HUGE} 1 1 0 0 b 0 0"}, C.INVALID_PARAMETER),
        (R.ACK_MESSAGE, {**ACK, "extraInfo": "0 " * 10_000}, C.INVALID_PARAMETER),
        (R.CHANGE_MESSAGE_INVISIBLETIME, CHANGE, C.NO_MESSAGE),
        (R.CHANGE_MESSAGE_INVISIBLETIME, {**CHANGE, "invisibleTime": "-1"}, C.INVALID_PARAMETER),
        (R.NOTIFICATION, {**NOTIFICATION, "topic": "Unknown"}, C.TOPIC_NOT_EXIST),
        (R.NOTIFICATION, {**NOTIFICATION, "queueId": "9"}, C.INVALID_PARAMETER),
        (R.POLLING_INFO, {**POLLING, "topic": "Unknown"}, C.TOPIC_NOT_EXIST),
        (R.PEEK_MESSAGE, {**PEEK, "maxMsgNums": "33"}, C.INVALID_PARAMETER),
        (R.PEEK_MESSAGE, {**PEEK, "queueId": "1"}, C.INVALID_PARAMETER),
    ],
)
def test_values_out_of_range_get_their_code(broker: Conversation, code: int, header: dict, expected: C):
    assert broker.ask(FakePeer(), code, header).code == expected
    assert len(broker.broker.files.pop.in_flight) == 0


ENTRY = {"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "AQ=="}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", C.SYSTEM_ERROR),
        (b"{}", C.NO_MESSAGE),
        (b"[]", C.SYSTEM_ERROR),
        ({"acks": [{}]}, C.SYSTEM_ERROR),
        ({"acks": [{**ENTRY, "so": "x"}]}, C.SYSTEM_ERROR),
        ({"acks": [{**ENTRY, "b": "*"}]}, C.SYSTEM_ERROR),
        ({"acks": [{**ENTRY, "r": "7"}]}, C.INVALID_PARAMETER),
        ({"acks": [ENTRY] * 1025}, C.INVALID_PARAMETER),
        ({"acks": [{**ENTRY, "t": "Unknown"}]}, C.SUCCESS),  # Nothing of it is in flight, as at Apache's.
    ],
)
def test_batches_of_acknowledgements_that_are_none(broker: Conversation, body: object, expected: C):
    assert broker.ask(FakePeer(), R.BATCH_ACK_MESSAGE, None, body).code == expected


def test_an_acknowledgement_of_anothers_group_or_time_changes_nothing(broker: Conversation):
    peer = FakePeer()
    reply = broker.ask(peer, R.POP_MESSAGE, POP)
    assert reply.code == C.SUCCESS
    pop_time = reply.ext["popTime"]
    for group, info in (("H", f"0 {pop_time} 10000 0 0 broker-a 0 0"), ("G", "0 77 10000 0 0 broker-a 0 0")):
        forged = {**ACK, "consumerGroup": group, "extraInfo": info}
        assert broker.ask(peer, R.ACK_MESSAGE, forged).code == C.SUCCESS
    assert len(broker.broker.files.pop.in_flight) == 1


def test_clients_cannot_write_the_journal(broker: Conversation):
    for topic in ("rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster"):
        assert broker.send(FakePeer(), topic, b"{}").code == C.NO_PERMISSION
