"""The engine: a late timer means that the process was stalled; idle time does not."""

from functools import partial

import pytest
from tests.fakes import ManualClock, turns_of

from libramq.kernel.deadlines import OVERDUE_AGAIN_MS, Deadlines, StaysDue
from libramq.kernel.engine import LATE_MS_MIN, Engine, Hooks
from libramq.kernel.parts import Kernel, Phase


class Judge:
    """An engine that would expire a session after a second of silence."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        kernel = Kernel(self.clock)
        self.stood: list[tuple[int, int]] = []
        self.judged: list[int] = []
        self.deadline = kernel.deadlines.new(self.judged.append)
        hooks = Hooks(stalled=(lambda stall_ms, now_ms: self.stood.append((stall_ms, now_ms)),))
        self.engine = Engine(kernel, self, hooks)
        self.deadline.at(self.clock.monotonic_ms() + 1_000)
        self.engine.settle()

    def receive(self, connection: object, requests: object, start: int) -> int:
        raise AssertionError("nobody asks for anything")


def test_a_late_timer_reports_the_stall_before_any_session_is_checked():
    judge = Judge()
    judge.clock.advance(6_000)
    judge.engine.tick()
    assert judge.stood == [(6_000, judge.clock.monotonic_ms())]
    assert judge.judged == [judge.clock.monotonic_ms()]


def test_a_punctual_timer_reports_no_stall_after_a_quiet_time():
    judge = Judge()
    judge.clock.advance(1_000 + LATE_MS_MIN - 1)
    judge.engine.tick()
    assert judge.stood == []
    assert len(judge.judged) == 1


class Stuck:
    """A service that becomes due once, and stays due however often it runs."""

    def __init__(self, due_ms: int, deadlines: Deadlines) -> None:
        self.next_due_ms = due_ms
        self.turns: list[int] = []
        self._deadline = deadlines.new(self.tick, "Stuck")

    def settle(self) -> None:
        self._deadline.at(self.next_due_ms)

    def tick(self, now_ms: int) -> None:
        self.turns.append(now_ms)
        self.settle()


def test_a_service_that_stays_due_is_logged_and_does_not_spin(caplog: pytest.LogCaptureFixture):
    """It is not mistaken for a stalled process either, which would extend all deadlines by that time."""
    judge = Judge()
    begin_ms = judge.clock.monotonic_ms()
    kernel = Kernel(judge.clock)
    stuck = Stuck(begin_ms + 10, kernel.deadlines)
    stood: list[int] = []
    hooks = Hooks(stalled=(lambda stall_ms, now_ms: stood.append(stall_ms),), settle=(stuck.settle,))
    engine = Engine(kernel, judge, hooks)
    engine.settle()
    for _ in range(3 * OVERDUE_AGAIN_MS):
        judge.clock.advance(1)
        if engine.next_due_ms <= judge.clock.monotonic_ms():
            engine.tick()
        engine.settle()
    assert [turn_ms - begin_ms for turn_ms in stuck.turns] == [
        10,
        11,
        11 + OVERDUE_AGAIN_MS,
        11 + 2 * OVERDUE_AGAIN_MS,
    ]
    assert stood == []
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [type(error) for error in errors] == [StaysDue] * 3
    assert "Stuck is due, since 1 ms, after its turn" in str(errors[0])
    stuck.next_due_ms = judge.clock.monotonic_ms() + 5_000
    engine.settle()
    assert engine.next_due_ms == stuck.next_due_ms


def test_something_found_to_be_overdue_is_no_stall():
    """A service that is behind, for example after a restart, sets its deadline to a time in the past."""
    clock = ManualClock()
    kernel = Kernel(clock)
    stood: list[int] = []
    turns: list[int] = []
    deadline = kernel.deadlines.new(turns.append)
    begin_ms = clock.monotonic_ms()
    hooks = Hooks(
        settle=(lambda: deadline.by(begin_ms - 10_000 + len(turns)) if len(turns) < 3 else None,),
        stalled=(lambda stood_ms, now_ms: stood.append(stood_ms),),
    )
    engine = Engine(kernel, Judge(), hooks)
    for _ in range(3):
        clock.advance(10)
        engine.settle()
        assert engine.next_due_ms == clock.monotonic_ms()
        engine.tick()
    assert (len(turns), stood) == (3, [])


def test_more_than_one_turn_can_do_is_no_stall():
    """Otherwise an attacker could extend all sessions with pulls that expire together."""
    judge = Judge()
    judge.engine.workload.begin_turn = turns_of(1)
    for _ in range(9):
        judge.engine.deadlines.new(judge.judged.append).at(judge.clock.monotonic_ms() + 1_000)
    judge.clock.advance(1_000)
    for _ in range(8):
        judge.engine.tick()
        judge.clock.advance(LATE_MS_MIN - 1)
        judge.engine.settle()
    assert (len(judge.judged), judge.stood) == (8, [])
    judge.clock.advance(1)
    judge.engine.tick()
    assert (len(judge.judged), judge.stood) == (9, [(1, judge.clock.monotonic_ms())])


def test_a_failing_hook_holds_up_none_of_the_others():
    judge = Judge()
    called: list[str] = []

    def failing(*_: object) -> None:
        raise ValueError("a bug")

    def last(*_: object) -> None:
        called.append("last")

    both = (failing, last)
    kernel = Kernel(judge.clock)
    engine = Engine(kernel, judge, Hooks(connection_ended=both, address_lost=both, settle=both, stalled=both))
    for event in (engine.settle, partial(engine.connection_ended, judge), partial(engine.address_lost, "")):
        with pytest.raises(ValueError, match="a bug"):
            event()
    kernel.deadlines.set(judge.clock.monotonic_ms(), lambda _: called.append("due"))
    judge.clock.advance(LATE_MS_MIN)
    engine.tick()
    assert called == ["last"] * 4 + ["due"]


def test_a_request_read_before_a_late_timer_ends_no_session():
    """After SIGCONT an event loop reads sockets first.

    Sessions of peers that had not sent anything yet used to end.
    """
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


def test_follow_ups_of_an_event_run_by_phase_and_once():
    """An action enlisted for an earlier phase runs next; a failing action stops none of the others."""
    kernel = Kernel(ManualClock())
    engine = Engine(kernel, Judge(), Hooks())
    called: list[str] = []

    def woken() -> None:
        called.append("woken")
        kernel.soon(Phase.JOURNAL, journal)

    def journal() -> None:
        called.append("journal")

    def failing() -> None:
        raise ValueError("a bug")

    for _ in range(2):
        kernel.soon(Phase.TIMERS, partial(called.append, "timer"))
        kernel.soon(Phase.FLUSH, failing)
        kernel.soon(Phase.ARRIVALS, woken)
        kernel.soon(Phase.JOURNAL, journal)
    with pytest.raises(ValueError, match="a bug"):
        engine.settle()
    assert called == ["journal", "woken", "journal", "timer", "timer"]
    engine.settle()
    assert len(called) == 5
