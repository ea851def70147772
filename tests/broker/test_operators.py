"""Operators' changes and queries at a broker, as Apache's mqadmin and admin client make them."""

import pytest

from libramq.broker.config import CREDENTIALS_OPTION
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.formats.properties_file import parse_properties
from libramq.formats.tables import SubscriptionGroupConfig, TopicConfig
from libramq.kernel.effect import Thread
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body import administration as bodies
from libramq.remoting.credentials import parse_credentials
from tests.broker.brokers import Conversation, subscription
from tests.fakes import FakePeer


def attributes_of(talk: Conversation, peer: FakePeer, topic: str) -> dict[str, str]:
    reply = talk.ask(peer, R.GET_TOPIC_CONFIG, h.TopicHeader(topic=topic))
    return decode_body(reply.body, TopicConfig).attributes


def change(talk: Conversation, peer: FakePeer, topic: str, attributes: str, queues: int = 2):
    header = h.CreateTopicHeader(
        topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=6, attributes=attributes
    )
    return talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC, header)


def commit(talk: Conversation, peer: FakePeer, group: str, offset: int, queue_id: int = 0, topic: str = "T"):
    header = h.UpdateConsumerOffsetHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )
    assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code == C.SUCCESS


def create_group(talk: Conversation, peer: FakePeer, *groups: str) -> None:
    for group in groups:
        config = SubscriptionGroupConfig(group_name=group)
        assert talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config).code == C.SUCCESS


def committed(talk: Conversation, group: str, queue_id: int = 0, topic: str = "T") -> int | None:
    return talk.broker.offsets.query(group, topic, queue_id)


def test_attributes_are_set_kept_changed_and_deleted(talk, peer):
    """An update without attributes keeps them; it used to forget them."""
    assert change(talk, peer, "T", "+message.type=FIFO").code == C.SUCCESS
    assert attributes_of(talk, peer, "T") == {"message.type": "FIFO"}
    assert change(talk, peer, "T", "", queues=4).code == C.SUCCESS
    assert attributes_of(talk, peer, "T") == {"message.type": "FIFO"}
    assert change(talk, peer, "T", "+message.type=DELAY").code == C.SUCCESS
    assert attributes_of(talk, peer, "T") == {"message.type": "DELAY"}
    refused = change(talk, peer, "T", "+colour=red")
    assert (refused.code, refused.remark) == (C.SYSTEM_ERROR, "unsupported key: colour")
    assert change(talk, peer, "T", "-message.type").code == C.SUCCESS
    assert attributes_of(talk, peer, "T") == {}


def test_a_list_of_topics_is_created_whole_or_not_at_all(talk, peer):
    configs = [
        TopicConfig(topic_name=f"L{number}", read_queue_nums=1, write_queue_nums=1) for number in range(30)
    ]
    body = bodies.TopicConfigList(topic_config_list=[*configs, TopicConfig(topic_name="no/slash")])
    assert talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC_LIST, None, body).code == C.INVALID_PARAMETER
    assert "L0" not in talk.broker.topics
    marked = TopicConfig(topic_name="Marked", attributes={"+message.type": "FIFO"})
    body = bodies.TopicConfigList(topic_config_list=[*configs, marked])
    assert talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC_LIST, None, body).code == C.SUCCESS
    assert {config.topic_name for config in configs} <= {config.topic_name for config in talk.broker.topics}
    assert attributes_of(talk, peer, "Marked") == {"message.type": "FIFO"}


def test_a_list_of_groups_is_created_whole_or_not_at_all(talk, peer):
    configs = [SubscriptionGroupConfig(group_name=f"L{number}") for number in range(30)]
    broken = bodies.GroupConfigList(
        group_config_list=[*configs, SubscriptionGroupConfig(group_name="no/slash")]
    )
    assert (
        talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, broken).code == C.INVALID_PARAMETER
    )
    assert "L0" not in talk.broker.groups
    body = bodies.GroupConfigList(group_config_list=configs)
    assert talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, body).code == C.SUCCESS
    assert all(config.group_name in talk.broker.groups for config in configs)


def test_a_large_list_is_acknowledged_when_it_is_recorded(tmp_path, peer):
    """Its body is decoded by a thread and applied in slices, before it waits for the disk."""
    talk = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    configs = [TopicConfig(topic_name=f"L{number:04}") for number in range(200)]
    command = talk.command(
        R.UPDATE_AND_CREATE_TOPIC_LIST, None, bodies.TopicConfigList(topic_config_list=configs)
    )
    talk.give(peer, command)
    talk.threads.run_all(Thread.COMPUTE)
    while (turn := talk.performer.turns.timer) is not None:
        turn.cancel()
        turn.action()
    assert peer.replies == []
    talk.threads.run_all()
    talk.flush()
    talk.threads.run_all()
    assert [reply.code for reply in peer.replies] == [C.SUCCESS]


def test_offsets_are_cloned_in_one_topic_or_in_all(talk, peer):
    create_group(talk, peer, "G", "H", "I")
    for topic in ("T", "U"):
        talk.create_topic(topic)
        for _ in range(5):
            talk.send(peer, topic)
        commit(talk, peer, "G", 3, topic=topic)
    header = h.CloneOffsetsHeader(src_group="G", dest_group="H", topic="T")
    assert talk.ask(peer, R.CLONE_GROUP_OFFSET, header).code == C.SUCCESS
    assert (committed(talk, "H"), committed(talk, "H", topic="U")) == (3, None)
    assert (
        talk.ask(peer, R.CLONE_GROUP_OFFSET, h.CloneOffsetsHeader(src_group="G", dest_group="I")).code
        == C.SUCCESS
    )
    assert (committed(talk, "I"), committed(talk, "I", topic="U")) == (3, 3)


def test_what_a_live_group_no_longer_subscribes_to_is_cloned_only_offline(talk, peer):
    create_group(talk, peer, "H")
    for topic in ("T", "U"):
        talk.create_topic(topic)
        talk.send(peer, topic)
    talk.beat(peer, "c", "G", subscriptions=[subscription("T")])
    for topic in ("T", "U"):
        commit(talk, peer, "G", 1, topic=topic)
    talk.ask(peer, R.CLONE_GROUP_OFFSET, h.CloneOffsetsHeader(src_group="G", dest_group="H"))
    assert (committed(talk, "H"), committed(talk, "H", topic="U")) == (1, None)
    talk.ask(peer, R.CLONE_GROUP_OFFSET, h.CloneOffsetsHeader(src_group="G", dest_group="H", offline=True))
    assert committed(talk, "H", topic="U") == 1


def test_nothing_is_cloned_to_a_group_with_members(talk, peer):
    """The members would overwrite the cloned offsets."""
    create_group(talk, peer, "G", "H")
    talk.create_topic("T")
    for _ in range(3):
        talk.send(peer, "T")
    commit(talk, peer, "G", 3)
    talk.beat(peer, "c", "H", subscriptions=[subscription("T")])
    reply = talk.ask(peer, R.CLONE_GROUP_OFFSET, h.CloneOffsetsHeader(src_group="G", dest_group="H"))
    assert (reply.code, "has 1 member," in reply.remark) == (C.SYSTEM_ERROR, True)
    assert committed(talk, "H") is None


def test_cloned_offsets_survive_a_kill(tmp_path, peer):
    talk = Conversation(tmp_path)
    create_group(talk, peer, "G", "H")
    talk.create_topic("T")
    for _ in range(3):
        talk.send(peer)
    commit(talk, peer, "G", 2)
    talk.ask(peer, R.CLONE_GROUP_OFFSET, h.CloneOffsetsHeader(src_group="G", dest_group="H"))
    talk.kill()
    again = Conversation(tmp_path)
    assert committed(again, "H") == 2
    again.close()


def test_the_slowest_offset_of_each_queue(talk, peer):
    """A queue answers Long.MAX_VALUE if the compared group is slower; groups can be left out."""
    create_group(talk, peer, "G", "H", "I")
    talk.create_topic("T")
    for queue_id in (0, 1):
        for _ in range(5):
            talk.send(peer, queue_id=queue_id)
    commit(talk, peer, "G", 4)
    commit(talk, peer, "H", 2)
    commit(talk, peer, "I", 1)
    commit(talk, peer, "G", 3, queue_id=1)

    def asked(compare: str, filter_groups: str | None = None) -> dict[int, int]:
        header = h.CorrectionOffsetHeader(topic="T", compare_group=compare, filter_groups=filter_groups)
        return decode_body(
            talk.ask(peer, R.QUERY_CORRECTION_OFFSET, header).body, bodies.CorrectionOffsets
        ).correction_offsets

    assert asked("G") == {0: 1, 1: 3}
    assert asked("G", "I") == {0: 2, 1: 3}
    assert asked("I", "I") == {0: 2**63 - 1, 1: 3}
    assert committed(talk, "I") == 1, "an omitted entry is not deleted"


def test_when_messages_of_a_queue_were_stored(talk, peer):
    create_group(talk, peer, "G")
    talk.create_topic("T", 1)
    start_ms = talk.clock.wall_ms()
    for _ in range(3):
        talk.send(peer)
        talk.clock.advance(1_000)
    commit(talk, peer, "G", 2)
    header = h.GroupAndTopicHeader(group="G", topic="T")
    reply = talk.ask(peer, R.QUERY_CONSUME_TIME_SPAN, header)
    (span,) = decode_body(reply.body, bodies.ConsumeTimeSpans).consume_time_span_set
    times = (span.min_time_stamp, span.max_time_stamp, span.consume_time_stamp, span.delay_time)
    assert times == (start_ms, start_ms + 2_000, start_ms + 1_000, 1_000)
    assert span.message_queue.queue == MessageQueue("T", talk.config.broker_name, 0)
    header = h.GroupAndTopicHeader(group="G", topic="Nope")
    assert talk.ask(peer, R.QUERY_CONSUME_TIME_SPAN, header).code == C.TOPIC_NOT_EXIST


def test_what_a_group_subscribes_to(talk, peer):
    talk.beat(peer, "c", "G", subscriptions=[subscription("T", "red")])
    reply = talk.ask(peer, R.QUERY_SUBSCRIPTION_BY_CONSUMER, h.SubscriptionHeader(group="G", topic="T"))
    body = decode_body(reply.body, bodies.SubscriptionReply)
    assert body.subscription_data is not None
    assert body.subscription_data.sub_string == "red"
    reply = talk.ask(peer, R.QUERY_SUBSCRIPTION_BY_CONSUMER, h.SubscriptionHeader(group="H", topic="T"))
    assert fastjson.loads(reply.body) == {"group": "H", "topic": "T"}


def test_the_progress_of_all_groups(talk, peer):
    create_group(talk, peer, "G", "H")
    for topic, ordered in (("T", False), ("U", True)):
        header = h.CreateTopicHeader(
            topic=topic, read_queue_nums=1, write_queue_nums=1, perm=6, order=ordered
        )
        talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC, header)
        for _ in range(5):
            talk.send(peer, topic)
        commit(talk, peer, "G", 2, topic=topic)

    def asked(*, ordered: bool) -> tuple[list[str], int]:
        reply = talk.ask(peer, R.GET_BROKER_CONSUME_STATS, h.BrokerConsumeStatsHeader(is_order=ordered))
        body = decode_body(reply.body, bodies.ConsumeStatsList)
        (of_group,) = (each["G"] for each in body.consume_stats_list if "G" in each)
        assert {"H": []} in body.consume_stats_list
        return [queue.topic for stats in of_group for queue in stats.offset_table], body.total_diff

    assert asked(ordered=False) == (["T", "U"], 6)
    assert asked(ordered=True) == (["U"], 3)


def test_all_connected_producers(talk, peer):
    talk.beat_producer(peer, "one", "P")
    talk.clock.advance(500)
    reply = talk.ask(FakePeer(), R.GET_ALL_PRODUCER_INFO)
    ((group, (producer,)),) = decode_body(reply.body, bodies.ProducerTable).data.items()
    assert (group, producer.client_id, producer.remote_ip) == ("P", "one", peer.address)
    assert producer.last_update_timestamp == talk.clock.wall_ms() - 500


def test_the_units_of_a_queue(talk, peer):
    talk.create_topic("T")
    for _ in range(5):
        talk.send(peer)
    header = h.ConsumeQueueHeader(topic="T", queue_id=0, index=3, count=10, consumer_group="G")
    reply = decode_body(talk.ask(peer, R.QUERY_CONSUME_QUEUE, header).body, bodies.ConsumeQueueReply)
    assert (reply.min_queue_index, reply.max_queue_index, reply.filter_data) == (0, 5, "G@T is not online!")
    assert len(reply.queue_data) == 2
    assert talk.broker.store.record_at(reply.queue_data[1].physic_offset) is not None
    for index, count in ((-1, 10), (5, 10), (0, -1)):
        header = h.ConsumeQueueHeader(topic="T", queue_id=0, index=index, count=count)
        reply = decode_body(talk.ask(peer, R.QUERY_CONSUME_QUEUE, header).body, bodies.ConsumeQueueReply)
        assert reply.queue_data == []
    missing = talk.ask(peer, R.QUERY_CONSUME_QUEUE, h.ConsumeQueueHeader(topic="T", queue_id=9))
    assert (missing.code, missing.remark) == (C.SYSTEM_ERROR, "9@T is not exist!")


def stats(talk: Conversation, peer: FakePeer, name: str, key: str) -> tuple[int, int, int] | None:
    reply = talk.ask(peer, R.VIEW_BROKER_STATS_DATA, h.StatsDataHeader(stats_name=name, stats_key=key))
    if reply.code != C.SUCCESS:
        assert reply.remark == f"The stats <{name}> <{key}> not exist"
        return None
    data = decode_body(reply.body, bodies.BrokerStatsData)
    return data.stats_minute.sum, data.stats_hour.sum, data.stats_day.sum


def test_messages_are_counted_over_a_minute_an_hour_and_a_day(talk, peer):
    create_group(talk, peer, "G")
    talk.create_topic("T")
    for _ in range(5):
        talk.send(peer)
    assert talk.pull(peer) is not None
    assert stats(talk, peer, "TOPIC_PUT_NUMS", "T") == (5, 5, 5)
    assert stats(talk, peer, "GROUP_GET_NUMS", "T@G") == (5, 5, 5)
    talk.advance(120_000)
    talk.send(peer)
    assert stats(talk, peer, "TOPIC_PUT_NUMS", "T") == (1, 6, 6)
    talk.advance(10_000)  # They are counted by then.
    talk.extend_deadlines(2 * 3_600_000)
    talk.send(peer)
    assert stats(talk, peer, "TOPIC_PUT_NUMS", "T") == (1, 1, 7)
    talk.advance(10_000)
    talk.extend_deadlines(25 * 3_600_000)
    assert stats(talk, peer, "TOPIC_PUT_NUMS", "T") is None


@pytest.mark.parametrize(
    ("name", "key"), [("TOPIC_PUT_NUMS", "Nope"), ("GROUP_GET_NUMS", "T"), ("SNDBCK_PUT_NUMS", "T@G")]
)
def test_statistics_that_do_not_exist(talk, peer, name, key):
    assert stats(talk, peer, name, key) is None


def test_a_master_has_no_flush_offset_to_reset(talk, peer):
    header = h.MasterFlushOffsetHeader(master_flush_offset=0)
    assert talk.ask(peer, R.RESET_MASTER_FLUSH_OFFSET, header).code == C.SUCCESS


def options_of(talk: Conversation, peer: FakePeer) -> dict[str, str]:
    return parse_properties(talk.ask(peer, R.GET_BROKER_CONFIG).body.decode())


def update(talk: Conversation, peer: FakePeer, text: str):
    return talk.ask(peer, R.UPDATE_BROKER_CONFIG, None, text.encode())


def test_options_are_shown_without_secrets(tmp_path, peer):
    secret = '{"accessKey":"ak","secretKey":"a-secret-key"}'
    credentials = parse_credentials(CREDENTIALS_OPTION, secret)
    talk = Conversation(tmp_path, credentials=credentials, broker_name="broker-x")
    reply = talk.ask(peer, R.GET_BROKER_CONFIG)
    assert b"a-secret-key" not in reply.body
    assert CREDENTIALS_OPTION not in options_of(talk, peer)
    assert options_of(talk, peer)["brokerName"] == "broker-x"
    assert fastjson.loads(reply.ext["version"].encode())["counter"] == 1
    talk.close()


def test_an_option_is_changed_until_the_broker_stops(talk, peer):
    assert talk.beat(FakePeer(), "c", "Before").code == C.SUCCESS
    assert update(talk, peer, "autoCreateSubscriptionGroup=false\nfileReservedTime=48\n").code == C.SUCCESS
    talk.beat(FakePeer(), "c", "After")
    assert "Before" in talk.broker.groups
    assert "After" not in talk.broker.groups
    shown = options_of(talk, peer)
    assert (shown["autoCreateSubscriptionGroup"], shown["fileReservedTime"]) == ("false", "48")
    version = fastjson.loads(talk.ask(peer, R.GET_BROKER_CONFIG).ext["version"].encode())
    assert version["counter"] == 2


def test_a_changed_polling_time_holds_for_the_next_pull(talk, peer):
    talk.create_topic("T")
    assert update(talk, peer, "longPollingEnable=false\nshortPollingTimeMills=100\n").code == C.SUCCESS
    command = talk.pull_command(suspend_timeout_millis=15_000)
    talk.give(peer, command)
    talk.advance(99)
    assert peer.replies == []
    talk.advance(1)
    assert [reply.code for reply in peer.replies] == [C.PULL_NOT_FOUND]


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("brokerName=x", C.INVALID_PARAMETER, "brokerName cannot be changed while the broker runs"),
        ("nonsense=1", C.INVALID_PARAMETER, "these can: autoCreateSubscriptionGroup"),
        ("brokerConfigPath=/x", C.NO_PERMISSION, "Can not update config in black list."),
        (f"{CREDENTIALS_OPTION}=x", C.NO_PERMISSION, "Can not update config in black list."),
        ("fileReservedTime=soon", C.INVALID_PARAMETER, "fileReservedTime=soon"),
        ("fileReservedTime=0", C.INVALID_PARAMETER, "fileReservedTime"),
        ("deleteWhen=99", C.INVALID_PARAMETER, "deleteWhen"),
        ("autoCreateSubscriptionGroup=maybe", C.INVALID_PARAMETER, "true or false is allowed"),
    ],
)
def test_an_option_that_cannot_be_changed_is_refused_and_so_are_those_beside_it(
    talk, peer, text, code, remark
):
    before = options_of(talk, peer)
    reply = update(talk, peer, f"longPollingEnable=false\n{text}\n")
    assert reply.code == code
    assert remark in (reply.remark or "")
    assert options_of(talk, peer) == before
