"""A slave with enableSlaveActingMaster locks queues for consumers while name servers know no master."""

from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.document import decode_body
from libramq.remoting.body.consumers import LockBatchBody, LockBatchReply, QueueRef
from tests.fakes import FakePeer
from tests.replication.pairs import Pair

SECONDS = 1_000


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
