"""Groups are listed, described and deleted, whichever protocol their members speak."""

from pathlib import Path
from typing import Any

import pytest

from libramq.codes import RequestCode
from libramq.codes import ResponseCode as C
from libramq.remoting.headers import GroupBeginHeader, ResetOffsetHeader
from libramq.runtime import performer
from libramq.wire.kafka.apis.groups import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    JoinGroupProtocol,
    ListGroupsRequest,
)
from libramq.wire.kafka.apis.offsets import (
    CommittedPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    WantedGroup,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.primitives import encode_int16, encode_int32
from libramq.wire.kafka.schema import Topic
from libramq.wire.kafka.subscription import subscribed_topics
from tests.auth.guards import Guard
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.protocols.kafka.peers import KafkaEndpoint, KafkaPeer
from tests.protocols.kafka.test_groups import Member, pair


def subscription(*topics: str) -> bytes:
    names = b"".join(encode_int16(len(topic)) + topic.encode() for topic in topics)
    return encode_int16(1) + encode_int32(len(topics)) + names + encode_int32(-1)


def listed(peer: KafkaPeer, version: int = 5, **filters: Any) -> dict[str, tuple[str, str]]:
    response = peer.ask(ListGroupsRequest(**filters), version)
    assert response.error_code == 0
    return {each.group_id: (each.protocol_type, each.group_state) for each in response.groups}


def described(peer: KafkaPeer, group: str, version: int = 6) -> DescribedGroup:
    (found,) = peer.ask(DescribeGroupsRequest(groups=(group,)), version).groups
    assert isinstance(found, DescribedGroup)
    return found


def commit(peer: KafkaPeer, group: str, *partitions: int) -> None:
    """Commit offset 0 in partitions of T without being a member."""
    of_topic = Topic(
        name="T",
        partitions=tuple(CommittedPartition(partition_index=each, committed_offset=0) for each in partitions),
    )
    response = peer.ask(OffsetCommitRequest(group_id=group, topics=(of_topic,)))
    assert {each.error_code for each in response.topics[0].partitions} == {0}


def delete(peer: KafkaPeer, group: str) -> int:
    (result,) = peer.ask(DeleteGroupsRequest(groups_names=(group,))).results
    code: int = result.error_code
    return code


def delete_offset(peer: KafkaPeer, group: str, partition: int = 0) -> int:
    """Delete an offset; return the partition's error, or else the request's."""
    partitions = (partition,)
    topics = (Topic(name="T", partitions=partitions),)
    response = peer.ask(OffsetDeleteRequest(group_id=group, topics=topics))
    code: int = response.error_code or response.topics[0].partitions[0].error_code
    return code


def test_no_group_counts_as_deleted_whose_removal_a_full_disk_refuses(tmp_path: Path):
    """Its connection was ended as after a bug of ours; or it was gone at once, and back after a kill."""
    codes: set[int] = set()
    for room in range(0, 700, 5):
        talk = Conversation(tmp_path / str(room))
        peer = KafkaEndpoint(talk).peer()
        peer.create("T")
        commit(peer, "G", 0, 1)
        talk.disk.bytes_left = room
        answered = [delete(peer, "G"), delete(peer, "G")]
        codes.update(answered)
        talk.kill()
        again = Conversation(tmp_path / str(room))
        is_gone = not again.broker.offsets.topics_of_group("G") and "G" not in again.broker.groups
        is_gone = is_gone and "%RETRY%G" not in again.broker.topics
        left = {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert is_gone or set(answered) == left, (room, answered)
        again.close()
    assert codes == {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.GROUP_ID_NOT_FOUND}


def test_groups_of_both_protocols_are_listed(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    pair(endpoint)
    endpoint.talk.beat(FakePeer(), "stock", "R")
    commit(peer, "Idle", 0)
    everything = {"G": ("consumer", "Stable"), "R": ("rocketmq", "Stable"), "Idle": ("", "Empty")}
    assert listed(peer) == everything
    assert listed(peer, states_filter=("stable",)).keys() == {"G", "R"}
    assert listed(peer, types_filter=("Classic",)) == everything
    assert listed(peer, types_filter=("consumer",)) == {}


@pytest.mark.parametrize("version", range(6))
def test_every_version_lists_groups(endpoint: KafkaEndpoint, version: int):
    pair(endpoint)
    assert listed(endpoint.peer(), version).keys() == {"G"}


def test_more_groups_than_one_turn_lists(endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(performer, "TURN_US_MAX", 0)  # A turn has one step.
    peer = endpoint.peer()
    for number in range(7):
        commit(peer, f"G{number}", 0)
    assert listed(peer).keys() == {f"G{number}" for number in range(7)}


@pytest.mark.parametrize("version", range(7))
def test_members_and_their_shares_are_described(endpoint: KafkaEndpoint, version: int):
    first, second = pair(endpoint)
    found = described(endpoint.peer(), "G", version)
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    assert {each.member_id: each.member_assignment for each in found.members} == {
        first.member_id: b"A",
        second.member_id: b"B",
    }
    assert {(each.client_id, each.client_host) for each in found.members} == {("test", "/127.0.0.1")}
    assert {each.member_metadata for each in found.members} == {b"topics"}


def test_a_group_is_described_in_each_of_its_states(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    first, second = pair(endpoint)
    Member(endpoint)
    found = described(peer, "G")
    assert found.group_state == "PreparingRebalance"
    assert {each.member_assignment for each in found.members} == {b""}
    first.rejoin()
    second.rejoin()
    assert described(peer, "G").group_state == "CompletingRebalance"
    assert (described(peer, "None", 5).error_code, described(peer, "None", 5).group_state) == (0, "Dead")
    assert described(peer, "None", 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert described(peer, "a.b").error_code == ErrorCode.INVALID_GROUP_ID


def test_a_group_with_members_is_not_deleted(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    pair(endpoint)
    endpoint.talk.beat(FakePeer(), "stock", "R")
    assert delete(peer, "G") == delete(peer, "R") == ErrorCode.NON_EMPTY_GROUP
    assert delete(peer, "None") == ErrorCode.GROUP_ID_NOT_FOUND


def reset(talk: Conversation, offset: int, group: str = "G") -> int:
    """Reset a group to an offset as RocketMQ's tools do; return the response code."""
    header = ResetOffsetHeader(topic="T", group=group, queue_id=0, offset=offset, is_force=True)
    return talk.ask(FakePeer(), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header).code


def committed(peer: KafkaPeer, group: str = "G") -> int:
    wanted = WantedGroup(group_id=group, topics=(Topic(name="T", partitions=(0,)),))
    (found,) = peer.ask(OffsetFetchRequest(groups=(wanted,))).groups
    offset: int = found.topics[0].partitions[0].committed_offset
    return offset


def test_a_group_with_members_is_not_reset(endpoint: KafkaEndpoint):
    """Its members would commit over the reset, yet the response claimed success."""
    peer, (first, second) = endpoint.peer(), pair(endpoint)
    for _ in range(3):
        endpoint.talk.send(FakePeer())
    commit(peer, "Idle", 0)
    assert reset(endpoint.talk, 2) == C.SYSTEM_ERROR
    assert committed(peer) == -1
    first.leave()
    second.leave()
    assert reset(endpoint.talk, 2) == C.SUCCESS
    assert committed(peer) == 2


def test_a_commit_by_a_member_or_a_tool_ends_a_reset(endpoint: KafkaEndpoint):
    """Earlier Kafka members must have left, or the reset would not have been possible."""
    peer = endpoint.peer()
    for _ in range(3):
        endpoint.talk.send(FakePeer())
    commit(peer, "Idle", 0)
    assert reset(endpoint.talk, 2, "Idle") == C.SUCCESS
    assert committed(peer, "Idle") == 2
    commit(peer, "Idle", 0)
    assert committed(peer, "Idle") == 0


def test_a_deleted_group_has_no_offsets_after_a_restart_either(tmp_path: Path):
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=2)
    peer = KafkaEndpoint(talk).peer()
    commit(peer, "Idle", 0, 1)
    assert delete(peer, "Idle") == 0
    assert listed(peer) == {}
    talk.kill()
    talk = Conversation(tmp_path)
    assert listed(KafkaEndpoint(talk).peer()) == {}
    assert talk.broker.offsets.query("Idle", "T", 0) is None
    talk.close()


def test_offsets_in_some_partitions_are_deleted_for_good(tmp_path: Path):
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=2)
    peer = KafkaEndpoint(talk).peer()
    commit(peer, "Idle", 0, 1)
    assert delete_offset(peer, "Idle", 0) == 0
    assert talk.broker.offsets.offsets("Idle", "T") == {1: 0}
    talk.kill()
    talk = Conversation(tmp_path)
    assert talk.broker.offsets.offsets("Idle", "T") == {1: 0}
    talk.close()


def test_offsets_of_subscribed_topics_are_kept(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    member = Member(endpoint)
    endpoint.talk.advance(1_000)
    member.joined()
    assert delete_offset(peer, "G") == 0, "its metadata names no topic"
    protocols = (JoinGroupProtocol(name="range", metadata=subscription("T", "Other")),)
    member.rejoin(protocols=protocols)
    assert delete_offset(peer, "G") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete_offset(peer, "None") == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_subscription_names_its_topics():
    assert subscribed_topics(subscription("T", "Other")) == {"T", "Other"}
    for end in range(len(subscription("T"))):
        assert subscribed_topics(subscription("T")[:end]) <= {"T"}
    assert subscribed_topics(encode_int16(0) + encode_int32((1 << 31) - 1)) == frozenset()


def test_rocketmq_members_are_kept_out_of_a_group_with_kafka_members(endpoint: KafkaEndpoint):
    """Otherwise they would assign the group's queues a second time."""
    talk = endpoint.talk
    first, second = pair(endpoint)
    stock = FakePeer()
    refused = talk.beat(stock, "stock", "G")
    assert refused.code == C.NO_PERMISSION
    assert "group G has members of Kafka's clients" in (refused.remark or "")
    assert talk.broker.members.consumers.group("G") is None
    assert talk.beat(stock, "stock", "Other").code == C.SUCCESS
    for member in (first, second):
        member.leave()
    assert talk.beat(stock, "stock", "G").code == C.SUCCESS


def test_rocketmqs_clients_do_not_begin_a_group_with_kafka_members(endpoint: KafkaEndpoint):
    """Otherwise Kafka's members would resume at ends committed for a client refused a moment later."""
    talk, peer = endpoint.talk, endpoint.peer()
    talk.send(FakePeer())
    header = GroupBeginHeader(consumer_group="G", topic="T", lb_begins=True)
    members = pair(endpoint)
    refused = talk.ask(FakePeer(), RequestCode.GROUP_BEGIN, header)
    assert refused.code == C.NO_PERMISSION
    assert "group G has members of Kafka's clients" in (refused.remark or "")
    assert committed(peer, "G") == -1
    for member in members:
        member.leave()
    assert talk.ask(FakePeer(), RequestCode.GROUP_BEGIN, header).code == C.SUCCESS
    assert committed(peer, "G") == 1


def test_groups_are_authorised(tmp_path: Path):
    guard = Guard()
    talk = Conversation(tmp_path, authorizer=guard)
    talk.create_topic("T", queues=2)
    peer = KafkaEndpoint(talk).peer()
    commit(peer, "Idle", 0)
    guard.denied = {"Group:Idle"}
    assert listed(peer) == {}
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert [described(peer, "Idle").error_code, delete(peer, "Idle"), delete_offset(peer, "Idle")] == [
        denied
    ] * 3
    (modern,) = peer.ask(ConsumerGroupDescribeRequest(group_ids=("Idle",))).groups
    assert modern.error_code == denied
    guard.denied = set()
    assert listed(peer).keys() == {"Idle"}
    talk.close()
