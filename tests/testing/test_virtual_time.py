"""Clocks of simulated machines: each is wrong in its own way, and consistent."""

import random

import pytest

from libramq.testing.machine.virtual_time import (
    DRIFT_PPM_MAX,
    MONOTONIC_START_MS,
    READINGS_A_MS,
    SKEW_MS_MAX,
    TURN_MS_MAX,
    WALL_START_MS,
    NodeClock,
    VirtualTime,
)

HOUR_MS = 3_600_000


def test_a_clock_without_faults_is_right():
    time = VirtualTime()
    clock = NodeClock(time)
    time.run_until(time.now_ms + HOUR_MS)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (time.monotonic_ms(), time.wall_ms())


@pytest.mark.parametrize("seed", range(20))
def test_a_clock_drifts_a_little_and_never_goes_back(seed: int):
    time = VirtualTime()
    clock = NodeClock(time, random.Random(seed))
    begin_ms, wall_ms = clock.monotonic_ms(), clock.wall_ms()
    assert abs(wall_ms - WALL_START_MS) <= SKEW_MS_MAX
    time.run_until(time.now_ms + HOUR_MS)
    ran_ms = clock.monotonic_ms() - begin_ms
    assert abs(ran_ms - (clock.wall_ms() - wall_ms)) <= 1
    assert abs(ran_ms - HOUR_MS - HOUR_MS * clock.drift_ppm / 1_000_000) <= 1
    assert 0 < abs(clock.drift_ppm) <= DRIFT_PPM_MAX


@pytest.mark.parametrize("seed", range(20))
def test_a_delay_ends_at_its_time_and_not_before(seed: int):
    time = VirtualTime()
    clock = NodeClock(time, random.Random(seed))
    for delay_ms in (1, 10, 999, 30_000, HOUR_MS):
        due_ms = clock.monotonic_ms() + delay_ms
        true_ms = clock.true_ms(delay_ms)
        time.run_until(time.now_ms + true_ms - 1 - TURN_MS_MAX)
        assert clock.monotonic_ms() < due_ms
        time.run_until(time.now_ms + 1 + TURN_MS_MAX)
        assert due_ms <= clock.monotonic_ms() <= due_ms + TURN_MS_MAX


def test_time_passes_while_a_process_computes():
    """A clock that stands still in a turn would hide that a round may be older than the data it examines."""
    clock = NodeClock(time := VirtualTime(), random.Random(1))
    began_ms = clock.monotonic_ms()
    readings = [clock.monotonic_ms() - began_ms for _ in range(1_000)]
    assert readings == sorted(readings)
    assert 0 < readings[2 * READINGS_A_MS] < TURN_MS_MAX - 1 <= readings[-1] <= TURN_MS_MAX
    time.run_until(time.now_ms + 1)
    assert clock.monotonic_ms() - began_ms >= readings[-1]
    time.run_until(time.now_ms + 10 * TURN_MS_MAX)
    assert clock.monotonic_ms() - began_ms <= 10 * TURN_MS_MAX + 2


def test_a_wall_clock_can_be_set_and_survives_a_reboot():
    time = VirtualTime()
    clock = NodeClock(time, random.Random(1))
    time.run_until(time.now_ms + HOUR_MS)
    wall_ms, monotonic_ms = clock.wall_ms(), clock.monotonic_ms()
    clock.set_wall(-5_000)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (wall_ms - 5_000, monotonic_ms)
    assert clock.wall_ms_max == wall_ms
    clock.reboot()
    assert clock.wall_ms() == wall_ms - 5_000
    assert clock.monotonic_ms() not in (monotonic_ms, time.now_ms)
    assert clock.monotonic_ms() >= MONOTONIC_START_MS
