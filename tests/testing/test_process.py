"""The simulated process: the order of its events, and the events that no longer happen."""

from collections.abc import Callable

from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedTimers
from libramq.testing.machine.virtual_time import VirtualTime


class Program:
    """A process with its timers and a record of its events."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.process = Process("p", self.time)
        self.process.start()
        self.timers = SimulatedTimers(self.process)
        self.happened: list[str] = []

    def note(self, what: str) -> Callable[[], None]:
        return lambda: self.happened.append(what)

    def pass_ms(self, ms: int) -> None:
        self.time.run_until(self.time.now_ms + ms)


def test_a_cancelled_timer_does_nothing() -> None:
    """Only the other timer of that moment fires; fractions of a millisecond count as a whole one."""
    program = Program()
    cancelled = program.timers.after(3, program.note("cancelled"))
    program.timers.after(2.1, program.note("fired"))
    cancelled.cancel()
    program.pass_ms(2)
    assert program.happened == []
    program.pass_ms(1)
    assert program.happened == ["fired"]


def test_events_of_a_paused_process_happen_in_their_order_when_it_continues() -> None:
    """Timers, external events and immediate actions all wait; none is lost."""
    program = Program()
    program.timers.after(1, program.note("timer"))
    program.process.reach(2, program.note("arrival"))
    program.process.pause()
    program.pass_ms(5)
    program.process.do(program.note("now"))
    assert program.happened == []
    program.process.resume()
    assert program.happened == ["timer", "arrival", "now"]


def test_a_timer_that_waits_for_a_paused_process_can_still_be_cancelled() -> None:
    """Both timers were due while it was paused; the first one cancels the second when it continues."""
    program = Program()

    def cancel() -> None:
        second.cancel()

    program.timers.after(1, cancel)
    second = program.timers.after(2, program.note("cancelled"))
    program.process.pause()
    program.pass_ms(5)
    program.process.resume()
    assert program.happened == []


def test_pausing_a_process_again_while_it_continues_loses_no_event() -> None:
    """The events after the pause wait for the next time."""
    program = Program()
    program.timers.after(1, program.process.pause)
    program.timers.after(2, program.note("behind"))
    program.process.pause()
    program.pass_ms(5)
    program.process.resume()
    assert program.happened == []
    program.process.resume()
    assert program.happened == ["behind"]


def test_events_of_a_dead_process_do_not_happen() -> None:
    """They do not happen in its next life either."""
    program = Program()
    program.timers.after(1, program.note("of the first life"))
    program.process.kill()
    program.process.start()
    program.timers.after(1, program.note("of the second life"))
    program.pass_ms(5)
    assert program.happened == ["of the second life"]
