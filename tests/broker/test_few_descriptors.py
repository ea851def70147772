"""Few descriptors, as with `ulimit -n 128`: queue files leave some for all other uses."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.remoting import headers as h
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

QUEUES = 200


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Limit this process to this many descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Open files until the process may have no more."""
    taken: list[int] = []
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield
    finally:
        for each in taken:
            os.close(each)


def count_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def fill(talk: Conversation, queues: range) -> None:
    for queue_id in queues:
        assert talk.send(FakePeer(), "T", queue_id=queue_id).code == C.SUCCESS


def test_the_files_of_many_queues_take_a_share_of_the_descriptors(tmp_path: Path):
    """They took all 256, so that no client could connect and no file could be created, for ever."""
    limit = count_open() + 160
    with descriptors(limit):
        talk = Conversation(tmp_path)
        talk.create_topic("T", queues=QUEUES)
        before = count_open()
        fill(talk, range(QUEUES))
        talk.flush()
        assert count_open() - before <= limit // 4
        fill(talk, range(QUEUES))
        talk.close()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > limit


def test_whatever_is_opened_has_a_queue_file_closed_where_no_descriptor_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Progress and tables could not be written."""
    with descriptors(count_open() + 160):
        talk, peer = Conversation(tmp_path), FakePeer()
        talk.create_topic("T", queues=QUEUES)
        talk.beat(peer, "alice")
        fill(talk, range(100))
        talk.flush()
        with no_descriptor_left():
            fill(talk, range(100, 130))
            assert talk.create_topic("U").code == C.SUCCESS
            header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=1)
            assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code == C.SUCCESS
            talk.advance(10_000)
            talk.threads.run_all()
        assert "Too many open files" not in caplog.text
        talk.kill()
        again = Conversation(tmp_path)
        assert "U" in again.broker.topics
        assert [len(again.messages("T", queue_id)) for queue_id in range(130)] == [1] * 130
        again.close()
