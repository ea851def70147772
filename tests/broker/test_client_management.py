"""Clients that connect, stay and leave: heartbeats, member lists, notifications, locks, rebalance events."""

import gc

import pytest

from libramq.broker.groups.client_watch import REPEAT_CHECK_MS
from libramq.broker.groups.consumer_clients import QUEUES_ANNOUNCED_MS
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import SystemBusy
from libramq.formats import fastjson
from libramq.formats.document import decode_body, encode_body
from libramq.formats.tables import SubscriptionGroupConfig
from libramq.groups.consumer_group import ANSWER_MS_MAX, SILENCE_MS_MAX
from libramq.groups.queue_lock import LOCK_GRACE_MS
from libramq.groups.rebalance_event import RebalanceEvent, decode_event
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import ConsumerList, LockBatchBody, LockBatchReply, QueueRef
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData, ProducerData
from tests.broker.brokers import Conversation, heartbeat, notifications, send_header, subscription
from tests.broker.test_pop import Popper
from tests.fakes import FakePeer

EVENTS = "LIBRA_REBALANCE_EVENTS"


@pytest.fixture
def bob() -> FakePeer:
    return FakePeer("10.0.0.8:1000")


def members(talk: Conversation, group: str = "G") -> list[str]:
    reply = talk.ask(FakePeer(), R.GET_CONSUMER_LIST_BY_GROUP, h.GroupHeader(consumer_group=group))
    return decode_body(reply.body, ConsumerList).consumer_id_list if reply.code == C.SUCCESS else []


def events(talk: Conversation) -> list[RebalanceEvent]:
    talk.tick()  # They are stored after the turn that recorded them.
    return [decode_event(message.body) for message in talk.messages(EVENTS)]


def close(talk: Conversation, peer: FakePeer) -> None:
    peer.is_open = False
    talk.performer.closed(peer)


def unregister(talk: Conversation, peer: FakePeer, client_id: str, group: str = "G"):
    header = h.UnregisterClientHeader(client_id=client_id, producer_group=None, consumer_group=group)
    return talk.ask(peer, R.UNREGISTER_CLIENT, header)


# Membership and notifications.


def test_a_heartbeat_creates_a_member_its_group_and_its_retry_topic(talk, peer):
    assert members(talk) == []
    reply = talk.beat(peer, "alice")
    assert reply.code == C.SUCCESS
    assert reply.version == 479
    assert members(talk) == ["alice"]
    assert "G" in talk.broker.groups
    retry = talk.broker.topics.get("%RETRY%G")
    assert (retry.write_queue_nums, retry.perm) == (1, 6)


def test_all_members_are_notified_of_a_new_one_and_of_nothing_else(talk, peer, bob):
    talk.beat(peer, "alice")
    assert notifications(peer) == ["G"]
    talk.beat(bob, "bob")
    assert notifications(peer) == ["G"]
    assert notifications(bob) == ["G"]
    talk.beat(peer, "alice")
    talk.beat(bob, "bob")
    assert notifications(peer) == notifications(bob) == []


@pytest.mark.parametrize("kind", ["unregister", "close", "silence"])
def test_remaining_members_are_notified_of_departures(talk, peer, bob, kind):
    talk.beat(peer, "alice")
    talk.beat(bob, "bob")
    notifications(peer)
    if kind == "unregister":
        assert unregister(talk, bob, "bob").code == C.SUCCESS
    elif kind == "close":
        close(talk, bob)
    else:
        talk.clock.advance(SILENCE_MS_MAX)
        talk.beat(peer, "alice")
        talk.advance(0)
        talk.advance(ANSWER_MS_MAX)
    assert notifications(peer) == ["G"]
    assert members(talk) == ["alice"]
    reason = {"unregister": "member_left", "close": "connection_closed", "silence": "session_expired"}[kind]
    gone = next(event for event in events(talk) if event.reason == reason)
    assert (gone.who, gone.members) == ("bob", ["alice"])


def test_a_client_cannot_be_unregistered_over_another_connection(talk, peer, bob):
    talk.beat(peer, "alice")
    talk.beat(bob, "bob")
    assert unregister(talk, FakePeer("10.6.6.6:1"), "bob").code == C.SUCCESS
    assert members(talk) == ["alice", "bob"]
    unregister(talk, bob, "alice")
    assert members(talk) == ["alice"]


def test_a_client_that_reconnects_causes_no_rebalance(talk, peer, bob):
    """The new connection arrives before the old one is seen to end, with the same client id."""
    talk.beat(peer, "alice")
    again = FakePeer("10.0.0.7:2000")
    talk.beat(again, "alice")
    assert members(talk) == ["alice"]
    close(talk, peer)
    assert members(talk) == ["alice"]
    assert [event.reason for event in events(talk)] == ["member_joined"]
    close(talk, again)
    assert members(talk) == []


def test_a_client_that_unregisters_and_is_back_in_one_read_has_left_before_it_joins(talk, peer):
    """In the opposite order, the coordinator's last news was that no member allocates for itself."""
    stock: list[object] = []
    talk.broker.members.consumers.observe_stock(lambda *change: stock.append(change))
    talk.beat(peer, "alice")
    header = h.UnregisterClientHeader(client_id="alice", producer_group=None, consumer_group="G")
    talk.give(
        peer, talk.command(R.UNREGISTER_CLIENT, header), talk.command(R.HEART_BEAT, None, heartbeat("alice"))
    )
    assert stock == [("G", ["alice"]), ("G", []), ("G", ["alice"])]
    assert [event.reason for event in events(talk)] == ["member_joined", "member_left", "member_joined"]


def test_members_of_a_group_whose_configuration_was_deleted_hear_of_those_who_go(talk, peer, bob):
    """Apache's broker does the same; the next heartbeat creates the group again."""
    talk.beat(peer, "alice")
    talk.beat(bob, "bob")
    talk.ask(FakePeer(), R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader(group_name="G", clean_offset=False))
    notifications(peer)
    unregister(talk, bob, "bob")
    assert notifications(peer) == ["G"]


def test_a_group_that_wants_no_notifications_and_a_broadcasting_one_get_none(talk, peer, bob):
    config = SubscriptionGroupConfig(group_name="Quiet", notify_consumer_ids_changed_enable=False)
    talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    for group, model in (("Quiet", "CLUSTERING"), ("Loud", "BROADCASTING")):
        talk.beat(peer, "alice", group, message_model=model)
        talk.beat(bob, "bob", group, message_model=model)
    assert notifications(peer) == notifications(bob) == []
    assert {event.group for event in events(talk)} == {"Quiet"}


def test_a_changed_subscription_is_announced_and_an_older_one_ignored(talk, peer):
    talk.beat(peer, "alice", subscriptions=[subscription("T", "a", 10)])
    notifications(peer)
    talk.beat(peer, "alice", subscriptions=[subscription("T", "b", 9)])
    assert notifications(peer) == []
    talk.beat(peer, "alice", subscriptions=[subscription("T", "b", 11)])
    assert notifications(peer) == ["G"]
    talk.beat(peer, "alice", subscriptions=[])
    assert notifications(peer) == ["G"]
    assert [event.reason for event in events(talk)][1:] == ["subscription_changed"] * 2


def test_subscriptions_of_all_members_are_bounded(talk, peer, bob):
    """Twenty connections with new groups of 200 long expressions each took 124 MB in half a minute."""
    long_ones = [subscription(f"T{number}", "a" * 60_000) for number in range(20)]
    kept = [talk.beat(peer, "alice", f"G{number}", subscriptions=long_ones).code for number in range(10)]
    assert kept == [C.SUCCESS] * 8 + [C.SYSTEM_BUSY] * 2
    assert members(talk, "G1") == ["alice"]
    assert members(talk, "G8") == []
    assert talk.beat(peer, "alice", "G1", subscriptions=long_ones).code == C.SUCCESS, "it has its room"
    assert talk.beat(bob, "bob", "Other").code == C.SUCCESS
    close(talk, peer)
    assert talk.beat(bob, "bob", "G9", subscriptions=long_ones).code == C.SUCCESS


def test_one_group_leaves_as_much_room_to_all_others(talk, peer, monkeypatch):
    """A user with one group took all 16 MB with two heartbeats: no other user's consumers could start."""
    monkeypatch.setattr("libramq.groups.consumer_group.SUBSCRIPTION_BYTES_MAX", 10_000)
    crowd = [FakePeer(f"127.0.0.1:{number}") for number in range(40_000, 40_030)]
    codes = [
        talk.beat(each, each.address, "Greedy", subscriptions=[subscription("T", "a" * 400)]).code
        for each in crowd
    ]
    assert codes == [C.SUCCESS] * 3 + [C.SYSTEM_BUSY] * 27
    assert talk.beat(peer, "alice", "G", subscriptions=[subscription("T", "a" * 400)]).code == C.SUCCESS
    shorter = [subscription("T", "a" * 200)]
    assert talk.beat(crowd[0], crowd[0].address, "Greedy", subscriptions=shorter).code == C.SUCCESS


def test_a_refused_heartbeat_leaves_nothing_for_the_garbage_collector(talk, peer, monkeypatch):
    """Its error kept the decoded heartbeat in a cycle: refused ones of 600 KB grew a broker by 225 MB."""
    monkeypatch.setattr("libramq.groups.consumer_group.SUBSCRIPTION_BYTES_MAX", 100)
    long_ones = [subscription("T", "a" * 1_000)]
    assert talk.beat(peer, "alice", subscriptions=long_ones).code == C.SYSTEM_BUSY
    gc.collect()
    gc.disable()
    try:
        assert talk.beat(peer, "alice", subscriptions=long_ones).code == C.SYSTEM_BUSY
        assert not [found for found in gc.get_objects() if isinstance(found, HeartbeatData)]
        assert not [found for found in gc.get_objects() if isinstance(found, SystemBusy)]
    finally:
        gc.enable()


def test_a_group_that_may_not_be_created_is_skipped(tmp_path, peer):
    talk = Conversation(tmp_path, auto_create_subscription_group=False)
    assert talk.beat(peer, "alice").code == C.SUCCESS
    assert members(talk) == []
    talk.close()


def test_a_group_with_an_invalid_name_is_skipped(talk, peer):
    assert talk.beat(peer, "alice", "../G").code == C.SUCCESS
    assert members(talk, "../G") == []
    assert not [topic for topic in talk.broker.topics if ".." in topic.topic_name]


@pytest.mark.parametrize("client_id", ["", "x" * 256])
def test_an_invalid_client_id_is_refused(talk, peer, client_id):
    assert talk.beat(peer, client_id).code == C.INVALID_PARAMETER


def test_the_groups_of_a_heartbeat_are_limited(talk, peer):
    data = HeartbeatData(
        client_id="c", consumer_data_set=[ConsumerData(group_name=f"G{n}") for n in range(1_001)]
    )
    assert talk.ask(peer, R.HEART_BEAT, None, data).code == C.INVALID_PARAMETER
    assert len(list(talk.broker.groups)) < 100


def test_producer_groups_with_invalid_names_are_not_kept(talk, peer):
    data = HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name="x" * 10_000)])
    assert talk.ask(peer, R.HEART_BEAT, None, data).code == C.SUCCESS
    assert talk.broker.members.producers.members("x" * 10_000) == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"clientID":5,"consumerDataSet":7}', b"\xff" * 20])
def test_an_invalid_heartbeat_is_refused(talk, peer, body):
    command = talk.command(R.HEART_BEAT, None, body)
    talk.give(peer, command)
    assert peer.replies[0].code != C.SUCCESS


# Version 2.


def changes(reply) -> tuple[str, str]:
    return reply.ext["IS_SUPPORT_HEART_BEAT_V2"], reply.ext["IS_SUB_CHANGE"]


def test_heartbeats_of_version_2_carry_fingerprints(talk, peer, bob):
    """There is one fingerprint per group: a changed one means that some member has other subscriptions."""
    assert changes(talk.beat(peer, "alice", fingerprint=11)) == ("true", "false")
    assert changes(talk.beat(peer, "alice", fingerprint=11, without_sub=True, subscriptions=[])) == (
        "true",
        "false",
    )
    assert list(talk.broker.members.consumers.group("G").subscriptions) == ["T"]
    assert changes(talk.beat(bob, "bob", fingerprint=22)) == ("true", "true")
    assert changes(talk.beat(bob, "bob", fingerprint=22)) == ("true", "false")
    assert changes(talk.beat(peer, "alice", fingerprint=11)) == ("true", "true")


def test_a_heartbeat_of_version_1_always_reports_a_change(talk, peer):
    assert changes(talk.beat(peer, "alice")) == ("true", "true")
    assert changes(talk.beat(peer, "alice", fingerprint=11)) == ("true", "true")
    assert changes(talk.beat(peer, "alice", fingerprint=11)) == ("true", "false")


def test_a_member_that_omits_its_subscriptions_after_a_restart_must_send_them_again(talk, peer):
    reply = talk.beat(peer, "alice", fingerprint=11, without_sub=True, subscriptions=[])
    assert changes(reply) == ("true", "true")
    assert members(talk) == ["alice"]


# Filters that clients may check.


def test_which_filters_can_be_served(talk, peer):
    def check(**fields):
        body = encode_body({"clientId": "c", "group": "G", "subscriptionData": subscription("T", **fields)})
        return talk.ask(peer, R.CHECK_CLIENT_CONFIG, None, body).code

    assert check() == C.SUCCESS
    assert check(expression_type="SQL92", sub_string="a > 3") == C.SUCCESS
    assert check(expression_type="SQL92") == C.SUBSCRIPTION_PARSE_FAILED
    assert check(expression_type="CLASS") == C.SUBSCRIPTION_PARSE_FAILED
    assert talk.ask(peer, R.CHECK_CLIENT_CONFIG, None, b"{}").code == C.SUCCESS


# Locks.


def lock(
    talk: Conversation, peer: FakePeer, client_id: str, *queue_ids: int, code: R = R.LOCK_BATCH_MQ, **fields
):
    refs = [QueueRef(topic=fields.get("topic", "T"), broker_name="broker-a", queue_id=n) for n in queue_ids]
    body = LockBatchBody(consumer_group=fields.get("group", "G"), client_id=client_id, mq_set=refs)
    reply = talk.ask(peer, code, None, body)
    assert reply.code == C.SUCCESS
    if code == R.UNLOCK_BATCH_MQ:
        return None
    return [ref.queue_id for ref in decode_body(reply.body, LockBatchReply).lock_ok_mq_set]


@pytest.fixture
def orderly(talk, peer, bob):
    talk.create_topic("T")
    talk.beat(peer, "alice")
    talk.beat(bob, "bob")
    return talk


def test_queues_are_locked_by_one_client_at_a_time(orderly, peer, bob):
    assert lock(orderly, peer, "alice", 0, 1, 1) == [0, 1]
    assert lock(orderly, bob, "bob", 1, 2) == [2]
    orderly.clock.advance(60_001)
    assert lock(orderly, bob, "bob", 1) == [1]


def test_only_the_holder_unlocks_and_only_from_its_own_machine(orderly, peer, bob):
    lock(orderly, peer, "alice", 0)
    lock(orderly, bob, "alice", 0, code=R.UNLOCK_BATCH_MQ)
    lock(orderly, FakePeer("10.6.6.6:1"), "alice", 0, code=R.UNLOCK_BATCH_MQ)
    assert lock(orderly, bob, "bob", 0) == []
    lock(orderly, FakePeer("10.0.0.7:9999"), "alice", 0, code=R.UNLOCK_BATCH_MQ)
    assert lock(orderly, bob, "bob", 0) == [0]


def test_a_client_that_locked_before_its_first_heartbeat_can_unlock(orderly, peer, bob):
    """The broker has restarted, and the client locked its queue before its first heartbeat arrived."""
    carol = FakePeer("10.0.0.8:1")
    assert lock(orderly, carol, "carol", 0) == [0]
    lock(orderly, carol, "carol", 0, code=R.UNLOCK_BATCH_MQ)
    assert lock(orderly, bob, "bob", 0) == [0]


def test_the_locks_of_a_client_that_ends_before_its_first_heartbeat_are_free_after_the_grace(orderly, bob):
    """The broker has restarted, and the client was killed before its first heartbeat."""
    carol = FakePeer("10.0.0.8:1")
    assert lock(orderly, carol, "carol", 0, 1) == [0, 1]
    notifications(bob)
    close(orderly, carol)
    assert (lock(orderly, bob, "bob", 0), notifications(bob)) == ([], [])
    orderly.advance(LOCK_GRACE_MS + REPEAT_CHECK_MS)
    assert notifications(bob) == ["G"]
    assert lock(orderly, bob, "bob", 0) == [0]


def test_a_client_that_is_back_in_time_keeps_its_locks(orderly, bob):
    """It locks again, as Java's clients do before their next heartbeat, whichever connection ends last."""
    first, second = FakePeer("10.0.0.8:1"), FakePeer("10.0.0.8:2")
    assert lock(orderly, first, "carol", 0) == [0]
    close(orderly, first)
    assert lock(orderly, second, "carol", 0) == [0]
    orderly.advance(LOCK_GRACE_MS)
    assert lock(orderly, bob, "bob", 0) == []
    third = FakePeer("10.0.0.8:3")
    assert lock(orderly, third, "carol", 0) == [0]
    close(orderly, second)
    orderly.advance(LOCK_GRACE_MS)
    assert lock(orderly, bob, "bob", 0) == []


def test_members_of_a_group_whose_configuration_was_deleted_keep_their_locks(orderly, peer):
    """The next heartbeat creates the group again; with Java's client that may take half a minute."""
    assert lock(orderly, peer, "alice", 0) == [0]
    header = h.DeleteGroupHeader(group_name="G", clean_offset=False)
    orderly.ask(FakePeer(), R.DELETE_SUBSCRIPTIONGROUP, header)
    assert lock(orderly, peer, "alice", 0, 1) == [0, 1]


def test_a_client_that_has_introduced_itself_since_is_a_member_like_others(orderly, bob):
    early, later = FakePeer("10.0.0.8:1"), FakePeer("10.0.0.8:2")
    assert lock(orderly, early, "carol", 0) == [0]
    orderly.beat(later, "carol")
    close(orderly, early)
    orderly.advance(LOCK_GRACE_MS)
    assert lock(orderly, bob, "bob", 0) == []


def test_queues_that_do_not_exist_are_not_locked(orderly, peer):
    assert lock(orderly, peer, "alice", 3, 4, -1) == [3]
    assert lock(orderly, peer, "alice", 0, topic="NoSuch") == []
    assert lock(orderly, peer, "alice", 0, group="NoSuch") == []
    foreign = LockBatchBody(
        consumer_group="G", client_id="alice",
        mq_set=[QueueRef(topic="T", broker_name="broker-b", queue_id=0)],
    )  # fmt: skip
    reply = orderly.ask(peer, R.LOCK_BATCH_MQ, None, foreign)
    assert fastjson.loads(reply.body) == {"lockOKMQSet": []}
    assert orderly.broker.members.locks._locks.keys() <= {"G"}


# Rebalance events.


def pull(talk: Conversation, peer: FakePeer, *queue_ids: int, offset: int = 0) -> None:
    for queue_id in queue_ids:
        talk.give(
            peer, talk.pull_command(queue_id=queue_id, queue_offset=offset, suspend_timeout_millis=20_000)
        )


def test_a_join_is_recorded_as_started_moved_and_settled(talk, peer, bob):
    talk.create_topic("T")
    talk.beat(peer, "alice")
    pull(talk, peer, 0, 1, 2, 3)
    talk.advance(2_000)
    started_ms = talk.clock.wall_ms()
    talk.beat(bob, "bob")
    talk.clock.advance(700)
    pull(talk, bob, 2, 3)
    talk.advance(2_000)
    found = events(talk)
    assert [event.kind for event in found] == ["started", "moved", "settled", "started", "moved", "settled"]
    _, _, _, started, moved, settled = found
    assert (started.v, started.group, started.reason, started.who, started.at_ms) == (
        1, "G", "member_joined", "bob", started_ms,
    )  # fmt: skip
    assert [(move.queue, move.from_, move.to, move.pause_ms) for move in moved.moves] == [
        (2, "alice", "bob", 700), (3, "alice", "bob", 700),
    ]  # fmt: skip
    assert (settled.moved, settled.minimum, settled.time_to_stable_ms) == (2, 2, 700)
    assert settled.loads == {"alice": 2, "bob": 2}
    message = talk.messages(EVENTS)[-1]
    assert (message.keys, message.tags) == (("G",), "settled")


def test_a_kill_is_recorded_with_the_bound_of_redelivery(talk, peer, bob):
    talk.create_topic("T", queues=1)
    for _ in range(10):
        talk.send(FakePeer())
    talk.beat(peer, "alice")
    pull(talk, peer, 0)
    talk.beat(bob, "bob")
    talk.advance(2_000)
    close(talk, peer)
    talk.clock.advance(300)
    pull(talk, bob, 0, offset=4)
    talk.advance(2_000)
    settled = events(talk)[-1]
    assert (settled.kind, settled.redelivered_upper_bound, settled.loads) == ("settled", 6, {"bob": 1})


def test_a_topic_that_gets_more_queues_starts_a_rebalance(talk, peer):
    talk.create_topic("T", queues=1)
    talk.beat(peer, "alice")
    pull(talk, peer, 0)
    talk.advance(2_000)
    notifications(peer)
    talk.create_topic("T", queues=2)
    assert notifications(peer) == [], "it would find the old queues at the name servers"
    talk.advance(QUEUES_ANNOUNCED_MS + REPEAT_CHECK_MS)
    assert notifications(peer) == ["G"]
    talk.clock.advance(100)
    pull(talk, peer, 1)
    talk.advance(2_000)
    started, _, settled = events(talk)[-3:]
    assert (started.reason, started.who) == ("queue_count_changed", "T")
    assert (settled.moved, settled.loads) == (1, {"alice": 2})


def test_a_reader_of_the_events_is_woken_by_a_close(talk, peer, bob):
    talk.beat(peer, "alice")
    talk.tick()
    command = talk.pull_command("Watchers", EVENTS, queue_offset=1, suspend_timeout_millis=20_000)
    talk.give(bob, command)
    close(talk, peer)
    talk.tick()
    (reply,) = [one for one in bob.replies if one.opaque == command.opaque]
    assert b"connection_closed" in reply.body


def test_clients_read_events_and_do_not_write_them(talk, peer):
    talk.beat(peer, "alice")
    talk.tick()
    assert talk.pull(peer, topic=EVENTS).code == C.SUCCESS
    assert talk.send(peer, EVENTS, default_topic=EVENTS).code == C.NO_PERMISSION
    talk.tell(peer, R.SEND_MESSAGE_V2, send_header(EVENTS), b"forged")
    header = h.CreateTopicHeader(topic=EVENTS, read_queue_nums=1, write_queue_nums=1, perm=6)
    assert talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC, header).code == C.INVALID_PARAMETER
    assert talk.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic=EVENTS)).code == C.INVALID_PARAMETER
    talk.send(peer, "T", properties={"DELAY": "1", "REAL_TOPIC": EVENTS, "REAL_QID": "0"})
    talk.advance(60_000)
    assert all(event.group == "G" for event in events(talk))
    assert [message.body for message in talk.messages("T")] == [b"hello"]


def test_broadcasting_members_leave_nothing_behind(talk, peer):
    talk.create_topic("T")
    talk.beat(peer, "alice", message_model="BROADCASTING")
    pull(talk, peer, 0)
    close(talk, peer)
    talk.advance(2_000)
    assert talk.broker.members.consumers.rebalances.observed("G") is None


def test_a_group_without_members_is_forgotten(talk, peer):
    talk.create_topic("T")
    talk.beat(peer, "alice")
    pull(talk, peer, 0)
    talk.advance(2_000)
    close(talk, peer)
    talk.advance(2_000)
    assert talk.broker.members.consumers.rebalances.observed("G") is None
    assert events(talk)[-1].kind == "settled"


def test_a_failing_note_of_a_rebalance_stops_neither_the_others_nor_a_pull(talk, peer):
    talk.create_topic("T")
    talk.beat(peer, "alice")
    noted = []
    rebalances = talk.broker.members.consumers.rebalances
    for note in (lambda _: noted.append(1), lambda _: 1 // 0, lambda _: noted.append(2)):
        rebalances.note_later(note)
    talk.send(peer)
    assert talk.pull(peer).code == C.SUCCESS
    assert noted == [1, 2]


def test_queues_are_named_with_the_brokers_name(orderly, peer):
    lock(orderly, peer, "alice", 0)
    assert list(orderly.broker.members.locks._locks["G"]) == [MessageQueue("T", "broker-a", 0)]
    assert heartbeat("x").consumer_data_set[0].group_name == "G"


# Clients of a coordinator.


def test_every_heartbeat_answer_offers_coordinators(talk, peer):
    assert talk.beat(peer, "alice").ext["libraGroups"] == "1"


def test_coordinated_members_are_listed_but_neither_notified_nor_recorded(talk, peer, bob):
    talk.beat(peer, "alice", stock=False)
    talk.beat(bob, "bob", stock=False)
    talk.beat(bob, "bob", stock=False, subscriptions=[subscription("T", "a", 10)])
    assert members(talk) == ["alice", "bob"]
    close(talk, bob)
    talk.create_topic("T", 4)
    talk.create_topic("T", 8)
    assert notifications(peer) == notifications(bob) == []
    assert events(talk) == []


def test_one_stock_member_makes_all_members_receive_notifications(talk, peer, bob):
    stock: list[object] = []
    talk.broker.members.consumers.observe_stock(lambda *change: stock.append(change))
    talk.beat(peer, "alice", stock=False)
    talk.beat(bob, "bob")
    talk.beat(bob, "bob")
    assert notifications(peer) == notifications(bob) == ["G"]
    carol = FakePeer("10.0.0.9:1")
    talk.beat(carol, "carol", stock=False)
    assert notifications(peer) == ["G"]
    close(talk, bob)
    assert stock == [("G", ["bob"]), ("G", [])]
    assert [(event.reason, event.who) for event in events(talk)] == [
        ("member_joined", "bob"),
        ("member_joined", "carol"),
        ("connection_closed", "bob"),
    ]
    notifications(peer)
    close(talk, carol)
    talk.advance(1_000)
    assert notifications(peer) == []


def test_a_client_that_finds_a_coordinator_stops_allocating(talk, peer):
    stock: list[object] = []
    talk.broker.members.consumers.observe_stock(lambda *change: stock.append(change))
    talk.beat(peer, "alice")
    talk.beat(peer, "alice", stock=False)
    talk.beat(FakePeer("10.0.0.9:1"), "carol", "Loud", message_model="BROADCASTING")
    assert stock == [("G", ["alice"]), ("G", [])]
    assert members(talk) == ["alice"]


def test_members_that_pop_own_no_queues_and_their_group_settles(talk, peer):
    """Without a message request mode the group was "still moving" for ever, with its queues unread."""
    talk.create_topic("T")
    talk.beat(peer, "alice")
    popper = Popper(talk)
    popper.peer = peer
    assert popper.pop() == []
    talk.advance(2_000)
    assert [event.kind for event in events(talk)] == ["started", "settled"]
    (group,) = talk.broker.members.consumers.groups()
    assert talk.broker.members.consumers.rebalances.read_by_two_and_by_none(group, age_ms=1_000)[1] == []
    pull(talk, peer, 0)
    assert not talk.broker.members.consumers.rebalances.is_popped("T", "G")


def test_members_hear_of_departures_though_an_observer_of_another_group_fails(talk: Conversation):
    """The members of all groups but the first were not notified for a second."""

    def fail(group: str) -> None:
        if group == "G1":
            raise RuntimeError("a bug")

    stays, leaves = FakePeer("10.0.0.1:1"), FakePeer("10.0.0.2:1")
    for group in ("G1", "G2"):
        talk.beat(stays, "stays", group)
        talk.beat(leaves, "leaves", group)
    notifications(stays)
    talk.broker.members.consumers.observe_members(fail)
    with pytest.raises(AssertionError, match="what follows from an event failed"):
        talk.performer.closed(leaves)
    talk.performer.follow()
    assert "G2" in notifications(stays)
