"""The lag of groups, their missing members, and the latency of requests, at a broker without sockets."""

import math

import pytest

from libramq.broker.metrics import GROUPS_MAX, LAGS_MAX, OTHERS, Metrics, TopicLag
from libramq.broker.metrics_server import LAG_MS, LOGGED_MAX, MetricsServer
from libramq.broker.request_latency import LOG_MS, SLOW_MS
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.document import decode_body
from libramq.formats.tables import SubscriptionGroupConfig
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import ConsumeStats
from tests.broker.brokers import Conversation, send_header
from tests.fakes import FakePeer

LAG, AGE = "rocketmq_consumer_lag_messages", "rocketmq_consumer_lag_latency"


class Metered:
    """A broker whose metrics are sampled by hand."""

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk
        self.server = MetricsServer("127.0.0.1", 0)
        self.server.observe(talk.broker)

    def look(self) -> None:
        """Sample the metrics and compute the lag of all groups."""
        self.talk.advance(LAG_MS)
        self.server.sample(self.talk.broker, 1, {}, 0)
        self.talk.performer.follow()
        self.server.sample(self.talk.broker, 1, {}, 0)

    def value(self, name: str, **labels: str) -> float | None:
        return self.server.registry.get_sample_value(name, labels)

    def of(self, name: str, group: str = "G", **labels: str) -> float | None:
        return self.value(name, consumer_group=group, **labels)


@pytest.fixture
def metered(talk: Conversation) -> Metered:
    return Metered(talk)


def commit(talk: Conversation, peer: FakePeer, offset: int, queue_id: int = 0, group: str = "G") -> None:
    header = h.UpdateConsumerOffsetHeader(
        consumer_group=group, topic="T", queue_id=queue_id, commit_offset=offset
    )
    assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code == C.SUCCESS


def test_a_group_whose_only_member_died_is_reported(talk, peer, metered, caplog):
    """Its queues have no owner and its messages wait until a member returns."""
    talk.create_topic("T", 2)
    talk.beat(peer, "alice")
    for queue_id in (0, 1):
        commit(talk, peer, 0, queue_id)
    for number in range(500):
        talk.send(FakePeer(), "T", queue_id=number % 2)
    metered.look()
    assert (metered.of(LAG, topic="T"), metered.of("libra_group_queues_unowned")) == (500, None)
    assert metered.of("libra_group_diagnosis", kind="no_members") is None
    peer.is_open = False
    talk.performer.closed(peer)
    metered.look()
    metered.look()
    assert metered.of("libra_group_members") == 0
    assert metered.of("libra_group_queues_unowned") == 2
    assert metered.of("libra_group_diagnosis", kind="no_members") == 1
    assert metered.of(AGE, topic="T") >= 3 * LAG_MS
    assert "500 messages wait, and no member is connected" in caplog.text
    talk.beat(FakePeer("10.0.0.9:1"), "bob")
    metered.look()
    assert metered.of("libra_group_diagnosis", kind="no_members") == 0


def test_few_of_many_groups_without_members_are_named_in_the_log(talk, peer, metered, caplog):
    """After a start there may be thousands at once."""
    talk.create_topic("T", 1)
    for number in range(LOGGED_MAX + 3):
        talk.broker.groups.put(SubscriptionGroupConfig(group_name=f"G{number:02}"), talk.clock.wall_ms())
        commit(talk, peer, 0, group=f"G{number:02}")
    talk.send(FakePeer(), "T")
    metered.look()
    metered.look()
    named = [record for record in caplog.records if "no member is connected" in record.getMessage()]
    assert len(named) == LOGGED_MAX
    assert "group=G00 " in named[0].getMessage()
    assert "more groups diagnosis=no_members count=3" in caplog.text
    last = f"G{LOGGED_MAX + 2}"
    assert metered.of("libra_group_diagnosis", last, kind="no_members") == 1


def test_messages_in_a_queue_that_a_dead_group_never_read_count(talk, peer, metered):
    """Batches go to one queue: all messages since the group died may be where it never committed."""
    talk.create_topic("T", 2)
    talk.beat(peer, "alice")
    commit(talk, peer, 0, queue_id=0)
    peer.is_open = False
    talk.performer.closed(peer)
    talk.send(FakePeer(), "T", queue_id=1)
    metered.look()
    metered.look()
    assert math.isnan(metered.of(LAG, topic="T"))
    assert metered.of("libra_group_diagnosis", kind="no_members") == 1


def left(talk: Conversation, peer: FakePeer) -> None:
    peer.is_open = False
    talk.performer.closed(peer)


def test_a_group_that_dies_before_its_first_commit_is_reported(tmp_path, request):
    """Its beginning is known even after the broker's restart, until the group is deleted."""
    talk, peer = Conversation(tmp_path), FakePeer()
    talk.create_topic("T", 2)
    talk.send(FakePeer(), "T", queue_id=0)
    talk.beat(peer, "alice")
    assert talk.pull(peer, queue_id=0, queue_offset=0) is not None
    assert talk.pull(peer, queue_id=1, queue_offset=0, suspend_timeout_millis=15_000) is None
    left(talk, peer)
    for number in range(5):
        talk.send(FakePeer(), "T", queue_id=number % 2)
    for _ in range(2):
        metered = Metered(talk)
        metered.look()
        metered.look()
        assert metered.of(LAG, topic="T") == 6
        assert metered.of("libra_group_queues_unowned") == 2
        assert metered.of("libra_group_diagnosis", kind="no_members") == 1
        assert progress(talk, FakePeer()) == {0: (4, 0, None), 1: (2, 0, None)}
        talk.close()
        talk = Conversation(tmp_path)
    request.addfinalizer(talk.close)
    header = h.DeleteGroupHeader(group_name="G", clean_offset=True)
    assert talk.ask(FakePeer(), R.DELETE_SUBSCRIPTIONGROUP, header).code == C.SUCCESS
    talk.beat(FakePeer(), "bob")
    metered = Metered(talk)
    metered.look()
    assert math.isnan(metered.of(LAG, topic="T"))


def progress(talk: Conversation, peer: FakePeer) -> dict[int, tuple[int, int, bool | None]]:
    """Return end, consumed offset and whether that is unknown, by queue of T, as tools get it."""
    answer = talk.ask(peer, R.GET_CONSUME_STATS, h.ConsumeStatsHeader(consumer_group="G"))
    table = decode_body(answer.body, ConsumeStats).offset_table
    return {
        queue.queue_id: (one.broker_offset, one.consumer_offset, one.is_unknown)
        for queue, one in table.items()
        if queue.topic == "T"
    }


def test_a_group_that_hangs_from_its_start_has_the_lag_that_tools_show(talk, peer, metered):
    """It has committed in one queue of many, if any; in the others it counts from where it began first."""
    talk.create_topic("T", 4)
    for number in range(40):
        talk.send(FakePeer(), "T", queue_id=number % 4)
    talk.beat(peer, "alice")
    for queue_id, offset in ((0, 10), (1, 4), (2, 0), (2, 3)):
        talk.pull(peer, queue_id=queue_id, queue_offset=offset)
    commit(talk, peer, 8, queue_id=0)
    metered.look()
    assert metered.of(LAG, topic="T") == 2 + 6 + 10
    assert metered.of(AGE, topic="T") >= LAG_MS
    assert progress(talk, peer) == {0: (10, 8, None), 1: (10, 4, None), 2: (10, 0, None), 3: (10, 0, True)}


def test_a_group_that_pulled_behind_the_end_begins_at_the_end(talk, peer, metered):
    """Its lag was 0 until the queue reached the requested offset."""
    talk.create_topic("T", 1)
    talk.beat(peer, "alice")
    talk.pull(peer, queue_offset=5_000)
    for _ in range(3):
        talk.send(FakePeer(), "T")
    metered.look()
    assert metered.of(LAG, topic="T") == 3
    assert progress(talk, peer) == {0: (3, 0, None)}


def test_readers_that_are_no_members_have_no_beginning(talk, peer, metered):
    """This applies to readers that assign their queues and to broadcasting ones, which keep their offsets."""
    talk.create_topic("T", 1)
    talk.send(FakePeer(), "T")
    talk.beat(peer, "alice", message_model="BROADCASTING")
    talk.pull(peer)
    talk.pull(FakePeer("10.0.0.9:1"), group="assigned")
    left(talk, peer)
    metered.look()
    assert metered.of(LAG, topic="T") is None
    assert metered.of(LAG, "assigned", topic="T") is None


def test_whoever_commits_without_being_a_member_reads(talk, peer, metered):
    """A program that assigns its queues, and Spark, whose positions are shown as a group's."""
    talk.create_topic("T", 1)
    announcing = FakePeer("10.0.0.9:1")
    talk.beat(announcing, "spark")
    announcing.is_open = False
    talk.performer.closed(announcing)
    for number in range(9):
        talk.send(FakePeer(), "T")
        commit(talk, peer, number)
        metered.look()
    assert metered.of(LAG, topic="T") == 1
    assert metered.of("libra_group_diagnosis", kind="no_members") in (None, 0)


def test_a_lag_that_nobody_knows_is_unknown(talk, peer, metered):
    """It is never reported as 0; known lags of other queues count."""
    talk.create_topic("T", 2)
    talk.beat(peer, "alice")
    talk.send(FakePeer(), "T", queue_id=0)
    metered.look()
    assert math.isnan(metered.of(LAG, topic="T"))
    assert math.isnan(metered.of(AGE, topic="T"))
    commit(talk, peer, 0, queue_id=1)
    metered.look()
    assert math.isnan(metered.of(LAG, topic="T"))
    for _ in range(3):
        talk.send(FakePeer(), "T", queue_id=1)
    metered.look()
    assert metered.of(LAG, topic="T") == 3
    commit(talk, peer, 1, queue_id=0)
    commit(talk, peer, 3, queue_id=1)
    metered.look()
    assert (metered.of(LAG, topic="T"), metered.of(AGE, topic="T")) == (0, 0)


def test_lags_are_bounded_in_number_and_add_up():
    """A group or topic too many shares a series; an unknown lag there is not counted as 0."""
    metrics = Metrics()
    lags = [TopicLag(f"G{number}", "T", 1, number) for number in range(GROUPS_MAX + 3)]
    lags += [TopicLag("G0", f"T{number}", 1, 7) for number in range(LAGS_MAX)]
    metrics.progress(lags, {})
    value = metrics.registry.get_sample_value
    assert value(LAG, {"consumer_group": OTHERS, "topic": OTHERS}) == 3
    assert value(AGE, {"consumer_group": OTHERS, "topic": OTHERS}) == GROUPS_MAX + 2
    shared = value(LAG, {"consumer_group": "G0", "topic": OTHERS})
    assert shared == len(lags) - 3 - LAGS_MAX + 1
    metrics.progress([TopicLag("G0", "T", None, None)], {})
    assert math.isnan(value(LAG, {"consumer_group": "G0", "topic": "T"}))


def test_dead_letters_refused_sends_and_the_disk_are_counted(talk, peer, metered):
    """Both counters begin at 0: Prometheus sees no increase where a series begins."""
    talk.send(peer, body=b"x")
    talk.beat(peer, "alice")
    metered.look()
    assert metered.of("rocketmq_send_to_dlq_messages_total") == 0
    assert metered.value("libra_sends_refused_total", response_code="message_illegal") == 0
    header = h.SendBackHeader(offset=0, group="G", delay_level=-1)
    assert talk.ask(peer, R.CONSUMER_SEND_MSG_BACK, header).code == C.SUCCESS
    refused = talk.ask(peer, R.SEND_MESSAGE_V2, send_header(topic="a b"), b"x")
    assert refused.code != C.SUCCESS
    metered.look()
    assert metered.of("rocketmq_send_to_dlq_messages_total") == 1
    name = C(refused.code).name.lower()
    assert metered.value("libra_sends_refused_total", response_code=name) >= 1
    assert metered.value("rocketmq_storage_size") > 0
    assert metered.value("rocketmq_storage_message_reserve_time") > 0
    assert metered.value("libra_store_refuses") == 0
    assert 0 < metered.value("libra_disk_used_ratio") <= 1


def test_requests_are_timed_by_code_and_answer(talk, peer, metered):
    """A pull that waits for messages is counted apart."""
    talk.create_topic("T", 1)
    talk.send(peer)
    talk.give(peer, talk.pull_command(suspend_timeout_millis=15_000, queue_offset=1))
    talk.advance(4_000)
    talk.send(FakePeer())
    metered.look()
    sends = {"request_code": "send_message_v2", "response_code": "success", "is_long_polling": "false"}
    assert metered.value("rocketmq_rpc_latency_count", **sends) == 2
    assert metered.value("rocketmq_rpc_latency_bucket", **sends, le="1.0") == 2
    pulls = {"request_code": "pull_message", "response_code": "success", "is_long_polling": "true"}
    assert metered.value("rocketmq_rpc_latency_bucket", **pulls, le="3000.0") == 0
    assert metered.value("rocketmq_rpc_latency_sum", **pulls) == 4_000


def test_codes_that_no_request_has_share_a_series(talk, peer, metered):
    for code in range(90_000, 90_050):
        talk.tell(peer, code)
    metered.look()
    names = {
        sample.labels["request_code"]
        for family in metered.server.registry.collect()
        if family.name == "rocketmq_rpc_latency"
        for sample in family.samples
    }
    assert names == {"unknown"}


def test_slow_requests_are_logged_with_client_and_group_at_a_bounded_rate(tmp_path, caplog, request):
    """A disk that stalls makes all of them slow: one line a second, which counts the others."""
    talk = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    request.addfinalizer(talk.close)
    Metered(talk)
    peers = [FakePeer(f"10.0.0.{number}:7") for number in range(3)]
    for _ in range(2):
        for peer in peers:
            talk.give(peer, talk.command(R.SEND_MESSAGE_V2, send_header(producer_group="shop"), b"x"))
        talk.advance(SLOW_MS)
        talk.clock.advance(LOG_MS)
        talk.flush()
    lines = [each for each in caplog.messages if each.startswith("slow request")]
    assert len(lines) == 2
    assert "send_message_v2" in lines[0]
    assert "10.0.0.0:7" in lines[0]
    assert "shop" in lines[0]
    assert "more=2" in lines[1]
