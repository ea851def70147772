"""The performer: turns, back-pressure, one write per turn, and effects in order."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.fakes import ManualClock, ManualThreads, ManualTimers, raise_it

from libramq.errors import ConnectionLost
from libramq.kernel.connection import ANONYMOUS, NUMBERS
from libramq.kernel.effect import Thread
from libramq.kernel.engine import Engine, Hooks
from libramq.kernel.parts import METRICS, RUNTIME_INFO, Kernel
from libramq.kernel.work import Callback, InThread, Room
from libramq.logs import LINES_MAX
from libramq.runtime.busy import HUGE_LANE_BYTES
from libramq.runtime.outgoing import (
    OFFERED_BEHIND_BYTES_MAX,
    SHARE_BYTES,
    STEP_BYTES,
    TURN_BYTES_MAX,
    UNREAD_BYTES_HIGH,
    UNREAD_BYTES_MAX,
    UNSENT_BYTES_HIGH,
)
from libramq.runtime.performer import TURN_US_MAX, Performer
from libramq.runtime.seams import Seams


class Line:
    """A connection that records what is written to it."""

    def __init__(self) -> None:
        self.address = "127.0.0.1:50000"
        self.number = next(NUMBERS)
        self.principal = ANONYMOUS
        self.certificate_names: tuple[str, ...] = ()
        self.is_open = True
        self.unsent_bytes = self.leaving_bytes = 0
        self.leaves_at_once = True
        self.is_reading = True
        self.writes: list[bytes] = []
        self.closed: str | None = None

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        if not self.leaves_at_once:
            self.unsent_bytes += len(data)

    def close(self, reason: str) -> None:
        self.is_open, self.closed = False, reason

    def abort(self, reason: str) -> None:
        self.close(reason)
        self.unsent_bytes = 0

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Words:
    """A protocol whose requests are functions of the connection; each takes `cost_us` of the turn's time."""

    def __init__(self) -> None:
        self.clock, self.timers, self.threads = ManualClock(), ManualTimers(), ManualThreads()
        kernel = Kernel(self.clock)
        self.effects, self.deadlines = kernel.effects, kernel.deadlines
        self.cost_us = 0
        self.settled = 0
        self.ended: list[object] = []
        self.lost: list[str] = []
        self.asked: list[tuple[str, Any, Any]] = []
        self.listening: list[Any] = []
        self.failures: list[str] = []
        self.expects_failures = self.fails_to_settle = False
        hooks = Hooks(
            connection_ended=(self.ended.append,), address_lost=(self.lost.append,), settle=(self._settle,)
        )
        engine = Engine(kernel, self, hooks)
        self.performer = Performer(
            engine,
            Seams(remotes=self, timers=self.timers, threads=self.threads),
            monotonic_ms=self.clock.monotonic_ms,
            listen=self.listening.append,
            failed=self._failed,
        )

    def _failed(self, what: str, error: Exception) -> None:
        if self.expects_failures:
            self.failures.append(f"{what}: {error}")
        else:
            raise_it(what, error)

    def _settle(self) -> None:
        self.settled += 1
        if self.fails_to_settle:
            raise ValueError("a bug")

    def receive(self, connection: Any, requests: Sequence[Any], start: int) -> int:
        self.timers.now_us += self.cost_us
        answer = requests[start](connection)
        if answer:
            self.effects.send(connection, answer)
        return start + 1

    def send(self, address: str, request: Any, done: Any, *, timeout_ms: int = 0) -> None:
        self.asked.append((address, request, done))


class Question:
    """A request to another process."""

    address, timeout_ms = "10.0.0.1:10911", 100

    def __init__(self, done: Any) -> None:
        self.done = done

    def command(self) -> str:
        return "who are you?"


@pytest.fixture
def words():
    return Words()


def say(text: bytes):
    return lambda _: text


def test_the_answers_of_a_turn_leave_in_one_write_after_settling(words):
    line = Line()
    seen: list[int] = []
    words.performer.received(line, [say(b"a"), say(b"b"), lambda _: seen.append(len(line.writes))])
    assert line.writes == [b"ab"]
    assert seen == [0]
    assert words.settled == 1


def test_brief_work_is_done_within_its_event_and_what_follows_is_settled_before_bytes_leave(words):
    line, seen = Line(), list[tuple[int, int]]()
    words.threads.does_brief_work = words.timers.keeps_soon = True

    def done(result: str) -> None:
        seen.append((words.settled, len(line.writes)))
        words.effects.send(line, result.encode())

    def ask(_: object) -> bytes:
        words.effects.run(Thread.FLUSH, lambda: "flushed", done, is_brief=True)
        return b"asked "

    words.performer.received(line, [ask])
    assert line.writes == [b"asked flushed"]
    assert seen == [(0, 0)]
    assert words.settled == 1
    words.effects.defer(lambda: ask(None))  # Nothing is settled after it, except after brief work.
    words.performer.follow()
    words.timers.come()
    assert line.writes == [b"asked flushed", b"flushed"]
    assert seen == [(0, 0), (2, 1)]
    assert words.settled == 3
    words.threads.does_brief_work = False
    words.performer.received(line, [ask])
    assert line.writes[2:] == [b"asked "]
    words.threads.run_all(Thread.FLUSH)
    assert line.writes[3:] == [b"flushed"]


def test_large_answers_leave_one_by_one(words):
    """The client has the first one while the next one is prepared."""
    line, large = Line(), bytes(TURN_BYTES_MAX)
    words.performer.received(line, [say(large), say(b"small"), say(large), say(large)])
    assert line.writes == [large]
    words.timers.ring()
    assert line.writes == [large, b"small" + large]
    words.timers.ring()
    assert line.writes[2:] == [large]
    assert line.is_reading


def test_what_follows_from_brief_work_is_settled_even_if_its_result_cannot_be_processed(words):
    """Part of it may have been processed: a flush has shown readers new messages when a response fails."""
    words.threads.does_brief_work = words.expects_failures = True

    def done(_: object) -> None:
        words.effects.send(line, b"one of the answers")
        raise ValueError("a bug")

    line = Line()
    words.effects.defer(lambda: words.effects.run(Thread.FLUSH, lambda: None, done, is_brief=True))
    words.timers.keeps_soon = True
    words.performer.follow()
    words.timers.come()
    assert words.settled == 2
    assert line.writes == [b"one of the answers"]
    assert words.failures == ["the result of an effect could not be processed: a bug"]


def test_a_connection_that_used_up_its_turn_continues_after_the_others(words):
    slow, other = Line(), Line()
    words.cost_us = TURN_US_MAX // 2
    words.performer.received(slow, [say(b"%d" % n) for n in range(5)])
    assert slow.writes == [b"01"]
    assert not slow.is_reading
    words.cost_us = 0
    words.performer.received(other, [say(b"x")])
    assert other.writes == [b"x"]
    words.cost_us = TURN_US_MAX // 2
    words.timers.ring()
    assert slow.writes == [b"01", b"23"]
    words.timers.ring()
    assert slow.writes == [b"01", b"23", b"4"]
    assert slow.is_reading
    assert words.timers.due == []


def test_two_busy_connections_take_turns(words):
    one, two = Line(), Line()
    words.cost_us = TURN_US_MAX
    log: list[str] = []
    for line, name in ((one, "one"), (two, "two")):
        words.performer.received(line, [lambda _, name=name: log.append(name)] * 3)
    while words.timers.due:
        words.timers.ring()
    assert log == ["one", "two", "one", "two", "one", "two"]


def test_requests_that_arrive_while_others_wait_keep_their_order(words):
    line = Line()
    words.cost_us = TURN_US_MAX
    words.performer.received(line, [say(b"1"), say(b"2")])
    words.performer.received(line, [say(b"3")])
    while words.timers.due:
        words.timers.ring()
    assert b"".join(line.writes) == b"123"


def test_a_client_that_does_not_read_is_not_served_until_it_does(words):
    line = Line()
    large = bytes(UNSENT_BYTES_HIGH)
    line.leaves_at_once = False
    words.performer.received(line, [say(large + b"x"), say(large + b"y"), say(b"z")])
    assert len(line.writes) == 1
    assert words.timers.due == []
    line.unsent_bytes = 0
    words.performer.writable(line)
    words.timers.ring()
    assert len(line.writes) == 2, "what it holds is bounded by one answer"
    assert words.timers.due == []
    line.unsent_bytes = 0
    words.performer.writable(line)
    words.timers.ring()
    assert line.writes[2] == b"z"
    assert line.is_reading


def test_what_a_turn_has_for_a_client_counts_as_unread(words):
    line = Line()
    line.unsent_bytes = UNSENT_BYTES_HIGH - 1
    words.performer.received(line, [say(b"x"), say(b"y")])
    assert line.writes == [b"x"]


def test_a_client_that_reads_at_once_is_served_to_the_end(words):
    line = Line()
    large = bytes(UNSENT_BYTES_HIGH)
    words.performer.received(line, [say(large), say(large)])
    while words.timers.due:
        words.timers.ring()
    assert line.writes == [large, large]


def test_the_waiting_requests_of_a_connection_end_with_it(words):
    line = Line()
    words.cost_us = TURN_US_MAX
    words.performer.received(line, [say(b"1"), say(b"2")])
    line.is_open = False
    words.performer.closed(line)
    assert words.ended == [line]
    while words.timers.due:
        words.timers.ring()
    assert line.writes == [b"1"]


def test_a_close_takes_effect_after_earlier_writes(words):
    line = Line()

    def close(connection: Line) -> bytes:
        words.effects.send(connection, b"bye")
        words.effects.close(connection, "enough")
        return b""

    words.performer.received(line, [close, say(b"never")])
    assert line.writes == [b"bye"]
    assert line.closed == "enough"


def test_finished_work_and_answers_become_events(words):
    heard: list[object] = []
    words.effects.run(Thread.DISK, lambda: "written", heard.append)
    words.effects.ask(Question(heard.append))
    words.performer.follow()
    ((address, request, done),) = words.asked
    assert (address, request) == ("10.0.0.1:10911", "who are you?")
    settled = words.settled
    words.threads.run_all()
    done(ConnectionLost("gone"))
    assert heard[0] == "written"
    assert isinstance(heard[1], ConnectionLost)
    assert words.settled == settled + 2


def test_the_timer_fires_once_at_the_earliest_deadline(words):
    rung: list[int] = []
    words.deadlines.set(words.clock.monotonic_ms() + 500, rung.append)
    words.performer.follow()
    assert len(words.timers.due) == 1
    words.performer.follow()
    assert len(words.timers.due) == 1
    words.clock.advance(500)
    words.timers.ring()
    assert rung == [words.clock.monotonic_ms()]
    assert words.timers.due == [], "nothing wakes without something due"


def test_no_event_is_handled_after_the_stop(words):
    heard: list[object] = []
    words.effects.run(Thread.DISK, lambda: "written", heard.append)
    words.performer.follow()
    words.cost_us = TURN_US_MAX
    waiting = Line()
    words.performer.received(waiting, [say(b"served"), say(b"in the next turn")])
    words.performer.stop()
    while words.timers.due:
        words.timers.ring()
    assert waiting.writes == [b"served"]
    words.threads.run_all()
    words.performer.closed(Line())
    words.performer.lost("10.0.0.1:1")
    words.performer.received(Line(), [say(b"x")])
    assert (heard, words.ended, words.lost) == ([], [], [])


def test_a_connection_waits_while_a_thread_decodes_its_request(words):
    """Its requests take effect in order, and other connections are served meanwhile."""
    line, other = Line(), Line()
    decoded: list[object] = []

    def decode():
        decoded.append((yield InThread(Thread.COMPUTE, lambda: "decoded")))

    words.performer.received(
        line, [lambda connection: words.effects.proceed(connection, decode()), say(b"after")]
    )
    assert (line.writes, line.is_reading) == ([], False)
    words.performer.received(other, [say(b"served")])
    assert other.writes == [b"served"]
    words.threads.run_all()
    assert (decoded, line.writes) == (["decoded"], [])
    words.timers.ring()
    assert (line.writes, line.is_reading) == ([b"after"], True)


def test_a_connection_whose_large_request_waits_for_room_is_not_served(words):
    """Other connections are served, and its own requests take effect in order."""
    first, second, other = Line(), Line(), Line()
    begun: list[Line] = []

    def decode(connection: Line):
        yield Room(HUGE_LANE_BYTES)
        begun.append(connection)
        yield InThread(Thread.COMPUTE, lambda: None)

    def large(connection: Line) -> None:
        words.effects.proceed(connection, decode(connection))

    words.performer.received(first, [large, say(b"first")])
    words.performer.received(second, [large, say(b"second")])
    words.performer.received(other, [say(b"served")])
    assert (len(begun), other.writes) == (1, [b"served"])
    assert (first.is_reading, second.is_reading) == (False, False)
    words.threads.finish(words.threads.work.pop())
    while words.timers.due:
        words.timers.ring()
    assert (len(begun), first.writes, second.writes) == (2, [b"first"], [])
    words.threads.run_all()
    while words.timers.due:
        words.timers.ring()
    assert (second.writes, second.is_reading) == ([b"second"], True)


@pytest.mark.parametrize(
    "wanted", [Room(1), Callback(lambda done: None), 5], ids=["room", "callback", "number"]
)
def test_work_that_waits_in_vain_ends_with_its_connection(words, wanted):
    """It would keep its room forever, and its client would wait as long."""
    line, other, done = Line(), Line(), []
    words.expects_failures = True

    def steps(*others):
        yield Room(HUGE_LANE_BYTES)
        yield from others
        done.append("done")

    words.performer.received(line, [lambda connection: words.effects.proceed(connection, steps(wanted))])
    assert words.failures == [
        f"a request of {line.address} failed; the connection is closed: "
        f"a request's work cannot wait for {wanted}"
    ]
    assert (line.closed, done) == ("handler failed", [])
    words.performer.received(other, [lambda connection: words.effects.proceed(connection, steps())])
    assert done == ["done"]


def test_work_that_fails_as_it_is_stopped_gives_its_room_back(words):
    line, other, done = Line(), Line(), []
    words.expects_failures = True

    def steps():
        yield Room(HUGE_LANE_BYTES)
        try:
            yield InThread(Thread.COMPUTE, lambda: "decoded")
        finally:
            if not line.is_open:
                line.is_open = True
                raise ValueError("a bug")
        done.append("done")

    words.performer.received(line, [lambda connection: words.effects.proceed(connection, steps())])
    words.performer.received(other, [lambda connection: words.effects.proceed(connection, steps())])
    line.is_open = False
    words.threads.run_all()
    words.timers.ring()
    words.threads.run_all()
    assert (words.failures, done) == (["work could not be stopped: a bug"], ["done"])


def test_offers_are_dropped_for_a_client_that_does_not_read(words):
    line = Line()
    line.leaves_at_once = False
    piece = bytes(OFFERED_BEHIND_BYTES_MAX)

    def offer(connection: Line) -> None:
        for _ in range(3):
            words.effects.offer(connection, piece)

    words.performer.received(line, [offer])
    assert b"".join(line.writes) == 2 * piece, "the second one puts it behind"
    line.unsent_bytes = 0
    words.performer.received(line, [offer])
    assert b"".join(line.writes) == 4 * piece


def test_steps_take_one_turn_each_and_others_are_served_between(words):
    line, other = Line(), Line()
    taken: list[int] = []

    def count():
        for number in range(6):
            taken.append(number)
            words.timers.now_us += TURN_US_MAX // 2
            yield
        words.effects.send(line, b"done")

    words.performer.received(
        line, [lambda connection: words.effects.proceed(connection, count()), say(b"after")]
    )
    assert (taken, line.is_reading) == ([0, 1], False)
    words.performer.received(other, [say(b"served")])
    assert other.writes == [b"served"]
    words.timers.ring()
    words.timers.ring()
    assert (len(taken), line.writes) == (6, [])
    words.timers.ring()
    assert (b"".join(line.writes), line.is_reading) == (b"doneafter", True)


def test_steps_of_one_read_share_one_turn(words):
    """Each of 64 jobs that ended at their first step took a separate turn before any other connection."""
    line = Line()
    taken: list[int] = []

    def one(number: int):
        taken.append(number)
        words.timers.now_us += TURN_US_MAX
        yield from ()

    def many(connection: Line) -> None:
        for number in range(4):
            words.effects.proceed(connection, one(number))

    words.performer.received(line, [many])
    assert taken == [0]
    while words.timers.due:
        words.timers.ring()
    assert taken == [0, 1, 2, 3]


def test_steps_end_although_their_connection_has_ended(words):
    """A batch that is partly stored must be stored completely."""
    line = Line()
    taken: list[int] = []

    def count():
        for number in range(4):
            taken.append(number)
            words.timers.now_us += TURN_US_MAX
            yield

    words.performer.received(line, [lambda connection: words.effects.proceed(connection, count())])
    line.close("gone")
    words.performer.closed(line)
    while words.timers.due:
        words.timers.ring()
    assert taken == [0, 1, 2, 3]


def test_the_longest_turn_is_measured_for_each_reader(words):
    words.cost_us = 700
    words.performer.received(Line(), [say(b"a"), say(b"b")])
    words.cost_us = 100
    words.performer.received(Line(), [say(b"c")])
    longest = words.performer._engine.longest_turn
    assert longest.take_us(RUNTIME_INFO) == 1_400
    words.performer.received(Line(), [say(b"d")])
    assert (longest.take_us(RUNTIME_INFO), longest.take_us(METRICS)) == (100, 1_400)


def test_connections_that_do_not_read_wait_while_unread_answers_exceed_the_limit(words):
    """Twenty stalled readers together hold little more than the limit; clients that read are served."""
    answer = bytes(4 * SHARE_BYTES)
    lines = [Line() for _ in range(60)]
    for line in lines:
        line.leaves_at_once = False
        words.performer.received(line, [say(answer)] * 100)
    for _ in range(1_000):
        if words.timers.due:
            words.timers.ring()
        for line in lines:
            if not line.is_open:
                words.performer.closed(line)
    total = sum(line.unsent_bytes for line in lines)
    assert total <= UNREAD_BYTES_HIGH + UNSENT_BYTES_HIGH + len(lines) * len(answer)
    reader = Line()
    words.performer.received(reader, [say(b"served")])
    assert reader.writes == [b"served"]
    sleeper = next(line for line in lines if line.is_open)
    written = len(sleeper.writes)
    for line in lines:
        line.unsent_bytes = 0
        words.performer.writable(line)
    for _ in range(100):
        words.timers.ring()
    assert len(sleeper.writes) > written, "a client that has read is served again"


def test_the_connection_with_most_unread_bytes_is_closed_when_notifications_fill_the_memory(words):
    lines = [Line() for _ in range(10)]
    for number, line in enumerate(lines):
        line.leaves_at_once = False
        words.performer.received(line, [say(bytes(UNREAD_BYTES_MAX // 10 + number * STEP_BYTES))])
    assert [line.is_open for line in lines[:3]] == [True] * 3
    assert sum(line.unsent_bytes for line in lines) <= UNREAD_BYTES_MAX + STEP_BYTES
    assert any(line.closed for line in lines)


def test_clients_that_do_not_read_are_logged_at_a_bounded_rate(words, caplog):
    """Five hundred that reconnect would fill a disk."""
    lines = [Line() for _ in range(100)]
    for line in lines:
        line.leaves_at_once = False
        words.performer.received(line, [say(bytes(UNREAD_BYTES_MAX // 2))])
        for each in lines:
            if each.closed:
                words.performer.closed(each)
    assert sum(bool(line.closed) for line in lines) > 2 * LINES_MAX
    assert sum("connection dropped" in each.message for each in caplog.records) == LINES_MAX


def test_answers_in_transit_close_no_connection_and_block_other_clients(words):
    lines = [Line() for _ in range(30)]
    answer = bytes(UNREAD_BYTES_MAX // 10)
    for line in lines:
        line.leaves_at_once, line.leaving_bytes = False, len(answer)
        words.performer.received(line, [say(answer)])
    assert 10 <= len([line for line in lines if line.writes]) <= 12
    assert all(line.is_open for line in lines)
    for _ in range(200):
        for line in lines:
            if line.writes:
                line.unsent_bytes = 0
        if words.timers.due:
            words.timers.ring()
    assert [line.writes for line in lines] == [[answer]] * 30


def test_no_client_is_served_while_closed_connections_have_too_much_unread(words):
    """Requests of 500 clients arrived in one round of the loop; all were answered before any had ended."""
    lines = [Line() for _ in range(100)]
    answer = bytes(UNREAD_BYTES_MAX // 10)
    for line in lines:
        line.leaves_at_once = False
        words.performer.received(line, [say(answer)])
    answered = [line for line in lines if line.writes]
    assert 10 <= len(answered) <= 12
    waiting = next(line for line in lines if not line.writes)
    assert not waiting.is_reading
    for line in answered:
        if not line.is_open:
            words.performer.closed(line)
        line.unsent_bytes = 0
        words.performer.writable(line)
    for _ in range(10):
        words.timers.ring()
    assert waiting.writes == [answer]
    assert waiting.is_reading


def test_all_are_served_again_as_soon_as_a_closed_connection_has_ended(words):
    """They waited for 20 ms each time that clients were closed for not reading."""
    lines = [Line() for _ in range(12)]
    for line in lines[:-1]:
        line.leaves_at_once = False
        words.performer.received(line, [say(bytes(UNREAD_BYTES_MAX // 10))])
    waiting = lines[-1]
    words.performer.received(waiting, [say(b"brief")])
    assert waiting.writes == []
    (timer,) = words.timers.due
    for line in lines:
        if line.closed:
            words.performer.closed(line)
    assert timer not in words.timers.due
    while words.timers.due and not waiting.writes:
        words.timers.ring()
    assert waiting.writes == [b"brief"]
    assert len(words.timers.due) <= 1, "the others share one timer"


def test_effects_are_performed_although_something_else_in_their_turn_failed(words):
    line = Line()
    words.expects_failures = words.fails_to_settle = True
    words.effects.send(line, b"for another")
    words.performer.follow()
    assert line.writes == [b"for another"]
    assert words.failures == ["what follows from an event failed: a bug"]


class Ring(msgspec.Struct, frozen=True):
    """An effect that only one engine has."""

    times: int


def test_an_engine_without_clients_has_its_own_effects():
    """Its timers, requests and failures are those of every engine; it needs neither threads nor a port."""
    clock, timers = ManualClock(), ManualTimers()
    kernel = Kernel(clock)
    rung: list[int] = []
    failures: list[str] = []

    def ring(effect: Ring) -> None:
        rung.append(10 // effect.times)
        if effect.times == 5:  # One effect may cause another.
            kernel.effects.add(Ring(2))
            performer.follow()

    performer = Performer(
        Engine(kernel, None, Hooks()),
        Seams(remotes=Words(), timers=timers),
        monotonic_ms=clock.monotonic_ms,
        failed=lambda what, error: failures.append(f"{what}: {error}"),
        others={Ring: ring},
    )
    kernel.deadlines.set(clock.monotonic_ms() + 100, lambda _: kernel.effects.add(Ring(1)))
    for times in (5, 0, 10):
        kernel.effects.add(Ring(times))
    performer.follow()
    assert rung == [2, 5, 1]
    assert failures == ["Ring could not be processed: integer division or modulo by zero"]
    clock.advance(10_000)
    timers.ring()
    assert rung == [2, 5, 1, 10]


def test_a_request_that_cannot_be_sent_fails_without_holding_up_other_effects(words):
    """Otherwise registrations would wait for it forever, and other clients for their responses."""
    line, outcomes = Line(), []
    words.expects_failures = True

    class Unspeakable(Question):
        def command(self) -> str:
            raise ValueError("a bug")

    words.effects.ask(Unspeakable(outcomes.append))
    words.effects.send(line, b"for another")
    words.performer.follow()
    assert line.writes == [b"for another"]
    words.timers.ring()
    assert [str(outcome) for outcome in outcomes] == ["10.0.0.1:10911 cannot be reached: a bug"]


def test_a_failure_at_the_end_of_a_connection_holds_up_no_effect(words):
    line = Line()
    words.expects_failures = True
    words.performer._engine._hooks = Hooks(connection_ended=(lambda _: 1 / 0,))
    words.effects.send(line, b"for another")
    words.performer.closed(Line())
    assert line.writes == [b"for another"]
    assert words.failures == ["the end of a connection could not be processed: division by zero"]


def test_the_last_bytes_of_a_closing_connection_leave_after_the_journal_write(words):
    settled: list[int] = []

    class Watched(Line):
        def write(self, data: bytes) -> None:
            settled.append(words.settled)

    line = Watched()
    words.performer.received(line, [say(b"committed"), lambda line: words.effects.close(line, "enough")])
    assert settled == [1]
    assert line.closed == "enough"
