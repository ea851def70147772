"""SYNC_MASTER: a send is acknowledged, and visible to consumers, when enough brokers have its message."""

import gc
from pathlib import Path

import pytest

from libramq.broker.config import BrokerConfig
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import ConfigError
from libramq.message.names import TRANS_OP_HALF_TOPIC
from libramq.message.properties import properties_to_text
from libramq.message.sys_flag import TRANSACTION_ROLLBACK
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.replication.ha_connection import GAP_BYTES_MAX
from libramq.rpc.responder import ParkedReplies
from tests.broker.brokers import Conversation, answer, find_answer, send_header
from tests.fakes import FakePeer
from tests.replication.slaves import Slave

FILE_BYTES = 1 << 20
SYNC = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "ha_listen_port": 1}


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def talk(request: pytest.FixtureRequest, tmp_path: Path):
    talk = Conversation(tmp_path, flush_disk_type=request.param, **SYNC)
    talk.create_topic("T")
    talk.flush()
    yield talk
    talk.close()


def begin_send(talk: Conversation, peer: FakePeer, **fields: object):
    """Send a message without waiting for the answer."""
    command = talk.command(R.SEND_MESSAGE_V2, send_header("T", **fields), b"hello")
    talk.give(peer, command)
    return command


def begin_half(talk: Conversation, peer: FakePeer):
    properties = properties_to_text({"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "K"})
    return begin_send(talk, peer, properties=properties, sys_flag=4)


def rollback_of(half: Command) -> h.EndTransactionHeader:
    return h.EndTransactionHeader(
        producer_group="P",
        tran_state_table_offset=int(half.ext["queueOffset"]),
        commit_log_offset=int(half.ext["msgId"][16:], 16),
        commit_or_rollback=TRANSACTION_ROLLBACK,
    )


def readable(talk: Conversation, queue_id: int = 0) -> int:
    return talk.broker.store.max_offset("T", queue_id)


def follower(talk: Conversation) -> Slave:
    slave = Slave(talk)
    slave.report(0)
    slave.report(talk.broker.store.end)
    return slave


def test_a_send_is_acknowledged_and_seen_when_a_slave_has_it(talk: Conversation) -> None:
    slave, producer = follower(talk), FakePeer()
    sent = begin_send(talk, producer)
    talk.flush()
    assert find_answer(producer, sent) is None
    assert readable(talk) == 0
    slave.report(slave.end)
    assert answer(producer, sent).code == C.SUCCESS
    assert readable(talk) == 1


def test_a_held_pull_wakes_when_a_slave_has_the_message(talk: Conversation) -> None:
    slave, consumer = follower(talk), FakePeer("127.0.0.1:2")
    talk.beat(consumer, "c")
    held = talk.pull_command(suspend_timeout_millis=10_000)
    talk.give(consumer, held)
    begin_send(talk, FakePeer())
    talk.flush()
    assert find_answer(consumer, held) is None
    slave.report(slave.end)
    assert answer(consumer, held).code == C.SUCCESS


def test_a_slave_that_does_not_confirm_in_time(talk: Conversation) -> None:
    follower(talk)
    producer = FakePeer()
    sent = begin_send(talk, producer)
    talk.flush()
    talk.advance(2_999)
    assert find_answer(producer, sent) is None
    talk.advance(1)
    assert answer(producer, sent).code == C.FLUSH_SLAVE_TIMEOUT


def test_a_half_message_that_no_slave_confirmed_is_still_rolled_back(talk: Conversation) -> None:
    """Java's producer rolls back after FLUSH_SLAVE_TIMEOUT, when nobody may read the half message yet."""
    follower(talk)
    producer = FakePeer()
    sent = begin_half(talk, producer)
    talk.flush()
    talk.advance(3_000)
    half = answer(producer, sent)
    assert half.code == C.FLUSH_SLAVE_TIMEOUT
    ended = talk.command(R.END_TRANSACTION, rollback_of(half))
    talk.give(producer, ended)
    talk.flush()
    talk.advance(3_000)
    assert answer(producer, ended).code == C.FLUSH_SLAVE_TIMEOUT
    assert talk.broker.store.next_offset(TRANS_OP_HALF_TOPIC, 0) == 1


def test_a_repeated_end_is_acknowledged_when_a_slave_has_the_first_one(talk: Conversation) -> None:
    slave, producer = follower(talk), FakePeer()
    sent = begin_half(talk, producer)
    talk.flush()
    slave.report(slave.end)
    half = answer(producer, sent)
    ends = [talk.command(R.END_TRANSACTION, rollback_of(half)) for _ in range(2)]
    for each in ends:
        talk.give(producer, each)
        talk.flush()
        assert find_answer(producer, each) is None
    slave.report(slave.end)
    assert [answer(producer, each).code for each in ends] == [C.SUCCESS, C.SUCCESS]


def test_without_a_slave_the_status_is_immediate_and_consumers_continue(talk: Conversation) -> None:
    producer = FakePeer()
    sent = begin_send(talk, producer)
    talk.flush()
    assert answer(producer, sent).code == C.SLAVE_NOT_AVAILABLE
    assert readable(talk) == 1


def test_what_waits_is_shown_when_the_last_slave_goes(talk: Conversation) -> None:
    """Its send waits until its timeout: the slave may return."""
    slave, producer = follower(talk), FakePeer()
    sent = begin_send(talk, producer)
    talk.flush()
    slave.hang_up()
    assert readable(talk) == 1
    again = Slave(talk)
    again.report(slave.blocks[0].offset)
    assert find_answer(producer, sent) is None
    again.report(again.end)
    assert answer(producer, sent).code == C.SUCCESS


def test_nothing_that_was_shown_is_hidden_from_readers_by_a_slave_that_is_behind(talk: Conversation) -> None:
    begin_send(talk, FakePeer())
    talk.flush()
    late = Slave(talk)
    late.report(0)
    assert readable(talk) == 1


def test_a_producer_may_choose_not_to_wait(talk: Conversation) -> None:
    follower(talk)
    producer = FakePeer()
    sent = begin_send(talk, producer, properties="WAIT\x01false\x02")
    assert answer(producer, sent).code == C.SUCCESS
    talk.flush()
    assert readable(talk) == 0


def test_a_slave_far_behind_is_not_waited_for(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond haMaxGapNotInSync it would take minutes to catch up."""
    monkeypatch.setattr("libramq.replication.ha_connection.GAP_BYTES_MAX", 1)
    assert GAP_BYTES_MAX == 256 * 1024 * 1024
    begin_send(talk, FakePeer())
    talk.flush()
    Slave(talk).report(0)
    producer = FakePeer()
    sent = begin_send(talk, producer)
    talk.flush()
    assert answer(producer, sent).code == C.SLAVE_NOT_AVAILABLE


def test_three_copies_need_two_slaves(tmp_path: Path) -> None:
    talk = Conversation(tmp_path, **(SYNC | {"in_sync_replicas": 3}))
    talk.create_topic("T")
    first, producer = follower(talk), FakePeer()
    assert answer(producer, begin_send(talk, producer)).code == C.SLAVE_NOT_AVAILABLE
    second = Slave(talk, "127.0.0.1:60001")
    second.report(0)
    first.report(first.end)
    sent = begin_send(talk, producer)
    first.report(first.end)
    assert find_answer(producer, sent) is None
    second.report(second.end)
    assert answer(producer, sent).code == C.SUCCESS
    talk.close()


def test_an_empty_slave_is_no_copy_of_the_files_before_the_newest(talk: Conversation) -> None:
    """It gets only the newest file, but its arrival used to acknowledge sends that waited in an older one."""
    slave, producer = follower(talk), FakePeer()
    sent = begin_send(talk, producer)
    talk.flush()
    slave.hang_up()
    while talk.broker.store.end < FILE_BYTES:
        talk.give(FakePeer(), talk.command(R.SEND_MESSAGE_V2, send_header("T"), bytes(300_000)))
        talk.flush()
    empty = Slave(talk)
    empty.report(0)
    assert empty.blocks[0].offset == FILE_BYTES
    assert answer(producer, sent).code == C.FLUSH_SLAVE_TIMEOUT


def test_two_connections_from_one_machine_are_one_copy(tmp_path: Path) -> None:
    """A slave whose machine lost power may return before its master has noticed."""
    talk = Conversation(tmp_path, **(SYNC | {"in_sync_replicas": 3}), ha_allowed_addresses="10.0.0.0/8")
    talk.create_topic("T")
    old, new = Slave(talk, "10.0.0.2:60000"), Slave(talk, "10.0.0.2:60001")
    for slave in (old, new):
        slave.report(0)
    producer = FakePeer()
    assert answer(producer, begin_send(talk, producer)).code == C.SLAVE_NOT_AVAILABLE
    another = Slave(talk, "10.0.0.3:60000")
    another.report(talk.broker.store.end)
    for slave in (old, new):
        slave.report(slave.end)
    sent = begin_send(talk, producer)
    for slave in (old, new):
        slave.report(slave.end)
    assert find_answer(producer, sent) is None
    another.report(another.end)
    assert answer(producer, sent).code == C.SUCCESS
    talk.close()


def test_a_slave_that_does_not_keep_up_is_not_waited_for(talk: Conversation) -> None:
    """It keeps reporting small progress, so it counts as alive; consumers would wait for hours."""
    slave = follower(talk)
    begin_send(talk, FakePeer())
    talk.flush()
    begin = slave.blocks[-1].offset
    for count in range(1, 6):
        talk.advance(5_000)
        slave.report(begin + count)
    assert slave.is_open
    assert readable(talk) == 1
    slave.report(slave.end)
    begin_send(talk, FakePeer())
    talk.flush()
    assert readable(talk) == 1
    slave.report(slave.end)
    assert readable(talk) == 2


def test_a_master_that_stood_still_does_not_take_its_slave_for_silent(talk: Conversation) -> None:
    """The slave's reports are still in the socket when the timers fire."""
    slave, producer = follower(talk), FakePeer()
    sent = begin_send(talk, producer)
    talk.flush()
    talk.extend_deadlines(30_000)
    assert slave.is_open
    assert readable(talk) == 0
    another = begin_send(talk, producer)
    talk.flush()
    assert find_answer(producer, another) is None
    slave.report(slave.end)
    assert answer(producer, another).code == C.SUCCESS
    assert answer(producer, sent).code in (C.SUCCESS, C.FLUSH_SLAVE_TIMEOUT)


def test_replies_whose_time_was_up_are_not_kept_while_a_slave_lags(talk: Conversation) -> None:
    """They used to occupy unbounded memory until the slave had their messages."""
    follower(talk)
    before = waiting_replies()
    for _ in range(20):
        begin_send(talk, FakePeer())
        talk.flush()
        talk.advance(500)  # 10 s of sends, of which those of 3 s may wait.
    assert 0 < waiting_replies() - before <= 9


def waiting_replies() -> int:
    gc.collect()
    return sum(isinstance(each, ParkedReplies) for each in gc.get_objects())


def test_with_one_copy_nobody_is_waited_for(tmp_path: Path) -> None:
    """One is Apache's default of inSyncReplicas: a SYNC_MASTER then answers as an ASYNC_MASTER does."""
    talk = Conversation(tmp_path, **(SYNC | {"in_sync_replicas": 1}))
    talk.create_topic("T")
    follower(talk)
    assert talk.send(FakePeer()).code == C.SUCCESS
    assert readable(talk) == 1
    talk.close()


def test_copies_that_nobody_waits_for_are_refused() -> None:
    with pytest.raises(ConfigError, match="an ASYNC_MASTER waits for no slave; set brokerRole=SYNC_MASTER"):
        BrokerConfig(in_sync_replicas=2, ha_listen_port=1)


def test_waiting_for_slaves_that_cannot_connect_is_refused() -> None:
    with pytest.raises(ConfigError, match="set haListenPort, for example 10912"):
        BrokerConfig(broker_role="SYNC_MASTER", in_sync_replicas=2)
