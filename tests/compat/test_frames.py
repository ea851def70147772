"""Frames between brokers, members and clients of the earlier LibraMQ, read by this tree's codecs."""

import json
from typing import Any

import pytest

from libramq.codes import RequestCode as R
from libramq.formats.document import decode_body, encode_body
from libramq.remoting.body import cluster, consumers, coordination, heartbeat
from libramq.remoting.connection import FrameReader
from libramq.remoting.headers import decode_header, encode_header
from libramq.rpc.request_table import REQUESTS
from tests.compat.record import FRAMES

EXCHANGES: list[dict[str, Any]] = json.loads(FRAMES.read_text())["exchanges"]
REQUEST_BODIES: dict[int, type[Any]] = {
    R.HEART_BEAT: heartbeat.HeartbeatData,
    R.REGISTER_BROKER: cluster.RegisterBrokerBody,
    R.QUERY_ASSIGNMENT: consumers.QueryAssignmentBody,
    R.GROUP_JOIN: coordination.GroupJoinBody,
    R.GROUP_POLL: coordination.GroupPollBody,
    R.GROUP_RELEASE: coordination.GroupReleaseBody,
    R.GROUP_LEAVE: coordination.GroupLeaveBody,
    R.PEER_GRANT: coordination.PeerGrantBody,
    R.PEER_MEMBERS: coordination.PeerMembersBody,
    R.PEER_LIST: coordination.PeerListBody,
    R.PEER_GATHER: coordination.PeerGatherBody,
    R.PEER_STARTED: coordination.PeerStartedBody,
    R.PEER_ASSIGN: coordination.PeerAssignBody,
    R.PEER_ASSIGNMENTS: coordination.AssignmentUpdate,
}
ANSWER_BODIES: dict[int, type[Any]] = {
    R.QUERY_ASSIGNMENT: consumers.QueryAssignmentReply,
    R.GROUP_JOIN: coordination.GroupAssignment,
    R.GROUP_POLL: coordination.GroupAssignment,
    R.PEER_GATHER: coordination.PeerGathered,
    R.PEER_ASSIGN: consumers.QueryAssignmentReply,
}
#: The ext field that carries the result of an answer.
ANSWER_FIELDS = {R.GROUP_JOIN: "lbMember", R.GROUP_FIND: "lbCoordinator", R.PEER_GRANT: "lbEpoch"}

#: Requests that the scene does not lead to, and those that the earlier LibraMQ does not know.
UNRECORDED: set[int] = {
    R.PEER_REMOVED,
    R.PEER_NODE,
    R.PEER_TOPIC,
    R.PEER_OFFSETS,
    R.PEER_GROUPS,
    R.PEER_HANDOVER,
    R.GROUP_BEGIN,
}


def name(exchange: dict[str, Any]) -> str:
    return R(exchange["code"]).name


def command(data: str):
    (read,) = FrameReader().receive(bytes.fromhex(data))
    return read


def test_the_whole_group_protocol_was_recorded():
    ours = {code for code, spec in REQUESTS.items() if spec.has_version}
    assert {exchange["code"] for exchange in EXCHANGES} >= ours - UNRECORDED


@pytest.mark.parametrize("exchange", [one for one in EXCHANGES if one["code"] in REQUESTS], ids=name)
def test_a_request_is_read_completely(exchange: dict[str, Any]):
    """Header and body encode to all the fields and values of the recording: decoding drops nothing."""
    request = command(exchange["request"])
    header = encode_header(decode_header(request, REQUESTS[request.code].header))
    assert request.ext.items() <= header.items() | {("libraGroups", "1"), ("lbVersion", "1")}
    kind = REQUEST_BODIES.get(request.code)
    if kind is not None:
        body = decode_body(request.body, kind)
        assert decode_body(encode_body(body), kind) == body
        assert members(json.loads(request.body)) <= members(json.loads(encode_body(body)))


@pytest.mark.parametrize("exchange", [one for one in EXCHANGES if one["response"]], ids=name)
def test_an_answer_is_read_completely(exchange: dict[str, Any]):
    answer, code = command(exchange["response"]), exchange["code"]
    if code in ANSWER_FIELDS and answer.code == 0:
        assert answer.ext[ANSWER_FIELDS[R(code)]]
    if code in ANSWER_BODIES and answer.body:
        body = decode_body(answer.body, ANSWER_BODIES[code])
        assert members(json.loads(answer.body)) <= members(json.loads(encode_body(body)))


def members(value: Any, path: str = "") -> set[tuple[str, str]]:
    """Return the values of a JSON document with their paths."""
    if isinstance(value, dict):
        return {pair for key, inner in value.items() for pair in members(inner, f"{path}.{key}")}
    if isinstance(value, list):
        return {pair for number, inner in enumerate(value) for pair in members(inner, f"{path}[{number}]")}
    return {(path, repr(value))}
