"""An acting slave sends what is due to another master; its own master goes on behind that when it is back."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from libramq.broker.cluster import returning_master
from libramq.broker.cluster.acting_slave import delay_levels
from libramq.broker.files.delay_schedule import LevelAccount
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError, ConnectionLost
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.quick import quick
from tests.replication.pairs import Pair

ACTING = {"enable_slave_acting_master": True}
SECONDS = 1_000
#: A round of the tables, and some time for threads.
ROUND_MS = 12 * SECONDS


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    pair.slave.close()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.master.create_topic("T", queues=1)
    pair.open_other().create_topic("T", queues=1)
    pair.run(ROUND_MS)
    yield pair
    pair.close()


def bodies(talk: Conversation | None) -> list[bytes]:
    assert talk is not None
    return [message.body for message in talk.messages("T")]


def send(pair: Pair, *texts: str, level: str = "2", **properties: str) -> None:
    for text in texts:
        named = {"DELAY": level, "UNIQ_KEY": text} | properties
        reply = pair.master.send(FakePeer(), body=text.encode(), properties=named, born_timestamp=7)
        assert reply.code == ResponseCode.SUCCESS


def lose_master(pair: Pair) -> None:
    pair.part()
    pair.run()
    pair.master.kill()


def return_master(pair: Pair) -> None:
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(2 * ROUND_MS)


def test_a_master_that_asks_late_hears_what_was_delivered(pair: Pair) -> None:
    """Its slave has copied its tables by then."""
    send(pair, "one", level="1")
    lose_master(pair)
    pair.run(15 * SECONDS)
    pair.leaves_master_alone = True
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(15 * SECONDS)
    pair.leaves_master_alone = False
    pair.run(60 * SECONDS)
    assert (bodies(pair.other), bodies(pair.master)) == ([b"one"], [])


def test_what_is_due_while_the_master_is_gone_is_delivered_once(pair: Pair) -> None:
    send(pair, "one", "two", level="1")
    pair.run(1_500)
    send(pair, "three", "four")
    send(pair, "five", level="4")
    pair.run(100)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert bodies(pair.slave) == [b"one", b"two"]  # Nothing is stored by a slave.
    assert sorted(bodies(pair.other)) == [b"four", b"three"]
    return_master(pair)
    assert bodies(pair.master) == [b"one", b"two", b"five"]
    assert sorted(bodies(pair.other)) == [b"four", b"three"]


def test_a_message_keeps_what_its_producer_gave_it(pair: Pair) -> None:
    send(pair, "one", TAGS="red", colour="blue")
    pair.run(100)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert pair.other is not None
    (message,) = pair.other.messages("T")
    assert (message.tags, message.properties["colour"], message.properties["UNIQ_KEY"]) == (
        "red", "blue", "one",
    )  # fmt: skip
    assert message.born_timestamp_ms == 7
    assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & message.properties.keys()


def test_what_the_master_had_delivered_is_not_sent(pair: Pair) -> None:
    """The table of its levels was copied before that; the log has the copies."""
    send(pair, "one", level="1")
    pair.run(1_500)
    assert pair.slave.broker.schedule.offsets == {}
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert (bodies(pair.slave), bodies(pair.other)) == ([b"one"], [])


def test_what_the_master_had_delivered_to_a_queue_that_its_slave_does_not_know_is_not_sent(
    pair: Pair,
) -> None:
    """The topic grew after its table was copied; found by the simulator (seed 8000365)."""
    pair.master.create_topic("T", queues=8)
    named = {"DELAY": "1", "UNIQ_KEY": "one"}
    pair.master.send(FakePeer(), body=b"one", queue_id=7, properties=named, born_timestamp=7)
    pair.run(1_500)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert [message.body for message in pair.slave.messages("T", 7)] == [b"one"]
    assert bodies(pair.other) == []


def test_many_messages_are_sent(pair: Pair) -> None:
    texts = [f"{number:03}" for number in range(200)]
    send(pair, *texts)
    pair.run(100)
    lose_master(pair)
    pair.run(60 * SECONDS)
    assert sorted(bodies(pair.other)) == [text.encode() for text in texts]
    return_master(pair)
    assert bodies(pair.master) == []


def test_without_another_master_that_has_the_topic_messages_wait(pair: Pair) -> None:
    assert pair.other is not None
    pair.other.broker.topics.delete("T", pair.clock.wall_ms())
    send(pair, "one")
    pair.run(100)
    lose_master(pair)
    pair.run(15 * SECONDS)
    return_master(pair)
    assert bodies(pair.master) == [b"one"]


def test_a_send_without_an_answer_is_repeated(pair: Pair) -> None:
    """It may be stored twice then, which is better than never."""
    send(pair, "one")
    pair.run(100)
    lose_master(pair)
    pair.loses_answers = True
    pair.run(8 * SECONDS)
    assert set(bodies(pair.other)) == {b"one"}
    assert pair.slave.broker.schedule.offsets == {}
    pair.loses_answers = False
    pair.run(5 * SECONDS)
    assert pair.slave.broker.schedule.offsets == {2: 1}


def test_a_slave_that_is_restarted_goes_on_behind_what_it_has_sent(pair: Pair) -> None:
    send(pair, "one")
    pair.run(2 * SECONDS)
    send(pair, "two")
    pair.run(100)
    lose_master(pair)
    pair.run(4 * SECONDS)
    assert bodies(pair.other) == [b"one"]
    pair.run(500)
    pair.slave.kill()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.run(15 * SECONDS)
    assert bodies(pair.other) == [b"one", b"two"]


@pytest.mark.parametrize("missing", ["enable_remote_escape", "a lower id"])
def test_who_does_not_send(pair: Pair, missing: str) -> None:
    options = ACTING | {"enable_remote_escape": missing != "enable_remote_escape"}
    pair.slave.close()
    pair.open_slave(**options, **({"broker_id": 2} if missing == "a lower id" else {}))
    pair.run(ROUND_MS)
    send(pair, "one")
    pair.run(100)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert bodies(pair.other) == []


def test_a_slave_sends_nothing_once_its_master_asks(pair: Pair) -> None:
    send(pair, "one")
    pair.run(100)
    lose_master(pair)
    pair.run(1_000)
    reply = pair.slave.ask(FakePeer(), RequestCode.GET_ALL_DELAY_OFFSET)
    assert reply.code == ResponseCode.SUCCESS
    pair.run(15 * SECONDS)
    assert bodies(pair.other) == []


def test_a_master_that_lost_its_end_skips_nothing(pair: Pair, tmp_path: Path) -> None:
    """Its new messages have the numbers of those that the slave has sent."""
    send(pair, "one")
    pair.run(100)
    pair.part()
    pair.run()
    pair.master.kill()
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "master", saved)
    pair.return_master()
    pair.run(3 * SECONDS)
    send(pair, "lost", "gone")
    pair.run(500)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert sorted(bodies(pair.other)) == [b"gone", b"lost", b"one"]
    shutil.rmtree(tmp_path / "master")
    shutil.copytree(saved, tmp_path / "master")
    # It comes back without its end, alone, and gets other messages; then it is restarted beside its slave.
    pair.is_reachable = False
    pair.open_master()
    send(pair, "new", "other", level="5")
    send(pair, "newest", "last", level="2")
    pair.master.kill()
    return_master(pair)
    pair.run(70 * SECONDS)
    # "one" is there as well: what such a slave has sent may come twice, and the log says so.
    assert sorted(bodies(pair.master)) == [b"last", b"new", b"newest", b"one", b"other"]


def test_a_master_waits_for_a_slave_that_does_not_answer_for_so_long_only(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(pair, "one")
    pair.run(100)
    lose_master(pair)
    monkeypatch.setattr(pair, "_answer_of", lambda address, command: ConnectionLost("silent"))
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(returning_master.WAIT_MS_MAX - 1_000)
    assert bodies(pair.master) == []
    pair.run(2_000)
    assert bodies(pair.master) == [b"one"]


def test_who_does_not_act_escapes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="enableSlaveActingMaster"):
        Conversation(
            tmp_path, broker_role="SLAVE", broker_id=1, namesrv_addr="n:1", enable_remote_escape=True
        )


#: More than `refusing` lets its other master take.
LARGE = "large" * 100


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[Pair]:
    """A pair beside a master that refuses large messages."""
    pair = Pair(tmp_path, namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.slave.close()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.master.create_topic("T", queues=1)
    pair.open_other(max_message_size=100).create_topic("T", queues=1)
    pair.run(ROUND_MS)
    yield pair
    pair.close()


def test_others_pass_what_another_master_refuses(refusing: Pair) -> None:
    """A message that was refused for good held up all of its level behind it."""
    send(refusing, "one", LARGE, "two")
    refusing.run(100)
    lose_master(refusing)
    refusing.run(15 * SECONDS)
    assert sorted(bodies(refusing.other)) == [b"one", b"two"]
    schedule = refusing.slave.broker.schedule
    assert (schedule.offsets, schedule.accounts) == ({2: 1}, {2: LevelAccount(until=3, waiting=(1,))})
    return_master(refusing)
    assert bodies(refusing.master) == [LARGE.encode()]
    assert sorted(bodies(refusing.other)) == [b"one", b"two"]
    for talk in (refusing.master, refusing.slave):
        assert (talk.broker.schedule.offsets, talk.broker.schedule.accounts) == ({2: 3}, {})


@pytest.mark.parametrize("who", ["slave", "master"])
def test_an_account_survives_a_kill(refusing: Pair, who: str) -> None:
    send(refusing, LARGE, *(f"{number}" for number in range(40)))
    refusing.run(100)
    lose_master(refusing)
    refusing.run(15 * SECONDS)
    if who == "slave":
        refusing.slave.kill()
        refusing.open_slave(**ACTING, enable_remote_escape=True)
        refusing.run(15 * SECONDS)
    else:
        refusing.return_master()
        refusing.run(1_500)
        lose_master(refusing)
        refusing.run(1_000)
    return_master(refusing)
    assert bodies(refusing.master) == [LARGE.encode()]
    assert sorted(bodies(refusing.other)) == sorted(f"{number}".encode() for number in range(40))


def test_what_waits_is_sent_once_another_master_has_its_topic(pair: Pair) -> None:
    assert pair.other is not None
    pair.other.broker.topics.delete("T", pair.clock.wall_ms())
    texts = [f"{number:02}" for number in range(50)]
    send(pair, *texts)
    pair.run(100)
    lose_master(pair)
    pair.run(30 * SECONDS)
    assert len(pair.slave.broker.schedule.accounts[2].waiting) == len(texts)
    pair.other.create_topic("T", queues=1)
    pair.run(60 * SECONDS)
    assert sorted(bodies(pair.other)) == [text.encode() for text in texts]
    return_master(pair)
    assert bodies(pair.master) == []


def test_with_too_many_that_wait_those_behind_wait_too(
    refusing: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay_levels, "WAITING_MAX", 1)
    send(refusing, LARGE)
    refusing.run(5 * SECONDS)
    send(refusing, LARGE, "one", LARGE, "two", *(f"{number}" for number in range(40)))
    refusing.run(100)
    lose_master(refusing)
    refusing.run(60 * SECONDS)
    assert len(bodies(refusing.other)) == 30  # The rest of one window.
    assert LARGE.encode() not in bodies(refusing.other)
    return_master(refusing)
    found = bodies(refusing.master) + bodies(refusing.other)
    assert len(found) == len({*found}) + 2 == 45


@pytest.mark.parametrize("seed", quick(range(12), 3))
def test_whatever_happens_each_message_is_delivered_once(tmp_path: Path, seed: int) -> None:
    """Masters are killed and return, slaves are restarted, and messages of all ages wait meanwhile."""
    random = Random(seed)
    pair = Pair(tmp_path, namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.slave.close()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.master.create_topic("T", queues=1)
    pair.open_other(max_message_size=100).create_topic("T", queues=1)
    pair.run(ROUND_MS)
    sent: list[bytes] = []
    for _ in range(25):
        match random.choice(["send", "send", "wait", "wait", "master", "slave"]):
            case "send" if pair.is_reachable:
                texts = [
                    f"{len(sent) + number}" + random.choice(["", "", LARGE])
                    for number in range(random.randint(1, 40))
                ]
                send(pair, *texts, level=str(random.randint(1, 4)))
                sent += [text.encode() for text in texts]
            case "wait":
                pair.run(random.choice([10, 300, 3_000, 12_000]))
            case "master" if pair.is_reachable:
                lose_master(pair)
            case "master":
                pair.return_master()
            case "slave":
                pair.run(random.choice([0, 400]))
                pair.slave.close()
                pair.open_slave(**ACTING, enable_remote_escape=True)
    if not pair.is_reachable:
        pair.return_master()
    pair.run(90 * SECONDS)
    found = bodies(pair.master) + bodies(pair.other)
    pair.close()
    assert sorted(found) == sorted(sent)
