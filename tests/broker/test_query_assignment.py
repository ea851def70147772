"""QUERY_ASSIGNMENT: members that query their queues, alone and beside others that do not."""

from pathlib import Path

import pytest

from libramq.balance import averagely
from libramq.broker.groups.assigner import Assigner
from libramq.broker.processor.groups.query_assignment import QueryAssignment
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.formats.tables import MessageRequestMode
from libramq.groups.broker_assignment import REST_MS
from libramq.groups.cluster_view import ClusterView
from libramq.groups.pending_notifications import REPEAT_MS, ROUND_GAP_MS
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import QueryAssignmentBody, QueryAssignmentReply
from tests.broker.brokers import Conversation, notifications, subscription
from tests.fakes import FakePeer


@pytest.fixture
def bob() -> FakePeer:
    return FakePeer("10.0.0.8:1000")


def query(talk: Conversation, peer: FakePeer, who: str, topic: str = "T", **fields: object):
    body = QueryAssignmentBody(topic=topic, consumer_group="G", client_id=who, **fields)
    return talk.ask(peer, R.QUERY_ASSIGNMENT, None, body)


def assigned(
    talk: Conversation, peer: FakePeer, who: str, topic: str = "T", **fields: object
) -> set[int] | None:
    fields.setdefault("strategy_name", "AVG")
    reply = query(talk, peer, who, topic, **fields)
    assert reply.code == C.SUCCESS, reply.remark
    found = decode_body(reply.body, QueryAssignmentReply).message_queue_assignments
    return None if found is None else {one.message_queue.queue_id for one in found}


def look(talk: Conversation, peer: FakePeer) -> None:
    talk.ask(peer, R.GET_CONSUMER_LIST_BY_GROUP, h.GroupHeader(consumer_group="G"))


def pass_time(talk: Conversation, milliseconds: int) -> None:
    """Let time pass, and then the 50 ms between two ticks of the shell."""
    talk.clock.advance(milliseconds)
    talk.advance(50)


def test_the_answer_has_the_form_java_reads(talk, peer):
    talk.create_topic("T", 1)
    talk.beat(peer, "alice")
    body = fastjson.loads(query(talk, peer, "alice").body)
    queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
    assert body == {"messageQueueAssignments": [{"messageQueue": queue, "mode": "PULL"}]}


def test_a_newcomer_gets_its_share_after_the_old_owners_next_query(talk, peer, bob):
    """alice has four; bob's first answer is empty, alice's next lacks two, and bob is notified of them."""
    talk.create_topic("T", 4)
    talk.beat(peer, "alice")
    assert assigned(talk, peer, "alice") == {0, 1, 2, 3}
    talk.clock.advance(5_000)
    talk.beat(bob, "bob")
    assert assigned(talk, bob, "bob") == set()
    kept = assigned(talk, peer, "alice")
    assert len(kept) == 2
    assert notifications(bob) == ["G"]
    pass_time(talk, REST_MS)
    assert notifications(bob) == ["G"]
    assert assigned(talk, bob, "bob") == {0, 1, 2, 3} - kept
    talk.clock.advance(ROUND_GAP_MS)
    assigned(talk, bob, "bob")
    pass_time(talk, REPEAT_MS)
    assert notifications(bob) == []


def test_shares_are_even_across_topics_and_the_retry_topic_stays(talk, peer, bob):
    for topic in ("T", "U"):
        talk.create_topic(topic, 1)
    wants = [subscription("T"), subscription("U"), subscription("%RETRY%G")]
    for who, client_id in ((peer, "alice"), (bob, "bob")):
        talk.beat(who, client_id, subscriptions=wants)
    loads = [
        sum(len(assigned(talk, who, client_id, topic) or ()) for topic in ("T", "U"))
        for who, client_id in ((peer, "alice"), (bob, "bob"))
    ]
    assert loads == [1, 1]
    retry = [assigned(talk, peer, "alice", "%RETRY%G"), assigned(talk, bob, "bob", "%RETRY%G")]
    assert sorted(map(len, retry)) == [0, 1]


def test_the_queues_of_a_member_that_left_are_reassigned(talk, peer, bob):
    talk.create_topic("T", 4)
    talk.beat(peer, "alice")
    talk.beat(bob, "bob")
    mine, theirs = assigned(talk, peer, "alice"), assigned(talk, bob, "bob")
    assert mine | theirs == {0, 1, 2, 3}
    bob.is_open = False
    talk.performer.closed(bob)
    assert assigned(talk, peer, "alice") == mine
    talk.clock.advance(REST_MS)
    assert assigned(talk, peer, "alice") == {0, 1, 2, 3}


def test_beside_a_member_that_allocates_the_named_strategy_counts(talk, peer, bob):
    """Both compute the same from the same list; alice is notified that her answer has changed."""
    talk.create_topic("T", 5)
    talk.beat(peer, "alice")
    talk.beat(bob, "bob")
    assigned(talk, peer, "alice")
    notifications(peer)
    talk.clock.advance(ROUND_GAP_MS)
    assigned(talk, peer, "alice")
    look(talk, bob)
    pass_time(talk, 50)
    assert notifications(peer) == ["G"]
    queues = [MessageQueue("T", "broker-a", number) for number in range(5)]
    for client_id in ("alice", "bob"):
        share = averagely(client_id, queues, ["alice", "bob"])
        assert assigned(talk, peer, client_id) == {queue.queue_id for queue in share}
    assert assigned(talk, peer, "alice", strategy_name="AVG_BY_CIRCLE") == {0, 2, 4}


def test_libramq_members_allocate_beside_stock_members_before_their_first_look(talk, peer, bob):
    """After a broker's restart they continue with what they have; alice was once assigned that as well."""
    talk.create_topic("T", 5)
    talk.beat(peer, "alice")
    talk.beat(bob, "bob", stock=False)
    queues = [MessageQueue("T", "broker-a", number) for number in range(5)]
    share = averagely("alice", queues, ["alice", "bob"])
    assert assigned(talk, peer, "alice") == {queue.queue_id for queue in share}


def test_an_unknown_strategy_is_refused_where_it_matters(talk, peer, bob):
    talk.create_topic("T", 4)
    talk.beat(peer, "alice")
    assert assigned(talk, peer, "alice", strategy_name="MINE") == {0, 1, 2, 3}
    talk.beat(bob, "bob")
    look(talk, bob)
    reply = query(talk, peer, "alice", strategy_name="MINE")
    assert reply.code == C.INVALID_PARAMETER
    assert "there is no strategy 'MINE'; known are AVG, " in reply.remark
    reply = query(talk, peer, "alice", strategy_name="MACHINE_ROOM")
    assert "MACHINE_ROOM" in reply.remark


def test_an_unknown_member_keeps_its_queues(talk, peer):
    talk.create_topic("T", 4)
    assert assigned(talk, peer, "alice") is None
    talk.beat(peer, "alice")
    assert assigned(talk, peer, "bob") is None
    assert assigned(talk, peer, "alice", "Unknown") is None
    assert fastjson.loads(query(talk, peer, "alice", "Unknown").body) == {}


def test_a_broadcasting_member_reads_everything(talk, peer, bob):
    talk.create_topic("T", 2)
    talk.beat(peer, "alice", message_model="BROADCASTING")
    talk.beat(bob, "bob", message_model="BROADCASTING")
    for who, client_id in ((peer, "alice"), (bob, "bob")):
        assert assigned(talk, who, client_id, message_model="BROADCASTING") == {0, 1}


def test_new_queues_are_assigned(talk, peer):
    talk.create_topic("T", 2)
    talk.beat(peer, "alice")
    assert assigned(talk, peer, "alice") == {0, 1}
    talk.create_topic("T", 3)
    assert assigned(talk, peer, "alice") == {0, 1, 2}


@pytest.mark.parametrize(
    ("topic", "mode", "code"),
    [
        ("T", "PULL", C.SUCCESS),
        ("T", "POP", C.SUCCESS),
        ("T", "PUSH", C.INVALID_PARAMETER),
        ("%RETRY%G", "PULL", C.NO_PERMISSION),
        ("Unknown", "PULL", C.TOPIC_NOT_EXIST),
    ],
)
def test_a_mode_can_be_set(talk, peer, topic, mode, code):
    talk.create_topic("T")
    body = MessageRequestMode(topic=topic, consumer_group="G", mode=mode)
    reply = talk.ask(peer, R.SET_MESSAGE_REQUEST_MODE, None, body)
    assert reply.code == code


def test_members_of_a_group_that_pops_share_the_broker(talk, peer, bob):
    """Both get one assignment for all queues of the broker; a restart does not change that."""
    talk.create_topic("T", 4)
    body = MessageRequestMode(topic="T", consumer_group="G", mode="POP", pop_share_queue_num=-1)
    assert talk.ask(peer, R.SET_MESSAGE_REQUEST_MODE, None, body).code == C.SUCCESS
    for who, client_id in ((peer, "alice"), (bob, "bob")):
        talk.beat(who, client_id)
        reply = query(talk, who, client_id, strategy_name="AVG")
        queue = {"topic": "T", "brokerName": "broker-a", "queueId": -1}
        assert fastjson.loads(reply.body) == {
            "messageQueueAssignments": [{"messageQueue": queue, "mode": "POP"}]
        }
    assert query(talk, peer, "alice", strategy_name="CONFIG").code == C.INVALID_PARAMETER
    talk.kill()
    again = Conversation(Path(talk.config.store_path), clock=talk.clock)
    assert again.broker.tables.request_modes.is_popped("T", "G")
    again.kill()


@pytest.mark.parametrize(
    ("share", "queues", "expected"),
    [
        pytest.param(0, 8, [{-1}] * 4, id="0: all pop from the whole broker"),
        pytest.param(1, 8, [{0, 1, 2, 3}, {2, 3, 4, 5}, {4, 5, 6, 7}, {6, 7, 0, 1}], id="with the next one"),
        pytest.param(
            2, 4, [{0, 1, 2}, {1, 2, 3}, {2, 3, 0}, {3, 0, 1}], id="with the next two: each queue has three"
        ),
        pytest.param(3, 8, [{-1}] * 4, id="with all others"),
        pytest.param(1, 3, [{0}, {1}, {2}, {0}], id="more members than queues: one each"),
    ],
)
def test_members_that_pop_share_queues_with_the_next_ones(talk, share, queues, expected):
    """As in Apache's QueryAssignmentProcessor.allocate4Pop: member by member, in the order of their ids."""
    talk.create_topic("T", queues)
    body = MessageRequestMode(topic="T", consumer_group="G", mode="POP", pop_share_queue_num=share)
    peers = [FakePeer() for _ in range(4)]
    assert talk.ask(peers[0], R.SET_MESSAGE_REQUEST_MODE, None, body).code == C.SUCCESS
    names = ("alice", "bob", "carol", "dave")
    for who, name in zip(peers, names, strict=True):
        talk.beat(who, name)
    shares = [assigned(talk, who, name, strategy_name="AVG") for who, name in zip(peers, names, strict=True)]
    assert shares == expected


class Elsewhere:
    """Queues at another broker, by topic. None: not known yet."""

    def __init__(self, talk: Conversation, **counts: int | None) -> None:
        self.counts = counts
        self.here = talk.broker.topics.queues
        broker = talk.broker
        assigner = Assigner(
            consumers=broker.members.consumers,
            queues=self.queues,
            kernel=broker.kernel,
            view=ClusterView("broker-a", "127.0.0.1:10911", is_alone_for_good=True),
            peers=broker.members.assigner._peers,
        )
        processor = QueryAssignment(
            tables=broker.tables,
            clients=broker.members.consumers,
            queues=self.queues,
            assigner=assigner,
            answer=broker.responder.answer,
        )
        broker.processors.singly[R.QUERY_ASSIGNMENT] = processor.query  # type: ignore[index]

    def queues(self, topic: str) -> list[MessageQueue] | None:
        count = self.counts.get(topic, 0)
        if count is None:
            return None
        return [*self.here(topic), *(MessageQueue(topic, "broker-b", number) for number in range(count))]


def test_queues_of_all_brokers_are_shared(talk, peer, bob):
    talk.create_topic("T", 2)
    talk.beat(peer, "alice")
    talk.beat(bob, "bob")
    Elsewhere(talk, T=2)
    shares = [query(talk, who, name, strategy_name="AVG") for who, name in ((peer, "alice"), (bob, "bob"))]
    found = [decode_body(reply.body, QueryAssignmentReply).message_queue_assignments for reply in shares]
    queues = [one.message_queue.queue for share in found for one in share]
    assert [len(share) for share in found] == [2, 2]
    assert sorted(queues) == [MessageQueue("T", f"broker-{name}", n) for name in "ab" for n in (0, 1)]


def test_members_keep_their_queues_while_the_queues_of_others_are_unknown(talk, peer):
    talk.create_topic("T", 2)
    talk.create_topic("U", 2)
    talk.beat(peer, "alice", subscriptions=[subscription("T"), subscription("U")])
    elsewhere = Elsewhere(talk, U=None)
    assert assigned(talk, peer, "alice", "U") is None
    assert talk.broker.members.consumers.server_assigned_topics() == {"T", "U"}  # Their routes are queried.
    assert assigned(talk, peer, "alice", "T") is None
    elsewhere.counts["U"] = 0
    assert assigned(talk, peer, "alice", "T") == {0, 1}


def test_the_roster_has_the_connections_of_a_broker_that_is_alone(talk, peer, bob):
    talk.create_topic("T", 2)
    roster = talk.broker.members.consumers.roster
    for who, client in (("alice", peer), ("bob", bob)):
        talk.beat(client, who)
        assigned(talk, client, who)
    assert roster.client_ids("G") == ["alice", "bob"]
    talk.performer.closed(bob)
    assigned(talk, peer, "alice")
    assert roster.client_ids("G") == ["alice"]
    talk.performer.closed(peer)
    assert roster.client_ids("G") == []
