"""A broker among others: its requests to name servers and brokers, and theirs; tests answer by hand."""

import itertools
from pathlib import Path

import pytest

from libramq.broker.cluster.peer_brokers import AGAIN_MS, RETRY_MS
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import (
    ConnectFailed,
    ConsumerNotOnline,
    LibraError,
    RequestTimeout,
    TopicNotExist,
    broker_error,
)
from libramq.fencing import EPOCHS_AHEAD_MAX, MODE_CLIENT, MODE_EPOCHS
from libramq.formats.document import decode_body
from libramq.formats.route import BrokerData, QueueData, TopicRouteData
from libramq.groups.assignment_tables import TopicAssignment
from libramq.groups.cluster_view import BROKERS_TOPIC, coordinator_of
from libramq.groups.coordinator.effect import Replaced
from libramq.groups.rebalance import UNREPORTED_MS
from libramq.groups.rebalance_event import RebalanceEvent, decode_event
from libramq.remoting import headers as h
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body.consumers import ConsumerConnection, QueryAssignmentBody, QueryAssignmentReply
from libramq.remoting.body.coordination import GroupJoinBody, QueueGrant
from libramq.remoting.command import Command
from libramq.rpc.question import Question
from libramq.rpc.request_table import BROKER_REQUESTS
from tests.broker.brokers import Conversation, answer, notifications
from tests.broker.clusters import group_at
from tests.fakes import FakePeer

A, B, C_ = "broker-a", "broker-b", "broker-c"
#: Enough that one of them coordinates the group that lived at a.
MORE = [f"broker-d{number}" for number in range(20)]
ADDRESSES = {A: "127.0.0.1:10911", B: "10.0.0.2:10911", C_: "10.0.0.3:10911"} | {
    name: f"10.0.1.{number}:10911" for number, name in enumerate(MORE)
}
NS = ("127.0.0.1:9876", "127.0.0.1:9877")
HERE = group_at(A, [A, B, C_])
THERE = group_at(B, [A, B, C_])


class Node(Conversation):
    """Broker a, and its requests to others."""

    def __init__(self, root: Path, **options: object) -> None:
        super().__init__(root, broker_name=A, namesrv_addr=";".join(NS), **options)
        self.coordinate()

    @property
    def asked(self) -> list[Question]:
        return self.performer.asked

    @asked.setter
    def asked(self, questions: list[Question]) -> None:
        self.performer.asked = questions

    def take(self, code: R, address: str | None = None) -> list[Question]:
        """Remove and return the questions of a kind, in order, including due ones."""
        self.coordinate()
        taken = [q for q in self.asked if q.call.code == code and address in (None, q.address)]
        self.asked = [q for q in self.asked if q not in taken]
        return taken

    def settle(self) -> None:
        """Run the consequences of an answer."""
        self.coordinate()

    def pass_by(self, milliseconds: int) -> None:
        self.advance(milliseconds)

    def answer(self, question: Question, outcome: object) -> None:
        question.answered(outcome)
        self.settle()

    def routes(self, topic: str, route: TopicRouteData | LibraError) -> None:
        """Answer the question for a topic's route, as a name server."""
        self.coordinate()
        (question,) = [
            q for q in self.asked
            if q.call.code == R.GET_ROUTEINFO_BY_TOPIC and q.call.ext["topic"] == topic
        ]  # fmt: skip
        self.asked.remove(question)
        self.answer(question, route)

    def meet(self, *names: str) -> "Node":
        """Let these brokers appear, linked, and with their members reported."""
        self.routes(BROKERS_TOPIC, brokers(A, *names))
        for name in names:
            self.told_by(name, [A, *names])
            for beat in self.take(R.PEER_MEMBERS, ADDRESSES[name]):
                self.answer(beat, True)
        return self

    def live(self, seconds: int, *names: str) -> None:
        """Let time pass while name servers and brokers answer."""
        for _ in range(seconds):
            self.pass_by(1_000)
            for question in self.take(R.GET_ROUTEINFO_BY_TOPIC):
                is_brokers = question.call.ext["topic"] == BROKERS_TOPIC
                self.answer(question, brokers(A, *names) if is_brokers else queues(a=1, b=1))
            for question in self.take(R.PEER_MEMBERS):
                self.answer(question, True)

    def told_by(self, name: str, masters: list[str], *, complete: bool = True, **groups: list) -> str:
        body = bodies.PeerMembersBody(broker_name=name, masters=masters, groups=groups, complete=complete)
        reply = self.ask(peer(name), R.PEER_MEMBERS, None, body)
        assert reply.code == C.SUCCESS, reply.remark
        self.settle()
        return reply.ext["lbKnown"]

    def join(
        self,
        peer: FakePeer,
        group: str,
        held: list[QueueGrant] | None = None,
        *,
        client_id: str = "x",
        member: str | None = None,
    ) -> Command:
        header = h.GroupJoinHeader(
            consumer_group=group, client_id=client_id, lb_session_ms=60_000, lb_member=member
        )
        body = GroupJoinBody(subscriptions={"T": "*"}, held=held or [])
        return self.ask(peer, R.GROUP_JOIN, header, body)


def peer(name: str) -> FakePeer:
    return FakePeer(f"{ADDRESSES[name].partition(':')[0]}:50123")


def brokers(*names: str) -> TopicRouteData:
    return TopicRouteData(
        broker_datas=[BrokerData(broker_name=n, broker_addrs={0: ADDRESSES[n]}) for n in names]
    )


def queues(**counts: int) -> TopicRouteData:
    names = {"a": A, "b": B, "c": C_}
    return TopicRouteData(
        queue_datas=[
            QueueData(broker_name=names[n], read_queue_nums=count, write_queue_nums=count, perm=6)
            for n, count in counts.items()
        ]
    )


@pytest.fixture
def node(tmp_path) -> Node:
    node = Node(tmp_path)
    yield node
    node.close()


def body_of(question: Question, kind):
    return decode_body(question.call.body, kind)


# Where groups live


def test_members_are_not_redirected_before_a_name_server_has_answered(node):
    reply = node.ask(FakePeer(), R.GROUP_FIND, h.GroupHeader(consumer_group=HERE))
    assert (reply.code, reply.remark) == (C.NOT_COORDINATOR, "")
    node.meet(B, C_)
    for group, address in ((HERE, ADDRESSES[A]), (THERE, ADDRESSES[B])):
        reply = node.ask(FakePeer(), R.GROUP_FIND, h.GroupHeader(consumer_group=group))
        assert reply.ext["lbCoordinator"] == address
    reply = node.join(FakePeer(), THERE)
    assert (reply.code, reply.remark) == (C.NOT_COORDINATOR, ADDRESSES[B])
    header = h.GroupRemoveHeader(consumer_group=THERE, lb_name="alice")
    reply = node.ask(FakePeer(), R.GROUP_REMOVE, header)
    assert (reply.code, reply.remark) == (C.NOT_COORDINATOR, ADDRESSES[B])


def test_name_servers_are_queried_every_second_and_a_silent_one_is_skipped(node):
    (first,) = node.take(R.GET_ROUTEINFO_BY_TOPIC)
    node.answer(first, ConnectFailed("no"))
    (second,) = node.take(R.GET_ROUTEINFO_BY_TOPIC)
    assert (first.address, second.address) == NS
    node.answer(second, brokers(A, B))
    assert node.broker.cluster.others.view.names == [A, B]
    node.pass_by(999)
    assert node.take(R.GET_ROUTEINFO_BY_TOPIC) == []
    node.pass_by(1)
    (third,) = node.take(R.GET_ROUTEINFO_BY_TOPIC)
    node.answer(third, RequestTimeout("no"))
    assert node.broker.cluster.others.view.names == [A, B], "a view lasts while no peer answers"


def test_a_lost_peer_connection_queries_the_name_server_at_once_and_often(node):
    node.meet(B)
    node.broker.cluster.others.lost(ADDRESSES[B])
    node.settle()
    times = []
    for _ in range(3):
        while not (questions := node.take(R.GET_ROUTEINFO_BY_TOPIC)):
            node.pass_by(1)
        times.append(node.clock.monotonic_ms())
        node.answer(questions[0], TopicNotExist(17, "nobody yet"))
    assert [later - sooner for sooner, later in itertools.pairwise(times)] == [50, 50]
    assert node.broker.cluster.others.view.names == [A], "neither reported nor reached"


def test_a_peer_that_knows_more_brokers_triggers_another_query(node):
    node.meet(B)
    node.pass_by(100)
    assert node.take(R.GET_ROUTEINFO_BY_TOPIC) == []
    node.told_by(B, [A, B])
    assert node.take(R.GET_ROUTEINFO_BY_TOPIC) == []
    node.told_by(B, [A, B, C_])
    (question,) = node.take(R.GET_ROUTEINFO_BY_TOPIC)
    node.answer(question, brokers(A, B, C_))
    assert node.broker.cluster.others.view.names == [A, B, C_]
    node.told_by(B, [A, B])
    assert node.take(R.GET_ROUTEINFO_BY_TOPIC) == []
    node.pass_by(50)
    assert len(node.take(R.GET_ROUTEINFO_BY_TOPIC)) == 1


def test_a_topics_route_is_queried_when_a_group_needs_it(node):
    """At its creation the broker does not know which others have it; a wrong guess would move queues."""
    node.meet(B, C_)
    node.create_topic("T", 1)
    assert node.take(R.GET_ROUTEINFO_BY_TOPIC) == []
    node.join(FakePeer(), HERE)
    (question,) = node.take(R.GET_ROUTEINFO_BY_TOPIC)
    assert question.call.ext["topic"] == "T"


# Trusted senders


@pytest.mark.parametrize(
    "code",
    [
        R.PEER_GRANT,
        R.PEER_GATHER,
        R.PEER_MEMBERS,
        R.PEER_LIST,
        R.PEER_STARTED,
        R.PEER_REMOVED,
        R.PEER_REBALANCE,
    ],
)
def test_strangers_are_refused(node, code):
    body = {
        R.PEER_GRANT: bodies.PeerGrantBody(group=HERE, epoch=9),
        R.PEER_GATHER: bodies.PeerGatherBody(group=HERE),
        R.PEER_MEMBERS: bodies.PeerMembersBody(broker_name=B, masters=[A, B]),
        R.PEER_STARTED: bodies.PeerStartedBody(group=HERE, epoch=1, reason="member_joined"),
        R.PEER_LIST: bodies.PeerListBody(broker_name=B, group=HERE, version=1, client_ids=["x"]),
        R.PEER_REMOVED: bodies.PeerRemovedBody(broker_name=B, topic="T"),
        R.PEER_REBALANCE: bodies.PeerRebalanceBody(group=HERE, is_complete=True),
    }[code]
    node.meet(B)
    stranger = FakePeer("10.9.9.9:50000")
    reply = node.ask(stranger, code, None, body)
    assert reply.code == C.NO_PERMISSION
    assert "10.9.9.9" in reply.remark
    assert "is not a known broker of this cluster" in reply.remark
    assert node.broker.fences.epoch(HERE) == 0
    assert node.ask(peer(B), code, None, body).code == C.SUCCESS


@pytest.mark.parametrize("code", [row.code for row in BROKER_REQUESTS.values() if row.from_broker])
def test_what_strangers_send_is_not_decoded(node, code):
    """Brokers' bodies have no limit: 15 MB in fastjson's dialect would occupy the thread for a minute."""
    node.meet(B)
    stranger, command = FakePeer("10.9.9.9:50000"), node.command(code, None, b"{1:2," * 2_000)
    node.give(stranger, command)
    assert answer(stranger, command).code == C.NO_PERMISSION
    assert "JSON" in node.ask(peer(B), code, None, b"{1:2," * 2_000).remark


def test_a_broker_reports_for_itself_only(node):
    node.meet(B, C_)
    body = bodies.PeerMembersBody(broker_name=B, masters=[A, B])
    assert node.ask(peer(C_), R.PEER_MEMBERS, None, body).code == C.NO_PERMISSION


# Grants


def settled_group(node: Node) -> QueueGrant:
    """Settle a group of one member, which holds a queue here and one at b; return its grant at b."""
    node.create_topic("T", 1)
    node.meet(B, C_)
    member = FakePeer()
    assert node.join(member, HERE).code == C.SUCCESS
    for question in node.take(R.PEER_GATHER):
        node.answer(question, bodies.PeerGathered())
    node.routes("T", queues(a=1, b=1))
    node.pass_by(30)
    (question,) = node.take(R.PEER_GRANT, ADDRESSES[B])
    body = body_of(question, bodies.PeerGrantBody)
    node.granted = question
    (grant,) = body.grants
    assert (grant.queue.broker_name, body.complete) == (B, True)
    return grant


def test_queues_of_other_brokers_are_granted_there(node):
    """Nothing is assigned before the queues of other brokers are known."""
    grant = settled_group(node)
    assert grant.member == node.broker.members.coordination.group(HERE).members[0].member
    assert node.take(R.PEER_GRANT, ADDRESSES[C_]) == [], "it has no queue of the group"


def test_a_failed_grant_is_repeated_in_full(node):
    grant = settled_group(node)
    node.take(R.PEER_MEMBERS)
    node.answer(node.granted, RequestTimeout("no"))
    assert node.take(R.PEER_GRANT) == []
    node.pass_by(200)
    (beat,) = node.take(R.PEER_MEMBERS, ADDRESSES[B])
    assert body_of(beat, bodies.PeerMembersBody).complete
    node.answer(beat, True)
    (question,) = node.take(R.PEER_GRANT, ADDRESSES[B])
    body = body_of(question, bodies.PeerGrantBody)
    assert (body.complete, body.grants) == (True, [grant])


def test_a_broker_that_was_out_of_reach_hears_of_the_rebalance_it_missed(node):
    """Otherwise it would settle an earlier rebalance with its former members (seed 3012079)."""
    settled_group(node)
    node.answer(node.granted, RequestTimeout("no"))
    node.pass_by(200)
    node.take(R.PEER_STARTED), node.take(R.PEER_REBALANCE)
    (beat,) = node.take(R.PEER_MEMBERS, ADDRESSES[B])
    node.answer(beat, True)
    node.coordinate()
    sent = [question for question in node.asked if question.address == ADDRESSES[B]]
    codes = [question.call.code for question in sent if question.call.code != R.PEER_LIST]
    assert codes == [R.PEER_STARTED, R.PEER_GRANT, R.PEER_REBALANCE]
    started, grant, settled = (question for question in sent if question.call.code in codes)
    epoch = body_of(grant, bodies.PeerGrantBody).epoch
    assert body_of(started, bodies.PeerStartedBody) == bodies.PeerStartedBody(
        group=HERE, epoch=epoch, reason="broker_changed", who=HERE, members=["x"], is_repeated=True
    )
    body = body_of(settled, bodies.PeerRebalanceBody)
    assert (body.is_complete, body.members, len(body.uncommitted)) == (True, ["x"], 1)


def test_a_broker_that_was_out_of_reach_hears_of_static_members_that_returned(node):
    """It recorded their queues as moved to a client it mistook for another member (seed 463400)."""
    settled_group(node)
    node.answer(node.granted, RequestTimeout("no"))
    node.broker.cluster.others.peers.replaced(Replaced(HERE, "y-1", "y-2", "till"))
    node.broker.cluster.others.peers.replaced(Replaced(THERE, "z-1", "z-2", "desk"))
    node.broker.cluster.others.peers.replaced(Replaced(HERE, "y-2", "y-3", "till"))
    node.pass_by(200)
    node.take(R.PEER_REBALANCE)
    (beat,) = node.take(R.PEER_MEMBERS, ADDRESSES[B])
    node.answer(beat, True)
    node.coordinate()
    returned, _ = node.take(R.PEER_REBALANCE, ADDRESSES[B])
    assert body_of(returned, bodies.PeerRebalanceBody) == bodies.PeerRebalanceBody(
        group=HERE, replaced={"y-1": "y-2", "y-2": "y-3"}, instances={"y-2": "till", "y-3": "till"}
    )


def test_a_fence_with_a_higher_epoch_has_the_group_gathered_again(node):
    settled_group(node)
    node.answer(node.granted, 70)
    asked = node.take(R.PEER_GATHER)
    assert [question.address for question in asked] == [ADDRESSES[B], ADDRESSES[C_]]
    for question in asked:
        node.answer(question, bodies.PeerGathered(epoch=70))
    node.pass_by(30)
    group = node.broker.members.coordination.group(HERE)
    assert group.epoch > 70


@pytest.mark.parametrize("epoch", [2**40, 2**63 - 1])
def test_a_fence_with_an_impossible_epoch_is_left_out_of_a_gathering(node, epoch):
    """It used to be accepted, and the coordinator's next epoch exceeded what a message can carry."""
    settled_group(node)
    before = node.broker.members.coordination.group(HERE).epoch
    node.answer(node.granted, before + 1)
    first, second = node.take(R.PEER_GATHER)
    node.answer(first, bodies.PeerGathered(epoch=epoch))
    grant = QueueGrant(topic="T", broker_name=C_, queue_id=0, epoch=epoch, member="forged")
    node.answer(second, bodies.PeerGathered(open=[grant], members=["forged"], members_epoch=epoch))
    node.pass_by(30)
    group = node.broker.members.coordination.group(HERE)
    assert before < group.epoch < before + 10


@pytest.mark.parametrize("epoch", [2**40, 2**63 - 1])
def test_a_fence_that_is_far_ahead_is_approached_by_steps(node, epoch):
    settled_group(node)
    before = node.broker.members.coordination.group(HERE).epoch
    node.answer(node.granted, epoch)
    for question in node.take(R.PEER_GATHER):
        node.answer(question, bodies.PeerGathered(epoch=before))
    node.pass_by(30)
    after = node.broker.members.coordination.group(HERE).epoch
    assert EPOCHS_AHEAD_MAX // 2 < after - before < EPOCHS_AHEAD_MAX


@pytest.mark.parametrize("epoch", [2**40, 2**63 - 1])
def test_a_member_with_an_impossible_epoch_changes_nothing(node, epoch):
    settled_group(node)
    before = node.broker.members.coordination.group(HERE).epoch
    held = [QueueGrant(topic="T", broker_name=A, queue_id=0, epoch=epoch)]
    node.join(FakePeer(), HERE, held, client_id="claims")
    node.pass_by(30)
    assert node.broker.members.coordination.group(HERE).epoch < before + 10


# Removals


def test_peers_are_notified_of_deletions_at_once(node):
    node.create_topic("T", 1)
    node.meet(B, C_)
    node.ask(FakePeer(), R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    node.ask(FakePeer(), R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader(group_name="G"))
    told = [(q.address, body_of(q, bodies.PeerRemovedBody)) for q in node.take(R.PEER_REMOVED)]
    assert told == [
        (ADDRESSES[name], bodies.PeerRemovedBody(broker_name=A, **what))
        for what in ({"topic": "T"}, {"group": "G"})
        for name in (B, C_)
    ]


def test_a_broker_too_old_for_removals_stays_a_peer(node):
    """0.1.0 does not know the request; nothing more is pending for it than before."""
    node.create_topic("T", 1)
    node.meet(B, C_)
    node.ask(FakePeer(), R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    (question,) = node.take(R.PEER_REMOVED, ADDRESSES[B])
    node.take(R.PEER_MEMBERS)
    node.answer(question, broker_error(C.REQUEST_CODE_NOT_SUPPORTED, None))
    node.pass_by(RETRY_MS + 1)
    beats = [body_of(beat, bodies.PeerMembersBody) for beat in node.take(R.PEER_MEMBERS, ADDRESSES[B])]
    assert not any(beat.complete for beat in beats)


def test_a_topic_deleted_at_another_broker_is_granted_again_on_its_return(node):
    """The name server is queried at once; until it answers, the queue has no owner."""
    grant = settled_group(node)
    node.answer(node.granted, 1)
    body = bodies.PeerRemovedBody(broker_name=B, topic="T")
    assert node.ask(peer(B), R.PEER_REMOVED, None, body).code == C.SUCCESS
    node.pass_by(30)
    assert node.take(R.PEER_GRANT, ADDRESSES[B]) == []
    assert grant.queue not in node.broker.members.coordination.group(HERE).owners
    node.routes("T", queues(a=1, b=1))
    node.pass_by(30)
    (question,) = node.take(R.PEER_GRANT, ADDRESSES[B])
    (anew,) = body_of(question, bodies.PeerGrantBody).grants
    assert (anew.queue, anew.member) == (grant.queue, grant.member)
    assert anew.epoch > grant.epoch


def test_a_group_that_another_broker_deleted_is_gathered_and_granted_again(node):
    settled_group(node)
    node.answer(node.granted, 1)
    body = bodies.PeerRemovedBody(broker_name=B, group=HERE)
    assert node.ask(peer(B), R.PEER_REMOVED, None, body).code == C.SUCCESS
    assert [question.address for question in node.take(R.PEER_GATHER)] == [ADDRESSES[B], ADDRESSES[C_]]


# Take-over


def test_a_fence_that_does_not_answer_is_left_out_after_a_second(node):
    node.create_topic("T", 1)
    node.meet(B, C_)
    member = FakePeer()
    assert node.join(member, HERE).code == C.SUCCESS
    b, c = node.take(R.PEER_GATHER)
    node.routes("T", queues(a=1))
    opened = QueueGrant(topic="T", broker_name=B, queue_id=0, epoch=40, member="other")
    node.answer(b, bodies.PeerGathered(epoch=41, open=[opened]))
    node.pass_by(900)
    assert node.broker.members.coordination.group(HERE).epoch == 0
    node.pass_by(100)
    assert node.broker.members.coordination.group(HERE).epoch == 0, (
        "the member that reads there is waited for"
    )
    node.pass_by(10_000)
    assert node.broker.members.coordination.group(HERE).epoch > 41
    node.answer(c, bodies.PeerGathered(epoch=99))
    assert node.broker.members.coordination.group(HERE).epoch < 99, "too late"


def test_a_fence_that_does_not_know_us_yet_is_queried_again(node):
    """Brokers that start together see each other at different times; readers there once lost their queues."""
    node.create_topic("T", 1)
    node.meet(B)
    assert node.join(FakePeer(), HERE).code == C.SUCCESS
    node.routes("T", queues(a=1, b=1))
    (gather,) = node.take(R.PEER_GATHER)
    for _ in range(3):
        node.answer(gather, broker_error(C.NO_PERMISSION, "broker-a at 127.0.0.1 is no broker"))
        node.pass_by(AGAIN_MS)
        (gather,) = node.take(R.PEER_GATHER, ADDRESSES[B])
    opened = QueueGrant(topic="T", broker_name=B, queue_id=0, epoch=40, member="other")
    node.answer(gather, bodies.PeerGathered(epoch=40, open=[opened]))
    node.pass_by(100)
    assert node.broker.members.coordination.group(HERE).epoch == 0, (
        "the member that reads there is waited for"
    )
    node.pass_by(10_000)
    assert node.broker.members.coordination.group(HERE).epoch > 40


def test_a_broker_that_refuses_us_is_left_out_after_a_second(node):
    """It may have other credentials."""
    node.create_topic("T", 1)
    node.meet(B)
    assert node.join(FakePeer(), HERE).code == C.SUCCESS
    node.routes("T", queues(a=1))
    for _ in range(1_000 // AGAIN_MS):
        (gather,) = node.take(R.PEER_GATHER)
        node.answer(gather, broker_error(C.NO_PERMISSION, "broker-a at 127.0.0.1 is no broker"))
        node.pass_by(AGAIN_MS)
    node.pass_by(100)
    assert node.broker.members.coordination.group(HERE).epoch > 0


def test_groups_that_moved_to_another_coordinator_are_dropped(node):
    """Their members are redirected to the new coordinator."""
    grant = settled_group(node)
    (queue,) = (
        queue for queue in node.broker.members.coordination.group(HERE).owners if queue.broker_name == A
    )
    held = [grant, QueueGrant.of(queue, grant.epoch)]
    header = h.GroupPollHeader(consumer_group=HERE, lb_member=grant.member, lb_epoch=grant.epoch)
    member = FakePeer()
    poll = node.command(R.GROUP_POLL, header, bodies.GroupPollBody(held=held))
    node.give(member, poll)
    coordinator = coordinator_of(HERE, [A, B, C_, *MORE])
    node.live(1, B, C_, *MORE)
    told = answer(member, poll)
    assert (told.code, told.remark) == (C.NOT_COORDINATOR, ADDRESSES[coordinator])
    assert node.broker.members.coordination.group(HERE) is None


def test_a_member_that_leaves_its_former_coordinator_is_not_awaited_by_the_next_one(node):
    """It had not learned of the next one yet: its queues had no owner for a session (seed 4002143)."""
    grant = settled_group(node)
    node.live(1, B, C_, *MORE)
    assert node.broker.members.coordination.group(HERE) is None
    gather = bodies.PeerGatherBody(group=HERE)

    def members() -> list[str] | None:
        reply = node.ask(peer(B), R.PEER_GATHER, None, gather)
        return decode_body(reply.body, bodies.PeerGathered).members

    assert members() == [grant.member]
    header = h.GroupMemberHeader(consumer_group=HERE, lb_member=grant.member)
    told = node.ask(FakePeer(), R.GROUP_LEAVE, header, bodies.GroupLeaveBody())
    assert told.code == C.NOT_COORDINATOR
    assert members() == []


def test_brokers_that_meet_take_no_queue_from_its_reader(node):
    """Until name servers have reported the others' queues, those stay with their readers."""
    node.create_topic("T", 1)
    node.routes(BROKERS_TOPIC, brokers(A))
    member = FakePeer()
    assert node.join(member, HERE).code == C.SUCCESS
    node.pass_by(1_000)
    ((queue, ours),) = node.broker.members.coordination.group(HERE).owners.items()
    assert node.join(member, HERE, [QueueGrant.of(queue, ours.epoch)]).code == C.SUCCESS
    node.meet(B, C_)
    theirs = QueueGrant(topic="T", broker_name=B, queue_id=0, epoch=ours.epoch, member="b" * 32)
    b, c = node.take(R.PEER_GATHER)
    node.answer(b, bodies.PeerGathered(epoch=ours.epoch, open=[theirs]))
    node.answer(c, bodies.PeerGathered())
    assert node.join(FakePeer(), HERE, [theirs], client_id="y", member=theirs.member).code == C.SUCCESS
    node.pass_by(500)
    group = node.broker.members.coordination.group(HERE)
    assert {holding[:2] for holding in group.owners.values()} == {ours[:2], (theirs.member, theirs.epoch)}
    node.routes("T", queues(a=1, b=1))
    node.pass_by(30)
    assert node.broker.members.coordination.group(HERE).owners == group.owners


@pytest.mark.parametrize("others", [(), (B, C_)])
def test_a_single_broker_trusts_its_recorded_groups(tmp_path, others):
    """With other brokers around, one of them may have coordinated its groups meanwhile."""
    node = Node(tmp_path)
    settled_group(node)
    node.close()
    again = Node(tmp_path)
    again.meet(*others)
    assert (again.broker.members.coordination.group(HERE) is None) is bool(others)
    again.close()


# Members


def test_connected_clients_are_reported_to_their_groups_coordinator(node):
    """Changes are collected for a moment; after a lost connection the broker gets a complete report again."""
    node.meet(B, C_)
    stock, ours = FakePeer("10.1.1.1:1"), FakePeer("10.1.1.2:1")
    node.beat(stock, "java", THERE)
    node.beat(ours, "ours", THERE, stock=False)
    assert node.take(R.PEER_MEMBERS) == []
    node.pass_by(5)
    (beat,) = node.take(R.PEER_MEMBERS)
    body = body_of(beat, bodies.PeerMembersBody)
    assert (beat.address, body.complete, body.masters) == (ADDRESSES[B], False, [A, B, C_])
    told = [
        bodies.EdgeMember(client_id="java", stock=True, topics=("T",)),
        bodies.EdgeMember(client_id="ours", stock=False),
    ]
    assert body.groups == {THERE: told}
    node.answer(beat, True)
    node.broker.cluster.others.lost(ADDRESSES[B])
    node.pass_by(200)
    (beat,) = node.take(R.PEER_MEMBERS, ADDRESSES[B])
    body = body_of(beat, bodies.PeerMembersBody)
    assert (body.complete, body.groups) == (True, {THERE: told})
    node.answer(beat, False)
    (beat,) = node.take(R.PEER_MEMBERS, ADDRESSES[B])
    assert body_of(beat, bodies.PeerMembersBody).complete, "it has forgotten us"


def test_a_stock_client_anywhere_puts_the_group_into_client_mode(node):
    """The fences of all brokers are notified; a broker that is silent for too long is forgotten."""
    settled_group(node)
    stock = [bodies.EdgeMember(client_id="java")]
    assert node.told_by(B, [A, B, C_], complete=False, **{HERE: stock}) == "1"
    node.pass_by(10)
    modes = [body_of(each, bodies.PeerGrantBody).mode for each in node.take(R.PEER_GRANT, ADDRESSES[C_])]
    assert MODE_CLIENT in modes
    assert node.broker.members.coordination.group(HERE).mode == MODE_CLIENT
    node.live(9, B, C_)
    assert node.broker.members.coordination.group(HERE).mode == MODE_EPOCHS
    assert node.told_by(B, [A, B, C_], complete=False) == "0"


def test_a_fence_left_under_a_later_epoch_hears_of_client_mode_too(node):
    """The group has no LibraMQ members left; its fence would refuse stock members' commits for ever."""
    node.create_topic("T", 1)
    node.meet(B, C_)
    grants = [QueueGrant(topic="T", broker_name=A, queue_id=0, epoch=9, member="id")]
    left = bodies.PeerGrantBody(group=HERE, epoch=9, grants=grants, complete=True)
    assert node.ask(peer(B), R.PEER_GRANT, None, left).code == C.SUCCESS
    node.told_by(B, [A, B, C_], complete=False, **{HERE: [bodies.EdgeMember(client_id="java")]})
    node.pass_by(10)
    for name, epoch in ((B, 9), (C_, 12)):
        (question,) = node.take(R.PEER_GRANT, ADDRESSES[name])
        assert body_of(question, bodies.PeerGrantBody).epoch == 9
        node.answer(question, epoch)
    (again,) = node.take(R.PEER_GRANT, ADDRESSES[C_])
    body = body_of(again, bodies.PeerGrantBody)
    assert (body.mode, body.epoch) == (MODE_CLIENT, 12)
    node.answer(again, 12)
    assert node.take(R.PEER_GRANT, ADDRESSES[C_]) == []


def test_a_stock_client_that_joins_during_a_journal_write_counts(tmp_path):
    """The group is gathered once the disk has the join; the clients connected by then count."""
    node = Node(tmp_path, flush_disk_type="SYNC_FLUSH")
    node.meet()
    header = h.GroupJoinHeader(consumer_group=HERE, client_id="x", lb_session_ms=60_000)
    node.give(FakePeer(), node.command(R.GROUP_JOIN, header, GroupJoinBody(subscriptions={"T": "*"})))
    node.beat(FakePeer(), "java", HERE, stock=True)
    assert node.broker.members.coordination.group(HERE).mode == MODE_CLIENT
    node.flush()
    node.pass_by(1_000)
    node.flush()
    assert node.broker.members.coordination.group(HERE).mode == MODE_CLIENT
    node.close()


def test_grants_that_wait_for_the_disk_are_withdrawn_with_their_group(tmp_path):
    """The new coordinator asks the fences at once; it would give queues granted afterwards to others."""
    node = Node(tmp_path, flush_disk_type="SYNC_FLUSH")
    node.create_topic("T", 1)
    node.meet()
    member = FakePeer()
    header = h.GroupJoinHeader(consumer_group=THERE, client_id="x", lb_session_ms=60_000, lb_takes_openings=1)
    node.give(member, node.command(R.GROUP_JOIN, header, GroupJoinBody(subscriptions={"T": "*"})))
    node.flush()
    node.pass_by(1_000)
    assert node.broker.members.coordination.group(THERE).is_settled
    assert (node.broker.fences.epoch(THERE), member.replies) == (0, [])
    node.routes(BROKERS_TOPIC, brokers(A, B))
    node.flush()
    assert (node.broker.fences.epoch(THERE), node.broker.fences.openings(THERE)) == (0, {})
    (reply,) = member.replies
    assert (reply.code, reply.remark) == (C.NOT_COORDINATOR, ADDRESSES[B])
    node.close()


def test_a_member_list_is_published_when_all_brokers_agree(node):
    """It goes to the brokers that have members of the group and to local members, who are notified."""
    node.meet(B, C_)
    mine = FakePeer("10.1.1.1:1")
    node.beat(mine, "mine", HERE)
    mine.replies.clear()
    node.told_by(B, [A, B], complete=True, **{HERE: [bodies.EdgeMember(client_id="theirs")]})
    node.pass_by(10)
    assert node.take(R.PEER_LIST) == [], "broker b knows of no broker c: it may have told less than it has"
    mine.replies.clear()
    node.told_by(B, [A, B, C_], complete=True, **{HERE: [bodies.EdgeMember(client_id="theirs")]})
    node.pass_by(10)
    (told,) = node.take(R.PEER_LIST)
    assert told.address == ADDRESSES[B]
    assert body_of(told, bodies.PeerListBody).client_ids == ["mine", "theirs"]
    group = node.broker.members.consumers.group(HERE)
    assert node.broker.members.consumers.client_ids(group) == ["mine", "theirs"]
    assert notifications(mine) == [HERE]
    node.told_by(B, [A, B, C_], complete=False, **{HERE: []})
    node.pass_by(10)
    (told,) = node.take(R.PEER_LIST)
    assert (told.address, body_of(told, bodies.PeerListBody).client_ids) == (ADDRESSES[B], [])
    assert node.broker.members.consumers.client_ids(group) == ["mine"]


def test_an_edge_serves_its_coordinators_member_list(node):
    """Local changes wait for the coordinator too, so that no member fetches the list before it is right."""
    node.meet(B, C_)
    mine = FakePeer("10.1.1.1:1")
    node.beat(mine, "mine", THERE)
    mine.replies.clear()

    def told(version: int, *client_ids: str) -> None:
        body = bodies.PeerListBody(broker_name=B, group=THERE, version=version, client_ids=list(client_ids))
        assert node.ask(peer(B), R.PEER_LIST, None, body).code == C.SUCCESS

    told(1, "mine", "theirs")
    assert [reply.code for reply in mine.replies] == [R.NOTIFY_CONSUMER_IDS_CHANGED]
    mine.replies.clear()
    second = FakePeer("10.1.1.2:1")
    node.beat(second, "second", THERE)
    assert mine.replies == []
    header = h.GroupHeader(consumer_group=THERE)
    assert b"second" not in node.ask(mine, R.GET_CONSUMER_LIST_BY_GROUP, header).body
    told(2, "mine", "second", "theirs")
    assert [reply.code for reply in mine.replies] == [R.NOTIFY_CONSUMER_IDS_CHANGED]
    assert b"second" in node.ask(mine, R.GET_CONSUMER_LIST_BY_GROUP, header).body


# Members that query their assignment


def ask_for_queues(node: Node, member: FakePeer, group: str) -> Command:
    body = QueryAssignmentBody(topic="T", consumer_group=group, client_id="java", strategy_name="MINE")
    command = node.command(R.QUERY_ASSIGNMENT, None, body)
    node.give(member, command)
    return command


@pytest.mark.parametrize(
    ("outcome", "code", "body"),
    [
        (QueryAssignmentReply(message_queue_assignments=[]), C.SUCCESS, b'{"messageQueueAssignments":[]}'),
        (RequestTimeout("no"), C.SUCCESS, b"{}"),
        (broker_error(C.NO_PERMISSION, "you are no broker"), C.SUCCESS, b"{}"),
        (broker_error(C.INVALID_PARAMETER, "there is no strategy MINE"), C.INVALID_PARAMETER, b""),
    ],
    ids=["answered", "timeout", "refused", "no such strategy"],
)
def test_an_assignment_query_is_answered_by_the_groups_coordinator(node, outcome, code, body):
    """The query names the group's members connected here, as they may not have been reported yet."""
    node.meet(B, C_)
    member = FakePeer("10.1.1.1:1")
    node.beat(member, "java", THERE)
    command = ask_for_queues(node, member, THERE)
    (question,) = node.take(R.PEER_ASSIGN)
    asked = body_of(question, bodies.PeerAssignBody)
    assert (question.address, asked.client_id, asked.strategy_name) == (ADDRESSES[B], "java", "MINE")
    assert [(one.client_id, one.topics) for one in asked.members] == [("java", ("T",))]
    node.answer(question, outcome)
    reply = answer(member, command)
    assert (reply.code, reply.body) == (code, body)


def test_a_broker_decides_nothing_before_all_peers_have_reported(node):
    """Another broker may have recorded assignments of its members."""
    node.routes(BROKERS_TOPIC, brokers(A, B))
    node.create_topic("T", 2)
    member = FakePeer("10.1.1.1:1")
    node.beat(member, "java", HERE)
    assert answer(member, ask_for_queues(node, member, HERE)).body == b"{}"
    assignments = bodies.AssignmentUpdate(
        broker_name=B,
        group=HERE,
        version=7,
        assignments=[TopicAssignment(client_id="other", topic="T", queues={A: [0]})],
        is_whole=True,
    )
    others = {HERE: [bodies.EdgeMember(client_id="other", topics=("T",))]}
    body = bodies.PeerMembersBody(
        broker_name=B, masters=[A, B], groups=others, complete=True, assignments=[assignments]
    )
    node.ask(peer(B), R.PEER_MEMBERS, None, body)
    node.settle()
    node.routes("T", queues(a=2))
    reply = answer(member, ask_for_queues(node, member, HERE))
    found = decode_body(reply.body, QueryAssignmentReply).message_queue_assignments
    assert [one.message_queue.queue_id for one in found] == [1]


# Records of a group that is coordinated elsewhere


def begun_elsewhere(node: Node) -> FakePeer:
    """Have b's coordinator grant both local queues to a local client, which opens one; return the client."""
    node.meet(B)
    node.create_topic("T", 2)
    client = FakePeer()
    node.beat(client, "alice", THERE, stock=False)
    started = bodies.PeerStartedBody(
        group=THERE, epoch=2, reason="member_joined", who="alice", members=["alice"]
    )
    assert node.ask(peer(B), R.PEER_STARTED, None, started).code == C.SUCCESS
    grants = [QueueGrant(topic="T", broker_name=A, queue_id=n, epoch=2, member="id") for n in range(2)]
    body = bodies.PeerGrantBody(group=THERE, epoch=2, grants=grants, complete=True)
    assert node.ask(peer(B), R.PEER_GRANT, None, body).code == C.SUCCESS
    open_as(node, client, 0)
    return client


def open_as(node: Node, client: FakePeer, queue_id: int, member: str = "id", epoch: int = 2) -> None:
    header = h.OpenQueueHeader(
        consumer_group=THERE, topic="T", queue_id=queue_id, lb_member=member, lb_queue_epoch=epoch
    )
    assert node.ask(client, R.OPEN_QUEUE, header).code == C.SUCCESS


def told_to(node: Node, **fields: object) -> None:
    body = bodies.PeerRebalanceBody(group=THERE, **fields)
    assert node.ask(peer(B), R.PEER_REBALANCE, None, body).code == C.SUCCESS


def recorded(node: Node) -> RebalanceEvent:
    node.tick()  # It is stored after the turn that recorded it.
    return decode_event(node.messages("LIBRA_REBALANCE_EVENTS")[-1].body)


def test_a_brokers_part_settles_when_the_coordinator_and_the_members_are_done(node):
    client = begun_elsewhere(node)
    node.live(3, B)
    told_to(node, members=["alice"], is_complete=True)
    node.live(3, B)
    assert recorded(node).kind == "started", "one queue is not opened"
    open_as(node, client, 1)
    node.live(3, B)
    settled = recorded(node)
    assert (settled.kind, settled.unowned, settled.loads) == ("settled", 0, {"alice": 2})


@pytest.mark.parametrize(("epoch", "is_recorded"), [(2, False), (3, True)])
def test_a_repeated_start_is_recorded_only_if_it_was_missed(node, epoch, is_recorded):
    begun_elsewhere(node)
    before = recorded(node).seq
    started = bodies.PeerStartedBody(
        group=THERE, epoch=epoch, reason="broker_changed", who=THERE, members=["bob"], is_repeated=True
    )
    assert node.ask(peer(B), R.PEER_STARTED, None, started).code == C.SUCCESS
    node.settle()
    assert (recorded(node).seq > before) is is_recorded


def test_a_brokers_part_settles_without_the_coordinators_notice(node):
    """A coordinator of 0.2.0 sends none, and a notice may get lost."""
    client = begun_elsewhere(node)
    open_as(node, client, 1)
    node.live(UNREPORTED_MS // 1_000 - 1, B)
    assert recorded(node).kind == "started"
    node.live(3, B)
    assert (recorded(node).kind, recorded(node).loads) == ("settled", {"alice": 2})


def test_a_brokers_part_goes_by_openings_until_its_fence_does_not(node):
    """Stock members join while the coordinator is not heard, after the topic was deleted and created again.

    The fence still refuses every member without an opening, so the new queues have no owner.
    """
    client = begun_elsewhere(node)
    open_as(node, client, 1)
    told_to(node, members=["alice"], is_complete=True)
    node.live(3, B)
    assert recorded(node).loads == {"alice": 2}
    assert node.ask(client, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T")).code == C.SUCCESS
    node.create_topic("T", 2)
    started = bodies.PeerStartedBody(
        group=THERE, epoch=3, reason="broker_changed", who=THERE, members=["alice"]
    )
    assert node.ask(peer(B), R.PEER_STARTED, None, started).code == C.SUCCESS
    node.beat(FakePeer("10.0.0.78:1"), "java", THERE)
    node.live(5, B)
    assert recorded(node).kind == "started"


def test_a_brokers_part_recognises_a_restarted_static_member(node):
    client = begun_elsewhere(node)
    open_as(node, client, 1)
    node.pull(client, THERE, lb_member="id", lb_queue_epoch=2)
    again = FakePeer("10.0.0.77:1")
    node.beat(again, "alice-again", THERE, stock=False)
    told_to(node, replaced={"alice": "alice-again"})
    grants = [QueueGrant(topic="T", broker_name=A, queue_id=n, epoch=3, member="id-2") for n in range(2)]
    body = bodies.PeerGrantBody(group=THERE, epoch=3, grants=grants)
    assert node.ask(peer(B), R.PEER_GRANT, None, body).code == C.SUCCESS
    for queue_id in range(2):
        open_as(node, again, queue_id, "id-2", 3)
    told_to(node, members=["alice-again"], is_complete=True)
    node.live(3, B)
    settled = recorded(node)
    assert (settled.kind, settled.moved, settled.loads) == ("settled", 2, {"alice-again": 2})
    (moved,) = [
        event
        for message in node.messages("LIBRA_REBALANCE_EVENTS")
        if (event := decode_event(message.body)).kind == "moved"
    ]
    assert [(move.from_, move.to) for move in moved.moves or ()] == [(None, "alice-again")] * 2


def test_the_coordinator_notifies_peers_when_all_is_granted(node):
    settled_group(node)
    node.pass_by(50)
    told = {question.address: question for question in node.take(R.PEER_REBALANCE)}
    assert told.keys() == {ADDRESSES[B], ADDRESSES[C_]}
    body = body_of(told[ADDRESSES[B]], bodies.PeerRebalanceBody)
    assert (body.group, body.is_complete, body.members) == (HERE, True, ["x"])


# Impossible versions


@pytest.mark.parametrize("version", [2**62, 2**63 - 1])
def test_a_version_above_which_nothing_could_follow_is_refused(node, version):
    """It used to be accepted, after which the sender's true lists and tables counted as old for ever."""
    node.meet(B)
    client = FakePeer()
    node.beat(client, "x", THERE)
    forged = bodies.PeerListBody(broker_name=B, group=THERE, version=version, client_ids=["forged"])
    assignments = bodies.AssignmentUpdate(broker_name=B, group=THERE, version=version)
    members = bodies.PeerMembersBody(broker_name=B, masters=[A, B], assignments=[assignments])
    for code, body in ((R.PEER_LIST, forged), (R.PEER_ASSIGNMENTS, assignments), (R.PEER_MEMBERS, members)):
        reply = node.ask(peer(B), code, None, body)
        assert reply.code == C.INVALID_PARAMETER
        assert f"version {version}" in reply.remark
    true = bodies.PeerListBody(
        broker_name=B, group=THERE, version=node.clock.wall_ms(), client_ids=["x", "y"]
    )
    assert node.ask(peer(B), R.PEER_LIST, None, true).code == C.SUCCESS
    reply = node.ask(client, R.GET_CONSUMER_LIST_BY_GROUP, h.GroupHeader(consumer_group=THERE))
    assert b"forged" not in reply.body
    assert b'"y"' in reply.body


def test_the_version_of_a_broker_whose_clock_is_ahead_is_accepted(node):
    node.meet(B)
    node.beat(FakePeer(), "x", THERE)
    ahead = node.clock.wall_ms() + 5 * 365 * 86_400_000
    body = bodies.PeerListBody(broker_name=B, group=THERE, version=ahead, client_ids=["x", "y"])
    assert node.ask(peer(B), R.PEER_LIST, None, body).code == C.SUCCESS


@pytest.mark.parametrize(
    ("members", "code"),
    [
        (ConsumerNotOnline(C.CONSUMER_NOT_ONLINE, "not online"), C.SUCCESS),
        (ConsumerConnection(), C.SUCCESS),
        (ConsumerConnection(protocol="consumer"), C.SYSTEM_ERROR),
        (ConnectFailed("gone"), C.SYSTEM_BUSY),
    ],
    ids=["nobody", "RocketMQ's members", "Kafka's members", "no answer"],
)
def test_offsets_are_reset_once_the_coordinator_knows_no_members_of_kafka(
    tmp_path: Path, members: object, code: int
) -> None:
    node = Node(tmp_path).meet(B, C_)
    node.create_topic("T", 1)
    node.send(FakePeer(), "T", queue_id=0)
    node.ask(FakePeer(), R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body={"groupName": THERE})
    peer = FakePeer()
    reset = h.ResetOffsetHeader(topic="T", group=THERE, timestamp=-1, is_force=True)
    node.give(peer, node.command(R.INVOKE_BROKER_TO_RESET_OFFSET, reset))
    (question,) = node.take(R.GET_CONSUMER_CONNECTION_LIST, ADDRESSES[B])
    assert (peer.replies, node.broker.offsets.query(THERE, "T", 0)) == ([], None)
    node.answer(question, members)
    (reply,) = peer.replies
    assert reply.code == code, reply.remark
    assert node.broker.offsets.query(THERE, "T", 0) == (1 if code == C.SUCCESS else None)
    node.close()
