"""Held requests, which wait for a message, a member or a client, keep nothing of their frames.

A client may hold thousands, with headers of 1 MiB and bodies of 4: three connections took 0.7 GB.
"""

import tracemalloc
from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.message import properties as p
from libramq.remoting import headers as h
from libramq.remoting.body.coordination import GroupPollBody, QueueGrant
from libramq.remoting.command import Command
from libramq.remoting.headers import NotificationHeader, PopMessageHeader
from tests.broker.brokers import Conversation, find_answer, send_header
from tests.broker.test_coordinated_groups import COLLECT_MS, Client
from tests.fakes import FakePeer

COUNT, LONG_BYTES = 20, 500_000
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
#: Nothing is in the queue.
HELD: dict[R, h.Header] = {
    R.PULL_MESSAGE: h.PullMessageHeader(
        consumer_group="G",
        topic="T",
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=6,
        suspend_timeout_millis=60_000,
        subscription="*",
    ),
    R.POP_MESSAGE: PopMessageHeader(
        consumer_group="G",
        topic="T",
        queue_id=0,
        max_msg_nums=1,
        invisible_time=10_000,
        poll_time=60_000,
        init_mode=0,
    ),
    R.NOTIFICATION: NotificationHeader(consumer_group="G", topic="T", queue_id=0, poll_time=60_000),
    R.SEND_REPLY_MESSAGE_V2: send_header(REPLY_TOPIC, properties={p.REPLY_TO_CLIENT: "silent@1"}),
}


@pytest.mark.parametrize("code", HELD, ids=lambda code: code.name)
def test_fields_that_nobody_reads_and_bodies_are_not_kept(tmp_path: Path, code: R) -> None:
    talk = Conversation(tmp_path, store_replies=False)
    talk.create_topic("T", queues=1)
    peer, silent = FakePeer(), FakePeer()
    talk.beat_producer(silent, "silent@1", "requesters")
    body_bytes = LONG_BYTES if code is R.SEND_REPLY_MESSAGE_V2 else 0
    tracemalloc.start()
    for number in range(COUNT):
        ext = {**h.encode_header(HELD[code]), "unknown": chr(97 + number) * LONG_BYTES}
        command = Command(code=code, opaque=number + 1, ext=ext, body=bytes(body_bytes))
        talk.give(peer, command)
        assert find_answer(peer, command) is None, "it waits"
        silent.replies.clear()
    del command, ext
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(talk.broker.kernel.purgatory) == COUNT
    assert kept < COUNT * LONG_BYTES / 2
    talk.close()


@pytest.mark.parametrize("takes_openings", [True, None], ids=["opens with its answer", "of 0.1.0"])
def test_the_queues_that_a_held_poll_lists_are_counted(tmp_path: Path, takes_openings: bool | None) -> None:
    """They are kept while it waits, and take five times the memory of its body."""
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=1)
    alice = Client(talk, "alice").join()
    talk.advance(COLLECT_MS)
    listed = [QueueGrant(topic=f"T{each}", broker_name="b", queue_id=each, epoch=1) for each in range(40)]
    for _ in range(2):  # The first answer revokes them.
        header = h.GroupPollHeader(
            consumer_group="G",
            lb_member=alice.member or "",
            lb_epoch=alice.epoch,
            lb_takes_openings=takes_openings,
        )
        poll = talk.command(R.GROUP_POLL, header, GroupPollBody(held=listed))
        talk.give(alice.peer, poll)
    assert find_answer(alice.peer, poll) is None, "it waits"
    waiting = talk.broker.kernel.purgatory.statistics()
    assert waiting.parked == 1
    assert waiting.cost_bytes >= 40 * 500
    talk.close()
