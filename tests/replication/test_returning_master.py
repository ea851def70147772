"""What an acting slave has done is known to whoever delivers next: another slave, or its master."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from libramq.broker.cluster.acting_slave import takeover
from libramq.broker.cluster.table_copies import OffsetTables, ReturnedCommits
from libramq.broker.transactions.half import TRANSACTION_GROUP
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.formats import fastjson
from libramq.message.names import TRANS_HALF_TOPIC
from libramq.offsets.consumer_offset import SEPARATOR
from tests.broker.brokers import Conversation
from tests.broker.test_pop import Popper
from tests.broker.test_transactions import end, prepare
from tests.fakes import FakePeer
from tests.replication.pairs import SECOND, Pair
from tests.replication.test_escaping import ACTING, ROUND_MS, SECONDS, lose_master
from tests.replication.test_escaping_pops import ack, pop, redelivered, send, texts
from tests.replication.test_pops_at_slave import refusal

ESCAPING = ACTING | {"enable_remote_escape": True}
COUNT = 40


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = open_pair(tmp_path)
    yield pair
    pair.close()


def open_pair(root: Path) -> Pair:
    """Open a master and a slave beside another master; all have the topic and the group."""
    pair = Pair(root, namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.slave.close()
    pair.open_slave(**ESCAPING)
    pair.master.create_topic("T")
    pair.open_other(transaction_check_interval_ms=600_000).create_topic("T")
    for talk in (pair.master, pair.other):
        assert talk is not None
        assert Popper(talk).pop() == []
    pair.run(ROUND_MS)
    return pair


def numbered(kind: str) -> list[str]:
    return [f"{kind}{number:02}" for number in range(COUNT)]


def leave_what_waits(pair: Pair) -> None:
    """Have the master leave popped, delayed and timer messages, and a transaction."""
    send(pair, *numbered("popped"))
    popped = [*pop(pair.master, max_msg_nums=32), *pop(pair.master, max_msg_nums=32)]
    assert len(popped) == COUNT
    send(pair, *numbered("delayed"), DELAY="3")
    send(pair, *numbered("timer"), TIMER_DELAY_SEC="10")
    prepare(pair.master, FakePeer(), b"half")
    pair.run(100)


def delivered(talk: Conversation | None) -> list[str]:
    """Return what a broker was sent for a master that is gone."""
    assert talk is not None
    stored = [message for queue_id in range(4) for message in talk.messages("T", queue_id)]
    return sorted([*texts(stored), *redelivered(talk), *texts(talk.messages(TRANS_HALF_TOPIC))])


def waiting() -> list[str]:
    return sorted([*numbered("popped"), *numbered("delayed"), *numbered("timer"), "half"])


def test_another_slave_goes_on_behind_the_one_that_dies(pair: Pair) -> None:
    pair.open_second(**ESCAPING)
    pair.run(ROUND_MS)
    leave_what_waits(pair)
    lose_master(pair)
    pair.run(40 * SECONDS)
    assert delivered(pair.other) == waiting()
    pair.slave.kill()
    pair.run(40 * SECONDS)
    assert delivered(pair.other) == waiting()


def test_a_slave_that_returns_goes_on_behind_the_one_that_acts(pair: Pair) -> None:
    second = pair.open_second(**ESCAPING)
    pair.run(ROUND_MS)
    leave_what_waits(pair)
    lose_master(pair)
    pair.slave.kill()
    pair.run(40 * SECONDS)
    assert delivered(pair.other) == waiting()
    pair.open_slave(**ESCAPING)
    pair.run(5 * SECONDS)
    second.kill()
    pair.run(40 * SECONDS)
    assert delivered(pair.other) == waiting()


@pytest.mark.parametrize("happening", ["is_slave_frozen", "is_slave_lost"])
def test_a_slave_that_was_away_goes_on_behind_one_that_acted_meanwhile(pair: Pair, happening: str) -> None:
    second = pair.open_second(**ESCAPING)
    pair.run(ROUND_MS)
    leave_what_waits(pair)
    lose_master(pair)
    pair.run(5 * SECONDS)
    setattr(pair, happening, True)
    pair.run(40 * SECONDS)
    assert delivered(pair.other) == waiting()
    setattr(pair, happening, False)
    pair.run(40 * SECONDS)
    assert delivered(pair.other) == waiting()
    assert refusal(second) == ResponseCode.SYSTEM_BUSY, "one slave acts"


def test_a_slave_that_was_frozen_leaves_what_it_had_begun(pair: Pair) -> None:
    pair.open_second(**ESCAPING)
    pair.run(ROUND_MS)
    send(pair, *numbered("timer"), TIMER_DELAY_SEC="10")
    pair.run(100)
    pair.other_takes = 16
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert delivered(pair.other) == numbered("timer")[:16]
    pair.is_slave_frozen, pair.other_takes = True, None
    pair.run(15 * SECONDS)
    by_second = delivered(pair.other)
    assert {*by_second} == {*numbered("timer")}
    pair.is_slave_frozen = False
    pair.run(40 * SECONDS)
    assert delivered(pair.other) == by_second


def test_a_slave_that_was_frozen_hands_out_nothing_before_it_has_asked(pair: Pair) -> None:
    second = pair.open_second(**ESCAPING)
    pair.run(ROUND_MS)
    send(pair, "one", "two")
    pair.run(100)
    lose_master(pair)
    pair.run(10 * SECONDS)
    pair.is_slave_frozen = True
    pair.run(10 * SECONDS)
    ack(second, *pop(second, max_msg_nums=1))
    pair.run(10 * SECONDS)
    pair.is_slave_frozen = False
    assert refusal(pair.slave) == ResponseCode.SYSTEM_BUSY
    pair.run(5 * SECONDS)
    assert texts(pop(pair.slave)) == ["two"]


def test_commits_at_a_slave_that_dies_are_known_to_the_next_one(pair: Pair) -> None:
    second = pair.open_second(**ESCAPING)
    pair.run(ROUND_MS)
    send(pair, "one", "two", "three")
    pair.run(100)
    lose_master(pair)
    pair.run(10 * SECONDS)
    assert refusal(second) == ResponseCode.SYSTEM_BUSY, "one slave acts"
    ack(pair.slave, *pop(pair.slave, max_msg_nums=2))
    pair.run(2 * SECONDS)
    pair.slave.kill()
    pair.run(5 * SECONDS)
    assert texts(pop(second)) == ["three"]
    pair.return_master()
    pair.run(1 * SECONDS)
    assert texts(pop(pair.master)) == ["three"]


@pytest.mark.parametrize(
    "forged",
    [{"timers": [10**30, 10**30]}, {"committed": {"T@G": {"99999999999": 7}}}, {"halfOffset": 10**30}],
)
def test_an_answer_with_numbers_that_are_none_of_javas_counts_as_none(pair: Pair, forged: object) -> None:
    """The slave could write its progress, or its commits, never again."""
    second = pair.open_second(**ESCAPING)
    pair.run(ROUND_MS)
    send(pair, "delayed", DELAY="1")
    pair.run(100)
    code = RequestCode.SLAVE_PROGRESS
    answer = fastjson.loads(second.ask(FakePeer(), code, {"brokerId": "1"}).body)
    pair.forged[SECOND, code] = fastjson.dumps(answer | forged)
    lose_master(pair)
    pair.run(takeover.PEERS_MS_MAX + 10 * SECONDS)
    assert delivered(pair.other) == ["delayed"]
    ack(pair.slave, *pop(pair.slave))
    pair.slave.close()
    pair.open_slave(**ESCAPING)


def test_a_slave_that_begins_to_act_waits_for_silent_ones_only_so_long(pair: Pair) -> None:
    pair.open_second(**ESCAPING)
    pair.run(ROUND_MS)
    send(pair, "delayed", DELAY="1")
    pair.run(100)
    pair.silent.add(SECOND)
    lose_master(pair)
    pair.run(2 * SECONDS)
    assert delivered(pair.other) == []
    pair.run(takeover.PEERS_MS_MAX + 3 * SECONDS)
    assert delivered(pair.other) == ["delayed"]


def test_a_master_that_was_frozen_asks_before_it_delivers(pair: Pair) -> None:
    leave_what_waits(pair)
    pair.freeze_master()
    pair.run(45 * SECONDS)
    assert delivered(pair.other) == waiting()
    pair.thaw_master()
    pair.run(2 * ROUND_MS)
    assert texts(pair.master.messages("T")) == numbered("popped")
    assert redelivered(pair.master) == []


def test_a_request_that_comes_first_after_a_freeze_is_served_after_the_answer(pair: Pair) -> None:
    place = prepare(pair.master, FakePeer(), b"half")
    pair.run(100)
    pair.freeze_master()
    pair.run(45 * SECONDS)
    assert delivered(pair.other) == ["half"]
    pair.thaw_master()
    assert end(pair.master, FakePeer(), place).code == ResponseCode.SYSTEM_ERROR
    pair.run(2 * ROUND_MS)
    assert pair.master.messages("T") == []


def test_a_master_that_thaws_may_send_its_table_before_it_asks(pair: Pair) -> None:
    """The slave returned the offset of half messages as a group's, was refused, and forgot it (seed 47)."""
    prepare(pair.master, FakePeer(), b"half")
    pair.run(100)
    pair.freeze_master()
    pair.run(45 * SECONDS)
    assert delivered(pair.other) == ["half"]
    commits = pair.slave.broker.offsets.at_slave

    def refuse(_: object, answered: Callable[[object], None]) -> None:
        answered(broker_error(ResponseCode.NO_PERMISSION, "no"))

    ReturnedCommits(commits, refuse).send(OffsetTables({}, {}))
    assert commits.table[f"{TRANS_HALF_TOPIC}{SEPARATOR}{TRANSACTION_GROUP}"] == {0: 1}


def test_a_master_that_name_servers_had_lost_asks_when_they_know_it_again(pair: Pair) -> None:
    place = prepare(pair.master, FakePeer(), b"half")
    pair.master.broker.registration.begin(lambda: None)
    pair.run(2 * SECONDS)
    pair.leaves_master_alone = True
    pair.part()
    pair.run(20 * SECONDS)
    assert delivered(pair.other) == ["half"]
    pair.leaves_master_alone, pair.is_reachable = False, True
    pair.run(3 * SECONDS)
    assert end(pair.master, FakePeer(), place).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_acknowledged_at_a_slave_that_was_restarted_is_not_redelivered(
    pair: Pair, *, is_killed: bool
) -> None:
    send(pair, *numbered("popped"), "one", "two")
    at_master = [*pop(pair.master, max_msg_nums=32), *pop(pair.master, max_msg_nums=COUNT - 32)]
    assert len(at_master) == COUNT
    pair.run(ROUND_MS)
    lose_master(pair)
    pair.run(5 * SECONDS)
    ack(pair.slave, *at_master)
    at_slave = pop(pair.slave, max_msg_nums=1)
    assert texts(at_slave) == ["one"]
    ack(pair.slave, *at_slave)
    pair.run(1_500)
    (pair.slave.kill if is_killed else pair.slave.close)()
    pair.open_slave(**ESCAPING)
    pair.run(10)
    pair.return_master()
    pair.run(1 * SECONDS)
    assert texts(pop(pair.master)) == ["two"]
    pair.run(60 * SECONDS)
    assert (redelivered(pair.other), redelivered(pair.master)) == ([], ["two"])


def test_a_slave_that_was_restarted_keeps_what_it_did_until_its_master_asks(pair: Pair) -> None:
    send(pair, *numbered("delayed"), DELAY="1")
    pair.run(100)
    lose_master(pair)
    pair.run(10 * SECONDS)
    assert delivered(pair.other) == numbered("delayed")
    pair.slave.close()
    pair.open_slave(**ESCAPING)
    pair.leaves_master_alone = True
    pair.return_master()
    pair.run(15 * SECONDS)
    pair.leaves_master_alone = False
    pair.run(60 * SECONDS)
    assert pair.master.messages("T") == []


def test_a_slave_that_acted_for_a_moment_keeps_what_it_did_until_its_master_asks(pair: Pair) -> None:
    """Its master was back before it had looked for one, each 3 s (seed 8310215)."""
    pair.is_master_unlisted = True
    pair.run(33 * SECONDS)
    send(pair, *numbered("delayed"), DELAY="1")
    pair.run(900)
    lose_master(pair)
    pair.run(1_500)
    assert delivered(pair.other) == numbered("delayed")
    pair.is_master_unlisted, pair.leaves_master_alone = False, True
    pair.return_master()
    pair.run(15 * SECONDS)
    pair.leaves_master_alone = False
    pair.run(10 * SECONDS)
    assert pair.master.messages("T") == []
