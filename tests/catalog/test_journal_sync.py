"""Journals under SYNC_FLUSH: no change is announced before it is on the disk."""

import random
from pathlib import Path

import pytest

from libramq.catalog.config_ledger import ConfigLedger
from libramq.catalog.journal_sync import JournalSync
from libramq.offsets.fence import Opening
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.virtual_time import VirtualTime
from tests.quick import quick

PATH = Path("/broker/config/groupFences.json")


def ledger_on(disk: MemoryDisk, *, waits: bool = True) -> tuple[ConfigLedger[Opening], JournalSync]:
    journals = JournalSync(waits=waits)
    return ConfigLedger(disk, PATH, Opening, journals=journals), journals


def opening(epoch: int) -> Opening:
    return Opening(member="m", epoch=epoch)


def epochs(ledger: ConfigLedger[Opening]) -> list[int]:
    found: list[int] = []
    ledger.replay(lambda change: found.append(change.config.epoch if change.config else 0))
    return found


def sync(disk: MemoryDisk, journals: JournalSync) -> None:
    plan = journals.plan()
    assert plan is not None
    for path in plan.paths:
        disk.fsync(disk.open(path))
    for directory in plan.directories:
        disk.sync_directory(directory)
    journals.complete(plan.through)


@pytest.mark.parametrize("seed", quick(range(20), 6))
def test_an_acknowledged_change_survives_a_power_cut(seed: int):
    disk = MemoryDisk(VirtualTime(), random.Random(seed))
    ledger, journals = ledger_on(disk)
    heard: list[bool] = []
    for epoch in (1, 2):
        ledger.append("T@G@0", opening(epoch))
        journals.when_synced(heard.append)
    assert heard == []
    sync(disk, journals)
    assert (heard, journals.is_synced) == ([True, True], True)
    ledger.append("T@G@0", opening(3))
    disk.power_cut()
    assert epochs(ledger_on(disk)[0])[:2] == [1, 2]


def test_a_change_written_during_a_sync_waits_for_the_next_one():
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    ledger, journals = ledger_on(disk)
    heard: list[str] = []
    ledger.append("T@G@0", opening(1))
    journals.when_synced(lambda _: heard.append("first"))
    assert journals.is_wanted
    journals.is_wanted = False
    plan = journals.plan()
    ledger.append("T@G@0", opening(2))
    journals.when_synced(lambda _: heard.append("second"))
    assert plan is not None
    journals.complete(plan.through)
    assert (heard, journals.is_synced, journals.is_wanted) == (["first"], False, True)
    sync(disk, journals)
    assert heard == ["first", "second"]


def test_a_waiter_does_not_wait_for_later_changes():
    """Otherwise a table that changes constantly would keep every waiter waiting forever."""
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    ledger, journals = ledger_on(disk)
    heard: list[int] = []
    ledger.append("T@G@0", opening(1))
    first = journals.written
    ledger.append("T@G@0", opening(2))
    journals.when_synced(lambda _: heard.append(2))
    journals.when_synced(lambda _: heard.append(1), through=first)
    journals.complete(first)
    assert heard == [1]
    journals.complete(journals.written)
    assert heard == [1, 2]


def test_changes_of_a_killed_process_are_synced_before_they_are_announced():
    """The killed process's lines may be only in the page cache."""
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    ledger_on(disk)[0].append("T@G@0", opening(1))
    disk.process_died()
    ledger, journals = ledger_on(disk)
    assert epochs(ledger) == [1]
    assert not journals.is_synced
    sync(disk, journals)
    assert journals.is_synced


def test_after_a_failed_sync_nothing_is_recorded_or_announced():
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    ledger, journals = ledger_on(disk)
    ledger.append("T@G@0", opening(1))
    heard: list[bool] = []
    journals.when_synced(heard.append)
    journals.fail("the journal cannot be flushed")
    journals.when_synced(heard.append)
    assert heard == [False, False]
    with pytest.raises(OSError, match="restart the broker"):
        ledger.append("T@G@0", opening(2))


def test_nothing_waits_under_async_flush():
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    ledger, journals = ledger_on(disk, waits=False)
    ledger.append("T@G@0", opening(1))
    assert journals.is_synced
    assert journals.plan() is None
