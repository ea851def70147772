"""Frames written by Apache's programs are read with their meaning, and written back the same way."""

import json

import pytest

from libramq.auth.operation import resources
from libramq.codes import RequestCode as R
from libramq.formats import fastjson, tables
from libramq.formats.document import decode_body, encode_body
from libramq.formats.route import TopicRouteData
from libramq.kernel.connection import ANONYMOUS
from libramq.remoting.body import cluster, consumers, heartbeat
from libramq.remoting.command import Serialization
from libramq.remoting.connection import FrameReader
from libramq.remoting.frame import decode_frame, encode_frame
from libramq.remoting.headers import decode_header, encode_header
from libramq.rpc.request_table import REQUESTS
from tests.remoting.vectors import Exchange, Frame, exchanges, frames

FRAMES = frames()
EXCHANGES = exchanges()
UNKNOWN_CODE = 9999

REQUEST_BODIES = {
    R.REGISTER_BROKER: cluster.RegisterBrokerBody,
    R.HEART_BEAT: heartbeat.HeartbeatData,
    R.LOCK_BATCH_MQ: consumers.LockBatchBody,
    R.UNLOCK_BATCH_MQ: consumers.LockBatchBody,
}
RESPONSE_BODIES = {
    R.REGISTER_BROKER: cluster.KVTable,
    R.GET_ROUTEINFO_BY_TOPIC: TopicRouteData,
    R.GET_BROKER_CLUSTER_INFO: cluster.ClusterInfo,
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: cluster.TopicList,
    R.GET_BROKER_RUNTIME_INFO: cluster.KVTable,
    R.GET_CONSUMER_LIST_BY_GROUP: consumers.ConsumerList,
    R.LOCK_BATCH_MQ: consumers.LockBatchReply,
    R.GET_CONSUME_STATS: consumers.ConsumeStats,
    R.GET_TOPIC_STATS_INFO: consumers.TopicStatsTable,
    R.GET_CONSUMER_CONNECTION_LIST: consumers.ConsumerConnection,
    R.GET_TOPIC_CONFIG: tables.TopicConfig,
}
#: Fields of Java's bodies that ours leave out, because neither our clients nor Apache's read them.
LEFT_OUT = {
    R.REGISTER_BROKER: {"topicConfigSerializeWrapper.topicQueueMappingDetailMap"},
}


def only(data: bytes):
    decoded = decode_frame(data, 0)
    assert decoded is not None
    command, end = decoded
    assert end == len(data)
    return command


def names(value):
    return value.name


def ext_of(frame: Frame) -> dict[str, str]:
    """The ext fields; Java's binary form reads an empty text as null (RocketMQSerializable.readStr)."""
    ext = frame.header.get("extFields") or {}
    binary = frame.header["serializeTypeCurrentRPC"] == "ROCKETMQ"
    return {name: value for name, value in ext.items() if value or not binary}


def test_there_are_vectors_of_both_forms():
    assert {only(frame.data).serialization for frame in FRAMES} == set(Serialization)
    assert len(FRAMES) > 250
    assert {one.code for one in EXCHANGES} >= set(REQUEST_BODIES) | set(RESPONSE_BODIES)


@pytest.mark.parametrize("frame", FRAMES, ids=names)
def test_a_header_is_read_field_by_field(frame: Frame):
    command, header = only(frame.data), frame.header
    assert command.code == header["code"]
    assert command.language == header["language"]
    assert command.version == header["version"]
    assert command.opaque == header["opaque"]
    assert command.flag == header["flag"]
    assert command.remark == header.get("remark")
    assert command.ext == ext_of(frame)
    assert Serialization(command.serialization).name == header["serializeTypeCurrentRPC"]


@pytest.mark.parametrize("frame", FRAMES, ids=names)
def test_a_frame_is_written_back_byte_for_byte(frame: Frame):
    """The binary form byte for byte; JSON as the same object."""
    command = only(frame.data)
    again = encode_frame(command)
    if command.serialization == Serialization.ROCKETMQ:
        assert again == frame.data or ext_of(frame) != frame.header["extFields"]
    else:
        header_bytes = int.from_bytes(again[5:8])
        written = json.loads(again[8 : 8 + header_bytes])
        assert written == {name: value for name, value in frame.header.items() if value not in (None, {})}
    assert only(again) == command


def test_all_frames_are_read_from_one_stream_whole_and_byte_by_byte():
    commands = [only(frame.data) for frame in FRAMES]
    stream = b"".join(frame.data for frame in FRAMES)
    assert FrameReader().receive(stream) == commands
    reader, found = FrameReader(), []
    for position in range(len(stream)):
        found += reader.receive(stream[position : position + 1])
    assert found == commands
    assert reader.partial_bytes == 0


@pytest.mark.parametrize("exchange", EXCHANGES, ids=names)
def test_a_request_has_its_typed_header(exchange: Exchange):
    if exchange.code == UNKNOWN_CODE:
        assert exchange.code not in REQUESTS
        return
    command = only(exchange.request)
    spec = REQUESTS.get(exchange.code)
    if spec is None:
        assert exchange.code == R.NOTIFY_CONSUMER_IDS_CHANGED  # Sent to clients.
        return
    assert len(command.body) <= spec.body_bytes_max
    header = decode_header(command, spec.header)
    body = None if spec.body is None else decode_body(command.body, spec.body)
    touched = resources(spec.operation(ANONYMOUS, header, command.body if body is None else body))
    assert all(resource.name for resource, _ in touched)
    written = encode_header(header)
    for name in written.keys() & command.ext.keys():
        assert written[name] == command.ext[name]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=names)
def test_bodies_are_read_and_written_as_types(exchange: Exchange):
    request = only(exchange.request)
    bodies = [(request.body, REQUEST_BODIES.get(exchange.code))]
    if exchange.response is not None:
        response = only(exchange.response)
        bodies.append((response.body, RESPONSE_BODIES.get(exchange.code)))
    for body, kind in bodies:
        if kind is None or not body:
            continue
        theirs = fastjson.loads(body)
        assert fastjson.loads(fastjson.dumps(theirs)) == theirs
        ours = fastjson.loads(encode_body(decode_body(body, kind)))
        if b'"brokerAddrs":{"' in body:  # Standard JSON, for clients that requested it.
            assert fastjson.dumps_standard(decode_body(body, kind)) == body
            continue
        assert lost(theirs, ours, "") == LEFT_OUT.get(exchange.code, set()) & lost(theirs, ours, "")


def lost(theirs, ours, path: str) -> set[str]:
    """Paths of fields that differ or are missing; fields only ours has are fine."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        paths = set()
        for name, member in theirs.items():
            if name not in ours:
                paths.add(f"{path}.{name}".lstrip("."))
            else:
                paths |= lost(member, ours[name], f"{path}.{name}")
        return paths
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return set().union(*(lost(a, b, f"{path}[]") for a, b in zip(theirs, ours, strict=True)))
    return set() if theirs == ours else {f"{path}: {theirs!r} != {ours!r}".lstrip(".")}
