"""A broker whose machine loses power: recorded offsets never run ahead of the surviving messages."""

import random
from pathlib import Path
from typing import Any

import pytest

from libramq.broker.broker import Broker
from libramq.broker.config import BrokerConfig
from libramq.broker.machine import Machine
from libramq.errors import NotYetGranted
from libramq.fencing import Claim, FenceGrant
from libramq.message.queue import MessageQueue
from libramq.store.flush import run_flush
from libramq.store.log.append import StoreMessage
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.virtual_time import VirtualTime
from tests.fakes import ManualClock
from tests.quick import quick


def open_on(disk: MemoryDisk, clock: VirtualTime | ManualClock | None = None, **options: Any) -> Broker:
    sizes = {"commit_log_file_bytes": 1 << 16, "consume_queue_file_bytes": 2_000}
    config = BrokerConfig(**{"store_path": "/broker", **sizes, **options})
    return Broker(
        config,
        Machine(clock=clock or VirtualTime(), filesystem=disk, randomness=random.Random(1)),
    )


def write_progress(broker: Broker, clock: ManualClock) -> list[str]:
    """Write the progress files that are due after a minute, as the shell does; return their names."""
    clock.advance(60_000)
    due = [file for file in broker.progress if file.is_due(clock.monotonic_ms())]
    for file in due:
        file.write()
        file.done()
    return [file.name for file in due]


def flush_log(broker: Broker, disk: MemoryDisk, clock: ManualClock) -> None:
    plan = broker.store.plan_log_flush(clock.monotonic_ms())
    assert plan is not None
    run_flush(disk, plan)
    broker.store.complete_flush(plan)


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", quick(range(20), 6))
def test_a_delayed_message_survives_the_loss_of_its_delivered_copy(seed: int, mode: str):
    """The record of a delivery must not outlive the delivered message."""
    disk, clock = MemoryDisk(VirtualTime(), random.Random(seed)), ManualClock()
    broker = open_on(disk, clock, flush_disk_type=mode)
    waiting = StoreMessage("T", 0, b"due")
    broker.schedule.delay(waiting, "1")
    assert broker.store.append_batch([waiting])[0].is_ok
    broker.store.flush()
    clock.advance(2_000)
    broker.schedule.level_grew(waiting.queue_id)
    while broker.schedule.deliver(clock.monotonic_ms()):
        pass
    assert write_progress(broker, clock) == []
    disk.power_cut()
    broker = open_on(disk, clock, flush_disk_type=mode)
    broker.schedule.deliver(clock.monotonic_ms())
    broker.store.flush()
    assert broker.store.max_offset("T", 0) >= 1


def test_progress_is_written_as_soon_as_the_log_is_flushed():
    disk, clock = MemoryDisk(VirtualTime(), random.Random(1)), ManualClock()
    broker = open_on(disk, clock)
    assert broker.store.append_batch([StoreMessage("T", 0, b"one")])[0].is_ok
    broker.offsets.commit("G", "T", 0, 1)
    broker.offsets.write()
    assert write_progress(broker, clock) == []
    flush_log(broker, disk, clock)  # Asked for, although it is less than four pages.
    broker.store.append_batch([StoreMessage("T", 0, b"later")])
    assert write_progress(broker, clock) == ["consumerOffset.json"]
    assert b'"T@G"' in (disk.on_platter(Path("/broker/config/consumerOffset.json")) or b"")
    assert write_progress(broker, clock) == []


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", range(5))
def test_offsets_of_a_deleted_topic_do_not_return_to_its_successor(seed: int, mode: str):
    """A recreated topic's group used to skip as many messages as it had read of the deleted one."""
    disk, clock = MemoryDisk(VirtualTime(), random.Random(seed)), ManualClock()
    broker = open_on(disk, clock, flush_disk_type=mode)
    assert broker.store.append_batch([StoreMessage("T", 0, b"old")] * 5)[0].is_ok
    broker.store.flush()
    broker.offsets.commit("G", "T", 0, 5)
    broker.offsets.write()
    assert write_progress(broker, clock) == ["consumerOffset.json"]
    broker.store.delete_topic("T")
    broker.offsets.remove_topic("T")
    assert broker.store.append_batch([StoreMessage("T", 0, b"new")] * 5)[0].is_ok
    plan = broker.durability._plan_log()
    assert plan is not None
    run_flush(disk, plan)
    disk.power_cut()
    broker = open_on(disk, clock, flush_disk_type=mode)
    assert broker.store.max_offset("T", 0) == 5
    assert broker.offsets.query("G", "T", 0) is None


def test_a_lowered_offset_stays_low_after_a_second_power_cut():
    """Later messages take the offsets of the lost ones; the group must not skip them."""
    disk, clock = MemoryDisk(VirtualTime(), random.Random(3)), ManualClock()
    broker = open_on(disk, clock)
    for _ in range(3):
        broker.store.append_batch([StoreMessage("T", 0, b"lost")])
    broker.offsets.commit("G", "T", 0, 3)
    broker.offsets.write()
    broker.ledger.persist(clock.wall_ms())  # Too early: as the kernel may write the journal.
    disk.power_cut()
    broker = open_on(disk, clock)
    assert broker.offsets.query("G", "T", 0) == 0
    for _ in range(3):
        broker.store.append_batch([StoreMessage("T", 0, b"later")])
    broker.store.want_flush(broker.store.end)
    flush_log(broker, disk, clock)
    disk.power_cut()
    broker = open_on(disk, clock)
    assert (broker.offsets.query("G", "T", 0), broker.store.max_offset("T", 0)) == (0, 3)


@pytest.mark.parametrize("seed", quick(range(10), 4))
def test_a_new_brokers_messages_and_offsets_survive_with_its_directories(seed: int):
    """As after `libra up --brokers 2 --data new/data`: acknowledged messages were lost with the directory."""
    disk, clock = MemoryDisk(VirtualTime(), random.Random(seed)), ManualClock()
    place = {"store_path": "/home/user/new/data/broker-a", "flush_disk_type": "SYNC_FLUSH"}
    broker = open_on(disk, clock, **place)
    assert broker.store.append_batch([StoreMessage("T", 0, b"one")])[0].is_ok
    flush_log(broker, disk, clock)
    broker.offsets.commit("G", "T", 0, 1)
    broker.offsets.write()
    assert write_progress(broker, clock) == ["consumerOffset.json"]
    disk.power_cut()
    broker = open_on(disk, clock, **place)
    assert (broker.store.max_offset("T", 0), broker.offsets.query("G", "T", 0)) == (1, 1)


@pytest.mark.parametrize("power", ["fails", "stays"])
def test_the_offset_of_a_lost_queue_returns_to_its_beginning(power: str):
    """Otherwise the group would skip the messages that take the lost ones' offsets."""
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    broker = open_on(disk)
    for _ in range(3):
        broker.store.append_batch([StoreMessage("T", 0, b"lost", b"", 0)])
    broker.offsets.commit("G", "T", 0, 3)
    broker.offsets.write()
    broker.ledger.persist(0)
    if power == "fails":
        disk.power_cut()
    else:
        disk.process_died()
    broker = open_on(disk)
    assert broker.store.max_offset("T", 0) == (0 if power == "fails" else 3)
    assert broker.offsets.query("G", "T", 0) == (0 if power == "fails" else 3)


@pytest.mark.parametrize(("mode", "is_let_read"), [("ASYNC_FLUSH", False), ("SYNC_FLUSH", True)])
def test_after_a_possible_loss_members_reopen_their_queues(mode: str, is_let_read: bool):
    """A member that had read lost messages continued after them, skipping those that took their offsets."""
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    broker = open_on(disk, flush_disk_type=mode)
    claim = Claim("m", 2)
    grant = FenceGrant(group="G", epoch=2, claims={MessageQueue("T", broker.config.broker_name, 0): claim})
    broker.fences.grant(grant)
    broker.fences.open("G", "T", 0, claim)
    disk.process_died()
    broker = open_on(disk, flush_disk_type=mode)
    if is_let_read:
        broker.fences.check("G", "T", 0, *claim)
        return
    with pytest.raises(NotYetGranted):
        broker.fences.check("G", "T", 0, *claim)
    broker.fences.open("G", "T", 0, claim)
    broker.fences.check("G", "T", 0, *claim)
