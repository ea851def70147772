"""Slaves copy deletions of topics: neither they nor promoted ones deliver what waits for the former topic."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.codes import RequestCode, ResponseCode
from libramq.message.names import TRANS_HALF_TOPIC
from libramq.remoting import headers as h
from tests.broker.test_destinations import dropped
from tests.broker.test_transactions import end, prepare
from tests.fakes import FakePeer
from tests.replication.pairs import Pair, log_of
from tests.replication.test_escaping import ACTING, ROUND_MS, SECONDS, lose_master
from tests.replication.test_slave import bodies, is_copying, kept_aside, lose_the_end, save

WAITS = [
    pytest.param({"DELAY": "5"}, id="delay level"),
    pytest.param({"TIMER_DELAY_SEC": "60"}, id="timer"),
]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    pair.master.create_topic("T")
    yield pair
    pair.close()


def send(pair: Pair, body: bytes, properties: dict[str, str] | None = None) -> None:
    reply = pair.master.send(FakePeer(), body=body, properties=dict(properties or {}))
    assert reply.code == ResponseCode.SUCCESS


def renew_topic(pair: Pair) -> None:
    """Delete the topic at the master, and make it again."""
    header = h.TopicHeader(topic="T")
    reply = pair.master.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, header)
    assert reply.code == ResponseCode.SUCCESS
    pair.master.create_topic("T")


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("properties", WAITS)
def test_a_promoted_slave_drops_what_waits_for_a_deleted_topic(
    pair: Pair, properties: dict[str, str], is_killed: bool
) -> None:
    for _ in range(2):
        send(pair, b"old", properties)
    half = prepare(pair.master, FakePeer(), b"half old")
    pair.run(100)
    renew_topic(pair)
    send(pair, b"new", properties)
    pair.run(ROUND_MS)
    pair.slave.flush()
    promoted = pair.promote(is_killed=is_killed)
    assert end(promoted, FakePeer(), half).code == ResponseCode.SUCCESS
    for _ in range(60):
        promoted.advance(1_000)
        promoted.flush()
        promoted.threads.run_all()
    assert bodies(promoted) == [b"new"]
    assert dropped(promoted) == "3"


@pytest.mark.parametrize("properties", WAITS)
def test_an_acting_slave_drops_what_waits_for_a_deleted_topic(
    pair: Pair, properties: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    pair.slave.close()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    other = pair.open_other()
    other.create_topic("T")
    pair.run(ROUND_MS)
    for _ in range(2):
        send(pair, b"old", properties)
    prepare(pair.master, FakePeer(), b"half old")
    pair.run(100)
    renew_topic(pair)
    send(pair, b"new", properties)
    prepare(pair.master, FakePeer(), b"half new")
    pair.run(ROUND_MS)
    lose_master(pair)
    pair.run(75 * SECONDS)
    assert bodies(other) == [b"new"]
    assert {message.body for message in other.messages(TRANS_HALF_TOPIC)} == {b"half new"}
    assert caplog.text.count("delayed messages for a deleted topic were dropped") == 2
    assert dropped(pair.slave) == "3"


def test_a_slave_removes_the_queues_of_a_deleted_topic(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Its log ends with records of no queue then, and is still its master's when they are compared again."""
    pair.master.create_topic("Other")
    pair.master.send(FakePeer(), topic="Other")
    for _ in range(3):
        send(pair, b"old")
    pair.run(100)
    renew_topic(pair)
    pair.run(ROUND_MS)
    assert bodies(pair.slave) == []
    pair.part()
    pair.run()
    pair.slave.close()
    pair.open_slave()
    pair.is_reachable = True
    pair.run(5_000)
    assert is_copying(pair)
    assert log_of(pair.slave) == log_of(pair.master)
    assert kept_aside(pair) == b""
    send(pair, b"new")
    pair.run(100)
    assert bodies(pair.slave) == [b"new"]
    assert "lost" not in caplog.text


def test_a_deletion_that_was_cut_from_the_log_says_nothing_of_what_follows(
    pair: Pair, tmp_path: Path
) -> None:
    """The master lost the end of its log, and in its place has messages of a topic that was never deleted."""
    send(pair, b"first")
    pair.run(100)
    saved = save(pair, tmp_path / "saved")
    for _ in range(3):
        send(pair, b"lost")
    renew_topic(pair)
    send(pair, b"lost, too")
    pair.run(ROUND_MS)
    assert bodies(pair.slave) == [b"lost, too"]
    lose_the_end(pair, saved)
    send(pair, b"later", {"DELAY": "3"})
    pair.run(5 * SECONDS)
    pair.slave.flush()
    promoted = pair.promote()
    promoted.advance(10_000)
    assert b"later" in bodies(promoted)
