"""The version of the group protocol: which requests carry it, and the response to an unsupported version."""

import pytest

from libramq.codes import RequestCode
from libramq.errors import VersionNotSupported, broker_error
from libramq.message.queue import MessageQueue
from libramq.remoting import group_version
from libramq.remoting import headers as h
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body import kafka_cluster
from libramq.remoting.group_version import VERSION, VERSION_FIELD, version_refusal
from libramq.rpc import group_calls, peer_calls
from libramq.rpc.call import Call
from libramq.rpc.request_table import REQUESTS

QUEUE = MessageQueue("T", "b", 0)
JOIN = h.GroupJoinHeader(consumer_group="g", client_id="c", lb_session_ms=10_000)
CALLS: tuple[Call[object], ...] = (
    group_calls.find_group("g"),
    group_calls.join_group(JOIN, bodies.GroupJoinBody()),
    group_calls.poll_group("g", "m", 1, bodies.GroupPollBody(), 0),
    group_calls.release_queues("g", "m", ()),
    group_calls.leave_group("g", "m", "member_left"),
    group_calls.remove_member("g", "m", None),
    group_calls.begin_topic("g", "T"),
    group_calls.open_queue("g", QUEUE, "m", 1),
    peer_calls.grant_queues(bodies.PeerGrantBody(group="g", epoch=1)),
    peer_calls.report_members(bodies.PeerMembersBody(broker_name="b", masters=[])),
    peer_calls.send_member_list(bodies.PeerListBody(broker_name="b", group="g", version=1)),
    peer_calls.gather_group(bodies.PeerGatherBody(group="g")),
    peer_calls.assign_queues(bodies.PeerAssignBody(broker_name="b", group="g", client_id="c", topic="T")),
    peer_calls.send_assignments(bodies.AssignmentUpdate(broker_name="b", group="g")),
    peer_calls.report_removal(bodies.PeerRemovedBody(broker_name="b", topic="T")),
    peer_calls.report_rebalance_start(bodies.PeerStartedBody(group="g", epoch=1, reason="member_joined")),
    peer_calls.report_rebalance(bodies.PeerRebalanceBody(group="g")),
    peer_calls.ask_node(kafka_cluster.PeerNodeBody(broker_name="b")),
    peer_calls.change_topic(kafka_cluster.PeerTopicBody(broker_name="b", topic="T", queues=1)),
    peer_calls.exchange_offsets(kafka_cluster.PeerOffsetsBody(broker_name="b", group="g")),
    peer_calls.pass_on_groups(kafka_cluster.PeerGroupsBody(broker_name="b", sequence=1)),
    peer_calls.ask_handover(kafka_cluster.PeerHandoverBody(broker_name="b")),
)


def test_every_request_of_the_group_protocol_carries_the_version():
    ours = {code for code in RequestCode if code.name.startswith(("GROUP_", "PEER_", "OPEN_QUEUE"))}
    assert {call.code for call in CALLS} == ours
    assert {code for code, spec in REQUESTS.items() if spec.has_version} == ours
    assert {call.ext[VERSION_FIELD] for call in CALLS} == {str(VERSION)}


def test_a_request_without_a_version_has_version_1():
    assert version_refusal("GROUP_JOIN", {}) is None
    assert version_refusal("GROUP_JOIN", {VERSION_FIELD: "1"}) is None


@pytest.mark.parametrize("written", ["0", str(VERSION + 1), "-1", "", "one", "²", "9" * 5_000])
def test_an_unsupported_version_is_refused_by_name_and_number(written: str):
    remark = version_refusal("GROUP_JOIN", {VERSION_FIELD: written})
    assert remark is not None
    assert remark.startswith(f"GROUP_JOIN is written in version {written[:9]} of the group protocol")
    assert len(remark) < 200


def test_a_program_without_version_1_names_the_versions_it_reads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group_version, "VERSION_MIN", 2)
    monkeypatch.setattr(group_version, "VERSION", 3)
    remark = version_refusal("PEER_GRANT", {})
    assert remark == "PEER_GRANT is written in version 1 of the group protocol; this broker reads 2 to 3"
    assert version_refusal("PEER_GRANT", {VERSION_FIELD: "3"}) is None


def test_a_refusal_names_the_remedy():
    error = broker_error(15, "GROUP_JOIN is written in version 2", where="10.0.0.1:10911")
    assert isinstance(error, VersionNotSupported)
    assert str(error).endswith("Upgrade whichever of the two is older.")
