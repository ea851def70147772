"""The flushing of a real store by threads, on a disk that is slow or has no descriptors left."""

import asyncio
import errno
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libramq.broker.messages.durability import (
    BRIEF_BYTES_MAX,
    EARLY_MS_MAX,
    POLL_MS,
    SYNC_FLUSH_TIMEOUT_MS,
    Durability,
)
from libramq.catalog.journal_sync import JournalSync
from libramq.clock import SystemClock
from libramq.errors import SyncFailed
from libramq.filesystem import ZEROED_BYTES
from libramq.kernel.connection import ANONYMOUS, NUMBERS
from libramq.kernel.effect import Thread
from libramq.kernel.engine import Engine, Hooks
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Gated, Missing
from libramq.runtime.asyncio_seams import LoopTimers, WorkerThreads
from libramq.runtime.performer import Performer
from libramq.runtime.seams import Seams
from libramq.store import FlushDiskType, MessageStore, StoreConfig
from tests.fakes import ManualClock, ManualThreads, ManualTimers, raise_it
from tests.store.stores import Disk, message

TIMEOUT_S = 4  # Less than syncFlushTimeout, after which every sender is answered anyway.


class SlowDisk(Disk):
    """A disk on which consume queues are not flushed before `release`, and which may have no descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.is_stuck = threading.Event()
        self.opens_left: int | None = None
        self.was_refused = threading.Event()
        self.refused_name = ""  # The suffix of refused paths, for `was_refused`.
        self._of_queues: set[int] = set()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        if self.opens_left is not None:
            if not self.opens_left:
                if path.name.endswith(self.refused_name):
                    self.was_refused.set()
                raise OSError(errno.EMFILE, "Too many open files", str(path))
            self.opens_left -= 1
        file = super().open(path, write=write, create=create)
        if "consumequeue" in path.parts:
            self._of_queues.add(file)
        else:
            self._of_queues.discard(file)
        return file

    def fsync(self, file: int) -> None:
        if file in self._of_queues:
            self.is_stuck.set()
            assert self.release.wait(60)
        super().fsync(file)


class Sender:
    """A connection that waits for an acknowledgement."""

    address, is_open, principal = "127.0.0.1:50000", True, ANONYMOUS

    def __init__(self) -> None:
        self.number = next(NUMBERS)


class Waiting(Gated):
    """Replies that wait for the disk, as a future."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done = self.answered.set_result
        super().__init__(Sender(), lambda: done(True), lambda _: done(False))  # type: ignore[arg-type]


class Nobody:
    """A protocol without requests."""

    def receive(self, connection: object, requests: object, start: int) -> int:
        raise AssertionError("nobody asks for anything")


class Flushes:
    """The durability of a store under a performer with real threads; its progress can be awaited."""

    def __init__(self, store: MessageStore, disk: Disk) -> None:
        kernel = Kernel(SystemClock())
        self.durability = Durability(store, disk, kernel)
        self._noted = asyncio.Event()
        engine = Engine(kernel, Nobody(), Hooks(settle=(self.durability.settle, self._noted.set)))
        self.threads = WorkerThreads()
        self.performer = Performer(
            engine,
            Seams(remotes=None, timers=LoopTimers(), threads=self.threads),
            monotonic_ms=kernel.clock.monotonic_ms,
            listen=lambda listening: listening(),
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._noted.clear()
                await self._noted.wait()


@asynccontextmanager
async def flushing(root: Path, disk: Disk) -> AsyncIterator[tuple[MessageStore, Flushes]]:
    """A store under SYNC_FLUSH and its flushes; the flush of all queues, once a minute, is due at once."""
    config = StoreConfig(
        root=root,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        flush_interval_consume_queue_ms=1,
        flush_consume_queue_thorough_interval_ms=1,
    )
    store = MessageStore(config, disk, SystemClock())
    store.open()
    flushes = Flushes(store, disk)
    flushes.performer.follow()
    try:
        yield store, flushes
    finally:
        if isinstance(disk, SlowDisk):
            disk.release.set()
        flushes.performer.stop()
        await flushes.threads.close()
        store.close()


async def acknowledged(store: MessageStore, flushes: Flushes, text: str) -> bool:
    """Store a message, wait for the answer, and return whether the disk has the message."""
    waiting = Waiting()
    result = store.append_batch([message(text)])[0]
    assert result.is_ok, store.failure
    flushes.durability.wait(waiting, result.end)
    flushes.performer.follow()
    async with asyncio.timeout(TIMEOUT_S):
        return await waiting.answered


async def test_an_acknowledgement_does_not_wait_for_the_flush_of_consume_queues(tmp_path):
    """Flushing 4,096 queues took 5.2 s each minute, during which every send ended with FLUSH_DISK_TIMEOUT."""
    disk = SlowDisk()
    async with flushing(tmp_path, disk) as (store, flushes):
        assert await acknowledged(store, flushes, "first")
        assert await asyncio.to_thread(disk.is_stuck.wait, TIMEOUT_S), "no queue was flushed"
        assert await acknowledged(store, flushes, "second")
        assert not disk.release.is_set()
    assert store.failure is None


class LogFlushes(Disk):
    """A disk that counts the log's flushes and the writes begun ahead of them."""

    def __init__(self) -> None:
        super().__init__()
        self.log_flushes = self.begun = 0
        self.names_flushed: list[str] = []
        self._logs: set[int] = set()
        self._names: dict[int, str] = {}

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        file = super().open(path, write=write, create=create)
        (self._logs.add if "commitlog" in path.parts else self._logs.discard)(file)
        self._names[file] = path.name
        return file

    def begin_writing(self, file: int, size: int, offset: int) -> None:
        self.begun += 1
        super().begin_writing(file, size, offset)

    def fsync(self, file: int) -> None:
        self.log_flushes += file in self._logs
        self.names_flushed.append(self._names[file])
        super().fsync(file)


async def test_sends_that_are_ready_together_share_one_flush(tmp_path):
    """The first one's flush used to begin at once, competing for the interpreter with the other sends."""
    disk = LogFlushes()
    async with flushing(tmp_path, disk) as (store, flushes):
        assert await acknowledged(store, flushes, "before")
        before = disk.log_flushes
        senders = [Waiting() for _ in range(20)]

        def send(sender: Waiting) -> None:
            (result,) = store.append_batch([message("text")])
            flushes.durability.wait(sender, result.end)
            flushes.performer.follow()

        for sender in senders:
            asyncio.get_running_loop().call_soon(send, sender)
        async with asyncio.timeout(TIMEOUT_S):
            assert all([await sender.answered for sender in senders])
        assert disk.log_flushes == before + 1


def test_an_acknowledged_send_is_two_events(tmp_path):
    """There were four."""
    disk, kernel, threads = LogFlushes(), Kernel(ManualClock()), ManualThreads()
    config = StoreConfig(root=tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store = MessageStore(config, disk, kernel.clock)
    store.open()
    durability = Durability(store, disk, kernel)
    events: list[str] = []
    hooks = Hooks(settle=(durability.settle, lambda: events.append("settled")))
    engine = Engine(kernel, Nobody(), hooks)
    performer = Performer(
        engine,
        Seams(remotes=None, timers=ManualTimers(), threads=threads),
        monotonic_ms=kernel.clock.monotonic_ms,
        listen=lambda listening: listening(),
        failed=raise_it,
    )
    answers: list[bool] = []

    def send(text: str) -> None:
        durability.wait(recorded(Sender(), answers), store.append_batch([message(text)])[0].end)
        performer.follow()

    send("The first one begins a file, and also flushes its directory.")
    threads.run_all(Thread.FLUSH)
    before = disk.log_flushes
    events.clear()
    send("next")
    threads.run_all(Thread.FLUSH)
    assert events == ["settled", "settled"]
    events.clear()
    send("second")
    send("third, while the second is flushed")
    threads.run_all(Thread.FLUSH)
    assert events.count("settled") == 4
    assert disk.log_flushes == before + 3
    assert len(answers) == 4
    store.close()


def recorded(sender: Sender, answers: list[bool]) -> Gated:
    """Return replies to a connection that are recorded."""
    return Gated(sender, lambda: answers.append(True), lambda _: answers.append(False))  # type: ignore[arg-type]


class FastDisk:
    """A store under SYNC_FLUSH; brief flushes are done at once, others when the test runs them."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.disk, kernel, self.threads = LogFlushes(), Kernel(self.clock), ManualThreads()
        self.deadlines = kernel.deadlines
        self.threads.does_brief_work = True
        self.timers = ManualTimers()
        self.timers.keeps_soon = True
        config = StoreConfig(root=root, flush_disk_type=FlushDiskType.SYNC_FLUSH)
        self.store = MessageStore(config, self.disk, kernel.clock)
        self.store.open()
        self.journals = JournalSync(waits=True)
        self.durability = Durability(self.store, self.disk, kernel, self.journals)
        engine = Engine(kernel, Nobody(), Hooks(settle=(self.durability.settle,)))
        self.performer = Performer(
            engine,
            Seams(remotes=None, timers=self.timers, threads=self.threads),
            monotonic_ms=kernel.clock.monotonic_ms,
            listen=lambda listening: listening(),
            failed=raise_it,
        )
        self.answers: list[bool] = []

    def send(self, sender: Sender, *, size: int = 100) -> None:
        end = self.store.append_batch([message("x" * size)])[0].end
        self.durability.wait(recorded(sender, self.answers), end)
        self.performer.follow()


@pytest.fixture
def fast(tmp_path):
    fast = FastDisk(tmp_path)
    fast.send(Sender())
    fast.timers.come()
    fast.threads.run_all()  # The first one begins a file, writes zeroes, and flushes a directory.
    assert fast.answers == [True]
    fast.answers.clear()
    yield fast
    fast.store.close()


def test_a_sender_that_is_alone_is_answered_within_the_event_of_its_send(fast):
    sender = Sender()
    fast.send(sender)
    assert fast.answers == []
    fast.timers.come()  # Another sender might have sent as well.
    assert fast.answers == [True]
    for count in (2, 3):
        fast.send(sender)
        assert len(fast.answers) == count
    assert fast.store.visible_offset == fast.store.flushed_offset == fast.store.end
    assert fast.threads.work == []


def test_senders_that_take_turns_share_a_flush_after_what_is_ready(fast):
    senders, before = [Sender() for _ in range(3)], fast.disk.log_flushes
    for count in (3, 6):
        for sender in senders:
            fast.send(sender)
        fast.timers.come()
        assert fast.answers == [True] * count
    assert fast.disk.log_flushes == before + 2
    assert fast.threads.work == []


def test_the_disk_begins_with_the_messages_of_a_lone_sender_before_their_flush(fast):
    alone, other = Sender(), Sender()
    for _ in range(3):
        fast.send(alone)
        fast.timers.come()
    assert fast.disk.begun == 1  # The first two showed that no one else sends.
    fast.send(other)
    for sender in (alone, other, alone):
        fast.send(sender)
    fast.timers.come()
    assert fast.disk.begun == 2
    assert fast.store.flushed_offset == fast.store.end


def test_a_flush_that_takes_too_long_is_answered_in_the_order_of_the_sends(fast):
    fast.threads.does_brief_work = False
    fast.send(Sender())
    fast.clock.advance(SYNC_FLUSH_TIMEOUT_MS - 1_000)
    fast.send(Sender())
    fast.deadlines.run(fast.clock.monotonic_ms())
    assert fast.answers == []
    fast.clock.advance(1_000)
    fast.deadlines.run(fast.clock.monotonic_ms())
    assert fast.answers == [False]
    fast.clock.advance(SYNC_FLUSH_TIMEOUT_MS - 1_000)
    fast.deadlines.run(fast.clock.monotonic_ms())
    assert fast.answers == [False, False]
    fast.timers.come()
    fast.threads.run_all()
    assert fast.answers == [False, False]
    fast.send(Sender())
    fast.timers.come()
    fast.threads.run_all()
    assert fast.answers == [False, False, True]


def test_a_disk_that_takes_long_is_not_made_to_begin_before_the_flush(fast):
    """The disk's queue may be full, and the loop would wait for it at each send while a thread flushes."""
    alone = Sender()
    for _ in range(3):
        fast.send(alone)
        fast.timers.come()
    assert fast.disk.begun == 1
    fast.threads.does_brief_work = False
    for took_ms in (EARLY_MS_MAX + 1, EARLY_MS_MAX, 0):
        fast.send(alone)
        fast.clock.advance(took_ms)
        fast.threads.run_all()
    assert fast.disk.begun == 2
    fast.send(alone)
    fast.threads.run_all()
    assert fast.disk.begun == 3


def fail_to_answer(missing: Missing) -> None:
    """Fail, by a bug, where replies should be sent."""
    raise ValueError("a bug")


@pytest.mark.parametrize("has_failed", [False, True], ids=["the time is up", "the flush has failed"])
def test_those_behind_one_that_cannot_be_answered_are_answered_when_their_time_is_up(fast, has_failed):
    """They share one deadline."""
    sender, durability = Sender(), fast.durability
    fast.threads.does_brief_work = False
    (result,) = fast.store.append_batch([message("x")])
    durability.wait(Gated(sender, lambda: None, fail_to_answer), result.end)
    durability.wait(recorded(sender, fast.answers), result.end)
    if has_failed:
        with pytest.raises(ValueError, match="a bug"):
            durability._failed(SyncFailed("the disk is broken"))
    fast.clock.advance(SYNC_FLUSH_TIMEOUT_MS)
    for _ in range(2):
        fast.deadlines.run(fast.clock.monotonic_ms())
    assert fast.answers == [False]


def test_a_lone_sender_does_not_have_a_flush_that_cannot_begin_tried_again(fast, monkeypatch):
    plan, tried, sender = fast.store.plan_log_flush, list[int](), Sender()

    def refuse(now_ms: int) -> None:
        tried.append(now_ms)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(fast.store, "plan_log_flush", refuse)
    for _ in range(4):
        fast.send(sender)
        fast.timers.come()
    assert len(tried) == 1
    monkeypatch.setattr(fast.store, "plan_log_flush", plan)
    fast.clock.advance(POLL_MS)
    fast.timers.ring()
    fast.threads.run_all()
    assert fast.answers == [True] * 4


def test_a_journal_whose_flush_found_no_thread_is_not_on_the_disk_when_the_log_is(fast, tmp_path):
    """The log's next flush may need no thread; but the journal's own has to be done before its answer."""
    journal, synced, sender = tmp_path / "topics.json.journal", list[bool](), Sender()
    journal.write_text("a line")
    fast.send(sender)
    fast.timers.come()
    fast.journals.wrote(journal)
    fast.journals.when_synced(synced.append)
    fast.performer.follow()
    fast.timers.come()
    ((_, _, done),) = fast.threads.work
    fast.threads.work.clear()
    done(RuntimeError("can't start new thread"))
    fast.send(sender)
    fast.timers.come()
    assert synced == []
    fast.clock.advance(POLL_MS)
    fast.timers.ring()
    assert fast.disk.names_flushed.count(journal.name) == 0
    fast.threads.run_all()
    assert fast.disk.names_flushed.count(journal.name) == 1
    assert synced == [True]
    fast.timers.come()
    assert fast.answers == [True, True]


def test_a_failed_flush_within_an_event_is_final(fast):
    sender = Sender()
    fast.send(sender)
    fast.timers.come()
    fast.disk.fails_sync = True
    fast.send(sender)
    fast.disk.fails_sync = False
    assert fast.answers == [True, False]
    assert not fast.store.append_batch([message("after")])[0].is_ok
    assert fast.store.visible_offset == fast.store.flushed_offset < fast.store.end
    assert fast.store.failure is not None


def test_a_large_flush_is_left_to_the_thread(fast):
    sender = Sender()
    fast.send(sender)
    fast.timers.come()
    fast.send(sender, size=BRIEF_BYTES_MAX)
    assert fast.answers == [True]
    assert [thread for thread, _, _ in fast.threads.work] == [Thread.FLUSH]
    fast.threads.run_all()
    assert fast.answers == [True, True]


def test_zeroes_that_were_written_ahead_are_flushed_by_the_thread(fast):
    """One flush per MiB writes all of it, which takes too long for the loop."""
    sender, by_thread = Sender(), 0
    fast.send(sender)
    fast.timers.come()
    for _ in range(ZEROED_BYTES // 50_000 + 1):
        fast.send(sender, size=50_000)
        by_thread += bool(fast.threads.work)
        fast.threads.run_all()
        fast.timers.come()
    assert by_thread == 1
    assert all(fast.answers)


async def test_a_disk_that_cannot_be_flushed_keeps_nobody_busy(tmp_path):
    """Events that find no flush to begin cause no further events."""
    disk = Disk()
    async with flushing(tmp_path, disk) as (store, flushes):
        assert await acknowledged(store, flushes, "before")
        disk.fails_sync = True
        assert not await acknowledged(store, flushes, "after")
        turns = 0

        def settle() -> None:
            nonlocal turns
            turns += 1
            flushes.durability.settle()

        flushes.performer._engine._hooks = Hooks(settle=(settle,))
        flushes.performer.follow()
        for _ in range(50):
            await asyncio.sleep(0)
        assert turns < 10


async def test_a_lack_of_descriptors_is_not_taken_for_a_failed_fsync(tmp_path):
    """With 1,100 connections all writes stopped until a restart: `open` had failed, not `fsync`."""
    disk = SlowDisk()
    disk.release.set()
    async with flushing(tmp_path, disk) as (store, flushes):
        assert await acknowledged(store, flushes, "before")
        await flushes.until(lambda: not store._queues.unsynced and not store._queues.pending)
        disk.opens_left = 0
        for text in ("log", "and log again"):  # Its descriptor stays open.
            assert await acknowledged(store, flushes, text)
        assert await asyncio.to_thread(disk.was_refused.wait, TIMEOUT_S), "no queue was to be flushed"
        disk.opens_left = None
        assert await acknowledged(store, flushes, "after")
    assert store.failure is None
    assert not (tmp_path / "abort").exists()


async def test_a_flush_whose_files_cannot_be_opened_is_tried_again_by_the_poll_alone(tmp_path):
    """Each attempt used to cause the next one, so that a thread and the loop never rested."""
    disk = SlowDisk()
    disk.release.set()
    async with flushing(tmp_path, disk) as (store, flushes):
        assert await acknowledged(store, flushes, "before")
        store.deletions.note("Other", store.end)  # The next flush of the log has a file to open.
        disk.refused_name = "libra.deletions"
        disk.opens_left = 0
        waiting = Waiting()
        flushes.durability.wait(waiting, store.append_batch([message("text")])[0].end)
        flushes.performer.follow()
        times_s = []
        for _ in range(3):
            disk.was_refused.clear()
            assert await asyncio.to_thread(disk.was_refused.wait, TIMEOUT_S)
            times_s.append(time.monotonic())
        assert times_s[2] - times_s[0] >= POLL_MS / 1000
        disk.opens_left = None
        async with asyncio.timeout(TIMEOUT_S):
            assert await waiting.answered


async def test_files_that_could_not_be_opened_are_flushed_later(tmp_path):
    """The directories and files of a postponed flush belong to the next one."""
    disk = SlowDisk()
    disk.release.set()
    async with flushing(tmp_path, disk) as (store, flushes):
        disk.opens_left = 12  # Enough to make five files and write them, not to flush them.
        for queue_id in range(5):
            store.append_batch([message("x", queue_id=queue_id)])
        flushes.performer.follow()
        assert await asyncio.to_thread(disk.was_refused.wait, TIMEOUT_S)
        disk.opens_left = None
        await flushes.until(lambda: store.flushed_offset == store._log.end and not store._queues.unsynced)


@pytest.mark.parametrize("call", ["fsync", "sync_directory"])
async def test_a_failed_fsync_stays_final(tmp_path, call):
    class Broken(Disk):
        def fails(self, *_: object) -> None:
            raise OSError(errno.EIO, "the disk is broken")

    disk = Broken()
    async with flushing(tmp_path, disk) as (store, flushes):
        setattr(disk, call, disk.fails)
        assert not await acknowledged(store, flushes, "lost")
        delattr(disk, call)
        assert not store.append_batch([message("refused")])[0].is_ok
        assert "restart" in (store.failure or "")
