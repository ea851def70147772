"""The store under random faults: everything reported as durable survives unless its own bytes are damaged.

A run of random operations from one seed: messages, flushes of the log and of the queues, clocks set back and
forth by hours, kills, power cuts (also in the middle of an operation or a recovery), flipped bits in durable
data, and queue units overwritten with zeroes. Files are small, so they roll all the time.
"""

import contextlib
import random
from pathlib import Path

import pytest

from libramq.clock import WallMs
from libramq.errors import StoreDamaged
from libramq.message import sys_flag as flags
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.properties import encode_properties
from libramq.store import MessageStore, StoreConfig, StoreMessage, run_flush
from libramq.store.config import Damaged, FlushDiskType
from libramq.store.log.append import AppendResult
from libramq.store.retention import Retention
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.process import PowerCut
from libramq.testing.machine.virtual_time import VirtualTime
from tests.quick import quick
from tests.store.stores import kill, plan_flush, read_all

FILE_SIZE = 8192
#: Bytes of a record covered by a check: size, magic, physical offset, body length, and the body's first byte.
CHECKED = (*range(8), *range(28, 36), *range(84, 90))
QUEUES = 3
Key = tuple[int, int]


#: The seeds of each kind in a quick run; a thorough run plays more and different ones.
SEEDS = quick(range(200), 8)


class SteppingTime(VirtualTime):
    """A clock that the run sets."""

    def __init__(self) -> None:
        super().__init__()
        self.set_by_ms = 0

    def wall_ms(self) -> WallMs:
        return super().wall_ms() + self.set_by_ms


class Run:
    """A store, the operations on it, and the conditions it must meet."""

    queue_slice_cost = 256
    flush_disk_type = FlushDiskType.ASYNC_FLUSH
    zeroed_bytes = 0

    def __init__(self, seed: int, *, flips: bool) -> None:
        self.random = random.Random(seed)
        self.time = SteppingTime()
        self.disk = MemoryDisk(self.time, random.Random(seed + 1))
        self.disk.zeroed_bytes = self.zeroed_bytes
        self.flips = flips
        #: The stored messages by queue and number, newest last; numbers of lost messages are reused.
        self.stored: dict[Key, list[tuple[bytes, dict[str, str]]]] = {}
        self.ends: dict[Key, tuple[int, int]] = {}
        self.durable: dict[Key, tuple[bytes, dict[str, str]]] = {}
        self.damaged: set[Key] = set()
        #: The beginnings of queues after file removals; earlier numbers are never assigned again.
        self.first_numbers: dict[int, int] = {}
        self.was_refused = 0
        self.store = self.open()

    def open(self, damaged: Damaged | None = None) -> MessageStore:
        config = StoreConfig(
            root=Path("/store"), mapped_file_size_commit_log=FILE_SIZE, mapped_file_size_consume_queue=400,
            mapped_file_size_batch_consume_queue=8 * 46,
            tail_bytes=4096, damaged=damaged, queue_slice_cost=self.queue_slice_cost,
            flush_disk_type=self.flush_disk_type,
        )  # fmt: skip
        store = MessageStore(config, self.disk, self.time)
        store.open()
        return store

    # Operations.

    def step(self) -> None:
        actions = [self.append] * 12 + [self.flush_log] * 2 + [self.flush_all, self.set_clock, self.cut_power]
        actions += [self.restart, self.cut_power_in_the_middle, self.pass_time, self.remove_old_files]
        if self.flips:
            actions += [self.flip_record, self.flip_record, self.zero_units]
        self.random.choice(actions)()

    def append(self) -> None:
        queue_id, number = self.random.randrange(QUEUES), len(self.stored)
        body = b"%d " % number + self.random.randbytes(self.random.choice((5, 50, 700)))
        size = self.random.choice((1, 20, 1500))
        properties = {"K": "".join(self.random.choices("abcdef", k=size)), "N": str(number)}
        message = StoreMessage("T", queue_id, body, encode_properties(properties), 0)
        (result,) = self.store.append_batch([message])
        assert result.is_ok
        self.note_stored((queue_id, result.queue_offset), (body, properties), result)

    def note_stored(self, key: Key, message: tuple[bytes, dict[str, str]], result: AppendResult) -> None:
        if not self.flips:
            assert key[1] >= self.first_numbers.get(key[0], 0), "a number was given out again"
        if self.durable.pop(key, None) is not None:
            assert key in self.damaged, "a durable message's number was given out again"
        self.stored.setdefault(key, []).append(message)
        self.ends[key] = result.physical_offset, result.end
        self.damaged.discard(key)

    def has(self, found: tuple[bytes, dict[str, str]]) -> tuple[bytes, dict[str, str]]:
        """Return a read message in the form in which it was sent."""
        return found

    def flush_log(self) -> None:
        plan = self.store._flusher.plan_log(self.time.monotonic_ms(), forced=True)
        if plan is not None:
            run_flush(self.disk, plan)
            self.store.complete_flush(plan)
        self.note_durable()

    def flush_all(self) -> None:
        plan = plan_flush(self.store, self.time.monotonic_ms(), thorough=True)
        if plan is not None:
            run_flush(self.disk, plan)
            self.store.complete_flush(plan)
        self.note_durable()

    def remove_old_files(self) -> None:
        """Remove some files regardless of age; messages before the beginning of a queue are gone."""
        retention = Retention(clean_forcibly_percent=0, files_per_round_max=self.random.randint(1, 4))
        self.disk.percent_used = 99.0
        steps = self.store.cleaning.clean(retention, lambda _: 12)
        result: object = None
        try:
            while True:
                work = steps.send(result)
                self.note_removed()
                result = work.work()
        except StopIteration:
            pass
        finally:
            self.note_removed()
            self.disk.percent_used = 0.0

    def note_removed(self) -> None:
        """Stop expecting messages before the queues' beginnings.

        Until their file is removed they may be back.
        """
        for queue_id in range(QUEUES):
            first = self.store.min_offset("T", queue_id)
            self.first_numbers[queue_id] = max(first, self.first_numbers.get(queue_id, 0))
            for key in [key for key in self.ends if key[0] == queue_id and key[1] < first]:
                del self.ends[key]
                self.durable.pop(key, None)

    def note_durable(self) -> None:
        if self.flips:  # Damage differs from a torn end only below the durable point.
            file = self.disk.open(Path("/store/libra.checkpoint"), write=True)
            self.disk.fsync(file)
            self.disk.close(file)
        for key, (_, end) in self.ends.items():
            if end <= self.store.flushed_offset:
                self.durable[key] = self.stored[key][-1]

    def set_clock(self) -> None:
        self.time.set_by_ms += self.random.choice((-1, 1)) * self.random.choice((5_000, 60_000, 3_600_000))

    def pass_time(self) -> None:
        self.time.now_ms += self.random.randrange(100_000)

    def restart(self) -> None:
        self.store.close()
        self.recover()

    def cut_power(self) -> None:
        kill(self.store)
        self.disk.power_cut()
        self.recover()

    def cut_power_in_the_middle(self) -> None:
        self.disk.cut_power_after(self.random.randint(1, 30))
        is_power = self.random.random() < 0.7
        with contextlib.suppress(PowerCut):
            for action in (
                self.flush_all,
                self.flush_log,
                self.remove_old_files,
                self.restart,
                self.flush_all,
            ):
                action()
        self.disk.power_cut() if is_power else self.disk.process_died()
        self.recover()

    def flip_record(self) -> None:
        """Flip a bit of a durable record, where a check covers it."""
        whole = sorted(self.durable.keys() - self.damaged)
        if not whole:
            return
        key = self.random.choice(whole)
        offset = self.ends[key][0] + self.random.choice(CHECKED)
        path = Path("/store/commitlog") / f"{offset // FILE_SIZE * FILE_SIZE:020d}"
        self.disk.flip_bit(path, offset % FILE_SIZE * 8 + self.random.randrange(8))
        self.damaged.add(key)

    def zero_units(self) -> None:
        """Overwrite a durable unit of a queue's file with zeroes."""
        paths = self.disk.paths("/store/consumequeue/")
        if paths:
            path, index = self.random.choice(paths), self.random.randrange(20)
            self.disk.zero(path, index * 20, 20)
            self.damaged.add((int(path.parent.name), int(path.name) // 20 + index))
            self.cut_power()

    # Conditions.

    def recover(self) -> None:
        try:
            self.store = self.open()
        except StoreDamaged:
            assert self.damaged, "nothing was damaged"
            self.was_refused += 1
            self.store = self.open(Damaged.SKIP)
        self.check()

    def check(self) -> None:
        found: dict[Key, tuple[bytes, dict[str, str]]] = {}
        for queue_id in range(QUEUES):
            for message in read_all(self.store, "T", queue_id):
                found[queue_id, message.queue_offset] = self.has((message.body, message.properties))
        for key, message_found in found.items():
            if key not in self.damaged:
                assert message_found in self.stored[key], key
        for key, message_stored in self.durable.items():
            if key not in self.damaged:
                assert found.get(key) == message_stored, key
        # The numbers of messages that were not durable and are lost will be reused; those that survived are
        # durable now.
        for key in list(self.ends):
            if key in found:
                self.durable[key] = found[key]
            elif key not in self.damaged:
                del self.ends[key]
                self.durable.pop(key, None)


class SlicedRun(Run):
    """A run whose queues are flushed one at a time, while other things happen between two of them."""

    queue_slice_cost = 1

    def flush_all(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            plan = self.store.plan_queue_flush(self.time.monotonic_ms())
            if plan is not None:
                run_flush(self.disk, plan)
                self.store.complete_flush(plan)
        self.flush_log()


class ZeroedRun(Run):
    """A run under SYNC_FLUSH, where zeroes are written ahead of the log's records."""

    flush_disk_type = FlushDiskType.SYNC_FLUSH
    zeroed_bytes = 1500


class BatchRun(Run):
    """A run with batch queues (queue.type=BatchCQ), whose batches have one or several messages."""

    def open(self, damaged: Damaged | None = None) -> MessageStore:
        store = super().open(damaged)
        store.keep_in_batches("T")
        return store

    def append(self) -> None:
        if self.random.random() < 0.4:
            super().append()
            return
        queue_id, number = self.random.randrange(QUEUES), len(self.stored)
        items = [
            BatchItem(
                0, b"%d.%d " % (number, each) + self.random.randbytes(self.random.choice((5, 200))), b""
            )
            for each in range(self.random.randint(1, 9))
        ]
        properties = encode_properties({"INNER_NUM": str(len(items))})
        message = StoreMessage(
            "T", queue_id, encode_batch(items), properties, count=len(items),
            sys_flag=flags.INNER_BATCH | flags.NEED_UNWRAP,
        )  # fmt: skip
        (result,) = self.store.append_batch([message])
        assert result.is_ok
        for each, item in enumerate(items):
            self.note_stored((queue_id, result.queue_offset + each), (item.body, {}), result)

    def has(self, found: tuple[bytes, dict[str, str]]) -> tuple[bytes, dict[str, str]]:
        return found[0], {name: value for name, value in found[1].items() if name != "INNER_BASE"}

    def zero_units(self) -> None:
        self.cut_power()

    def flip_record(self) -> None:
        super().flip_record()
        places = {self.ends[key][0] for key in self.damaged if key in self.ends}
        self.damaged |= {key for key, (at, _) in self.ends.items() if at in places}


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_was_durable_survives_in_queues_of_batches(seed: int):
    run = BatchRun(seed, flips=seed % 2 == 1)
    for _ in range(150):
        run.step()
    assert run.flips or not run.was_refused
    assert run.disk.paths("/store/batchconsumequeue/")
    assert not run.disk.paths("/store/consumequeue/")


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_was_durable_survives_where_zeroes_are_written_ahead(seed: int):
    run = ZeroedRun(seed, flips=seed % 2 == 1)
    for _ in range(150):
        run.step()
    assert run.flips or not run.was_refused


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_was_durable_survives_where_queues_are_flushed_in_slices(seed: int):
    run = SlicedRun(seed, flips=False)
    for _ in range(150):
        run.step()
    assert not run.was_refused


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_was_durable_survives_power_cuts_and_clocks_that_are_set(seed: int):
    run = Run(seed, flips=False)
    for _ in range(150):
        run.step()
    assert not run.was_refused


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_costs_its_own_message_and_no_other(seed: int):
    run = Run(seed, flips=True)
    for _ in range(150):
        run.step()


@pytest.mark.parametrize("seed", [66, 167])
def test_old_units_do_not_reappear_in_the_place_of_new_ones(seed: int):
    """A queue that recovery shortened was not flushed: a second power cut brought its old units back."""
    test_a_flipped_bit_costs_its_own_message_and_no_other(seed)
