"""Administrators' requests: topics, groups, statistics, the broker's state."""

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.filesystem import DiskUsage
from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.formats.tables import (
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.administration import TopicConfigList
from libramq.remoting.body.cluster import GroupList, KVTable, TopicList
from libramq.remoting.body.consumers import (
    ConsumerConnection,
    ConsumeStats,
    ProducerConnection,
    TopicStatsTable,
)
from libramq.remoting.command import Command
from tests.broker.brokers import Conversation, answer, subscription
from tests.fakes import FakePeer

#: CLUSTER_LIST of mqadmin parses these without a null check (remoting protocol, admin commands).
PARSED_BY_MQADMIN = [
    "brokerVersionDesc",
    "brokerActive",
    "putTps",
    "getTransferredTps",
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "ackThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "pageCacheLockTimeMills",
    "earliestMessageTimeStamp",
    "commitLogDiskRatio",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
]


def topic_header(topic: str, **fields: object) -> h.CreateTopicHeader:
    defaults: dict[str, object] = {"read_queue_nums": 2, "write_queue_nums": 2, "perm": 6}
    return h.CreateTopicHeader(topic=topic, **(defaults | fields))  # type: ignore[arg-type]


# Topics.


def test_a_topic_is_created_changed_and_deleted(talk, peer):
    assert talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC, topic_header("T", order=True)).code == C.SUCCESS
    reply = talk.ask(peer, R.GET_TOPIC_CONFIG, h.TopicHeader(topic="T"))
    config = decode_body(reply.body, TopicConfig)
    assert (config.read_queue_nums, config.perm, config.order) == (2, 6, True)
    assert talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC, topic_header("T", perm=4)).code == C.SUCCESS
    assert talk.broker.topics.get("T").perm == 4
    assert talk.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T")).code == C.SUCCESS
    assert talk.ask(peer, R.GET_TOPIC_CONFIG, h.TopicHeader(topic="T")).code == C.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    "topic", ["../x", "a b", "", "x" * 128, "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"]
)
def test_a_topic_with_an_invalid_name_is_not_created(talk, peer, topic):
    before = {config.topic_name: config for config in talk.broker.topics}
    assert talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC, topic_header(topic)).code == C.INVALID_PARAMETER
    assert {config.topic_name: config for config in talk.broker.topics} == before


@pytest.mark.parametrize(
    "fields",
    [{"read_queue_nums": 0}, {"write_queue_nums": -1}, {"read_queue_nums": 5_000}, {"perm": 8}, {"perm": -1}],
)
def test_invalid_numbers_are_refused(talk, peer, fields):
    assert talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC, topic_header("T", **fields)).code == C.INVALID_PARAMETER
    assert "T" not in talk.broker.topics


@pytest.mark.parametrize("topic", ["", " ", "TBW102", "LIBRA_REBALANCE_EVENTS"])
def test_the_brokers_own_topics_are_not_deleted(talk, peer, topic):
    assert talk.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic=topic)).code == C.INVALID_PARAMETER


def test_deleting_a_topic_deletes_its_messages_and_offsets(talk, peer):
    talk.send(peer)
    talk.broker.offsets.commit("G", "T", 0, 1)
    talk.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    assert talk.broker.offsets.query("G", "T", 0) is None
    assert talk.broker.store.max_offset("T", 0) == 0
    talk.send(peer, body=b"new")
    assert [m.body for m in talk.messages("T")] == [b"new"]


def test_all_topics_include_the_brokers_own(talk, peer):
    talk.create_topic("T")
    reply = talk.ask(peer, R.GET_ALL_TOPIC_CONFIG)
    wrapper = decode_body(reply.body, TopicConfigSerializeWrapper)
    assert {"T", "TBW102", "BenchmarkTest", "broker-a", "DefaultCluster"} <= wrapper.topic_config_table.keys()
    assert reply.ext["totalTopicNum"] == str(len(wrapper.topic_config_table))
    assert wrapper.data_version == talk.broker.topics.data_version
    reply = talk.ask(peer, R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    own = decode_body(reply.body, TopicList).topic_list
    assert {"TBW102", "broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC"} <= set(own)
    assert "T" not in own


def test_topics_and_groups_survive_a_kill_and_a_stop(tmp_path, peer):
    """An automatically created topic, one created by hand, a deleted one and a group are all restored."""
    talk = Conversation(tmp_path)
    talk.send(peer, "Auto")
    talk.create_topic("Made", queues=3)
    talk.create_topic("Gone")
    talk.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="Gone"))
    talk.beat(peer, "alice", "Auto-Group")
    config = SubscriptionGroupConfig(group_name="G", retry_max_times=3)
    talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    for end in (Conversation.kill, Conversation.close):
        version = talk.broker.topics.data_version
        end(talk)
        talk = Conversation(tmp_path)
        assert talk.broker.topics.data_version == version
        assert talk.broker.topics.get("Made").write_queue_nums == 3
        assert {"Auto", "%RETRY%Auto-Group"} <= {config.topic_name for config in talk.broker.topics}
        assert "Gone" not in talk.broker.topics
        assert talk.broker.groups.get("G").retry_max_times == 3
        assert "Auto-Group" in talk.broker.groups
        assert [m.body for m in talk.messages("Auto")] == [b"hello"]
    talk.close()
    assert '"Made"' in (tmp_path / "config" / "topics.json").read_text()
    assert not list((tmp_path / "config").glob("*.journal.*"))


# Groups.


def test_a_group_is_created_changed_listed_and_deleted(talk, peer):
    config = SubscriptionGroupConfig(group_name="G", consume_enable=False)
    assert talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config).code == C.SUCCESS
    reply = talk.ask(peer, R.GET_SUBSCRIPTIONGROUP_CONFIG, h.GroupByNameHeader(group="G"))
    assert decode_body(reply.body, SubscriptionGroupConfig) == config
    reply = talk.ask(peer, R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    wrapper = decode_body(reply.body, SubscriptionGroupWrapper)
    assert wrapper.subscription_group_table["G"] == config
    assert reply.ext["totalGroupNum"] == str(len(wrapper.subscription_group_table))
    talk.broker.offsets.commit("G", "T", 0, 1)
    talk.ask(peer, R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader(group_name="G"))
    assert "G" not in talk.broker.groups
    assert talk.broker.offsets.query("G", "T", 0) == 0
    talk.ask(peer, R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader(group_name="G", clean_offset=True))
    assert talk.broker.offsets.query("G", "T", 0) is None


@pytest.mark.parametrize(
    "config",
    [
        SubscriptionGroupConfig(group_name="../G"),
        SubscriptionGroupConfig(group_name=""),
        SubscriptionGroupConfig(group_name="x" * 121),
        SubscriptionGroupConfig(group_name="G", retry_queue_nums=10**9),
        SubscriptionGroupConfig(group_name="G", retry_queue_nums=-1),
    ],
)
def test_an_invalid_group_is_refused(talk, peer, config):
    assert talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config).code == C.INVALID_PARAMETER
    assert config.group_name not in talk.broker.groups


def test_an_unknown_group_is_refused(tmp_path, peer):
    talk = Conversation(tmp_path, auto_create_subscription_group=False)
    header = h.GroupByNameHeader(group="G")
    assert talk.ask(peer, R.GET_SUBSCRIPTIONGROUP_CONFIG, header).code == C.SUBSCRIPTION_GROUP_NOT_EXIST
    talk.close()


# Statistics.


def test_the_first_and_last_offsets_of_queues_are_listed(talk, peer):
    talk.create_topic("T", queues=2)
    for _ in range(3):
        talk.send(peer, queue_id=1)
    stored_ms = talk.clock.wall_ms()
    reply = talk.ask(peer, R.GET_TOPIC_STATS_INFO, h.TopicHeader(topic="T"))
    table = decode_body(reply.body, TopicStatsTable).offset_table
    first, second = (table[MessageQueue("T", "broker-a", n)] for n in (0, 1))
    assert (first.max_offset, first.last_update_timestamp) == (0, 0)
    assert (second.min_offset, second.max_offset, second.last_update_timestamp) == (0, 3, stored_ms)
    assert b'{{"brokerName"' in reply.body  # Java reads objects as keys in no other form.
    assert talk.ask(peer, R.GET_TOPIC_STATS_INFO, h.TopicHeader(topic="No")).code == C.TOPIC_NOT_EXIST


def test_the_progress_of_a_group_is_reported(talk, peer):
    talk.create_topic("T", queues=2)
    talk.create_topic("U", queues=1)
    for _ in range(4):
        talk.send(peer, queue_id=0)
    read_ms = talk.clock.wall_ms()
    talk.beat(peer, "alice")
    talk.broker.offsets.commit("G", "T", 0, 3)

    def ask(**fields: object) -> dict[MessageQueue, tuple[int, int, int]]:
        header = h.ConsumeStatsHeader(consumer_group="G", **fields)  # type: ignore[arg-type]
        reply = talk.ask(peer, R.GET_CONSUME_STATS, header)
        table = decode_body(reply.body, ConsumeStats).offset_table
        return {q: (w.broker_offset, w.consumer_offset, w.last_timestamp) for q, w in table.items()}

    t0, t1, u0 = (
        MessageQueue("T", "broker-a", 0),
        MessageQueue("T", "broker-a", 1),
        MessageQueue("U", "broker-a", 0),
    )
    assert ask() == {t0: (4, 3, read_ms), t1: (0, 0, 0)}
    assert ask(topic="U") == {u0: (0, 0, 0)}
    assert ask(topic_list="U;T;NoSuch;") == {u0: (0, 0, 0), t0: (4, 3, read_ms), t1: (0, 0, 0)}
    assert ask(topic="NoSuch") == {}


def test_connected_clients_are_listed(talk, peer):
    talk.beat(peer, "alice", subscriptions=[subscription("T", "red")])
    talk.beat_producer(peer, "alice")
    reply = talk.ask(peer, R.GET_CONSUMER_CONNECTION_LIST, h.GroupHeader(consumer_group="G"))
    body = decode_body(reply.body, ConsumerConnection)
    (connection,) = body.connection_set
    assert (connection.client_id, connection.client_addr, connection.version) == (
        "alice",
        "10.0.0.7:4711",
        479,
    )
    assert body.subscription_table["T"].sub_string == "red"
    assert (body.consume_type, body.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    reply = talk.ask(peer, R.GET_PRODUCER_CONNECTION_LIST, h.ProducerConnectionHeader(producer_group="P"))
    assert decode_body(reply.body, ProducerConnection).connection_set[0].client_id == "alice"
    talk.performer.closed(peer)
    other = FakePeer()
    header = h.GroupHeader(consumer_group="G")
    assert talk.ask(other, R.GET_CONSUMER_CONNECTION_LIST, header).code == C.CONSUMER_NOT_ONLINE
    header = h.ProducerConnectionHeader(producer_group="P")
    assert talk.ask(other, R.GET_PRODUCER_CONNECTION_LIST, header).code == C.SYSTEM_ERROR


def test_a_producer_that_leaves_is_no_longer_listed(talk, peer):
    talk.beat_producer(peer, "alice")
    header = h.UnregisterClientHeader(client_id="alice", producer_group="P", consumer_group=None)
    talk.ask(FakePeer(), R.UNREGISTER_CLIENT, header)
    assert len(talk.broker.members.producers.members("P")) == 1
    talk.ask(peer, R.UNREGISTER_CLIENT, header)
    assert talk.broker.members.producers.members("P") == []


def test_groups_of_a_topic_and_topics_of_a_group_are_listed(talk, peer):
    talk.send(peer, "T")
    talk.beat(peer, "alice", "Online", subscriptions=[subscription("T")])
    talk.broker.offsets.commit("Offline", "T", 0, 1)
    reply = talk.ask(peer, R.QUERY_TOPIC_CONSUME_BY_WHO, h.TopicHeader(topic="T"))
    assert decode_body(reply.body, GroupList).group_list == ["Offline", "Online"]
    reply = talk.ask(peer, R.QUERY_TOPICS_BY_CONSUMER, h.GroupByNameHeader(group="Offline"))
    assert decode_body(reply.body, TopicList).topic_list == ["T"]


# The broker's state.


def test_runtime_info_has_every_field_mqadmin_parses(talk, peer):
    reply = talk.ask(peer, R.GET_BROKER_RUNTIME_INFO)
    table = decode_body(reply.body, KVTable).table
    assert set(PARSED_BY_MQADMIN) <= table.keys()
    for name in ("putTps", "getTransferredTps"):
        assert len([float(part) for part in table[name].split()]) == 3
    words = {"brokerVersionDesc", "brokerActive"}
    for name in set(PARSED_BY_MQADMIN) - words - {"putTps", "getTransferredTps"}:
        float(table[name])
    assert all(isinstance(value, str) for value in fastjson.loads(reply.body)["table"].values())


def test_rates_cover_their_window(talk, peer):
    talk.advance(0)
    for _ in range(50):
        talk.send(peer)
    talk.advance(5_000)
    table = decode_body(talk.ask(peer, R.GET_BROKER_RUNTIME_INFO).body, KVTable).table
    assert table["putTps"] == "10.00 10.00 10.00"
    assert table["msgPutTotalTodayNow"] == "50"
    for _ in range(20):
        talk.advance(1_000)
    table = decode_body(talk.ask(peer, R.GET_BROKER_RUNTIME_INFO).body, KVTable).table
    assert table["putTps"].startswith("0.00 2.00")


def test_the_disk_ratio_is_measured(talk, peer):
    talk.disk.space = DiskUsage(used_bytes=871, available_bytes=129)
    table = decode_body(talk.ask(peer, R.GET_BROKER_RUNTIME_INFO).body, KVTable).table
    assert (table["commitLogDiskRatio"], table["consumeQueueDiskRatio"]) == ("0.88", "0.88"), "rounded up"


def test_the_earliest_message_and_yesterdays_counts_are_real(talk, peer):
    def table():
        return decode_body(talk.ask(peer, R.GET_BROKER_RUNTIME_INFO).body, KVTable).table

    assert table()["earliestMessageTimeStamp"] == "-1"
    first_ms = talk.clock.wall_ms()
    talk.send(peer)
    talk.flush()  # The disk is looked at every 0.1 s until it has everything.
    talk.advance(24 * 3_600_000)
    for _ in range(2):
        talk.send(peer)
    today = table()
    assert today["earliestMessageTimeStamp"] == str(first_ms)
    counts = [today[f"msgPutTotal{moment}"] for moment in ("YesterdayMorning", "TodayMorning", "TodayNow")]
    assert counts == ["0", "1", "3"]
    talk.flush()
    talk.advance(48 * 3_600_000)
    later = table()
    counts = [later[f"msgPutTotal{moment}"] for moment in ("YesterdayMorning", "TodayMorning", "TodayNow")]
    assert counts == ["3", "3", "3"], "nothing came yesterday"


# Requests that are none.


def test_every_request_answers_an_empty_header_and_a_torn_body(talk, peer):
    """Any missing or broken part gets one answer with a code, and the next request is served."""
    codes = [*talk.broker.processors.singly, *talk.broker.processors.in_batches]
    for code in codes:
        for body in (b"", b"{", b"\x00" * 40):
            for ext in ({}, {"topic": "\x00", "queueId": "x", "consumerGroup": "\ud800", "b": "é" * 300}):
                talk.ask(peer, code, ext, body)
                assert not peer.replies, "one answer each"
    assert talk.send(peer).code == C.SUCCESS


def test_an_unknown_request_is_not_supported(talk, peer):
    for code in (9_999, -5, R.GET_ROUTEINFO_BY_TOPIC):
        reply = talk.ask(peer, code)
        assert reply.code == C.REQUEST_CODE_NOT_SUPPORTED
        assert str(int(code)) in reply.remark


def test_messages_sent_and_not_committed_are_in_flight(talk, peer):
    """As with Apache's brokers, the count extends to the end of the last pull's answer, from any client."""
    for _ in range(4):
        talk.send(peer, queue_id=1)

    def offsets() -> list[tuple[int, int]]:
        reply = talk.ask(peer, R.GET_CONSUME_STATS, h.ConsumeStatsHeader(consumer_group="G", topic="T"))
        table = decode_body(reply.body, ConsumeStats).offset_table
        return [(table[q].consumer_offset, table[q].pull_offset) for q in sorted(table)][:2]

    def commit(offset: int) -> None:
        header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=1, commit_offset=offset)
        assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code == C.SUCCESS

    assert offsets() == [(0, 0), (0, 0)]
    talk.pull(peer, queue_id=1, max_msg_nums=3)
    assert offsets() == [(0, 0), (0, 3)]
    commit(2)
    assert offsets() == [(0, 0), (2, 3)]
    commit(4)
    assert offsets() == [(0, 0), (4, 4)], "never before the committed offset"
    talk.pull(peer, queue_id=1, queue_offset=1, max_msg_nums=1)
    commit(1)
    assert offsets() == [(0, 0), (1, 2)], "after a reset the last pull counts"
    talk.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    talk.create_topic("T")
    assert offsets() == [(0, 0), (0, 0)], "another topic"


DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def shrinking(talk: Conversation) -> Conversation:
    """Return a broker with a topic of 4 queues, with 3 messages in queue 3, of which group G has read one."""
    assert (
        talk.ask(FakePeer(), R.UPDATE_AND_CREATE_TOPIC, topic_header("S", read_queue_nums=4)).code
        == C.SUCCESS
    )
    for _ in range(3):
        talk.send(FakePeer(), "S", queue_id=3)
    read(talk, 1)
    return talk


def read(talk: Conversation, offset: int, group: str = "G") -> None:
    config = SubscriptionGroupConfig(group_name=group)
    talk.ask(FakePeer(), R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    commit = h.UpdateConsumerOffsetHeader(consumer_group=group, topic="S", queue_id=3, commit_offset=offset)
    assert talk.ask(FakePeer(), R.UPDATE_CONSUMER_OFFSET, commit).code == C.SUCCESS


def shrink(talk: Conversation, queues: int = 2, **fields: object) -> Command:
    return talk.ask(
        FakePeer(), R.UPDATE_AND_CREATE_TOPIC, topic_header("S", read_queue_nums=queues, **fields)
    )


def lag(talk: Conversation) -> int:
    header = h.ConsumeStatsHeader(consumer_group="G", topic="S")
    table = decode_body(talk.ask(FakePeer(), R.GET_CONSUME_STATS, header).body, ConsumeStats).offset_table
    return sum(each.broker_offset - each.consumer_offset for each in table.values())


def test_queues_that_a_group_has_not_read_are_kept(shrinking: Conversation):
    """Their unread messages were lost to the group, and no longer counted as lag."""
    refused = shrink(shrinking)
    assert refused.code == C.INVALID_PARAMETER
    assert "groups have not read: G 2." in (refused.remark or "")
    assert "--abandon-unread" in (refused.remark or "")
    listed = TopicConfigList(topic_config_list=[TopicConfig(topic_name="S", read_queue_nums=3)])
    assert shrinking.ask(FakePeer(), R.UPDATE_AND_CREATE_TOPIC_LIST, None, listed).code == C.INVALID_PARAMETER
    assert shrink(shrinking, 4, write_queue_nums=1).code == C.SUCCESS
    read(shrinking, 3)
    assert shrink(shrinking).code == C.SUCCESS


def test_an_operator_may_abandon_unread_messages_and_they_stay_lag(shrinking: Conversation):
    assert shrink(shrinking, lb_abandon_unread=True).code == C.SUCCESS
    assert lag(shrinking) == 2
    assert shrink(shrinking, 4).code == C.SUCCESS
    assert lag(shrinking) == 2


def test_the_configuration_may_allow_to_abandon_unread_messages(tmp_path):
    """Apache's mqadmin has no option for it."""
    talk = Conversation(tmp_path, abandon_unread_queues=True)
    shrink(talk, 4)
    talk.send(FakePeer(), "S", queue_id=3)
    read(talk, 0)
    assert shrink(talk).code == C.SUCCESS
    assert lag(talk) == 1
    talk.close()


@pytest.mark.parametrize(("days", "code"), [(6, C.INVALID_PARAMETER), (8, C.SUCCESS)])
def test_a_group_that_reads_no_more_keeps_no_queues(shrinking: Conversation, days, code):
    shrinking.clock.advance(days * DAY_MS)
    shrinking.send(FakePeer(), "S", queue_id=3)
    assert shrink(shrinking).code == code


def test_a_group_with_members_keeps_its_queues(shrinking: Conversation):
    """This holds however long ago it read there, or if it has committed nothing yet."""
    shrinking.clock.advance(8 * DAY_MS)
    for group in "GH":
        shrinking.beat(FakePeer(), "member", group, subscriptions=[subscription("S")])
    assert "groups have not read: G 2, H 3." in (shrink(shrinking).remark or "")


def test_the_times_of_unread_messages_may_have_to_be_read_from_the_disk(tmp_path):
    talk = Conversation(tmp_path)
    shrink(talk, 4)
    for _ in range(3):
        talk.send(FakePeer(), "S", queue_id=3)
    read(talk, 1)
    talk.close()
    talk = Conversation(tmp_path, clock=talk.clock)
    talk.disk.is_cold = True
    peer, command = FakePeer(), talk.command(R.UPDATE_AND_CREATE_TOPIC, topic_header("S"))
    talk.give(peer, command)
    for _ in range(8):
        talk.read_cold()
    assert answer(peer, command).code == C.INVALID_PARAMETER
    talk.close()
