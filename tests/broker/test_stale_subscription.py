"""Pulls that are ahead of their client's heartbeat, as Apache's Java client makes them at a rebalance."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.codes import RequestCode, ResponseCode
from libramq.message.tags import java_hash
from libramq.remoting.command import Command
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

TOPIC = "Orders"
KNOWN_VERSION = 1_000


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversation]:
    talk = Conversation(tmp_path)
    yield talk
    talk.close()


def ask(
    talk: Conversation, peer: FakePeer, code: RequestCode, ext: dict[str, str], body: bytes = b""
) -> Command:
    talk.give(peer, Command(code=code, ext=ext, body=body))
    return [reply for reply in peer.replies if reply.is_response][-1]


def subscribe(talk: Conversation, peer: FakePeer, tag: str, expression_type: str = "TAG") -> None:
    subscription = {
        "topic": TOPIC,
        "subString": tag,
        "tagsSet": [tag],
        "codeSet": [java_hash(tag)],
        "subVersion": KNOWN_VERSION,
        "expressionType": expression_type,
    }
    consumer = {
        "groupName": "group",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    beat = {"clientID": "client", "consumerDataSet": [consumer], "producerDataSet": []}
    assert ask(talk, peer, RequestCode.HEART_BEAT, {}, json.dumps(beat).encode()).code == 0


def send(talk: Conversation, peer: FakePeer, tag: str) -> None:
    ext = {"a": "producers", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    reply = ask(talk, peer, RequestCode.SEND_MESSAGE_V2, {**ext, "i": f"TAGS\x01{tag}\x02"}, tag.encode())
    assert reply.code == 0


def pull(talk: Conversation, peer: FakePeer, version: int) -> Command:
    ext = {
        "consumerGroup": "group",
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "0",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": str(version),
    }
    return ask(talk, peer, RequestCode.PULL_MESSAGE, ext)


def test_a_pull_ahead_of_the_heartbeat_gets_everything_for_the_client_to_filter(talk: Conversation) -> None:
    """The newer subscription is unknown, so nothing is filtered out; waiting for it would cost 30 s."""
    peer = FakePeer()
    send(talk, peer, "A")
    send(talk, peer, "B")
    subscribe(talk, peer, "A")

    current = pull(talk, peer, KNOWN_VERSION)
    ahead = pull(talk, peer, KNOWN_VERSION + 1)

    assert (current.code, ahead.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
    assert b"TAGS\x01A" in current.body
    assert b"TAGS\x01B" not in current.body
    assert b"TAGS\x01A" in ahead.body
    assert b"TAGS\x01B" in ahead.body
