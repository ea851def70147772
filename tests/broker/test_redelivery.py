"""Messages delivered later: delay levels, send-backs, retry topics and dead letters."""

import itertools

import pytest

from libramq.broker.files.delay_schedule import DelaySchedule
from libramq.catalog.destinations import Destinations
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.tables import SubscriptionGroupConfig
from libramq.message.properties import properties_to_text
from libramq.remoting import headers as h
from libramq.store.log.append import StoreMessage
from tests.broker.brokers import Conversation, send_header
from tests.fakes import FakePeer, turns_of

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def send_back(talk: Conversation, peer: FakePeer, offset: int, level: int = 0, **fields: object):
    header = h.SendBackHeader(offset=offset, group="G", delay_level=level, **fields)  # type: ignore[arg-type]
    return talk.ask(peer, R.CONSUMER_SEND_MSG_BACK, header).code


@pytest.fixture
def failed(talk: Conversation, peer: FakePeer) -> Conversation:
    """A broker with a message at physical offset 0 that a consumer of G could not handle."""
    talk.send(peer, body=b"x", properties={"TAGS": "red", "UNIQ_KEY": "K", "WAIT": "true"}, flag=9)
    talk.beat(peer, "alice")
    return talk


# Delay levels.


@pytest.mark.parametrize(
    ("level", "queue", "delay_ms"),
    [("1", 0, 1_000), ("3", 2, 10_000), ("99", 17, 7_200_000)],
)
def test_a_delayed_message_waits_in_its_levels_queue_until_it_is_due(talk, peer, level, queue, delay_ms):
    reply = talk.send(peer, "T", queue_id=2, properties={"DELAY": level, "TAGS": "red"}, flag=4)
    assert (reply.code, reply.ext["queueId"]) == (C.SUCCESS, "2")
    (waiting,) = talk.messages(SCHEDULE, queue)
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("T", "2")
    talk.extend_deadlines(delay_ms - 1_000)
    talk.advance(999)
    assert talk.messages("T", 2) == []
    talk.advance(1)
    (message,) = talk.messages("T", 2)
    assert (message.body, message.flag, message.born_timestamp_ms) == (b"hello", 4, 12_345)
    assert message.born_host == ("10.0.0.7", 4711)
    assert (
        message.properties.items()
        >= {"WAIT": "false", "DELAY": level, "REAL_TOPIC": "T", "TAGS": "red"}.items()
    )
    talk.advance(30_000)
    assert len(talk.messages("T", 2)) == 1


def test_a_delayed_message_is_filtered_by_its_tag_on_delivery(talk, peer):
    talk.create_topic("T", queues=1)
    for tag in ("red", "blue"):
        talk.send(peer, properties={"DELAY": "1", "TAGS": tag})
    talk.advance(1_000)
    reply = talk.pull(peer, subscription="blue")
    assert reply.code == C.SUCCESS
    assert reply.body.count(b"blue") == 1
    assert b"red" not in reply.body


@pytest.mark.parametrize("level", ["0", "-1", "soon", "", "1.5", "9" * 5_000])
def test_an_invalid_level_delays_nothing(talk, peer, level):
    talk.send(peer, properties={"DELAY": level})
    assert len(talk.messages("T")) == 1 or "9" in level
    assert all(not talk.messages(SCHEDULE, queue) for queue in range(17))


def test_a_due_message_wakes_a_held_pull(talk, peer):
    talk.create_topic("T", queues=1)
    talk.send(FakePeer(), properties={"DELAY": "1"})
    command = talk.pull_command(suspend_timeout_millis=15_000)
    talk.give(peer, command)
    talk.advance(1_000)
    assert [reply.code for reply in peer.replies] == [C.SUCCESS]


def test_many_due_messages_are_all_delivered_in_order(talk, peer):
    talk.create_topic("T", queues=1)
    for first in (0, 600):  # Two reads: the answers to all of them are more than a turn sends.
        talk.give(
            peer,
            *(
                talk.command(R.SEND_MESSAGE_V2, send_header(properties={"DELAY": "1"}), str(n).encode())
                for n in range(first, first + 600)
            ),
        )
    talk.clock.advance(1_000)
    while talk.broker.schedule.deliver(talk.clock.monotonic_ms()):
        pass
    assert [int(message.body) for message in talk.messages("T")] == list(range(1_200))


def test_a_level_with_many_due_messages_lets_others_and_other_levels_go_on(talk, peer):
    """Its first 512 used to be one turn of 15 ms."""
    talk.create_topic("T", queues=1)
    for _ in range(200):
        talk.send(peer, properties={"DELAY": "2"})
    talk.advance(4_000)
    talk.send(peer, properties={"DELAY": "1"}, body=b"of another level")
    talk.broker.kernel.workload.begin_turn = turns_of(1)
    ends = [0]
    while ends[-1] < 201:
        talk.clock.advance(100)
        talk.tick()
        ends.append(talk.broker.store.max_offset("T", 0))
    assert max(after - before for before, after in itertools.pairwise(ends)) <= 32
    bodies = [message.body for message in talk.messages("T")]
    assert bodies.index(b"of another level") < 200


@pytest.mark.parametrize("set_by_ms", [-3_600_000, 3_600_000], ids=["back", "forward"])
def test_setting_the_wall_clock_does_not_change_a_delay(talk, peer, set_by_ms):
    talk.send(peer, properties={"DELAY": "2"})
    talk.advance(1_000)
    talk.clock.set_wall(set_by_ms)
    talk.send(peer, properties={"DELAY": "2"}, body=b"after")
    talk.advance(3_999)
    assert talk.messages("T") == []
    talk.advance(1)
    assert [message.body for message in talk.messages("T")] == [b"hello"]
    talk.advance(999)
    assert len(talk.messages("T")) == 1
    talk.advance(1)
    assert [message.body for message in talk.messages("T")][1:] == [b"after"]


@pytest.mark.parametrize("moved_ms", [-90, 1, 90])
def test_a_clock_that_moves_a_little_delivers_nothing_at_once(talk, peer, moved_ms):
    """Clock synchronisation does so all the time; such a message seemed to come from the future."""
    talk.clock.set_wall(moved_ms)
    talk.send(peer, properties={"DELAY": "1"})
    talk.advance(900)
    assert talk.messages("T") == []
    talk.advance(200)
    assert len(talk.messages("T")) == 1


@pytest.mark.parametrize("paused_ms", [1, 5_000])
def test_a_round_that_began_before_a_message_was_stored_does_not_deliver_it(talk, peer, paused_ms):
    began_ms = talk.clock.monotonic_ms()
    talk.clock.advance(paused_ms)
    talk.send(peer, properties={"DELAY": "1"})
    talk.broker.schedule.deliver(began_ms)
    assert talk.messages("T") == []
    talk.advance(1_000)
    assert len(talk.messages("T")) == 1


def test_a_message_stored_in_the_future_by_an_earlier_process_is_delivered_at_once(tmp_path, peer):
    talk = Conversation(tmp_path)
    talk.send(peer, properties={"DELAY": "5"})
    talk.close()
    talk.clock.set_wall(-3_600_000)
    again = Conversation(tmp_path, clock=talk.clock)
    again.advance(0)
    assert len(again.messages("T")) == 1
    again.close()


def test_the_offset_of_a_level_survives_a_stop(tmp_path, peer):
    talk = Conversation(tmp_path)
    talk.send(peer, properties={"DELAY": "1"})
    talk.advance(1_000)
    talk.close()
    assert '"offsetTable"' in (tmp_path / "config" / "delayOffset.json").read_text()
    again = Conversation(tmp_path, clock=talk.clock)
    again.advance(60_000)
    assert len(again.messages("T")) == 1
    again.close()


def test_a_level_whose_offset_lies_beyond_its_queue_begins_again(talk, peer):
    """Otherwise pending messages would be lost, or skipped until there are as many as before the crash."""
    talk.send(peer, properties={"DELAY": "1"})
    schedule = DelaySchedule(
        talk.broker.store,
        talk.config.delay_levels_ms,
        {1: 500},
        {},
        Destinations(talk.broker.topics),
        clock=talk.clock,
    )
    talk.clock.advance(1_000)
    assert schedule.deliver(talk.clock.monotonic_ms()) == 1
    assert schedule.offsets[1] == 1
    talk.send(peer, properties={"DELAY": "1"})
    talk.clock.advance(1_000)
    assert schedule.deliver(talk.clock.monotonic_ms()) == 1


def test_a_full_disk_keeps_due_messages_waiting(talk, peer):
    talk.create_topic("T", queues=1)
    for n in range(3):
        talk.send(peer, body=str(n).encode(), properties={"DELAY": "1"})
    talk.disk.bytes_left = 0
    talk.advance(1_000)
    assert talk.messages("T") == []
    talk.disk.bytes_left = None
    talk.advance(10_000)
    assert [message.body for message in talk.messages("T")] == [b"0", b"1", b"2"]


def test_a_disk_that_is_full_when_a_broker_starts_keeps_due_messages_waiting(tmp_path, peer):
    """The first check of a level found no room, and the next one came only with another message."""
    talk = Conversation(tmp_path)
    talk.send(peer, properties={"DELAY": "1"})
    talk.close()
    talk.clock.advance(1_000)
    again = Conversation(tmp_path, clock=talk.clock)
    again.disk.bytes_left = 0
    again.advance(1_000)
    assert again.messages("T") == []
    again.disk.bytes_left = None
    again.advance(10_000)
    assert len(again.messages("T")) == 1
    again.close()


def test_a_message_with_the_most_properties_is_delivered_and_blocks_nothing(talk, peer):
    """WAIT=false is added when a message is due; a level was blocked for ever when that did not fit."""
    talk.create_topic("T", queues=1)
    room = 32_767
    for size in range(room, 0, -1):
        text = properties_to_text({"UNIQ_KEY": "K", "DELAY": "1", "k": "v" * size})
        if talk.send(peer, properties=text).code == C.SUCCESS:
            break
    talk.send(peer, body=b"next", properties={"DELAY": "1"})
    talk.advance(1_000)
    first, second = talk.messages("T")
    assert (len(first.properties["k"]) > 32_000, "WAIT" in first.properties) == (True, False)
    assert second.body == b"next"


def test_a_due_message_that_the_store_refuses_is_skipped(talk, peer):
    talk.create_topic("T", queues=1)
    impossible = StoreMessage(SCHEDULE, 0, b"x", b"DELAY\x011\x02REAL_TOPIC\x01../up\x02REAL_QID\x010\x02")
    assert talk.broker.store.append_batch([impossible])[0].is_ok
    talk.send(peer, body=b"next", properties={"DELAY": "1"})
    talk.advance(1_000)
    assert [message.body for message in talk.messages("T")] == [b"next"]


# Send-backs.


def test_a_message_that_is_sent_back_is_redelivered_through_the_retry_topic(failed, peer):
    assert send_back(failed, peer, 0, origin_msg_id="K") == C.SUCCESS
    assert failed.messages("%RETRY%G") == []
    failed.advance(9_999)
    assert failed.messages("%RETRY%G") == []
    failed.advance(1)
    (again,) = failed.messages("%RETRY%G")
    assert (again.body, again.flag, again.reconsume_times, again.tags) == (b"x", 9, 1, "red")
    assert (again.born_timestamp_ms, again.born_host) == (12_345, ("10.0.0.7", 4711))
    assert again.properties.items() >= {
        "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "K", "WAIT": "false", "UNIQ_KEY": "K",
    }.items()  # fmt: skip


def test_a_message_without_a_unique_id_is_sent_back_by_its_offset_id_alone(talk, peer):
    """A broker's own message may have taken a lost one's place: no handler must get it (seed 8200401)."""
    talk.send(peer, body=b"x", properties={"TAGS": "red"})
    talk.beat(peer, "alice")
    assert send_back(talk, peer, 0, origin_msg_id="LOST") == C.SYSTEM_ERROR
    assert send_back(talk, peer, 0, origin_msg_id="0A0000010000277F" + 16 * "0") == C.SUCCESS


def test_a_message_is_not_sent_back_for_one_whose_place_it_has_taken(failed, peer):
    """A power cut truncated the log, and a member still had a message from the lost part."""
    assert send_back(failed, peer, 0, origin_msg_id="LOST") == C.SYSTEM_ERROR
    failed.advance(10_000)
    assert failed.messages("%RETRY%G") == []


@pytest.mark.parametrize("origin", ["K", "", None, "0a0000010000277f" + 16 * "0"])
def test_a_message_is_sent_back_by_either_of_its_ids(failed, peer, origin):
    """It may name neither, or an offset id from before the broker's address changed."""
    assert send_back(failed, peer, 0, origin_msg_id=origin) == C.SUCCESS


def test_each_failure_waits_a_level_longer(failed, peer):
    waits = []
    offset = 0
    for times in range(16):
        assert send_back(failed, peer, offset) == C.SUCCESS
        waited_ms = 0
        while failed.broker.store.max_offset("%RETRY%G", 0) == times:
            failed.advance(1_000)
            waited_ms += 1_000
        message = failed.messages("%RETRY%G")[-1]
        assert message.properties["RETRY_TOPIC"] == "T"
        assert message.properties["ORIGIN_MESSAGE_ID"] == failed.messages("T")[0].offset_id
        waits.append(waited_ms // 1_000)
        offset = message.physical_offset
        if times > 6:
            break  # Minutes become hours; the numbers are in the table of levels.
    assert waits == [10, 30, 60, 120, 180, 240, 300, 360]


def test_a_delay_level_chosen_by_the_consumer_counts(failed, peer):
    send_back(failed, peer, 0, level=1)
    failed.advance(1_000)
    assert len(failed.messages("%RETRY%G")) == 1


def test_a_negative_level_or_too_many_attempts_make_a_dead_letter(failed, peer):
    assert send_back(failed, peer, 0, level=-1) == C.SUCCESS
    assert send_back(failed, peer, 0, max_reconsume_times=0) == C.SUCCESS
    dead = failed.messages("%DLQ%G")
    assert [(m.body, m.reconsume_times, "DELAY" in m.properties) for m in dead] == [(b"x", 1, False)] * 2
    config = failed.broker.topics.get("%DLQ%G")
    assert (config.write_queue_nums, config.perm) == (1, 6)


def test_the_groups_maximum_counts_where_the_consumer_names_none(talk, peer):
    config = SubscriptionGroupConfig(group_name="G", retry_max_times=0)
    talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    talk.send(peer)
    assert send_back(talk, peer, 0) == C.SUCCESS
    assert len(talk.messages("%DLQ%G")) == 1
    assert send_back(talk, peer, 0, max_reconsume_times=-1) == C.SUCCESS
    assert len(talk.messages("%DLQ%G")) == 2


def test_a_missing_message_cannot_be_sent_back(failed, peer):
    for offset in (1, -1, 10**12):
        assert send_back(failed, peer, offset) == C.SYSTEM_ERROR


def test_an_unknown_group_cannot_send_back(tmp_path, peer):
    talk = Conversation(tmp_path, auto_create_subscription_group=False)
    talk.send(peer)
    assert send_back(talk, peer, 0) == C.SUBSCRIPTION_GROUP_NOT_EXIST
    talk.close()


def test_a_group_without_retry_queues_drops_what_is_sent_back(talk, peer):
    config = SubscriptionGroupConfig(group_name="G", retry_queue_nums=0)
    talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    talk.send(peer)
    assert send_back(talk, peer, 0) == C.SUCCESS
    assert "%RETRY%G" not in talk.broker.topics


def test_a_compressed_body_is_sent_back_as_it_is(talk, peer):
    """The broker has no need to read the body."""
    talk.send(peer, body=b"not really compressed", sys_flag=1)
    assert send_back(talk, peer, 0, level=1) == C.SUCCESS
    talk.advance(1_000)
    result = talk.broker.store.read("%RETRY%G", 0, 0, 1)
    assert b"not really compressed" in b"".join(result.data)


@pytest.mark.parametrize("name", ["id\0", "id\x02TAGS\x01other", "i\x01d"])
def test_the_origin_of_a_send_back_cannot_inject_properties(failed, peer, name):
    assert send_back(failed, peer, 0, origin_msg_id=name) == C.MESSAGE_ILLEGAL
    assert failed.broker.store.max_offset(SCHEDULE, 2) == 0


# Retries whose topic no member subscribes to.


def test_a_retry_without_a_subscriber_is_a_dead_letter_after_a_day(failed, peer, caplog):
    """Until then it comes again each minute, and no attempt is counted."""

    def pass_on(offset):
        assert send_back(failed, peer, offset, lb_uncounted=True, lb_pass_on_ms=1_000) == C.SUCCESS

    pass_on(0)
    for passed_ms in (0, 86_400_000 - 180_000, 0):
        failed.clock.set_wall(passed_ms)
        failed.advance(60_000)
        *_, waiting = failed.messages("%RETRY%G")
        assert (waiting.reconsume_times, failed.messages("%DLQ%G")) == (0, [])
        pass_on(waiting.physical_offset)
    (dead,) = failed.messages("%DLQ%G")
    assert dead.body == b"x"
    assert "no member of its group has subscribed to its topic" in caplog.text
