"""Timer messages under random faults: none is lost, early, duplicated, or delivered after a durable recall.

One seed yields a run of random operations: messages for different times, recalls, passing time, rounds of
delivery, file writes (also interrupted), clean stops, kills, power cuts.
"""

import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest

from libramq.catalog.destinations import Destinations
from libramq.catalog.topic_table import TopicRules, TopicTable
from libramq.message import properties as p
from libramq.message.names import TIMER_TOPIC
from libramq.store import MessageStore, StoreConfig, StoreMessage, run_flush
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.process import PowerCut
from libramq.testing.machine.virtual_time import VirtualTime
from libramq.timers.delivered_copies import DeliveredCopies
from libramq.timers.timer_checkpoint import TimerDirectory
from libramq.timers.timer_files import TimerFiles
from libramq.timers.timers import TimerOptions
from tests.quick import quick
from tests.store.stores import kill, plan_flush, read_all
from tests.timers.no_pop import NoPop

ROOT = Path("/store")
STEPS = 120
SLOTS = 100_000


class Run:
    """A store with timers, the messages sent, and the invariants to check."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.time = VirtualTime()
        self.disk = MemoryDisk(self.time, random.Random(seed + 1))
        #: The delivery time of each message, and where its record ends, by body.
        self.sent: dict[bytes, tuple[int, int]] = {}
        self.durable: set[bytes] = set()
        self.recalled: set[bytes] = set()
        self.open()

    def open(self) -> None:
        config = StoreConfig(
            root=ROOT, mapped_file_size_commit_log=1 << 14, mapped_file_size_consume_queue=400
        )
        self.store = MessageStore(config, self.disk, self.time)
        self.store.open()
        destinations = Destinations(TopicTable(TopicRules()))
        copies = DeliveredCopies(self.store, destinations)
        copies.begin()
        self.files = TimerFiles(
            TimerDirectory(self.disk, ROOT, log_file_bytes=1 << 10, slots=SLOTS),
            self.store,
            TimerOptions(roll_window_slots=20),
            pop=NoPop(),
            destinations=destinations,
            wall_ms=self.time.wall_ms,
            copies=copies,
        )

    def step(self) -> None:
        actions = (
            [self.send] * 10 + [self.advance] * 6 + [self.pass_time] * 4 + [self.save] * 3 + [self.recall]
        )
        actions += [self.flush, self.cut_power, self.kill, self.restart, self.cut_power_in_the_middle]
        self.random.choice(actions)()

    # Operations.

    def send(self) -> None:
        for _ in range(self.random.choice((1, 3, 20))):
            body = b"%d" % len(self.sent)
            deliver_ms = int(self.time.wall_ms()) + self.random.choice((500, 1_000, 7_300, 30_000, 61_000))
            properties = {p.TIMER_DELIVER_MS: str(deliver_ms), p.UNIQ_KEY: body.decode()}
            self.sent[body] = deliver_ms, self._accept(body, properties)

    def recall(self) -> None:
        """Recall a message that is not due for some time."""
        now_ms = int(self.time.wall_ms())
        waiting = [body for body, (deliver_ms, _) in self.sent.items() if deliver_ms > now_ms + 2_000]
        if waiting:
            body = self.random.choice(waiting)
            key = {p.TIMER_DEL_UNIQKEY: f"T+{body.decode()}", p.TIMER_DELIVER_MS: str(self.sent[body][0])}
            self._accept(b"0", key)
            self.recalled.add(body)

    def _accept(self, body: bytes, properties: dict[str, str]) -> int:
        text = p.properties_to_text(properties)
        message = StoreMessage("T", 0, body, text.encode())
        self.files.timers.accept(message, text, self.time.wall_ms())
        (result,) = self.store.append_batch([message])
        assert result.is_ok
        return result.end

    def pass_time(self) -> None:
        self.time.now_ms += self.random.choice((300, 1_000, 5_000, 20_000))

    def advance(self) -> None:
        """Deliver and collect for some rounds, any of which a kill may follow."""
        for _ in range(self.random.choice((1, 2, 1000))):
            if self.files.timers.advance(self.time.wall_ms()):
                break
        self.check()

    def flush(self) -> None:
        plan = plan_flush(self.store, self.time.monotonic_ms(), thorough=True)
        if plan is not None:
            run_flush(self.disk, plan)
            self.store.complete_flush(plan)
        self.note_durable()

    def save(self) -> None:
        """Write the files, once the messages they refer to are on the disk."""
        write = self.files.take(self.time.wall_ms())
        if write is None:
            return
        self.flush()
        if self.random.random() < 0.1:
            write.failed()
            return
        write.write()
        write.written()

    def note_durable(self) -> None:
        flushed = self.store.flushed_offset
        self.durable |= {body for body, (_, end) in self.sent.items() if end <= flushed}

    def restart(self) -> None:
        self.store.flush()
        self.note_durable()
        write = self.files.take(self.time.wall_ms())
        if write is not None:
            write.write()
            write.written()
        self.files.close()
        self.store.close()
        self.open()

    def kill(self) -> None:
        """Kill the process; everything written so far is in the kernel's hands."""
        kill(self.store)
        self.disk.process_died()
        self.open()

    def cut_power(self) -> None:
        kill(self.store)
        self._power_cut()

    def cut_power_in_the_middle(self) -> None:
        self.disk.cut_power_after(self.random.randint(1, 40))
        with contextlib.suppress(PowerCut):
            for action in (self.advance, self.save, self.send, self.save, self.restart):
                action()
        self._power_cut()

    def _power_cut(self) -> None:
        self.disk.power_cut()
        while True:
            if self.random.random() < 0.3:
                self.disk.cut_power_after(self.random.randint(1, 40))
            try:
                self.open()
            except PowerCut:
                self.disk.power_cut()
                continue
            break
        self.disk.heal()
        waiting = read_all(self.store, TIMER_TOPIC, 0)
        there = {message.body for message in waiting}
        there |= {message.body for message in read_all(self.store, "T", 0)}
        assert there >= self.durable - self.recalled
        for body in self.sent.keys() - there:  # These were not durable, and are gone.
            del self.sent[body]
        keys = [message.properties.get(p.TIMER_DEL_UNIQKEY, "") for message in waiting]
        self.recalled = {key.removeprefix("T+").encode() for key in keys if key}
        for body, (deliver_ms, _) in list(self.sent.items()):  # Messages that recovery kept are durable.
            self.sent[body] = deliver_ms, 0

    # Conditions.

    def delivered(self) -> list[bytes]:
        return [message.body for message in read_all(self.store, "T", 0)]

    def check(self) -> None:
        now_ms = int(self.time.wall_ms())
        for body in self.delivered():
            assert body in self.sent, f"{body!r} was never sent"
            assert self.sent[body][0] <= now_ms, f"{body!r} was delivered early"

    def finish(self) -> None:
        """Let all time pass, and check that every message sent and not recalled is delivered."""
        self.flush()
        for _ in range(100):
            self.time.now_ms += 1_000
            while not self.files.timers.advance(self.time.wall_ms()):
                pass
        self.check()
        delivered = self.delivered()
        missing = self.sent.keys() - set(delivered) - self.recalled
        assert not missing, f"lost: {sorted(missing)}"
        twice = [body for body, count in Counter(delivered).items() if count > 1]
        assert not twice, f"delivered twice: {sorted(twice)}"
        assert self.files.timers.pending == 0


#: The names of new files used not to be flushed after a failed write.
FOUND_SOMETHING = (1004, 1033, 1055, 1288, 4019, 4049)


@pytest.mark.parametrize("seed", [*FOUND_SOMETHING, *quick(range(60), 10)])
def test_timer_messages_survive_kills_and_power_cuts(seed: int):
    run = Run(seed)
    for _ in range(STEPS):
        run.step()
    run.finish()


@pytest.mark.parametrize("seed", quick(range(20), 5))
def test_without_faults_each_is_delivered_once_and_none_that_was_recalled(seed: int):
    run = Run(seed)
    for _ in range(STEPS):
        run.random.choice((run.send, run.advance, run.pass_time, run.save, run.recall, run.restart))()
    run.finish()
    delivered = run.delivered()
    assert len(delivered) == len(set(delivered))
    assert set(delivered) == run.sent.keys() - run.recalled
