"""Groups and their offsets over Kafka's wire, beside RocketMQ's groups."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode
from libramq.groups.classic.state import INITIAL_DELAY_MS
from libramq.groups.cluster_view import ClusterView
from libramq.protocols.kafka.api10_groups import THAW_MS
from libramq.protocols.kafka.api11_classic_groups import MEMBER_BYTES_MAX, MEMBERS_RETURN_MS
from libramq.remoting import headers as h
from libramq.wire.kafka.apis.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from libramq.wire.kafka.apis.handshake import (
    ApiVersionsRequest,
)
from libramq.wire.kafka.apis.offsets import (
    CommittedPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    WantedGroup,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.schema import Topic
from tests.auth.guards import Guard
from tests.broker.brokers import Conversation
from tests.broker.test_coordinated_groups import COLLECT_MS, alone
from tests.fakes import FakePeer
from tests.protocols.kafka.peers import NODE_ID, KafkaEndpoint, KafkaPeer, record

SESSION_MS = 10_000


def join_request(group: str = "G", member_id: str = "", **fields: Any) -> JoinGroupRequest:
    defaults = {
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": (JoinGroupProtocol(name="range", metadata=b"topics"),),
    }
    return JoinGroupRequest(group_id=group, member_id=member_id, **(defaults | fields))


class Member:
    """A member of a group, with its own connection."""

    def __init__(
        self,
        endpoint: KafkaEndpoint,
        group: str = "G",
        version: int = 9,
        software: str | None = "apache-kafka-java",
    ) -> None:
        self.peer = endpoint.peer()
        if software is not None:
            self.peer.ask(ApiVersionsRequest(client_software_name=software, client_software_version="1"))
        self.group = group
        self.version = version
        self.member_id = ""
        self.generation = -1
        if version >= 4:
            refused = self.peer.ask(join_request(group), version)
            assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
            self.member_id = refused.member_id
        self.rejoin()

    def rejoin(self, **fields: Any) -> None:
        self.peer.tell(join_request(self.group, self.member_id, **fields), self.version)

    def leave(self) -> None:
        leaving = LeavingMember(member_id=self.member_id)
        assert self.peer.ask(LeaveGroupRequest(group_id=self.group, members=(leaving,))).error_code == 0

    def joined(self) -> JoinGroupResponse:
        """Return the response to the join, which must have arrived."""
        (response,) = self.peer.answers()
        assert response.error_code == 0
        self.member_id, self.generation = response.member_id, response.generation_id
        found: JoinGroupResponse = response
        return found

    def sync(self, assignments: dict[str, bytes] | None = None) -> None:
        self.peer.tell(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                assignments=tuple(
                    SyncGroupAssignment(member_id=member_id, assignment=share)
                    for member_id, share in (assignments or {}).items()
                ),
            )
        )

    def beat(self) -> int:
        """Send a heartbeat and another request, which ends the wait.

        Return the error code of the heartbeat.
        """
        self.hold_beat()
        self.peer.tell(FindCoordinatorRequest(coordinator_keys=()))
        code: int = self.peer.answers()[0].error_code
        return code

    def hold_beat(self) -> None:
        """Send a heartbeat, which is held until there is news."""
        self.peer.tell(
            HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        )

    def commit(self, offset: int, partition: int = 0, topic: str = "T", **fields: Any) -> int:
        partitions = (CommittedPartition(partition_index=partition, committed_offset=offset, **fields),)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=(Topic(name=topic, partitions=partitions),),
        )
        code: int = self.peer.ask(request).topics[0].partitions[0].error_code
        return code


@pytest.mark.parametrize("version", [3, 9])
def test_a_member_with_a_long_name_keeps_no_other_from_being_answered(endpoint: KafkaEndpoint, version: int):
    """Its id was too long for a string of older versions, so no member of its group was answered."""
    honest = Member(endpoint, version=3)
    request = join_request()
    hostile = endpoint.peer()
    hostile.client_id = "c" * 32_760
    hostile.tell(request, version)
    if version == 9:
        (refused,) = hostile.answers()
        hostile.tell(join_request(member_id=refused.member_id), version)
    endpoint.talk.advance(3 * INITIAL_DELAY_MS)
    assert len(honest.joined().members) == 2
    assert hostile.answers()[0].error_code == 0


def test_an_instance_id_is_as_long_as_kafka_allows(endpoint: KafkaEndpoint):
    for length, code in ((249, ErrorCode.NONE), (250, ErrorCode.INVALID_REQUEST)):
        peer = endpoint.peer()
        peer.tell(join_request(f"G{length}", group_instance_id="i" * length), 5)
        endpoint.talk.advance(3 * INITIAL_DELAY_MS)
        assert peer.answers()[0].error_code == code


def pair(endpoint: KafkaEndpoint) -> tuple[Member, Member]:
    """Return two members with their shares, "A" and "B"."""
    first, second = Member(endpoint), Member(endpoint)
    endpoint.talk.advance(3 * INITIAL_DELAY_MS)
    leader, follower = first.joined(), second.joined()
    assert leader.leader == follower.leader == first.member_id
    assert [each.metadata for each in leader.members] == [b"topics", b"topics"]
    second.sync()
    assert second.peer.answers() == []
    first.sync({first.member_id: b"A", second.member_id: b"B"})
    assert [each.assignment for each in (*first.peer.answers(), *second.peer.answers())] == [b"A", b"B"]
    return first, second


@pytest.mark.parametrize("version", range(5))
def test_this_broker_coordinates_every_group(endpoint: KafkaEndpoint, version: int):
    request = (
        FindCoordinatorRequest(coordinator_keys=("G", "a.b"))
        if version >= 4
        else FindCoordinatorRequest(key="G")
    )
    response = endpoint.peer().ask(request, version)
    found = response.coordinators[0] if version >= 4 else response
    assert (found.error_code, found.node_id, found.host, found.port) == (0, NODE_ID, "127.0.0.1", 9092)
    if version >= 4:
        assert response.coordinators[1].error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("key_type", [1, 2])
def test_only_groups_have_coordinators(endpoint: KafkaEndpoint, key_type: int):
    response = endpoint.peer().ask(FindCoordinatorRequest(key="x", key_type=key_type), 3)
    assert (response.error_code, response.node_id) == (ErrorCode.INVALID_REQUEST, -1)
    assert "not supported" in response.error_message


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_in_every_version(endpoint: KafkaEndpoint, version: int):
    member = Member(endpoint, version=version)
    endpoint.talk.advance(2 * INITIAL_DELAY_MS)
    assert member.joined().leader == member.member_id
    member.sync({member.member_id: b"all"})
    assert member.peer.answers()[0].assignment == b"all"
    assert member.beat() == 0


def test_a_member_that_falls_silent_is_replaced_at_the_end_of_its_session(endpoint: KafkaEndpoint):
    first, second = pair(endpoint)
    endpoint.talk.advance(SESSION_MS // 2)
    assert second.beat() == 0
    endpoint.talk.advance(SESSION_MS // 2)
    assert second.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    second.rejoin()
    assert second.joined().leader == second.member_id
    assert first.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_leave_are_answered_and_the_rest_rebalances(endpoint: KafkaEndpoint):
    first, second = pair(endpoint)
    leaving = (LeavingMember(member_id=first.member_id), LeavingMember(member_id="nobody"))
    response = first.peer.ask(LeaveGroupRequest(group_id="G", members=leaving))
    assert [each.error_code for each in response.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert second.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    response = second.peer.ask(LeaveGroupRequest(group_id="G", member_id=second.member_id), 2)
    assert response.error_code == 0
    assert len(endpoint.translator.classic_groups.groups) == 0
    endpoint.talk.advance(120_000)
    assert not endpoint.translator.classic_groups._due


def test_a_parked_member_whose_connection_ends_leaves_nothing_behind(endpoint: KafkaEndpoint):
    first, second = pair(endpoint)
    before = endpoint.talk.broker.purgatory.statistics()
    newcomer = Member(endpoint)
    newcomer.peer.end()
    assert endpoint.talk.broker.purgatory.statistics() == before
    for member in (first, second):
        assert member.beat() == ErrorCode.REBALANCE_IN_PROGRESS
        member.rejoin()
    endpoint.talk.advance(endpoint.talk.config.kafka_member_grace_ms)
    assert len(first.joined().members) == 2
    second.joined()
    assert newcomer.peer.frames == []


def test_a_broker_that_stood_still_keeps_its_members(endpoint: KafkaEndpoint):
    first, second = pair(endpoint)
    endpoint.talk.extend_deadlines(10 * SESSION_MS)
    assert (first.beat(), second.beat()) == (0, 0)


def test_one_group_leaves_room_for_others(endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch):
    """A user of one group could keep the members of all others from joining, for its half-hour sessions."""
    monkeypatch.setattr("libramq.groups.protocol_groups.GROUP_COST_BYTES_MAX", 50_000)
    large = (JoinGroupProtocol(name="range", metadata=bytes(20_000)),)
    peers = [endpoint.peer() for _ in range(5)]
    for peer in peers:
        peer.tell(join_request(protocols=large), 3)
    refused = [[each.error_code for each in peer.answers()] for peer in peers]
    assert refused == [[], [], [], *[[ErrorCode.COORDINATOR_NOT_AVAILABLE]] * 2]
    other = endpoint.peer()
    other.tell(join_request("other", protocols=large), 3)
    assert other.answers() == []


def test_a_members_description_of_itself_is_bounded(endpoint: KafkaEndpoint):
    large = (JoinGroupProtocol(name="range", metadata=bytes(MEMBER_BYTES_MAX)),)
    assert endpoint.peer().ask(join_request(protocols=large)).error_code == ErrorCode.INVALID_REQUEST


def test_the_memory_of_groups_is_bounded(endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("libramq.groups.protocol_groups.COST_BYTES_MAX", 10_000)
    large = (JoinGroupProtocol(name="range", metadata=bytes(20_000)),)
    peer = endpoint.peer()
    peer.tell(join_request("large", protocols=large), 3)
    groups = endpoint.translator.classic_groups.groups
    assert groups.cost_bytes > 20_000
    refused = endpoint.peer().ask(join_request("other"))
    assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    endpoint.talk.advance(600_000)
    assert (groups.cost_bytes, len(groups)) == (0, 0)
    assert endpoint.peer().ask(join_request("other")).error_code == ErrorCode.MEMBER_ID_REQUIRED


def fetched(peer: KafkaPeer, partitions: tuple[int, ...] = (0,), version: int = 8) -> list[int]:
    topics = (Topic(name="T", partitions=partitions),)
    if version >= 8:
        request = OffsetFetchRequest(groups=(WantedGroup(group_id="G", topics=topics),))
    else:
        request = OffsetFetchRequest(group_id="G", topics=topics)
    response = peer.ask(request, version)
    group = response.groups[0] if version >= 8 else response
    assert group.error_code == 0
    return [each.committed_offset for each in group.topics[0].partitions]


@pytest.mark.parametrize("version", range(1, 9))
def test_committed_offsets_are_found(endpoint: KafkaEndpoint, version: int):
    first, _ = pair(endpoint)
    endpoint.peer().produce(record(), record())
    assert fetched(first.peer, (0, 1), version) == [-1, -1]
    assert first.commit(2) == 0
    assert fetched(first.peer, (0, 1), version) == [2, -1]


def test_all_of_a_groups_offsets_are_found(endpoint: KafkaEndpoint):
    first, _ = pair(endpoint)
    endpoint.peer().produce(record())
    assert (first.commit(1), first.commit(0, 1)) == (0, 0)
    response = first.peer.ask(OffsetFetchRequest(groups=(WantedGroup(group_id="G"),)))
    (topic,) = response.groups[0].topics
    assert {each.partition_index: each.committed_offset for each in topic.partitions} == {0: 1, 1: 0}


def committed(talk: Conversation, queue_id: int = 0) -> int | None:
    """Return the committed offset as RocketMQ clients see it."""
    header = h.QueryConsumerOffsetHeader(
        consumer_group="G", topic="T", queue_id=queue_id, set_zero_if_not_found=False
    )
    reply = talk.ask(FakePeer(), R.QUERY_CONSUMER_OFFSET, header)
    return int(reply.ext["offset"]) if reply.code == ResponseCode.SUCCESS else None


def test_a_commit_beyond_the_end_stays_as_it_was_sent(endpoint: KafkaEndpoint):
    """Mirrors commit their source's offsets; the group resumes there once the queue has grown that far."""
    admin, talk = administrator(endpoint), endpoint.talk
    admin.peer.produce(record(), record(), record())
    assert admin.commit(5) == 0
    assert (fetched(admin.peer), committed(talk)) == ([5], 3)
    admin.peer.produce(record())
    assert (fetched(admin.peer), committed(talk)) == ([5], 3)
    admin.peer.produce(record(), record(), record())
    assert (fetched(admin.peer), committed(talk)) == ([5], 5)


@pytest.mark.parametrize("offset", [1, 3])
def test_the_last_commit_counts_wherever_it_lies(endpoint: KafkaEndpoint, offset: int):
    admin, talk = administrator(endpoint), endpoint.talk
    admin.peer.produce(record(), record(), record())
    for ahead in (5, 9, 7):
        assert admin.commit(ahead) == 0
        assert fetched(admin.peer) == [ahead]
    assert admin.commit(offset) == 0
    admin.peer.produce(*(record() for _ in range(7)))
    assert (fetched(admin.peer), committed(talk)) == ([offset], offset)


def test_an_operators_reset_ends_a_commit_beyond_the_end(endpoint: KafkaEndpoint):
    admin, talk = administrator(endpoint), endpoint.talk
    admin.peer.produce(record(), record(), record())
    assert admin.commit(5) == 0
    header = h.ResetOffsetHeader(topic="T", group="G", queue_id=0, offset=3, timestamp=-1, is_force=True)
    assert talk.ask(FakePeer(), R.INVOKE_BROKER_TO_RESET_OFFSET, header).code == ResponseCode.SUCCESS
    admin.peer.produce(record(), record(), record())
    assert (fetched(admin.peer), committed(talk)) == ([3], 3)


@pytest.mark.parametrize("offset", [1, 2, 5])
def test_an_administrators_offset_replaces_a_reset_that_no_member_has_followed(
    endpoint: KafkaEndpoint, offset: int
):
    talk, stock, admin = endpoint.talk, FakePeer(), administrator(endpoint)
    admin.peer.produce(record(), record(), record())
    talk.beat(stock, "stock")
    header = h.ResetOffsetHeader(topic="T", group="G", queue_id=0, offset=0, timestamp=-1, is_force=True)
    assert talk.ask(FakePeer(), R.INVOKE_BROKER_TO_RESET_OFFSET, header).code == ResponseCode.SUCCESS
    talk.performer.closed(stock)  # type: ignore[arg-type]
    assert admin.commit(offset) == 0
    assert (fetched(admin.peer), committed(talk)) == ([offset], min(offset, 3))


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_commit_beyond_the_end_survives_a_restart(endpoint: KafkaEndpoint, tmp_path: Path, is_clean: bool):
    admin, talk = administrator(endpoint), endpoint.talk
    admin.peer.produce(record(), record(), record())
    assert (admin.commit(9), admin.commit(5), admin.commit(4, 1), admin.commit(0, 1)) == (0, 0, 0, 0)
    if is_clean:
        talk.close()
    else:
        talk.kill()
    again = Conversation(tmp_path)
    peer = KafkaEndpoint(again).peer()
    assert (fetched(peer, (0, 1)), committed(again)) == ([5, 0], 3)
    for partition in (0, 1):
        peer.produce(*(record() for _ in range(5)), partition=partition)
    assert (fetched(peer, (0, 1)), committed(again), committed(again, 1)) == ([5, 0], 5, 0)
    again.kill()
    talk.is_killed = True  # Its files now belong to another broker.


def test_after_a_loss_only_commits_beyond_the_end_are_kept(endpoint: KafkaEndpoint, tmp_path: Path):
    """Offsets within the queue are cut back: later messages get the offsets of the lost ones."""
    admin, talk = administrator(endpoint), endpoint.talk
    for partition in (0, 1):
        admin.peer.produce(record(), record(), record(), partition=partition)
    assert (admin.commit(3), admin.commit(2, 1), admin.commit(5, 1)) == (0, 0, 0)
    talk.close()
    for lost in ("commitlog", "consumequeue"):
        shutil.rmtree(tmp_path / lost)
    again = Conversation(tmp_path, damaged="cut")
    peer = KafkaEndpoint(again).peer()
    assert (fetched(peer, (0, 1)), committed(again), committed(again, 1)) == ([0, 5], 0, 0)
    again.kill()
    talk.is_killed = True


def test_a_commit_beyond_the_end_is_void_where_the_group_went_on_without_it(
    endpoint: KafkaEndpoint, tmp_path: Path
):
    """A version without this feature lets its groups commit, and leaves the feature's file as it was."""
    admin, talk = administrator(endpoint), endpoint.talk
    admin.peer.produce(record(), record(), record())
    assert admin.commit(5) == 0
    talk.close()
    kept = {path: path.read_bytes() for path in (tmp_path / "config").glob("kafkaCommitsAhead.json*")}
    assert kept
    between = Conversation(tmp_path)
    other = KafkaEndpoint(between).peer()
    other.produce(*(record() for _ in range(5)))
    assert fetched(other) == [5]
    between.close()
    for path, content in kept.items():
        path.write_bytes(content)
    again = Conversation(tmp_path)
    peer = KafkaEndpoint(again).peer()
    nobody = administrator(KafkaEndpoint(again))
    assert fetched(peer) == [5]
    assert nobody.commit(4) == 0
    assert (fetched(peer), committed(again)) == ([4], 4)
    again.kill()
    talk.is_killed = True


@pytest.mark.parametrize("before", [None, 2, 5])
def test_a_negative_commit_is_none(endpoint: KafkaEndpoint, before: int | None):
    admin = administrator(endpoint)
    admin.peer.produce(record(), record(), record())
    if before is not None:
        assert admin.commit(before) == 0
    assert (admin.commit(3, 1), admin.commit(-1)) == (0, 0)
    assert (fetched(admin.peer, (0, 1)), committed(endpoint.talk)) == ([-1, 3], None)


def test_deleted_offsets_do_not_return_when_the_queue_reaches_them(endpoint: KafkaEndpoint):
    admin, peer = administrator(endpoint), endpoint.peer()
    peer.produce(record())
    assert (admin.commit(3), admin.commit(3, 1)) == (0, 0)
    deleted = Topic(name="T", partitions=(0,))
    assert peer.ask(OffsetDeleteRequest(group_id="G", topics=(deleted,))).error_code == 0
    peer.produce(record(), record(), record())
    assert (fetched(peer, (0, 1)), committed(endpoint.talk)) == ([-1, 3], None)


def test_a_commit_of_rocketmqs_clients_beyond_the_end_is_cut_and_logged_once(
    endpoint: KafkaEndpoint, caplog: pytest.LogCaptureFixture
):
    talk, peer = endpoint.talk, FakePeer()
    endpoint.peer().produce(record(), record(), record())
    talk.beat(peer, "stock")
    header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=5)
    for _ in range(3):
        assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code == ResponseCode.SUCCESS
    assert committed(talk) == 3
    assert caplog.text.count("beyond the end") == 1


def test_a_client_with_assigned_partitions_commits_under_its_own_id(endpoint: KafkaEndpoint):
    """librdkafka's KIP-848 consumers have a member id even if they never join."""
    peer = endpoint.peer()
    peer.produce(record())
    endpoint.talk.advance(MEMBERS_RETURN_MS + 1)  # Until then commits count regardless of their sender.
    partitions = (CommittedPartition(partition_index=0, committed_offset=1),)
    topics = (Topic(name="T", partitions=partitions),)
    request = OffsetCommitRequest(
        group_id="G", generation_id_or_member_epoch=-1, member_id="chosen", topics=topics
    )
    assert peer.ask(request).topics[0].partitions[0].error_code == 0
    assert fetched(peer, (0,), 8) == [1]


def test_commits_that_lay_unread_while_the_coordinator_was_frozen_are_refused(
    endpoint: KafkaEndpoint, monkeypatch: pytest.MonkeyPatch
):
    """Another broker may have coordinated the group and accepted later commits: members reread from there."""
    first, _ = pair(endpoint)
    endpoint.peer().produce(record(), record())
    talk = endpoint.talk
    monkeypatch.setattr(ClusterView, "is_alone", property(lambda _: False))
    assert first.commit(2) == 0
    talk.clock.advance(5_000)
    assert first.commit(1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    talk.tick()
    assert first.commit(1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    wanted = WantedGroup(group_id="G", topics=(Topic(name="T", partitions=(0,)),))
    (found,) = first.peer.ask(OffsetFetchRequest(groups=(wanted,)), version=8).groups
    assert found.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # It knows no later commits elsewhere.
    assert committed(talk) == 2
    talk.advance(THAW_MS)
    assert first.commit(1) == 0


def test_rocketmqs_operators_see_a_commit_and_it_survives_a_restart(endpoint: KafkaEndpoint, tmp_path: Path):
    first, _ = pair(endpoint)
    endpoint.peer().produce(record(), record())
    assert first.commit(2) == 0
    header = h.QueryConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0)
    talk = endpoint.talk
    assert talk.ask(FakePeer(), R.QUERY_CONSUMER_OFFSET, header).ext["offset"] == "2"
    talk.kill()
    again = Conversation(tmp_path)
    assert fetched(KafkaEndpoint(again).peer()) == [2]
    again.kill()
    talk.broker.store._lock = None


def test_a_non_member_commits_only_to_a_group_without_members(endpoint: KafkaEndpoint):
    endpoint.peer().produce(record())
    nobody = administrator(endpoint)
    assert nobody.commit(1) == 0
    pair(endpoint)
    assert nobody.commit(0) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched(nobody.peer) == [1]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"partition": 2}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "Nowhere"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "%RETRY%G"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"committed_metadata": "x" * 5_000}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_a_commit_is_refused_by_its_code(endpoint: KafkaEndpoint, fields: dict[str, Any], code: int):
    first, _ = pair(endpoint)
    assert first.commit(0, **fields) == code


def test_a_commit_of_an_old_generation_is_refused(endpoint: KafkaEndpoint):
    first, _ = pair(endpoint)
    first.generation -= 1
    assert first.commit(0) == ErrorCode.ILLEGAL_GENERATION
    first.member_id = "nobody"
    assert first.commit(0) == ErrorCode.NONE, "it may have been a member before this broker was started"
    endpoint.talk.advance(MEMBERS_RETURN_MS)
    assert first.commit(0) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_of_rocketmqs_members_is_refused(endpoint: KafkaEndpoint):
    endpoint.talk.beat(FakePeer(), "stock")
    response = endpoint.peer().ask(join_request())
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_coordinated_group_is_refused(tmp_path: Path):
    talk = Conversation(tmp_path)
    talk.create_topic("T")
    alone(talk)
    response = KafkaEndpoint(talk).peer().ask(join_request())
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    talk.close()


def administrator(endpoint: KafkaEndpoint) -> Member:
    """A client that sets groups' offsets without being a member, as Kafka's admin clients do."""
    administrator = Member.__new__(Member)
    administrator.peer, administrator.group = endpoint.peer(), "G"
    administrator.member_id, administrator.generation = "", -1
    return administrator


def test_an_administrator_sets_offsets_of_a_coordinated_group_without_members(tmp_path: Path):
    talk = Conversation(tmp_path)
    talk.create_topic("T")
    for _ in range(3):
        talk.send(FakePeer(), queue_id=1)
    alice = alone(talk)
    assert alice.commit(1, 3) == ResponseCode.SUCCESS
    admin = administrator(KafkaEndpoint(talk))
    assert admin.commit(1, 1) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    held = dict(alice.held)
    alice.leave()
    alice.close()
    assert admin.commit(1, 1) == 0
    assert fetched(admin.peer, (1,)) == [1]
    alice.peer, alice.held = FakePeer(), held
    assert alice.commit(1, 2) == ResponseCode.FENCED, "she has left, and her late commit would undo it"
    alice.held = {}
    alice.join().poll()
    talk.advance(COLLECT_MS)
    alice.news()
    opened = {queue_id: alice.open(queue_id) for queue_id in list(alice.held)}
    assert {queue_id: reply.code for queue_id, reply in opened.items()} == dict.fromkeys(range(4), 0)
    assert opened[1].ext["offset"] == "1"
    talk.close()


def test_an_administrator_sets_offsets_of_a_stock_group_without_members(endpoint: KafkaEndpoint):
    talk, stock = endpoint.talk, FakePeer()
    endpoint.peer().produce(record())
    talk.beat(stock, "stock")
    admin = administrator(endpoint)
    assert admin.commit(1) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    talk.performer.closed(stock)  # type: ignore[arg-type]
    assert admin.commit(1) == 0
    assert fetched(admin.peer) == [1]


@pytest.mark.parametrize("group", ["", "a.b", "x" * 200])
def test_names_that_rocketmq_has_not_are_refused(endpoint: KafkaEndpoint, group: str):
    peer = endpoint.peer()
    for request in requests(group):
        assert codes(peer.ask(request)) == {ErrorCode.INVALID_GROUP_ID}


def requests(group: str) -> list[Any]:
    topics = (Topic(name="T", partitions=(CommittedPartition(partition_index=0, committed_offset=0),)),)
    return [
        FindCoordinatorRequest(coordinator_keys=(group,)),
        join_request(group),
        SyncGroupRequest(group_id=group, generation_id=1, member_id="m"),
        HeartbeatRequest(group_id=group, generation_id=1, member_id="m"),
        LeaveGroupRequest(group_id=group, members=()),
        OffsetCommitRequest(group_id=group, topics=topics),
        OffsetFetchRequest(groups=(WantedGroup(group_id=group),)),
    ]


def codes(response: Any) -> set[int]:
    """Return the error codes of an answer that are not 0."""
    found = {getattr(response, "error_code", 0)} - {0}
    for name in response.__struct_fields__:
        value = getattr(response, name)
        for each in value if isinstance(value, tuple) else ():
            found |= codes(each) if hasattr(each, "__struct_fields__") else set()
    return found


def test_every_request_of_a_group_is_authorised(tmp_path: Path):
    talk = Conversation(tmp_path, authorizer=Guard({"Group:G"}))
    talk.create_topic("T")
    peer = KafkaEndpoint(talk).peer()
    for request in requests("G"):
        assert codes(peer.ask(request)) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
    talk.close()


def test_commits_to_a_denied_topic_are_refused(tmp_path: Path):
    talk = Conversation(tmp_path, authorizer=Guard({"Topic:T"}))
    talk.create_topic("T")
    peer = KafkaEndpoint(talk).peer()
    commit = requests("G")[5]
    assert codes(peer.ask(commit)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    wanted = WantedGroup(group_id="G", topics=(Topic(name="T", partitions=(0,)),))
    assert codes(peer.ask(OffsetFetchRequest(groups=(wanted,)))) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    talk.close()
