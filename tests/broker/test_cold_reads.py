"""A thread reads cold data, so that a slow disk delays no other client."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.fencing import Claim, FenceGrant
from libramq.formats.document import decode_body
from libramq.kernel.effect import Thread
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.cluster import KVTable
from libramq.remoting.body.consumers import ConsumeStats, ResetOffsetBody, TopicStatsTable
from libramq.remoting.command import Command
from libramq.store.log.segments import ColdRead
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
    """Return the answer to a request, running the threads until there is one."""
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
    """The pull waits first for units of its queue, then for records."""
    talk, cold = started
    talk.beat(peer, "client", group="Old")
    offset, count = 0, 0
    while offset < 100:
        found = ask(talk, peer, talk.pull_command(group="Old", queue_offset=offset, subscription=tags))
        count += found.body.count(bytes(1_000))
        offset = int(found.ext["nextBeginOffset"])
    assert (count, offset) == (100 if tags == "*" else 0, 100)
    assert cold.waits_on_loop == 0


@pytest.mark.parametrize("boundary", ["lower", "upper"])
def test_a_search_by_time_waits_in_threads_only(started, peer, boundary):
    talk, cold = started
    header = h.SearchOffsetHeader(
        topic="T", queue_id=0, timestamp=talk.clock.wall_ms(), boundary_type=boundary
    )
    found = ask(talk, peer, talk.command(R.SEARCH_OFFSET_BY_TIMESTAMP, header))
    assert found.ext == {"offset": "0" if boundary == "lower" else "99"}
    assert cold.waits_on_loop == 0
    assert cold.warm


def test_looking_a_message_up_waits_in_threads_only(started, peer):
    talk, cold = started
    found = ask(talk, peer, talk.command(R.VIEW_MESSAGE_BY_ID, h.ViewMessageHeader(offset=0)))
    assert found.code == C.SUCCESS
    assert b"000" in found.body
    header = h.QueueHeader(topic="T", queue_id=1)
    earliest = ask(talk, peer, talk.command(R.GET_EARLIEST_MSG_STORETIME, header))
    assert earliest.ext == {"timestamp": str(talk.clock.wall_ms())}
    assert cold.waits_on_loop == 0


def test_a_new_group_of_an_old_queue_waits_in_threads_only(started, peer):
    """The broker checks whether the queue's first message is in memory."""
    talk, cold = started
    header = h.QueryConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0)
    assert ask(talk, peer, talk.command(R.QUERY_CONSUMER_OFFSET, header)).ext == {"offset": "0"}
    assert cold.waits_on_loop == 0
    assert cold.warm


def test_a_message_sent_back_waits_its_delay_also_if_the_clock_is_set_while_it_is_read(started, peer):
    """The delay counts from the time of storing, not from the wall time of the request's arrival."""
    talk, _ = started
    command = talk.command(R.CONSUMER_SEND_MSG_BACK, h.SendBackHeader(group="G", offset=0, delay_level=2))
    talk.give(peer, command)
    talk.clock.set_wall(-3_600_000)
    talk.threads.run_all(Thread.READ)
    talk.performer.follow()
    answer = find_answer(peer, command)
    assert answer is not None
    assert answer.code == C.SUCCESS
    for passed_ms, count in ((4_999, 0), (1, 1)):
        talk.advance(passed_ms)
        talk.threads.run_all(Thread.READ)
        talk.coordinate()
        assert talk.broker.store.max_offset("%RETRY%G", 0) == count


def test_a_message_that_is_sent_back_is_read_by_a_thread_and_stored_once(started, peer):
    talk, cold = started
    header = h.SendBackHeader(group="G", offset=0, delay_level=-1)
    assert ask(talk, peer, talk.command(R.CONSUMER_SEND_MSG_BACK, header)).code == C.SUCCESS
    assert talk.broker.store.max_offset("%DLQ%G", 0) == 1
    assert cold.waits_on_loop == 0
    assert cold.warm


def test_delayed_messages_are_read_by_a_thread_and_delivered_once(tmp_path, peer):
    talk = Conversation(tmp_path, commit_log_file_bytes=1 << 16)
    for number in range(50):
        delay = {"DELAY": str(number % 2 + 1)}
        sent = talk.send(peer, "D", body=b"%02d" % number + bytes(1_000), properties=delay)
        assert sent.code == C.SUCCESS
    talk.close()
    talk = Conversation(tmp_path, clock=talk.clock, commit_log_file_bytes=1 << 16)
    cold = ColdPages(talk)
    talk.advance(10_000)
    for _ in range(20):
        talk.threads.run_all(Thread.READ)
        talk.performer.follow()
        talk.advance(1)
    assert cold.waits_on_loop == 0
    assert cold.warm
    delivered = sorted(message.body[:2] for queue_id in range(4) for message in talk.messages("D", queue_id))
    assert delivered == [b"%02d" % number for number in range(50)]
    talk.close()


def test_the_progress_of_a_group_waits_in_threads_only(started, peer):
    """The statistics need the times of the group's last-read messages and of the newest ones."""
    talk, cold = started
    for queue_id in range(2):
        talk.broker.offsets.commit("G", "T", queue_id, 50)
    header = h.ConsumeStatsHeader(consumer_group="G", topic="T")
    stats = decode_body(ask(talk, peer, talk.command(R.GET_CONSUME_STATS, header)).body, ConsumeStats)
    read = {ends.last_timestamp for queue, ends in stats.offset_table.items() if queue.queue_id < 2}
    assert read == {talk.clock.wall_ms()}
    command = talk.command(R.GET_TOPIC_STATS_INFO, h.TopicHeader(topic="T"))
    table = decode_body(ask(talk, peer, command).body, TopicStatsTable).offset_table
    written = {ends.last_update_timestamp for queue, ends in table.items() if queue.queue_id < 2}
    assert written == {talk.clock.wall_ms()}
    assert cold.waits_on_loop == 0
    assert cold.warm


@pytest.mark.parametrize("queue_id", [1, -1])
def test_a_reset_by_time_waits_in_threads_only(started, peer, queue_id):
    """All queues are searched, with some twenty reads each, before anything changes; -1 means all queues."""
    talk, cold = started
    header = h.ResetOffsetHeader(
        topic="T", group="G", timestamp=talk.clock.wall_ms(), is_force=True, queue_id=queue_id
    )
    found = ask(talk, peer, talk.command(R.INVOKE_BROKER_TO_RESET_OFFSET, header))
    offsets = decode_body(found.body, ResetOffsetBody).offset_table
    assert {queue.queue_id for queue in offsets} == ({1} if queue_id == 1 else {0, 1, 2, 3})
    assert set(offsets.values()) == {0}
    assert cold.waits_on_loop == 0
    assert cold.warm


def test_an_opening_waits_in_threads_only(started, peer):
    """A new group starts at 0 if the queue's first message is in memory, so that message's unit is read."""
    talk, cold = started
    claims = {MessageQueue("T", talk.config.broker_name, 0): Claim("alice", 7)}
    talk.broker.fences.grant(FenceGrant(group="G", epoch=7, claims=claims))
    header = h.OpenQueueHeader(consumer_group="G", topic="T", queue_id=0, lb_member="alice", lb_queue_epoch=7)
    opened = ask(talk, peer, talk.command(R.OPEN_QUEUE, header))
    assert (opened.code, opened.ext["offset"]) == (C.SUCCESS, "0")
    assert cold.waits_on_loop == 0
    assert cold.warm


def test_a_brokers_numbers_wait_in_threads_only(started, peer):
    """mqadmin shows when the oldest message was stored; delayed messages and metrics do not read that."""
    talk, cold = started
    cold.warm.clear()
    talk.send(peer, "D", properties={"DELAY": "3"})
    talk.broker.store.statistics()
    assert cold.waits_on_loop == 0
    found = ask(talk, peer, talk.command(R.GET_BROKER_RUNTIME_INFO))
    table = decode_body(found.body, KVTable).table
    assert table["earliestMessageTimeStamp"] == str(talk.clock.wall_ms())
    assert cold.waits_on_loop == 0
    assert cold.warm


def test_where_a_queue_is_to_begin_is_read_before_anything_changes(started):
    """The request's handler makes a thread read the unit, then tries again."""
    talk, cold = started
    store = talk.broker.store
    with pytest.raises(ColdRead) as raised, store.without_waiting():
        store.raise_min_offset("T", 0, 40)
    assert store.min_offset("T", 0) == 0
    cold.is_in_thread = True
    store.warm((raised.value.stretch,))
    cold.is_in_thread = False
    with store.without_waiting():
        assert store.raise_min_offset("T", 0, 40) == 40
    assert cold.waits_on_loop == 0
