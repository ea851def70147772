"""An acting slave passes open transactions on to another master; each message is committed once, or never."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from libramq.broker.cluster.acting_slave.other_masters import WINDOW_BYTES_MAX
from libramq.codes import ResponseCode
from libramq.message.names import TRANS_HALF_TOPIC
from tests.broker.brokers import Conversation
from tests.broker.test_transactions import (
    COMMIT,
    INTERVAL_MS,
    ROLLBACK,
    bodies,
    checks,
    end,
    place_of,
    prepare,
)
from tests.fakes import FakePeer
from tests.quick import quick
from tests.replication.pairs import Pair
from tests.replication.test_escaping import ACTING, ROUND_MS, SECONDS, lose_master

OLD_MS = 7 * SECONDS


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = open_pair(tmp_path)
    yield pair
    pair.close()


def open_pair(root: Path) -> Pair:
    pair = Pair(root, namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.slave.close()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.master.create_topic("T")
    pair.open_other().create_topic("T")
    pair.run(ROUND_MS)
    return pair


def other(pair: Pair) -> Conversation:
    assert pair.other is not None
    return pair.other


def producer_of(talk: Conversation) -> FakePeer:
    peer = FakePeer("10.0.0.7:1")
    talk.beat_producer(peer, "producer")
    return peer


def halves(talk: Conversation) -> list[bytes]:
    return [message.body for message in talk.messages(TRANS_HALF_TOPIC)]


def return_master(pair: Pair) -> None:
    pair.return_master()
    pair.run(2 * ROUND_MS)


def test_large_half_messages_are_passed_on_one_after_the_other(pair: Pair) -> None:
    for number in range(5):
        prepare(pair.master, FakePeer(), b"%d" % number * 500_000, UNIQ_KEY=f"{number}")
        pair.run(100)
    pair.run(OLD_MS)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert len(halves(other(pair))) == 5
    assert pair.asked_bytes_max < 2 * WINDOW_BYTES_MAX


def test_open_transactions_are_passed_on_and_end_at_the_other_master(pair: Pair) -> None:
    places = {body: prepare(pair.master, FakePeer(), body) for body in (b"1", b"2", b"3")}
    end(pair.master, FakePeer(), places[b"1"])
    end(pair.master, FakePeer(), places[b"2"], ROLLBACK)
    pair.run(100)
    lose_master(pair)
    pair.run(OLD_MS + 5 * SECONDS)
    assert halves(other(pair)) == [b"3"]
    assert len(halves(pair.slave)) == 3
    producer = producer_of(other(pair))
    pair.run(INTERVAL_MS)
    ((asked, message),) = checks(producer)
    assert (message.topic, message.body, message.properties["UNIQ_KEY"]) == ("T", b"3", "KEY3")
    assert end(other(pair), producer, place_of(asked)).code == ResponseCode.SUCCESS
    return_master(pair)
    producer = producer_of(pair.master)
    assert end(pair.master, producer, places[b"3"]).code == ResponseCode.SYSTEM_ERROR
    pair.run(3 * INTERVAL_MS)
    assert checks(producer) == []
    assert (bodies(pair.master), bodies(other(pair), queue_id=0)) == ([b"1"], [b"3"])


def test_a_young_transaction_waits_for_its_master(pair: Pair) -> None:
    place = prepare(pair.master, FakePeer())
    pair.run(100)
    lose_master(pair)
    pair.run(3 * SECONDS)
    return_master(pair)
    assert halves(other(pair)) == []
    assert end(pair.master, FakePeer(), place).code == ResponseCode.SUCCESS
    assert bodies(pair.master) == [b"order"]


def test_a_transaction_of_which_there_are_copies_is_passed_on_once(pair: Pair) -> None:
    prepare(pair.master, FakePeer())
    pair.run(2 * INTERVAL_MS)
    assert len(halves(pair.master)) > 1
    lose_master(pair)
    pair.run(OLD_MS + 5 * SECONDS)
    assert halves(other(pair)) == [b"order"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_copy_that_the_slave_had_not_got_ends_where_its_half_message_does(
    pair: Pair, is_restarted: bool
) -> None:
    """The master has asked about it once more in the last moment before it died."""
    other(pair).kill()
    pair.open_other(transaction_check_interval_ms=600_000)
    place = prepare(pair.master, FakePeer())
    pair.run(100)
    pair.part()
    pair.run(2 * INTERVAL_MS)
    assert len(halves(pair.master)) > 1
    lose_master(pair)
    pair.run(OLD_MS + 5 * SECONDS)
    assert halves(other(pair)) == [b"order"]
    return_master(pair)
    if is_restarted:
        lose_master(pair)
        pair.return_master()
    producer = producer_of(pair.master)
    pair.run(3 * INTERVAL_MS)
    assert checks(producer) == []
    end(pair.master, producer, place)
    assert bodies(pair.master) == []


def test_a_slave_that_is_restarted_passes_on_nothing_twice(pair: Pair) -> None:
    prepare(pair.master, FakePeer())
    pair.run(100)
    lose_master(pair)
    pair.run(OLD_MS + 5 * SECONDS)
    pair.slave.kill()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.run(OLD_MS + 5 * SECONDS)
    assert halves(other(pair)) == [b"order"]


@pytest.mark.parametrize("seed", quick(range(8), 2))
def test_whatever_happens_each_transaction_ends_once(tmp_path: Path, seed: int) -> None:
    """Masters are lost and return; producers end at once, later, or when asked, and repeat themselves."""
    random = Random(seed)
    pair = open_pair(tmp_path)
    decided: dict[bytes, int] = {}
    places: dict[bytes, dict[str, int]] = {}
    producers: dict[Conversation, FakePeer] = {}

    def answer_checks() -> None:
        for talk in (pair.master, other(pair)):
            if talk.is_killed:
                continue
            producer = producers.setdefault(talk, FakePeer("10.0.0.7:1"))
            talk.beat_producer(producer, "producer")
            pair.run(INTERVAL_MS + SECONDS)
            for asked, message in checks(producer):
                end(talk, producer, place_of(asked), decided[message.body])

    for _ in range(20):
        match random.choice(["prepare", "prepare", "end", "wait", "wait", "answer", "master"]):
            case "prepare" if pair.is_reachable:
                for _ in range(random.randint(1, 10)):
                    body = b"%d" % len(decided)
                    decided[body] = random.choice([COMMIT, ROLLBACK])
                    places[body] = prepare(pair.master, FakePeer(), body)
            case "end" if pair.is_reachable and places:
                for body in random.sample(sorted(places), min(len(places), 5)):
                    end(pair.master, FakePeer(), places[body], decided[body])
            case "wait":
                pair.run(random.choice([10, SECONDS, 10 * SECONDS]))
            case "answer":
                answer_checks()
            case "master" if pair.is_reachable:
                lose_master(pair)
            case "master":
                pair.return_master()
    if not pair.is_reachable:
        pair.return_master()
    for _ in range(4):
        answer_checks()
    found = bodies(pair.master) + bodies(other(pair), queue_id=0)
    pair.close()
    assert sorted(found) == sorted(body for body, how in decided.items() if how == COMMIT)


def test_a_half_message_of_a_producer_whose_clock_is_ahead_is_passed_on_and_holds_up_none(pair: Pair) -> None:
    half = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "ahead"}
    ahead_ms = pair.clock.wall_ms() + 3_600 * SECONDS
    sent = pair.master.send(
        FakePeer(), body=b"ahead", queue_id=2, properties=half, sys_flag=4, born_timestamp=ahead_ms
    )
    assert sent.code == ResponseCode.SUCCESS
    prepare(pair.master, FakePeer(), b"next")
    pair.run(OLD_MS)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert halves(other(pair)) == [b"ahead", b"next"]
