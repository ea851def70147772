"""What is not in memory is read by a thread: a disk that takes its time keeps nobody else waiting."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from libramq.codes import ResponseCode as C
from libramq.kernel.effect import Thread
from libramq.remoting.command import Command
from tests.broker.brokers import Conversation, find_answer
from tests.fakes import FakePeer

PAGE_BYTES = 4096


class ColdPages:
    """The page cache of a machine that was just started: only threads may wait for a page."""

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk
        self.warm: set[tuple[int, int]] = set()
        self.waits_on_loop = 0
        self.is_in_thread = False
        disk, self.finish = talk.disk, talk.threads.finish
        self.pread, self.pread_nowait = disk.pread, disk.pread_nowait
        disk.pread, disk.pread_nowait = self.read, self.read_nowait  # type: ignore[method-assign]
        talk.threads.finish = self.run  # type: ignore[method-assign]

    def read(self, file: int, size: int, offset: int) -> bytes:
        if not self.is_in_thread and not self.pages(file, size, offset) <= self.warm:
            self.waits_on_loop += 1
        self.warm |= self.pages(file, size, offset)
        return self.pread(file, size, offset)

    def read_nowait(self, file: int, size: int, offset: int) -> bytes | None:
        if self.pages(file, size, offset) <= self.warm:
            return self.pread_nowait(file, size, offset)
        return None

    def run(self, each: tuple[Thread, Callable[[], Any], Callable[[Any], None]]) -> None:
        def work() -> Any:
            self.is_in_thread = True
            try:
                return each[1]()
            finally:
                self.is_in_thread = False

        self.finish((each[0], work, each[2]))

    @staticmethod
    def pages(file: int, size: int, offset: int) -> set[tuple[int, int]]:
        inode = os.fstat(file).st_ino
        return {
            (inode, page)
            for page in range(offset // PAGE_BYTES, (offset + max(size, 1) - 1) // PAGE_BYTES + 1)
        }


@pytest.fixture
def started(tmp_path: Path, peer: FakePeer) -> Iterator[tuple[Conversation, ColdPages]]:
    """A broker that was stopped with two hundred messages of 1 KiB and started again."""
    talk = Conversation(tmp_path, commit_log_file_bytes=1 << 16)
    for number in range(200):
        assert talk.send(peer, body=b"%03d" % number + bytes(1_000), queue_id=number % 2).code == C.SUCCESS
    talk.close()
    talk = Conversation(tmp_path, commit_log_file_bytes=1 << 16)
    talk.beat(peer, "client")
    cold = ColdPages(talk)
    yield talk, cold
    talk.close()


def ask(talk: Conversation, peer: FakePeer, command: Command) -> Command:
    """The answer to a request, threads working as long as there is none."""
    talk.give(peer, command)
    for _ in range(20):
        found = find_answer(peer, command)
        if found is not None:
            return found
        talk.threads.run_all(Thread.READ)
        talk.performer.follow()
    raise AssertionError(f"no answer to {command.code}")


@pytest.mark.parametrize("tags", ["*", "A || B"])
def test_a_pull_far_behind_waits_in_threads_only(started, peer, tags):
    """First for units of its queue, then for records."""
    talk, cold = started
    talk.beat(peer, "client", group="Old")
    offset, count = 0, 0
    while offset < 100:
        found = ask(talk, peer, talk.pull_command(group="Old", queue_offset=offset, subscription=tags))
        count += found.body.count(bytes(1_000))
        offset = int(found.ext["nextBeginOffset"])
    assert (count, offset) == (100 if tags == "*" else 0, 100)
    assert cold.waits_on_loop == 0
