"""Collecting while some messages of the timers' topic cannot be read."""

from pathlib import Path

from libramq.catalog.destinations import Destinations
from libramq.catalog.topic_table import TopicRules, TopicTable
from libramq.clock import WallMs
from libramq.store.reading.read import ReadResult, ReadStatus
from libramq.timers.delivered_copies import DeliveredCopies
from libramq.timers.slot_reader import TimerData
from libramq.timers.timer_log import TimerLog
from libramq.timers.timer_wheel import TimerWheel
from libramq.timers.timers import Again, Collected, TimerMessages, TimerMetrics, TimerOptions
from tests.store.stores import Disk
from tests.timers.no_pop import NoPop


class DamagedStore:
    """A store whose timers' topic has ten messages; the first five cannot be read."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 10

    def read(self, topic: str, queue_id: int, offset: int, count: int) -> ReadResult:
        status = ReadStatus.OFFSET_FOUND_NULL if offset < 10 else ReadStatus.OFFSET_OVERFLOW_ONE
        return ReadResult(status, 5 if offset < 5 else 10, 0, 10)


def test_messages_that_cannot_be_read_do_not_stop_the_timers(tmp_path: Path):
    timer_log = TimerLog(Disk(), tmp_path, 1 << 10)
    destinations = Destinations(TopicTable(TopicRules()))
    timers = TimerMessages(
        TimerData(DamagedStore(), timer_log, TimerWheel()),  # type: ignore[arg-type]
        Collected(0, TimerMetrics(None)),
        TimerOptions(),
        pop=NoPop(),
        destinations=destinations,
        copies=DeliveredCopies(DamagedStore(), destinations),  # type: ignore[arg-type]
    )
    rounds = 0
    while not timers.advance(WallMs(1_700_000_000_000)):
        rounds += 1
        assert rounds < 10
    assert timers.queue_offset == 10
    timer_log.close()


def test_damage_while_messages_are_collected_again_makes_nothing_delivered():
    """Only messages known to be delivered earlier count as delivered; the others were not in the wheel."""
    before = Again(until=10, from_ms=1_000)
    assert before.renewed(4, 5_000) == Again(10, 1_000)
    assert before.renewed(4, 500) == Again(10, 500)
    assert before.renewed(10, 5_000) == Again(10, 5_000)
