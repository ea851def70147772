"""Held requests: those that wait for a message, a member or a client keep nothing of their frames.

A client may hold thousands, with headers of 1 MiB and bodies of 4: three connections took 0.7 GB.
"""

import tracemalloc
from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.message import properties as p
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.remoting.headers import NotificationHeader, PopMessageHeader
from tests.broker.brokers import Conversation, find_answer, send_header
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
