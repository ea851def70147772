"""A broker's diagnoses of its groups, and where it reports them."""

from libramq.broker.groups import group_health
from libramq.broker.groups.group_health import (
    LOOK_MS,
    MIXED_MS,
    ORDERLY_STALLED_MS,
    SETTLING_MS,
    STALLED_MS,
)
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.groups.diagnosis import Kind
from libramq.groups.pending_notifications import ROUND_GAP_MS
from libramq.groups.rebalance_event import RebalanceEvent, decode_event
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import ConsumerConnection, LockBatchBody, QueueRef
from libramq.remoting.body.coordination import GroupJoinBody, GroupLeaveBody
from tests.broker.brokers import Conversation, subscription
from tests.broker.test_pop import Popper
from tests.fakes import FakePeer


def kinds(talk: Conversation) -> list[tuple[str, str]]:
    """Return the diagnoses as `libra groups` requests them, after time for the next check."""
    talk.advance(LOOK_MS)
    reply = talk.ask(FakePeer(), R.GET_CONSUMER_CONNECTION_LIST, h.GroupHeader(consumer_group="G"))
    if reply.code == C.CONSUMER_NOT_ONLINE:
        return []
    return [(one.kind, one.about) for one in decode_body(reply.body, ConsumerConnection).diagnoses]


def events(talk: Conversation) -> list[RebalanceEvent]:
    talk.tick()  # They are stored after the turn that recorded them.
    return [decode_event(message.body) for message in talk.messages("LIBRA_REBALANCE_EVENTS")]


def join(talk: Conversation, *client_ids: str, **fields: object) -> list[FakePeer]:
    peers = [FakePeer(f"10.0.0.{number}:1000") for number in range(len(client_ids))]
    for peer, client_id in zip(peers, client_ids, strict=True):
        talk.beat(peer, client_id, **fields)
    return peers


def test_a_healthy_group_has_no_diagnosis(talk):
    talk.create_topic("T", 4)
    join(talk, "alice", "bob")
    assert kinds(talk) == []


def test_a_topic_that_no_broker_has_is_reported_until_somebody_creates_it(talk, peer):
    """Its members wait silently. Retry and dead-letter topics are created with their first message."""
    talk.create_topic("T", 4)
    topics = [subscription(name) for name in ("T", "Ordres", "%LMQ%x", "%RETRY%G", "%DLQ%other")]
    talk.beat(peer, "alice", subscriptions=topics)
    assert kinds(talk) == [(Kind.NO_TOPIC, "")]
    assert "members wait for topics that no broker has: Ordres;" in text(talk)
    talk.create_topic("Ordres", 1)
    assert kinds(talk) == []


def test_every_diagnosis_has_a_sentence(talk):
    talk.create_topic("T", 1)
    join(talk, "alice", "bob")
    assert kinds(talk) == [(Kind.IDLE_MEMBERS, "")]
    reply = talk.ask(FakePeer(), R.GET_CONSUMER_CONNECTION_LIST, h.GroupHeader(consumer_group="G"))
    (told,) = fastjson.loads(reply.body)["diagnoses"]
    assert told["text"].startswith("2 members share 1 queue,")


def test_a_client_id_used_twice_is_reported_until_it_ends(talk):
    talk.create_topic("T", 4)
    first, second = join(talk, "same", "same")
    assert kinds(talk) == [(Kind.DUPLICATE_CLIENT_IDS, "same")]
    second.is_open = False
    talk.performer.closed(second)
    assert kinds(talk) == []
    assert first.is_open


def text(talk: Conversation) -> str:
    reply = talk.ask(FakePeer(), R.GET_CONSUMER_CONNECTION_LIST, h.GroupHeader(consumer_group="G"))
    return " ".join(one.text for one in decode_body(reply.body, ConsumerConnection).diagnoses)


def test_members_of_a_coordinated_group_that_name_other_strategies_are_reported(talk):
    """A coordinator gives each queue one reader, so the queues showed no symptom."""
    talk.create_topic("T", 4)
    for name, strategy in (("alice", "AVG"), ("bob", "balanced_sticky"), ("carol", "AVG")):
        peer = FakePeer(f"10.0.0.{len(name)}:1000")
        talk.beat(peer, name, stock=False)
        header = h.GroupJoinHeader(consumer_group="G", client_id=name, lb_session_ms=60_000)
        body = GroupJoinBody(subscriptions={"T": "*"}, strategy=strategy)
        member = talk.ask(peer, R.GROUP_JOIN, header, body).ext["lbMember"]
        if name != "bob":
            assert kinds(talk) == ([] if name == "alice" else [(Kind.STRATEGIES_DIFFER, "strategy")])
        else:
            bob = peer, h.GroupMemberHeader(consumer_group="G", lb_member=member)
    assert "alice, carol with strategy AVG; bob with strategy balanced_sticky" in text(talk)
    assert talk.ask(bob[0], R.GROUP_LEAVE, bob[1], GroupLeaveBody()).code == 0
    assert kinds(talk) == []


def test_the_coordinator_reports_strategies_of_members_that_send_it_no_heartbeat(talk):
    """It may have no topic of the group; members send heartbeats to brokers that have one."""
    talk.create_topic("T", 4)
    for name, strategy in (("alice", "AVG"), ("bob", "balanced_sticky")):
        header = h.GroupJoinHeader(consumer_group="G", client_id=name, lb_session_ms=60_000)
        body = GroupJoinBody(subscriptions={"T": "*"}, strategy=strategy)
        reply = talk.ask(FakePeer(), R.GROUP_JOIN, header, body)
        assert (reply.code, reply.remark) == (0, None)
    assert kinds(talk) == [(Kind.STRATEGIES_DIFFER, "strategy")]
    assert "alice with strategy AVG; bob with strategy balanced_sticky" in text(talk)


def test_a_group_that_is_popped_and_pulled_is_reported_and_one_that_changes_is_not(talk):
    talk.create_topic("T", 4)
    (puller,) = join(talk, "alice")
    popper = Popper(talk)
    popper.pop()
    talk.pull(puller)
    assert kinds(talk) == []
    popper.pop()
    assert kinds(talk) == [(Kind.STRATEGIES_DIFFER, "pop")]
    assert "members pop T beside others that own its queues" in text(talk)
    talk.advance(MIXED_MS)
    assert kinds(talk) == []


def test_an_orderly_member_of_a_coordinated_group_beside_another_is_reported(talk):
    """No member locks queues there, so the locks showed no symptom."""
    talk.create_topic("T", 4)
    found = []
    for name, orderly in (("old", None), ("alice", True), ("bob", False)):
        peer = FakePeer(f"10.0.0.{len(name)}:1000")
        talk.beat(peer, name, stock=False)
        header = h.GroupJoinHeader(consumer_group="G", client_id=name, lb_session_ms=60_000)
        member = talk.ask(
            peer, R.GROUP_JOIN, header, GroupJoinBody(subscriptions={"T": "*"}, orderly=orderly)
        )
        found.append(kinds(talk))
    assert found == [[], [], [(Kind.STRATEGIES_DIFFER, "order")]]
    assert "alice consume in order, and bob do not: the order" in text(talk)
    leaving = h.GroupMemberHeader(consumer_group="G", lb_member=member.ext["lbMember"])
    assert talk.ask(peer, R.GROUP_LEAVE, leaving, GroupLeaveBody()).code == 0
    assert kinds(talk) == []


def test_an_orderly_member_beside_another_is_reported(talk):
    talk.create_topic("T", 2)
    alice, bob = join(talk, "alice", "bob")
    queues = [QueueRef(topic="T", broker_name="broker-a", queue_id=queue_id) for queue_id in (0, 1)]

    def lock(peer: FakePeer, name: str, queue_id: int) -> None:
        body = LockBatchBody(consumer_group="G", client_id=name, mq_set=[queues[queue_id]])
        assert talk.ask(peer, R.LOCK_BATCH_MQ, None, body).code == 0

    lock(alice, "alice", 0)
    talk.pull(alice, queue_id=0)
    talk.pull(bob, queue_id=1)
    kinds(talk)
    assert (Kind.STRATEGIES_DIFFER, "order") in kinds(talk)
    assert "alice consume in order, and bob do not: the order" in text(talk)
    lock(bob, "bob", 1)
    assert kinds(talk) == []


def test_what_was_seen_of_a_group_whose_members_have_gone_does_not_count(talk):
    """The observation was kept for ever, and counted as the previous check when they returned."""
    talk.create_topic("T", 2)
    talk.beat(FakePeer("10.1.0.0:1000"), "carol", "H")
    body = LockBatchBody(
        consumer_group="G",
        client_id="alice",
        mq_set=[QueueRef(topic="T", broker_name="broker-a", queue_id=0)],
    )
    for _ in range(2):
        alice, bob = join(talk, "alice", "bob")
        assert talk.ask(alice, R.LOCK_BATCH_MQ, None, body).code == 0
        talk.pull(alice, queue_id=0)
        talk.pull(bob, queue_id=1)
        assert (Kind.STRATEGIES_DIFFER, "order") not in kinds(talk)
        for peer in (alice, bob):
            talk.performer.closed(peer)
        talk.advance(LOOK_MS)


def test_members_with_different_subscriptions_are_reported(talk):
    talk.create_topic("T", 4)
    alice, bob = join(talk, "alice", "bob")
    talk.beat(bob, "bob", subscriptions=[subscription("T", "a", 2)])
    assert kinds(talk) == [(Kind.SUBSCRIPTIONS_DIFFER, "")]
    talk.beat(alice, "alice", subscriptions=[subscription("T", "a", 2)])
    assert kinds(talk) == []


def test_different_tags_in_a_coordinated_group_are_reported(talk):
    """Each member makes the group lose what the other subscribes to. The start and the end are recorded."""
    talk.create_topic("T", 4)
    _, bob = join(talk, "alice", "bob", stock=False, subscriptions=[subscription("T", "a")])
    assert kinds(talk) == []
    talk.beat(bob, "bob", stock=False, subscriptions=[subscription("T", "b", 2)])
    assert kinds(talk) == [(Kind.SUBSCRIPTIONS_DIFFER, "")]
    assert talk.broker.members.health.kinds() == {"G": frozenset({"subscriptions_differ"})}
    talk.beat(bob, "bob", stock=False, subscriptions=[subscription("T", "a", 3)])
    assert kinds(talk) == []
    (found, over) = [event for event in events(talk) if event.diagnosis]
    assert (found.kind, found.group, found.diagnosis) == ("diagnosed", "G", "subscriptions_differ")
    assert (found.text or "").startswith("of T, alice wants 'a' and bob wants 'b': ")
    assert (over.kind, over.diagnosis, over.text) == ("recovered", "subscriptions_differ", None)


def test_different_kinds_of_filter_in_a_coordinated_group_are_reported(talk):
    talk.create_topic("T", 4)
    _, bob = join(talk, "alice", "bob", stock=False, subscriptions=[subscription("T", "a")])
    sql = subscription("T", "a", 2, expression_type="SQL92")
    talk.beat(bob, "bob", stock=False, subscriptions=[sql])
    assert kinds(talk) == [(Kind.SUBSCRIPTIONS_DIFFER, "")]


def test_different_topics_in_a_coordinated_group_are_reported(talk):
    """Its coordinator assigns queues only to members that subscribe to their topic; retries are passed on."""
    talk.create_topic("T", 4)
    talk.create_topic("U", 4)
    _, bob = join(talk, "alice", "bob", stock=False)
    talk.beat(bob, "bob", stock=False, subscriptions=[subscription("U")])
    assert kinds(talk) == [(Kind.SUBSCRIPTIONS_DIFFER, "")]


def stalled(talk: Conversation, peer: FakePeer, milliseconds: int, **fields: object) -> bool:
    """Return whether the group has stalled after this long, during which its member sends heartbeats."""
    for _ in range(0, milliseconds, LOOK_MS):
        talk.advance(LOOK_MS)
        talk.beat(peer, "alice", **fields)
    found = kinds(talk)
    assert found in ([], [(Kind.STALLED, "")])
    return bool(found)


def test_a_group_whose_offset_does_not_move_is_reported(talk, peer, caplog):
    """A handler hangs from its start, or later; a group that moves on, or has read all, is well."""
    talk.create_topic("T", 2)
    talk.beat(peer, "alice")
    for _ in range(3):
        talk.send(FakePeer(), "T", queue_id=1)
    talk.pull(peer, queue_id=1, queue_offset=0)
    assert not stalled(talk, peer, STALLED_MS - 2 * LOOK_MS)
    assert stalled(talk, peer, 3 * LOOK_MS)
    assert "T:1 at 0" in text(talk)
    assert "diagnosis=stalled" in caplog.text
    for offset in (1, 3):
        header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=1, commit_offset=offset)
        assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code == C.SUCCESS
        assert not stalled(talk, peer, STALLED_MS - 2 * LOOK_MS)
    assert not stalled(talk, peer, STALLED_MS)


def test_queues_in_which_messages_wait_are_kept_up_to_a_bound(talk, peer, monkeypatch):
    """Any group reads any retry topic from its first message: 1,000 groups took 300 MB for 1,000 queues."""
    monkeypatch.setattr(group_health, "WAITING_MAX", 3)
    talk.create_topic("%RETRY%X", 5)
    for queue_id in range(5):
        talk.send(FakePeer(), "%RETRY%X", queue_id=queue_id)
    topics = [subscription("%RETRY%X")]
    talk.beat(peer, "alice", subscriptions=topics)
    others = [FakePeer(f"10.0.1.{number}:1") for number in range(3)]
    for number, other in enumerate(others):
        talk.beat(other, f"other-{number}", group=f"H{number}", subscriptions=topics)
    stalls = talk.broker.members.health._stalls
    for _ in range(STALLED_MS // 20_000 + 1):
        for number, other in enumerate(others):
            talk.beat(other, f"other-{number}", group=f"H{number}", subscriptions=topics)
        talk.beat(peer, "alice", subscriptions=topics)
        talk.advance(20_000)
        assert sum(map(len, stalls._since.values())) == 3
    assert kinds(talk) == [(Kind.STALLED, "")]


def test_an_orderly_group_that_fails_at_a_message_is_reported_after_a_minute(talk, peer):
    """Its members retry the message in place and send nothing back."""
    talk.create_topic("T", 1)
    talk.beat(peer, "alice")
    talk.send(FakePeer(), "T")
    talk.pull(peer)
    body = LockBatchBody(
        consumer_group="G",
        client_id="alice",
        mq_set=[QueueRef(topic="T", broker_name="broker-a", queue_id=0)],
    )
    for _ in range(ORDERLY_STALLED_MS // 20_000 + 1):
        assert talk.ask(peer, R.LOCK_BATCH_MQ, None, body).code == C.SUCCESS
        found = stalled(talk, peer, 20_000)
    assert found


def test_a_group_that_ends_while_its_queues_are_looked_at_has_not_stalled(talk, peer):
    talk.create_topic("T", 1)
    talk.beat(peer, "alice")
    talk.send(FakePeer(), "T")
    talk.pull(peer)
    assert stalled(talk, peer, STALLED_MS + 2 * LOOK_MS)
    health = talk.broker.members.health
    steps = health.look({})
    for _ in range(2):  # The group, and the first of its queues.
        next(steps)
    peer.is_open = False
    talk.performer.closed(peer)
    for _ in steps:
        pass
    assert health.kinds() == {}


def test_one_problem_of_a_thousand_members_is_one_event(talk):
    talk.create_topic("T", 4)
    peers = join(talk, *[f"client-{number}" for number in range(20)])
    for _ in range(2):
        talk.clock.advance(60_000)
        for number, member in enumerate(peers):
            talk.beat(member, f"client-{number}")
    assert len({about for kind, about in kinds(talk) if kind == Kind.SLOW_HEARTBEATS}) == 20
    assert [event.diagnosis for event in events(talk) if event.kind == "diagnosed"].count(
        "slow_heartbeats"
    ) == 1


def test_heartbeats_a_minute_apart_are_reported(talk, peer):
    talk.create_topic("T", 4)
    for _ in range(3):
        talk.beat(peer, "alice")
        talk.clock.advance(60_000)
    assert kinds(talk) == [(Kind.SLOW_HEARTBEATS, "alice")]


def test_two_readers_of_one_queue_are_reported(talk):
    """Both have fetched the list; then both pull queue 0 in turn."""
    talk.create_topic("T", 2)
    peers = join(talk, "alice", "bob")
    talk.clock.advance(ROUND_GAP_MS)
    for peer in peers:
        talk.ask(peer, R.GET_CONSUMER_LIST_BY_GROUP, h.GroupHeader(consumer_group="G"))
    talk.advance(50)
    talk.advance(SETTLING_MS)
    talk.pull(peers[0], queue_id=1)
    for peer in (peers[0], peers[1], peers[0]):
        talk.clock.advance(1_000)
        talk.pull(peer, queue_id=0)
    assert (Kind.STRATEGIES_DIFFER, "") in kinds(talk)


def test_broadcasting_members_are_not_compared(talk):
    talk.create_topic("T", 1)
    join(talk, "alice", "bob", message_model="BROADCASTING")
    assert kinds(talk) == []


def test_members_that_their_coordinator_does_not_answer_are_reported_by_whoever_hears_them(talk):
    """They report it in heartbeats, which also reach brokers other than the coordinator's."""
    talk.create_topic("T", 4)
    alice, _ = join(talk, "alice", "bob", stock=False)
    talk.beat(alice, "alice", stock=False, lease_ended=True)
    assert kinds(talk) == [(Kind.LEASES_ENDED, "")]
    talk.beat(alice, "alice", stock=False)
    assert kinds(talk) == []


def test_a_group_has_not_stalled_while_its_broker_stood_still(talk, peer):
    """Its members could not commit then; earlier stalls continue to count."""
    talk.create_topic("T", 1)
    talk.beat(peer, "alice")
    talk.send(FakePeer(), "T")
    talk.pull(peer)
    assert not stalled(talk, peer, 4 * LOOK_MS)
    talk.clock.advance(2 * STALLED_MS)
    talk.beat(peer, "alice")
    assert not stalled(talk, peer, STALLED_MS - 8 * LOOK_MS)
    assert stalled(talk, peer, 8 * LOOK_MS)
