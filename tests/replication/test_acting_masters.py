"""A slave with enableSlaveActingMaster locks queues for consumers while name servers know no master."""

from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.document import decode_body
from libramq.remoting.body.consumers import LockBatchBody, LockBatchReply, QueueRef
from libramq.remoting.command import Command
from tests.broker.brokers import Conversation, find_answer
from tests.broker.test_pop import Popper, popped
from tests.fakes import FakePeer
from tests.replication.pairs import Pair

SECONDS = 1_000
ACTING = {"enable_slave_acting_master": True}


def lock(pair: Pair, peer: FakePeer, client_id: str) -> tuple[int, bool]:
    """Try to lock a queue at the slave; return the code, and whether it is locked."""
    queue = QueueRef(topic="T", broker_name="broker-a", queue_id=0)
    body = LockBatchBody(consumer_group="G", client_id=client_id, mq_set=[queue])
    reply = pair.slave.ask(peer, R.LOCK_BATCH_MQ, None, body)
    is_locked = reply.code == C.SUCCESS and bool(decode_body(reply.body, LockBatchReply).lock_ok_mq_set)
    return reply.code, is_locked


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_slave_locks_queues_while_its_master_is_gone(tmp_path: Path, is_enabled: bool) -> None:
    pair = Pair(tmp_path)
    pair.slave.close()
    pair.open_slave(enable_slave_acting_master=is_enabled)
    pair.master.create_topic("T", queues=1)
    alice, bob = FakePeer("10.0.0.1:1"), FakePeer("10.0.0.2:1")
    pair.master.beat(FakePeer(), "before")
    pair.run(20 * SECONDS)
    assert lock(pair, alice, "alice") == (C.SYSTEM_BUSY, False)
    pair.part()
    pair.run(10 * SECONDS)
    for peer, name in ((alice, "alice"), (bob, "bob")):
        pair.slave.beat(peer, name)
    locked = (C.SUCCESS, True) if is_enabled else (C.SYSTEM_BUSY, False)
    assert lock(pair, alice, "alice") == locked
    assert not lock(pair, bob, "bob")[1]
    pair.is_reachable = True
    pair.run(20 * SECONDS)
    assert lock(pair, alice, "alice") == (C.SYSTEM_BUSY, False)
    pair.close()


def open_unlisted(root: Path) -> Pair:
    """Open a master that name servers have lost, and a slave that copies its log."""
    pair = Pair(root, **ACTING)
    pair.slave.close()
    pair.open_slave(**ACTING)
    pair.master.create_topic("T", queues=1)
    assert Popper(pair.master).pop() == []  # The group is created.
    pair.run(20 * SECONDS)
    pair.is_master_unlisted = True
    assert lock(pair, FakePeer(), "carol") == (C.SYSTEM_BUSY, False)
    pair.run(1 * SECONDS)  # The slave has asked name servers since.
    return pair


def ask(pair: Pair, peer: FakePeer, command: Command) -> Command:
    """Make a request of the slave, which it may forward."""
    pair.slave.give(peer, command)
    pair.run(10)
    answer = find_answer(peer, command)
    assert answer is not None
    return answer


def lock_by(talk: Conversation, client_id: str) -> Command:
    queue = QueueRef(topic="T", broker_name="broker-a", queue_id=0)
    body = LockBatchBody(consumer_group="G", client_id=client_id, mq_set=[queue])
    return talk.command(R.LOCK_BATCH_MQ, None, body)


def locked(reply: Command) -> int:
    assert reply.code == C.SUCCESS, reply.remark
    return len(decode_body(reply.body, LockBatchReply).lock_ok_mq_set)


def test_a_slave_forwards_locks_to_a_master_that_name_servers_have_lost(tmp_path: Path) -> None:
    pair = open_unlisted(tmp_path)
    try:
        assert locked(ask(pair, FakePeer(), lock_by(pair.slave, "alice"))) == 1
        at_master = pair.master.ask(FakePeer(), R.LOCK_BATCH_MQ, None, lock_by(pair.master, "bob").body)
        assert locked(at_master) == 0, "the master has locked it for alice"
        pair.part()
        reply = ask(pair, FakePeer(), lock_by(pair.slave, "alice"))
        assert reply.code in (C.SYSTEM_BUSY, C.SUCCESS), "it acts, or is about to"
    finally:
        pair.close()


def test_a_slave_forwards_pops_to_a_master_that_name_servers_have_lost(tmp_path: Path) -> None:
    pair = open_unlisted(tmp_path)
    try:
        for text in (b"one", b"two"):
            assert pair.master.send(FakePeer(), body=text).code == C.SUCCESS
        popper = Popper(pair.slave)
        one, two = popped(ask(pair, popper.peer, popper.command(invisible_time=10 * SECONDS)))
        assert (one.body, two.body) == (b"one", b"two")
        assert Popper(pair.master).pop() == []
        ack = pair.slave.command(R.ACK_MESSAGE, popper.ack_header(one))
        assert ask(pair, popper.peer, ack).code == C.SUCCESS
        pair.run(11 * SECONDS)
        again = popped(ask(pair, popper.peer, popper.command()))
        assert [(each.body, each.reconsume_times) for each in again] == [(b"two", 1)]
    finally:
        pair.close()


def test_a_pop_that_the_master_refuses_is_refused(tmp_path: Path) -> None:
    pair = open_unlisted(tmp_path)
    try:
        popper = Popper(pair.slave, topic="Unknown")
        assert ask(pair, popper.peer, popper.command()).code == C.TOPIC_NOT_EXIST
    finally:
        pair.close()
