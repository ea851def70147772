"""Malformed requests: captured requests, damaged at random. Only their sender is affected."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from libramq.errors import RemoteProtocolError
from libramq.wire.kafka.api import APIS, decode_call
from libramq.wire.kafka.apis.metadata import MetadataRequest
from libramq.wire.kafka.frame import FRAME_BYTES_MAX, FrameReader
from libramq.wire.kafka.primitives import encode_int32
from tests.protocols.kafka.peers import KafkaEndpoint

FILE = Path(__file__).parents[2] / "vectors/kafka-requests.json"
REQUESTS: list[dict[str, Any]] = json.loads(FILE.read_text())["requests"]
#: Errors of the client that end its connection.
REASONS = ("a malformed Kafka request", "Kafka's request")
ROUNDS = 40
LENGTHS = (b"\x7f\xff\xff\xff", b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x0f")


def name(request: dict[str, Any]) -> str:
    return f"{request['client']}-{request['api']}-{request['version']}"


def damaged(frame: bytes, rng: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(8, len(data)) if len(data) > 8 else 0
        match rng.randrange(5):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at : at + 4] = rng.choice(
                    (b"\x7f\xff\xff\xff", b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x0f")
                )
            case 2:
                del data[at : at + rng.randrange(1, 9)]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 4:
                del data[at:]
    return bytes(data)


def test_every_api_was_recorded():
    recorded = {request["api"] for request in REQUESTS}
    assert recorded >= set(APIS), "see capture.py"


@pytest.mark.parametrize("request_", [r for r in REQUESTS if r["api"] in APIS], ids=name)
def test_a_recorded_request_is_understood(request_: dict[str, Any]):
    api = APIS[request_["api"]]
    call = decode_call(bytes.fromhex(request_["frame"]))
    assert type(call.request) is api.request


@pytest.mark.parametrize("request_", REQUESTS, ids=name)
def test_a_damaged_request_affects_only_its_sender(endpoint: KafkaEndpoint, request_: dict[str, Any]):
    rng = random.Random(name(request_))
    frame = bytes.fromhex(request_["frame"])
    for _ in range(ROUNDS):
        peer = endpoint.peer()
        data = damaged(frame, rng)
        peer.give(data)
        if not peer.is_open:
            assert (peer.close_reason or "").startswith(REASONS), (peer.close_reason, data.hex())
        endpoint.talk.advance(200)
        peer.end()
    other = endpoint.peer()
    assert other.ask(MetadataRequest(topics=())).brokers
    endpoint.talk.advance(3_600_000)
    assert len(endpoint.talk.broker.purgatory) == 0
    assert not endpoint.translator._answers._waiting
    assert len(endpoint.translator.classic_groups.groups) == 0


def test_frames_are_cut_wherever_reads_end():
    frames = [b"12345678", b"x" * 300, b"87654321"]
    data = b"".join(encode_int32(len(frame)) + frame for frame in frames)
    for step in (1, 3, 7, len(data)):
        reader = FrameReader()
        found = [frame for at in range(0, len(data), step) for frame in reader.receive(data[at : at + step])]
        assert found == frames
        assert reader.partial_bytes == 0
    reader = FrameReader()
    assert reader.receive(data[:-1]) == frames[:2]
    assert reader.partial_bytes == 11


@pytest.mark.parametrize("size", [-1, 0, 7, FRAME_BYTES_MAX + 1, 0x4745_5420])
def test_a_frame_of_an_impossible_size_is_refused_at_once(size: int):
    """0x47455420 is "GET ": a browser."""
    with pytest.raises(RemoteProtocolError):
        FrameReader().receive(encode_int32(size))
