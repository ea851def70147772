"""A pull that is ahead of its client's heartbeat, as Apache's Java client makes them at a rebalance."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.auth.authorizer import AllowAll
from libramq.broker.broker import Broker
from libramq.broker.config import BrokerConfig
from libramq.codes import RequestCode, ResponseCode
from libramq.filesystem import LocalFileSystem
from libramq.message.tags import java_hash
from libramq.remoting.command import Command
from libramq.rpc.endpoint import Endpoint
from tests.fakes import FakePeer, ManualClock

TOPIC = "Orders"
KNOWN_VERSION = 1_000


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    clock = ManualClock()
    broker = Broker(
        BrokerConfig(store_path=str(tmp_path)),
        clock=clock,
        filesystem=LocalFileSystem(),
        randomness=random.Random(0),
    )
    yield Endpoint(
        clock=clock,
        authorizer=AllowAll(),
        processors=broker.processors(),
        batch_processors=broker.batch_processors(),
    )
    broker.close()


def ask(
    endpoint: Endpoint, peer: FakePeer, code: RequestCode, ext: dict[str, str], body: bytes = b""
) -> Command:
    endpoint.received(peer, [Command(code=code, ext=ext, body=body)])
    return [reply for reply in peer.replies if reply.is_response][-1]


def subscribe(endpoint: Endpoint, peer: FakePeer, tag: str, expression_type: str = "TAG") -> None:
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
    assert ask(endpoint, peer, RequestCode.HEART_BEAT, {}, json.dumps(beat).encode()).code == 0


def send(endpoint: Endpoint, peer: FakePeer, tag: str) -> None:
    ext = {"a": "producers", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    reply = ask(endpoint, peer, RequestCode.SEND_MESSAGE_V2, {**ext, "i": f"TAGS\x01{tag}\x02"}, tag.encode())
    assert reply.code == 0


def pull(endpoint: Endpoint, peer: FakePeer, version: int) -> Command:
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
    return ask(endpoint, peer, RequestCode.PULL_MESSAGE, ext)


def test_a_pull_ahead_of_the_heartbeat_gets_everything_for_the_client_to_filter(endpoint: Endpoint) -> None:
    """What the newer subscription says is unknown, so nothing is left out; to wait for it costs 30 s."""
    peer = FakePeer()
    send(endpoint, peer, "A")
    send(endpoint, peer, "B")
    subscribe(endpoint, peer, "A")

    current = pull(endpoint, peer, KNOWN_VERSION)
    ahead = pull(endpoint, peer, KNOWN_VERSION + 1)

    assert (current.code, ahead.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
    assert b"TAGS\x01A" in current.body
    assert b"TAGS\x01B" not in current.body
    assert b"TAGS\x01A" in ahead.body
    assert b"TAGS\x01B" in ahead.body
