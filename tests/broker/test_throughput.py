"""How many messages topics received and groups were sent lately, as tools query it."""

import pytest

from libramq.broker.messages.throughput import BUCKET_MS, WINDOW_MS
from libramq.broker.processor.administration.runtime_info import SAMPLE_MS
from libramq.codes import RequestCode as R
from libramq.formats.document import decode_body
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import ConsumeStats, TopicStatsTable
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer


def put_tps(talk: Conversation, topic: str = "T") -> float:
    reply = talk.ask(FakePeer(), R.GET_TOPIC_STATS_INFO, h.TopicHeader(topic=topic))
    return decode_body(reply.body, TopicStatsTable).topic_put_tps


def consume_tps(talk: Conversation, group: str = "G", **asked: str) -> float:
    reply = talk.ask(FakePeer(), R.GET_CONSUME_STATS, h.ConsumeStatsHeader(consumer_group=group, **asked))
    return decode_body(reply.body, ConsumeStats).consume_tps


@pytest.fixture
def old(talk: Conversation) -> Conversation:
    """A broker that has been running for longer than a minute."""
    talk.create_topic("T", 2)
    talk.create_topic("U", 2)
    talk.advance(2 * WINDOW_MS)
    return talk


def test_rates_of_topics_cover_the_last_minute(old):
    for number in range(30):
        old.send(FakePeer(), queue_id=number % 2)
    assert put_tps(old) == pytest.approx(30 / 60)
    assert put_tps(old, "U") == 0
    old.advance(BUCKET_MS)
    old.send(FakePeer())
    assert put_tps(old) == pytest.approx(31 / 60)
    old.advance(WINDOW_MS)
    assert put_tps(old) == pytest.approx(1 / 60)
    old.advance(BUCKET_MS)
    assert put_tps(old) == 0


def test_rates_of_groups_cover_the_last_minute(old, peer):
    for _ in range(20):
        old.send(peer)
    old.beat(peer, "alice")
    old.pull(peer, max_msg_nums=12)
    assert consume_tps(old, topic="T") == pytest.approx(12 / 60)
    assert consume_tps(old, topic="U") == consume_tps(old, "other", topic="T") == 0
    old.pull(peer, queue_offset=12, max_msg_nums=32)
    assert consume_tps(old) == pytest.approx(20 / 60)
    old.pull(peer, queue_offset=20)
    assert consume_tps(old) == pytest.approx(20 / 60), "nothing was there"
    old.advance(WINDOW_MS + BUCKET_MS)
    assert consume_tps(old) == 0


def test_a_young_broker_divides_by_its_age(talk, peer):
    talk.create_topic("T", 1)
    talk.advance(5_000)
    for _ in range(10):
        talk.send(peer)
    assert put_tps(talk) == pytest.approx(10 / 5)


def test_counters_cover_one_minute_and_wake_no_idle_broker(old):
    """There is one bucket for each 10 s in which something was stored or read."""
    throughput = old.broker.throughput
    old.send(FakePeer())
    old.advance(SAMPLE_MS)
    assert throughput._deadline.due_ms is not None
    old.advance(BUCKET_MS - SAMPLE_MS)
    assert throughput._deadline.due_ms is None
    for _ in range(20):
        old.send(FakePeer())
        old.advance(BUCKET_MS)
    assert len(throughput._buckets) == WINDOW_MS // BUCKET_MS
    assert not old.broker.store.topic_puts
