"""The engine: a timer that rings late is a process that stood still, and an idle time is none."""

from functools import partial

import pytest
from tests.fakes import ManualClock

from libramq.kernel.engine import LATE_MS_MIN, Engine, Hooks
from libramq.kernel.parts import Kernel


class Judge:
    """An engine that would judge somebody after a second of silence."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        kernel = Kernel(self.clock)
        self.stood: list[tuple[int, int]] = []
        self.judged: list[int] = []
        self.deadline = kernel.deadlines.new(self.judged.append)
        hooks = Hooks(stood_still=(lambda stood_ms, now_ms: self.stood.append((stood_ms, now_ms)),))
        self.engine = Engine(kernel, self, hooks)
        self.deadline.at(self.clock.monotonic_ms() + 1_000)
        self.engine.settle()

    def receive(self, connection: object, requests: object, start: int) -> int:
        raise AssertionError("nobody asks for anything")


def test_a_timer_that_rings_late_says_how_long_nothing_was_done_before_anybody_is_judged():
    judge = Judge()
    judge.clock.advance(6_000)
    judge.engine.tick()
    assert judge.stood == [(6_000, judge.clock.monotonic_ms())]
    assert judge.judged == [judge.clock.monotonic_ms()]


def test_a_timer_that_rings_in_time_says_nothing_however_long_it_was_quiet():
    judge = Judge()
    judge.clock.advance(1_000 + LATE_MS_MIN - 1)
    judge.engine.tick()
    assert judge.stood == []
    assert len(judge.judged) == 1


def test_a_hook_that_fails_keeps_none_of_those_behind_it_from_their_work():
    judge = Judge()
    called: list[str] = []

    def failing(*_: object) -> None:
        raise ValueError("a bug")

    def last(*_: object) -> None:
        called.append("last")

    both = (failing, last)
    kernel = Kernel(judge.clock)
    engine = Engine(
        kernel, judge, Hooks(connection_ended=both, address_lost=both, settle=both, stood_still=both)
    )
    for event in (engine.settle, partial(engine.connection_ended, judge), partial(engine.address_lost, "")):
        with pytest.raises(ValueError, match="a bug"):
            event()
    kernel.deadlines.set(judge.clock.monotonic_ms(), lambda _: called.append("due"))
    judge.clock.advance(LATE_MS_MIN)
    engine.tick()
    assert called == ["last"] * 4 + ["due"]


def test_a_request_that_is_read_before_the_late_timer_rings_takes_nobodys_time_away():
    """After SIGCONT an event loop reads sockets first; who has not sent again yet was to be judged then."""
    judge = Judge()
    judge.clock.advance(6_000)
    judge.engine.settle()
    judge.clock.advance(3)
    judge.engine.tick()
    assert judge.stood == [(6_003, judge.clock.monotonic_ms())]
    judge.engine.settle()
    judge.deadline.at(judge.clock.monotonic_ms() + 10)
    judge.clock.advance(1_000)
    judge.engine.tick()
    assert judge.stood[1:] == [(1_000, judge.clock.monotonic_ms())]


def test_what_only_seldom_events_change_is_not_looked_at_after_a_hot_request():
    judge = Judge()
    called: list[str] = []
    kernel = Kernel(judge.clock)
    hooks = Hooks(
        settle=(lambda: called.append("always"),), settle_changed=(lambda: called.append("seldom"),)
    )
    engine = Engine(kernel, judge, hooks)
    engine.settle()
    assert called == ["always", "seldom"]
    engine.settle()
    assert called == ["always", "seldom", "always"]
    engine.mark_changed()
    engine.settle()
    assert called[3:] == ["always", "seldom"]
