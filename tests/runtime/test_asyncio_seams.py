"""Brief work: how long it may hold the loop; and the wait for a processor, as Linux reports it."""

import sys
from pathlib import Path

import pytest

from libramq.runtime.asyncio_seams import LONG_US, REST, USUAL_US_MAX, BriefWork, ProcessorWait


def held(times_us: list[int]) -> tuple[float, float]:
    """Do work of these durations; return the share done by the loop, and the share of time it was held."""
    brief, now_us, held_us, own = BriefWork(), 0, 0, 0
    for took_us in times_us:
        if brief.may_begin(now_us):
            brief.ended(now_us, now_us + took_us)
            held_us += took_us
            own += 1
        now_us += took_us + 100  # Requests arrive in between.
    return own / len(times_us), held_us / now_us


@pytest.mark.parametrize("took_us", [20, 100, USUAL_US_MAX])
def test_the_loop_does_all_work_that_is_brief(took_us: int) -> None:
    assert held([took_us] * 2_000)[0] == 1


def test_a_slow_one_now_and_then_changes_nothing() -> None:
    assert held([*[100] * 99, LONG_US // 2] * 20)[0] == 1


@pytest.mark.parametrize("took_us", [500, 2_000, 8_000, 20_000, 3_000_000])
def test_slow_work_holds_the_loop_for_some_hundredths_of_the_time_at_most(took_us: int) -> None:
    own, share = held([took_us] * 4_000)
    assert 0 < own < 0.03  # The loop tries again now and then, as the disk may be fast by now.
    assert share < 0.03


def test_waiting_for_a_processor_does_not_count() -> None:
    brief = BriefWork()
    for number in range(1_000):
        brief.ended(number * 50_000, number * 50_000 + 20_000, 19_900)
        assert brief.may_begin(number * 50_000 + 20_000)
    assert not brief.is_doubtful


def test_it_is_doubtful_before_it_has_been_tried_and_while_it_is_slow() -> None:
    brief = BriefWork()
    assert brief.is_doubtful
    brief.ended(0, USUAL_US_MAX // 4)
    assert not brief.is_doubtful
    brief.ended(1_000, 1_000 + LONG_US - 1)
    assert brief.is_doubtful
    brief.ended(20_000, 20_000 + LONG_US)
    assert brief.is_doubtful


def test_a_stall_ends_it_at_once_for_a_time_in_proportion() -> None:
    brief = BriefWork()
    brief.ended(0, 100)
    brief.ended(1_000, 1_000 + 2_000_000)
    assert not brief.may_begin(2_001_000)
    assert not brief.may_begin(2_001_000 + REST * 2_000_000 - 1)
    assert brief.may_begin(2_001_000 + REST * 2_000_000)


def test_a_disk_that_has_become_fast_is_used_by_the_loop_again() -> None:
    slow, fast = [2_000] * 400, [100] * 4_000
    brief, now_us, own = BriefWork(), 0, 0
    for took_us in slow + fast:
        if brief.may_begin(now_us):
            brief.ended(now_us, now_us + took_us)
            own += took_us == 100
        now_us += took_us + 100
    assert own > 0.7 * len(fast)


def test_a_wait_that_was_counted_wrongly_does_not_hide_a_slow_disk() -> None:
    brief = BriefWork()
    brief.ended(0, 100, waited_us=1_000_000_000)
    for at in range(0, 400_000, 4_000):
        brief.ended(at, at + 2 * USUAL_US_MAX)
    assert not brief.may_begin(400_000)


@pytest.mark.parametrize(
    ("text", "us"), [("778583000 249560999 9\n", 249_560), ("0 0 0\n", 0), ("", 0), ("1 x", 0)]
)
def test_the_second_number_is_the_wait(text: str, us: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "schedstat").write_text(text)
    monkeypatch.setattr("libramq.runtime.asyncio_seams._PATH", tmp_path / "schedstat")
    wait = ProcessorWait()
    assert wait.waited_us() == us
    wait.close()
    wait.close()


def test_without_counts_there_is_no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("libramq.runtime.asyncio_seams._PATH", tmp_path / "none")
    wait = ProcessorWait()
    assert wait.waited_us() == 0
    wait.close()


@pytest.mark.skipif(sys.platform != "linux", reason="counted by Linux alone")
def test_the_system_counts_more_and_more():
    wait = ProcessorWait()
    before_us = wait.waited_us()
    assert wait.waited_us() >= before_us >= 0
    wait.close()
