"""SYNC_MASTER: a send is acknowledged, and visible to consumers, when enough brokers have its message."""

import gc
from pathlib import Path

import msgspec
import pytest

from libramq.broker.config import BrokerConfig
from libramq.broker.messages.durability import SYNC_FLUSH_TIMEOUT_MS
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import ConfigError
from libramq.kernel.purgatory import Gated
from libramq.message.names import TRANS_OP_HALF_TOPIC
from libramq.message.properties import properties_to_text
from libramq.message.sys_flag import TRANSACTION_ROLLBACK
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.replication.ha_connection import GAP_BYTES_MAX
from tests.broker.brokers import Conversation, answer, find_answer, send_header
from tests.broker.test_pop import Popper, popped
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
    assert answer(producer, ended).code == C.SUCCESS
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
    return sum(isinstance(each, Gated) for each in gc.get_objects())


# Answers to who is no producer: a client takes 10, 11 and 12 for failures, and what was asked for is done.

#: What happens while a request waits, and how long it may wait then.
UNSAFE = {
    "the slave is away": (SYNC, 0),
    "the slave stands still": (SYNC, 3_000),
    "the disk is slow": ({"flush_disk_type": "SYNC_FLUSH"}, SYNC_FLUSH_TIMEOUT_MS),
}


class Unsafe:
    """A broker that cannot make safe in time what is stored from now on."""

    def __init__(self, root: Path, what: str) -> None:
        options, self.wait_ms = UNSAFE[what]
        self.talk = Conversation(root, recall_message_enable=True, **options)
        self.talk.create_topic("T", queues=1)
        self.peer = FakePeer()
        self.slave = follower(self.talk) if what == "the slave stands still" else None

    def send(self, **fields: object) -> Command:
        """Send a message that is not safe in time, but safe before the next request."""
        sent = self.answer_to(self.talk.command(R.SEND_MESSAGE_V2, send_header("T", **fields), b"hello"))
        assert sent.code != C.SUCCESS
        self.catch_up()
        return sent

    def ask(self, code: int, header: h.Header) -> Command:
        return self.answer_to(self.talk.command(code, header))

    def answer_to(self, command: Command) -> Command:
        """Make a request that waits in vain, and return its answer."""
        self.talk.give(self.peer, command)
        if self.wait_ms:
            self.talk.advance(self.wait_ms - 1)
            assert find_answer(self.peer, command) is None
            self.talk.advance(1)
        return answer(self.peer, command)

    def catch_up(self) -> None:
        self.talk.flush()
        if self.slave is not None:
            self.slave.report(self.slave.end)


@pytest.fixture(params=UNSAFE)
def unsafe(request: pytest.FixtureRequest, tmp_path: Path):
    unsafe = Unsafe(tmp_path, request.param)
    yield unsafe
    unsafe.talk.close()


def test_a_pop_whose_check_point_is_not_safe_yet_is_answered_with_its_messages(unsafe: Unsafe) -> None:
    """Clients took 11 and 12 for failures and dropped the messages, and the broker counted an attempt."""
    unsafe.send()
    command = Popper(unsafe.talk).command(invisible_time=60_000)
    assert [message.body for message in popped(unsafe.answer_to(command))] == [b"hello"]


def test_an_acknowledgement_and_a_changed_time_that_hold_are_answered_so(unsafe: Unsafe) -> None:
    for _ in range(2):
        unsafe.send()
    popper = Popper(unsafe.talk)
    first, second = popped(unsafe.answer_to(popper.command(invisible_time=60_000)))
    assert unsafe.ask(R.ACK_MESSAGE, popper.ack_header(first)).code == C.SUCCESS
    change = h.ChangeInvisibleTimeHeader(
        **msgspec.structs.asdict(popper.ack_header(second)), invisible_time=5_000
    )
    changed = unsafe.ask(R.CHANGE_MESSAGE_INVISIBLETIME, change)
    assert (changed.code, changed.ext["invisibleTime"]) == (C.SUCCESS, "5000")
    unsafe.talk.advance(5_000)
    unsafe.catch_up()
    assert len(popped(unsafe.answer_to(popper.command()))) == 1


def test_a_message_that_is_sent_back_is_sent_back_once(unsafe: Unsafe) -> None:
    """The client sent a copy as well."""
    place = int(unsafe.send().ext["msgId"][16:], 16)
    unsafe.talk.beat(FakePeer("127.0.0.1:2"), "c")
    back = h.SendBackHeader(offset=place, group="G", delay_level=1, origin_topic="T")
    assert unsafe.ask(R.CONSUMER_SEND_MSG_BACK, back).code == C.SUCCESS


def test_a_transaction_that_has_ended_is_answered_so(unsafe: Unsafe) -> None:
    half = unsafe.send(properties={"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "K"}, sys_flag=4)
    for _ in range(2):  # A repeated one waits, too.
        assert unsafe.ask(R.END_TRANSACTION, rollback_of(half)).code == C.SUCCESS


def test_a_timer_message_that_is_recalled_is_answered_so(unsafe: Unsafe) -> None:
    due_ms = int(unsafe.talk.clock.wall_ms()) + 60_000
    sent = unsafe.send(properties={"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": "K"})
    header = h.RecallMessageHeader(topic="T", recall_handle=sent.ext["recallHandle"])
    assert unsafe.ask(R.RECALL_MESSAGE, header).code == C.SUCCESS


def test_a_pop_is_refused_when_the_disk_has_failed(tmp_path: Path) -> None:
    """After a failed flush nothing can be promised; no message is handed out beside the refusal."""
    talk, peer = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH"), FakePeer()
    talk.create_topic("T", queues=1)
    talk.give(peer, talk.command(R.SEND_MESSAGE_V2, send_header("T"), b"hello"))
    talk.flush()
    command = Popper(talk).command()
    talk.give(peer, command)
    talk.disk.fails_sync = True
    talk.flush()
    refused = answer(peer, command)
    assert (refused.code, refused.body) == (C.FLUSH_DISK_TIMEOUT, b"")
    talk.close()


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
