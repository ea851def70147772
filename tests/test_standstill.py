"""The standstill: looks that come late are noticed, idle times are none."""

from libramq.standstill import LATE_MS_MIN, Standstill


def test_a_look_that_comes_late_says_how_long_nobody_looked():
    standstill = Standstill(250)
    assert standstill.due_ms is None
    assert standstill.look(1_000) == 0
    assert standstill.due_ms == 1_250
    assert standstill.look(1_250) == 0
    in_time_ms = 1_250 + 250 + LATE_MS_MIN - 1
    assert standstill.look(in_time_ms) == 0
    assert standstill.look(in_time_ms + 5_000) == 5_000


def test_while_nobody_is_judged_nobody_need_look():
    standstill = Standstill(250)
    assert standstill.look(1_000, goes_on=False) == 0
    assert standstill.due_ms is None
    assert standstill.look(60_000) == 0
    assert standstill.look(60_250, goes_on=False) == 0
    assert standstill.look(90_000, goes_on=False) == 0
