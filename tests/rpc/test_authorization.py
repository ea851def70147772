"""Authorization of requests: each code with everything it touches, and whether the request is refused."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from libramq.auth.operation import resources
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.filter.subscription import SubscriptionData
from libramq.formats.document import encode_body
from libramq.formats.tables import DataVersion, MessageRequestMode, SubscriptionGroupConfig
from libramq.kernel.connection import ANONYMOUS, Principal
from libramq.kernel.effect import Proceed
from libramq.kernel.parts import Kernel
from libramq.remoting import headers as h
from libramq.remoting.body import consumers as bodies
from libramq.remoting.body import coordination as groups
from libramq.remoting.body.consumers import QueryAssignmentBody
from libramq.remoting.body.coordination import GroupJoinBody, GroupLeaveBody, GroupPollBody, GroupReleaseBody
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData, ProducerData
from libramq.remoting.body.kafka_cluster import (
    PeerGroupsBody,
    PeerHandoverBody,
    PeerNodeBody,
    PeerOffsetsBody,
    PeerTopicBody,
)
from libramq.remoting.body.pop import BatchAckBody, BatchAckText
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials, sign
from libramq.rpc.endpoint import Endpoint, Signatures
from libramq.rpc.outcome import SUCCESS, Outcome
from libramq.rpc.request import INLINE_BODY_BYTES_MAX, Processors, Request
from libramq.rpc.request_table import REQUESTS
from libramq.rpc.responder import Responder
from tests.auth.guards import Guard, Users
from tests.broker.brokers import send_header
from tests.fakes import FakePeer, ManualClock, done
from tests.rpc.admin_requests import ADMIN_REQUESTS

BATCHES = (R.SEND_MESSAGE, R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.UPDATE_CONSUMER_OFFSET)

_T, _G = h.TopicHeader(topic="T"), h.GroupHeader(consumer_group="G")
_QUEUE = h.QueueHeader(topic="T", queue_id=0)
_ACK = h.AckMessageHeader(consumer_group="G", topic="T", queue_id=0, extra_info="", offset=0)
_PULL = h.PullMessageHeader(
    consumer_group="G", topic="T", queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=0
)
_BROKER = {"cluster_name": "C", "broker_name": "B", "broker_addr": "h:1"}
_LOCK = bodies.LockBatchBody(
    consumer_group="G",
    client_id="c",
    mq_set=[bodies.QueueRef(topic=topic, broker_name="B", queue_id=0) for topic in "TU"],
)
_HEARTBEAT = HeartbeatData(
    client_id="c",
    producer_data_set=[ProducerData(group_name="P")],
    consumer_data_set=[
        ConsumerData(
            group_name=group, subscription_data_set=[SubscriptionData(topic=topic) for topic in topics]
        )
        for group, topics in (("G", ["T", "%RETRY%G"]), ("H", ["U"]))
    ],
)
_CLUSTER_UPDATE, _CLUSTER_GET, _CLUSTER_LIST = "Cluster:* Update", "Cluster:* Get", "Cluster:* List"

#: Each code: its header, its body, and everything it touches.
REQUESTS_MADE: Mapping[R, tuple[h.Header | None, Any, str]] = {
    R.SEND_MESSAGE: (
        h.SendMessageHeader(
            producer_group="P", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=0, flag=0,
        ), None, "Topic:T Pub",
    ),
    R.SEND_MESSAGE_V2: (send_header("T"), None, "Topic:T Pub"),
    R.SEND_BATCH_MESSAGE: (send_header("%RETRY%G"), None, "Group:G Sub"),
    R.SEND_REPLY_MESSAGE: (
        h.SendMessageHeader(
            producer_group="P", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=1, flag=0,
        ), None, "Topic:T Pub",
    ),
    R.SEND_REPLY_MESSAGE_V2: (send_header("T"), None, "Topic:T Pub"),
    R.END_TRANSACTION: (
        h.EndTransactionHeader(
            producer_group="P", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=8,
            topic="T",
        ),
        None, "Topic:T Pub",
    ),
    R.CONSUMER_SEND_MSG_BACK: (
        h.SendBackHeader(offset=0, group="G", delay_level=0, origin_topic="T"), None,
        "Group:G Sub, Topic:T Sub",
    ),
    R.PULL_MESSAGE: (_PULL, None, "Group:G Sub, Topic:T Sub"),
    R.LITE_PULL_MESSAGE: (_PULL, None, "Group:G Sub, Topic:T Sub"),
    R.VIEW_MESSAGE_BY_ID: (h.ViewMessageHeader(offset=0, topic="T"), None, "Topic:T Get"),
    R.QUERY_MESSAGE: (
        h.QueryMessageHeader(topic="T", key="k", max_num=1, begin_timestamp=0, end_timestamp=1), None,
        "Topic:T Get|Sub",
    ),
    R.POP_MESSAGE: (
        h.PopMessageHeader(
            consumer_group="G", topic="T", queue_id=-1, max_msg_nums=1, invisible_time=1, poll_time=0,
            init_mode=0,
        ), None, "Group:G Sub, Topic:T Sub",
    ),
    R.ACK_MESSAGE: (_ACK, None, "Group:G Sub, Topic:T Sub"),
    R.CHANGE_MESSAGE_INVISIBLETIME: (
        h.ChangeInvisibleTimeHeader(
            consumer_group="G", topic="%RETRY%G_T", queue_id=0, extra_info="", offset=0, invisible_time=1
        ), None, "Group:G Sub",
    ),
    R.BATCH_ACK_MESSAGE: (
        None, BatchAckBody(acks=[BatchAckText(
            consumer_group="G", topic="T", start_offset=0, queue_id=0, pop_time=0, invisible_time=1
        )]), "Group:G Sub, Topic:T Sub",
    ),
    R.NOTIFICATION: (
        h.NotificationHeader(consumer_group="G", topic="T", queue_id=0, poll_time=0), None,
        "Group:G Sub, Topic:T Sub",
    ),
    R.POLLING_INFO: (
        h.GroupQueueHeader(consumer_group="G", topic="T", queue_id=0), None,
        "Group:G Sub, Topic:T Sub",
    ),
    R.PEEK_MESSAGE: (
        h.PeekMessageHeader(consumer_group="G", topic="T", queue_id=0, max_msg_nums=1), None,
        "Group:G Sub, Topic:T Sub",
    ),
    R.QUERY_CONSUMER_OFFSET: (
        h.QueryConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0), None,
        "Group:G Sub|Get, Topic:T Sub|Get",
    ),
    R.UPDATE_CONSUMER_OFFSET: (
        h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=1), None,
        "Group:G Sub|Update, Topic:T Sub|Update",
    ),
    R.SEARCH_OFFSET_BY_TIMESTAMP: (
        h.SearchOffsetHeader(topic="T", queue_id=0, timestamp=0), None, "Topic:T Get|Sub",
    ),
    R.GET_MAX_OFFSET: (_QUEUE, None, "Topic:T Get|Sub"),
    R.GET_MIN_OFFSET: (_QUEUE, None, "Topic:T Get|Sub"),
    R.GET_EARLIEST_MSG_STORETIME: (_QUEUE, None, "Topic:T Get|Sub"),
    R.HEART_BEAT: (
        None, _HEARTBEAT, "Group:G Sub, Topic:T Sub, Group:H Sub, Topic:U Sub",
    ),
    R.UNREGISTER_CLIENT: (
        h.UnregisterClientHeader(client_id="c", producer_group="P", consumer_group="G"), None,
        "Group:G Sub",
    ),
    R.CHECK_CLIENT_CONFIG: (
        None, bodies.CheckClientBody(client_id="c", group="G", subscription_data=SubscriptionData(topic="T")),
        "Group:G Sub, Topic:T Sub",
    ),
    R.GET_CONSUMER_LIST_BY_GROUP: (_G, None, "Group:G Sub|Get"),
    R.LOCK_BATCH_MQ: (None, _LOCK, "Group:G Sub, Topic:T Sub, Topic:U Sub"),
    R.UNLOCK_BATCH_MQ: (None, _LOCK, "Group:G Sub, Topic:T Sub, Topic:U Sub"),
    R.UPDATE_AND_CREATE_TOPIC: (
        h.CreateTopicHeader(topic="T", read_queue_nums=1, write_queue_nums=1, perm=6), None, "Topic:T Create",
    ),
    R.DELETE_TOPIC_IN_BROKER: (_T, None, "Topic:T Delete"),
    R.GET_ALL_TOPIC_CONFIG: (None, None, _CLUSTER_LIST),
    R.GET_TOPIC_CONFIG: (_T, None, "Topic:T Get"),
    R.GET_TOPIC_STATS_INFO: (_T, None, "Topic:T Get"),
    R.GET_BROKER_RUNTIME_INFO: (None, None, _CLUSTER_GET),
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: (None, None, _CLUSTER_LIST),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
        None, SubscriptionGroupConfig(group_name="G"), "Group:G Create",
    ),
    R.DELETE_SUBSCRIPTIONGROUP: (h.DeleteGroupHeader(group_name="G"), None, "Group:G Delete"),
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (None, None, _CLUSTER_LIST),
    R.GET_SUBSCRIPTIONGROUP_CONFIG: (h.GroupByNameHeader(group="G"), None, "Group:G Get"),
    R.GET_ALL_CONSUMER_OFFSET: (None, None, _CLUSTER_LIST),
    R.GET_ALL_DELAY_OFFSET: (None, None, _CLUSTER_LIST),
    R.GET_TIMER_CHECK_POINT: (None, None, _CLUSTER_GET),
    R.GET_TIMER_METRICS: (None, None, _CLUSTER_GET),
    R.RECALL_MESSAGE: (h.RecallMessageHeader(topic="T", recall_handle="x"), None, "Topic:T Pub"),
    R.GET_ALL_MESSAGE_REQUEST_MODE: (None, None, _CLUSTER_LIST),
    R.GET_BROKER_HA_STATUS: (None, None, _CLUSTER_GET),
    R.DELETE_EXPIRED_COMMITLOG: (None, None, _CLUSTER_UPDATE),
    R.CLEAN_EXPIRED_CONSUMEQUEUE: (None, None, _CLUSTER_UPDATE),
    R.CLEAN_UNUSED_TOPIC: (None, None, _CLUSTER_UPDATE),
    R.GET_CONSUME_STATS: (
        h.ConsumeStatsHeader(consumer_group="G", topic_list="T;U;"), None,
        "Group:G Get, Topic:T Get, Topic:U Get",
    ),
    R.INVOKE_BROKER_TO_RESET_OFFSET: (
        h.ResetOffsetHeader(topic="T", group="G"), None, "Group:G Update, Topic:T Update",
    ),
    R.GET_CONSUMER_CONNECTION_LIST: (_G, None, "Group:G Get"),
    R.GET_PRODUCER_CONNECTION_LIST: (
        h.ProducerConnectionHeader(producer_group="P"), None, "Group:P Get",
    ),
    R.QUERY_TOPIC_CONSUME_BY_WHO: (_T, None, "Topic:T Get"),
    R.QUERY_TOPICS_BY_CONSUMER: (h.GroupByNameHeader(group="G"), None, "Group:G Get"),
    R.GROUP_JOIN: (
        h.GroupJoinHeader(consumer_group="G", client_id="c", lb_session_ms=10_000),
        GroupJoinBody(subscriptions={"T": "*", "U": "a"}), "Group:G Sub, Topic:T Sub, Topic:U Sub",
    ),
    R.GROUP_POLL: (
        h.GroupPollHeader(consumer_group="G", lb_member="m", lb_epoch=1), GroupPollBody(), "Group:G Sub",
    ),
    R.GROUP_RELEASE: (
        h.GroupMemberHeader(consumer_group="G", lb_member="m"), GroupReleaseBody(), "Group:G Sub",
    ),
    R.GROUP_LEAVE: (h.GroupMemberHeader(consumer_group="G", lb_member="m"), GroupLeaveBody(), "Group:G Sub"),
    R.GROUP_REMOVE: (h.GroupRemoveHeader(consumer_group="G", lb_name="m"), None, "Group:G Update"),
    R.GROUP_FIND: (_G, None, "Group:G Sub"),
    R.GROUP_BEGIN: (h.GroupBeginHeader(consumer_group="G", topic="T"), None, "Group:G Sub, Topic:T Sub"),
    R.OPEN_QUEUE: (
        h.OpenQueueHeader(consumer_group="G", topic="T", queue_id=0, lb_member="m", lb_queue_epoch=1), None,
        "Group:G Sub, Topic:T Sub",
    ),
    R.QUERY_ASSIGNMENT: (
        None, QueryAssignmentBody(topic="T", consumer_group="G", client_id="c"), "Group:G Sub, Topic:T Sub",
    ),
    R.SET_MESSAGE_REQUEST_MODE: (
        None, MessageRequestMode(topic="T", consumer_group="G"), "Group:G Update, Topic:T Update",
    ),
    R.SLAVE_PROGRESS: (h.SlaveProgressHeader(broker_id=1), None, _CLUSTER_LIST),
    R.PEER_GRANT: (None, groups.PeerGrantBody(group="G", epoch=1), _CLUSTER_UPDATE),
    R.PEER_MEMBERS: (None, groups.PeerMembersBody(broker_name="b", masters=["b"]), _CLUSTER_UPDATE),
    R.PEER_LIST: (None, groups.PeerListBody(broker_name="b", group="G", version=1), _CLUSTER_UPDATE),
    R.PEER_GATHER: (None, groups.PeerGatherBody(group="G"), _CLUSTER_GET),
    R.PEER_STARTED: (None, groups.PeerStartedBody(group="G", epoch=1, reason="r"), _CLUSTER_UPDATE),
    R.PEER_ASSIGN: (
        None, groups.PeerAssignBody(broker_name="b", group="G", client_id="c", topic="T"), _CLUSTER_GET,
    ),
    R.PEER_ASSIGNMENTS: (None, groups.AssignmentUpdate(broker_name="b", group="G"), _CLUSTER_UPDATE),
    R.PEER_REMOVED: (None, groups.PeerRemovedBody(broker_name="b", topic="T"), _CLUSTER_UPDATE),
    R.PEER_REBALANCE: (None, groups.PeerRebalanceBody(group="G"), _CLUSTER_UPDATE),
    R.PEER_NODE: (None, PeerNodeBody(broker_name="b"), _CLUSTER_GET),
    R.PEER_TOPIC: (None, PeerTopicBody(broker_name="b", topic="T", queues=1), _CLUSTER_UPDATE),
    R.PEER_OFFSETS: (None, PeerOffsetsBody(broker_name="b", group="G"), _CLUSTER_UPDATE),
    R.PEER_GROUPS: (None, PeerGroupsBody(broker_name="b", sequence=1), _CLUSTER_UPDATE),
    R.PEER_HANDOVER: (None, PeerHandoverBody(broker_name="b"), _CLUSTER_GET),
    R.REGISTER_BROKER: (h.RegisterBrokerHeader(**_BROKER, broker_id=0), None, "Cluster:C Update"),
    R.UNREGISTER_BROKER: (h.BrokerHeader(**_BROKER, broker_id=0), None, "Cluster:C Update"),
    R.QUERY_DATA_VERSION: (
        h.BrokerHeader(**_BROKER, broker_id=0), DataVersion(), "Cluster:C Get",
    ),
    R.BROKER_HEARTBEAT: (h.BrokerHeartbeatHeader(**_BROKER), None, "Cluster:C Update"),
    R.GET_ROUTEINFO_BY_TOPIC: (h.RouteHeader(topic="T"), None, "Topic:T Get"),
    R.GET_BROKER_CLUSTER_INFO: (None, None, _CLUSTER_GET),
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: (None, None, _CLUSTER_LIST),
    R.GET_TOPICS_BY_CLUSTER: (h.ClusterHeader(cluster="C"), None, "Cluster:C List"),
    R.DELETE_TOPIC_IN_NAMESRV: (h.DeleteTopicInNamesrvHeader(topic="T"), None, "Topic:T Delete"),
    R.GET_SYSTEM_TOPIC_LIST_FROM_NS: (None, None, _CLUSTER_LIST),
    **ADMIN_REQUESTS,
}  # fmt: skip


class Guarded:
    """An endpoint that serves every code of the table; `served` are the requests that reached processors."""

    def __init__(self, guard: Guard, users: Users | None = None) -> None:
        self.served: list[Request] = []
        self.batches: list[int] = []
        self.kernel = Kernel(ManualClock())
        self.peer = FakePeer()
        self._endpoint = Endpoint(
            clock=self.kernel.clock,
            authorizer=guard,
            signatures=Signatures(users) if users is not None else None,
            responder=Responder(self.kernel.effects),
            processors=Processors(
                {code: self._serve for code in REQUESTS if code not in BATCHES},
                {code: self._serve_batch for code in REQUESTS if code in BATCHES},
            ),
        )

    def _serve(self, request: Request) -> Outcome:
        self.served.append(request)
        return SUCCESS

    def _serve_batch(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        self.batches.append(len(requests))
        return [self._serve(request) for request in requests]

    def give(self, *commands: Command) -> list[int]:
        """Deliver these requests in one read; return the response codes, in the order of the requests."""
        position = 0
        while position < len(commands):
            position = self._endpoint.receive(self.peer, commands, position)
        self.follow()
        replies = {reply.opaque: reply.code for reply in self.peer.replies}
        return [replies[command.opaque] for command in commands if command.opaque in replies]

    def follow(self) -> None:
        """Perform the endpoint's decisions."""
        effects = self.kernel.effects.pending.copy()
        self.kernel.effects.pending.clear()
        for effect in effects:
            if isinstance(effect, Proceed):
                done(effect.steps)
                self.follow()
            else:
                effect.connection.write(effect.data)


def request(code: R, *, opaque: int = 1) -> Command:
    header, body, _ = REQUESTS_MADE[code]
    ext = h.encode_header(header) if header is not None else {}
    return Command(code=code, ext=ext, body=b"" if body is None else encode_body(body), opaque=opaque)


def touched(code: R) -> list[str]:
    return REQUESTS_MADE[code][2].split(", ")


ALICE = Credentials("alice", "secret")


@pytest.mark.parametrize("code", [R.SEND_MESSAGE_V2, R.PULL_MESSAGE, R.HEART_BEAT])
def test_a_signed_request_is_its_signers_and_others_their_connections(code: R):
    guard = Guard()
    guarded = Guarded(guard, Users({"alice": "secret"}))
    assert guarded.give(sign(request(code), ALICE)) == [C.SUCCESS]
    assert guard.principals == {Principal("alice")}
    guarded.peer.principal = Principal("bob")
    assert guarded.give(request(code, opaque=2)) == [C.SUCCESS]
    assert guard.principals == {Principal("alice"), Principal("bob")}
    assert [each.principal.name for each in guarded.served] == ["alice", "bob"]


def test_a_wrong_signature_is_refused_before_anything_else_and_leaves_neighbours_alone():
    guard = Guard()
    guarded = Guarded(guard, Users({"alice": "secret"}))
    right, wrong = ALICE, Credentials("alice", "guessed")
    sends = [
        sign(request(R.SEND_MESSAGE_V2, opaque=opaque), credentials)
        for opaque, credentials in enumerate((right, right, wrong, right))
    ]
    assert guarded.give(*sends) == [C.SUCCESS, C.SUCCESS, C.NO_PERMISSION, C.SUCCESS]
    assert guarded.batches == [2, 1]
    assert guard.principals == {Principal("alice")}
    assert guarded.give(sign(request(R.HEART_BEAT, opaque=9), wrong)) == [C.NO_PERMISSION]
    assert guarded.give(sign(request(R.HEART_BEAT, opaque=10), Credentials("mallory", "x"))) == [
        C.NO_PERMISSION
    ]
    assert len(guarded.served) == 3


def test_every_request_of_the_table_is_an_operation():
    assert REQUESTS.keys() == REQUESTS_MADE.keys()


@pytest.mark.parametrize("code", list(REQUESTS_MADE))
def test_a_request_names_everything_it_touches(code: R):
    guard = Guard()
    guarded = Guarded(guard)
    assert guarded.give(request(code)) == [C.SUCCESS]
    asked = sorted({f"{resource} {action}" for resource, action in guard.asked})
    assert asked == sorted(touched(code))
    assert guard.principals == {ANONYMOUS}
    assert len(guarded.served) == 1


@pytest.mark.parametrize(
    ("code", "denied"), [(code, line.split()[0]) for code in REQUESTS_MADE for line in touched(code)]
)
def test_a_request_is_refused_when_one_of_its_resources_is_denied(code: R, denied: str):
    guarded = Guarded(Guard({denied}))
    assert guarded.give(request(code)) == [C.NO_PERMISSION]
    assert denied in (guarded.peer.replies[0].remark or "")
    assert guarded.served == []


def test_a_retry_topic_whose_name_only_begins_with_the_groups_is_another_groups():
    header = msgspec.structs.replace(_ACK, topic="%RETRY%Gold")
    operation = REQUESTS[R.ACK_MESSAGE].operation(ANONYMOUS, header, None)
    assert [str(resource) for resource, _ in resources(operation)] == ["Group:G", "Group:Gold"]


def test_a_denied_part_of_a_batch_leaves_the_others_alone():
    guarded = Guarded(Guard({"Topic:secret"}))
    sends = [
        Command(code=R.SEND_MESSAGE_V2, ext=h.encode_header(send_header(topic)), opaque=number)
        for number, topic in enumerate(["T", "secret", "T", "T"], 1)
    ]
    broken = Command(code=R.SEND_MESSAGE_V2, ext={"b": "T"}, opaque=5)
    codes = guarded.give(*sends, broken, request(R.SEND_MESSAGE, opaque=6))
    assert codes == [C.SUCCESS, C.NO_PERMISSION, C.SUCCESS, C.SUCCESS, C.SYSTEM_ERROR, C.SUCCESS]
    assert guarded.batches == [4], "adjacent requests stay one batch"


def test_a_batch_denied_as_a_whole_reaches_no_processor():
    guarded = Guarded(Guard({"Group:G"}))
    commits = [request(R.UPDATE_CONSUMER_OFFSET, opaque=number) for number in (1, 2)]
    assert guarded.give(*commits) == [C.NO_PERMISSION, C.NO_PERMISSION]
    assert guarded.batches == []


@pytest.mark.parametrize("denied", ["Topic:T-999", "Group:nobody"])
def test_a_large_body_is_decoded_on_a_thread_before_it_is_authorised(denied: str):
    subscriptions = [SubscriptionData(topic=f"T-{number}") for number in range(1_000)]
    data = HeartbeatData(
        client_id="c", consumer_data_set=[ConsumerData(group_name="G", subscription_data_set=subscriptions)]
    )
    guarded = Guarded(Guard({denied}))
    command = Command(code=R.HEART_BEAT, body=encode_body(data), opaque=1)
    assert len(command.body) > INLINE_BODY_BYTES_MAX
    expected = C.NO_PERMISSION if denied == "Topic:T-999" else C.SUCCESS
    assert guarded.give(command) == [expected]
    assert len(guarded.served) == (expected == C.SUCCESS)


def test_an_unreadable_request_is_not_permitted():
    guarded = Guarded(Guard())
    assert guarded.give(Command(code=R.HEART_BEAT, body=b"[", opaque=1)) == [C.SYSTEM_ERROR]
    assert guarded.give(Command(code=R.PULL_MESSAGE, ext={"topic": "T"}, opaque=2)) == [C.SYSTEM_ERROR]
    assert guarded.served == []
