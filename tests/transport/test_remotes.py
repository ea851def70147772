"""Remote processes, with manual connections and timers."""

from collections.abc import Callable

from libramq.clock import MonotonicMs
from libramq.errors import ConnectFailed, ConnectionLost, RequestTimeout
from libramq.remoting.command import FLAG_ONEWAY, Command, reply_to
from libramq.remoting.connection import LATE_REQUESTS_MAX, FrameReader
from libramq.remoting.frame import LARGE_BODY_BYTES, encode_frame
from libramq.runtime.seams import Dialed
from libramq.transport.outages import Outages
from libramq.transport.remotes import GRACE_MS_MAX, SILENCE_MS_MAX, Remotes

A = "10.0.0.1:10911"


class Link:
    """A connection that records what is written; it ends when `ended` is called."""

    def __init__(self, address: str, dialed: Dialed) -> None:
        self.address = address
        self.dialed = dialed
        self.writes: list[bytes] = []
        self.closed = ""

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = "when written"

    def abort(self) -> None:
        self.closed = "now"

    def open(self) -> None:
        self.dialed.opened(self)

    def requests(self) -> list[Command]:
        return FrameReader().receive(b"".join(self.writes))

    def answer(self, *requests: Command) -> None:
        self.dialed.received(b"".join(encode_frame(reply_to(each, 0, body=each.body)) for each in requests))


class Timer:
    def __init__(self, due_ms: int, action: Callable[[], None]) -> None:
        self.due_ms, self.action, self.is_cancelled = due_ms, action, False

    def cancel(self) -> None:
        self.is_cancelled = True


class World:
    """A manual dialer, timers and clock; `run` lets time pass."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.links: list[Link] = []
        self.lost: list[str] = []
        self.outcomes: list[object] = []
        self._timers: list[Timer] = []
        self.remotes = Remotes(self, self, lambda: MonotonicMs(self.now_ms), lost=self.lost.append)

    def dial(self, address: str, dialed: Dialed) -> None:
        self.links.append(Link(address, dialed))

    def after(self, delay_ms: float, action: Callable[[], None]) -> Timer:
        self._timers.append(Timer(self.now_ms + int(delay_ms), action))
        return self._timers[-1]

    def elapsed_us(self) -> int:
        return self.now_ms * 1_000

    def run(self, milliseconds: int = 0) -> int:
        """Let time pass; return how many timers fired."""
        end_ms, rang = self.now_ms + milliseconds, 0
        while due := [each for each in self._timers if each.due_ms <= end_ms and not each.is_cancelled]:
            timer = min(due, key=lambda each: each.due_ms)
            self._timers.remove(timer)
            self.now_ms = max(self.now_ms, timer.due_ms)
            timer.action()
            rang += 1
        self.now_ms = end_ms
        return rang

    def stand_still(self, milliseconds: int) -> None:
        """Let time pass while no timer fires and nothing is read; then fire the due timers."""
        self.now_ms += milliseconds
        for timer in [each for each in self._timers if each.due_ms <= self.now_ms]:
            self._timers.remove(timer)
            if not timer.is_cancelled:
                timer.action()

    def send(self, body: bytes = b"", timeout_ms: int = 3_000, *, takes_late: bool = False) -> None:
        command, done = Command(code=1, body=body), self.outcomes.append
        self.remotes.send(A, command, done, timeout_ms=timeout_ms, takes_late=takes_late)

    def bodies(self) -> list[object]:
        return [each.body if isinstance(each, Command) else type(each) for each in self.outcomes]


def test_a_turns_requests_are_one_write_unless_a_body_is_large():
    """A large body is written separately, without a copy."""
    world, bodies = World(), (bytes(LARGE_BODY_BYTES - 1), bytes(LARGE_BODY_BYTES))
    for number, body in enumerate(bodies):
        world.send(b"small")
        world.send(body)
        (link,) = world.links
        if not number:
            link.open()
        world.run()
    assert [each.body for each in link.requests()] == [b"small", bodies[0], b"small", bodies[1]]
    assert len(link.writes[0]) > LARGE_BODY_BYTES
    assert link.writes[-1] is bodies[1]


def test_requests_caused_by_an_answer_leave_with_its_read():
    """A loop reads several large replies before its next turn; meanwhile the broker would be idle."""
    world = World()

    def answered(_: object) -> None:
        world.send(b"2")
        world.send(b"3")

    world.remotes.send(A, Command(code=1, body=b"1"), answered)
    (link,) = world.links
    link.open()
    world.run()
    (first,) = link.requests()
    link.answer(first)
    assert [each.body for each in link.requests()] == [b"1", b"2", b"3"]
    assert len(link.writes) == 2
    world.run()
    assert len(link.writes) == 2


def test_requests_made_while_connecting_follow_each_other_in_one_write():
    world = World()
    world.send(b"1")
    world.remotes.send(A, Command(code=2, flag=FLAG_ONEWAY), None)
    world.send(b"3")
    (link,) = world.links
    link.open()
    world.run()
    assert len(link.writes) == 1
    assert [each.code for each in link.requests()] == [1, 2, 1]
    link.answer(*(each for each in link.requests() if not each.is_oneway))
    assert world.bodies() == [b"1", b"3"]


def test_a_refused_connection_fails_waiting_requests_and_the_next_one_reconnects():
    world = World()
    world.send()
    world.links[0].dialed.refused(ConnectFailed("nobody there"))
    assert world.bodies() == [ConnectFailed]
    assert world.lost == [], "the connection never existed"
    world.send(b"again")
    world.links[1].open()
    world.run()
    world.links[1].answer(*world.links[1].requests())
    assert world.bodies() == [ConnectFailed, b"again"]


def test_no_timer_fires_before_a_deadline():
    """A consumer whose pulls are held for 30 s is not woken in between."""
    world = World()
    world.send(timeout_ms=30_000)
    world.links[0].open()
    world.run()
    assert world.run(29_000) == 0
    assert world.run(1_000) == 1
    assert world.bodies() == [RequestTimeout]
    assert world.run(60_000) == 0


def test_the_shortest_deadline_counts_whichever_request_came_first():
    world = World()
    world.send(timeout_ms=30_000)
    world.links[0].open()
    world.run()
    world.send(timeout_ms=200)
    world.run()
    world.run(250)
    assert world.bodies() == [RequestTimeout]
    world.run(30_000)
    assert world.bodies() == [RequestTimeout, RequestTimeout]


def test_a_late_answer_goes_only_to_callers_that_accept_it():
    world = World()
    world.send(b"dropped", timeout_ms=200)
    for number in range(LATE_REQUESTS_MAX + 1):
        world.send(b"%d" % number, timeout_ms=200, takes_late=True)
    (link,) = world.links
    link.open()
    world.run()
    requests = link.requests()
    link.answer(requests.pop())
    world.run(250)
    assert world.bodies() == [b"%d" % LATE_REQUESTS_MAX, *[RequestTimeout] * (LATE_REQUESTS_MAX + 1)]
    world.outcomes.clear()
    link.answer(*requests, *requests)
    assert world.bodies() == [b"%d" % number for number in range(1, LATE_REQUESTS_MAX)]


def test_a_connection_that_we_close_takes_no_more_requests_and_those_in_flight_end():
    """After GO_AWAY the next request goes over a new connection, even before the old one has ended."""
    world = World()
    world.send(b"old")
    old = world.links[0]
    old.open()
    world.run()
    world.remotes.close_connection(A)
    assert (old.closed, world.lost) == ("when written", [A])
    world.send(b"new")
    world.links[1].open()
    world.run()
    world.links[1].answer(*world.links[1].requests())
    old.dialed.ended("")
    assert world.bodies() == [b"new", ConnectionLost]
    assert world.lost == [A]
    assert world.remotes.is_connected(A)


def test_requests_on_a_connection_that_is_being_closed_still_have_a_deadline():
    """The close may take long: it waits until a slow peer has read everything."""
    world = World()
    world.send(timeout_ms=500)
    world.links[0].open()
    world.run()
    world.remotes.close_connection(A)
    world.run(500)
    assert world.bodies() == [RequestTimeout]


def test_a_process_that_stood_still_reads_answers_before_it_gives_them_up():
    """Timers fire before sockets are read, so thousands of stored messages were reported as failed."""
    world = World()
    world.send(b"stored")
    (link,) = world.links
    link.open()
    world.run()
    world.stand_still(3_600)
    assert world.bodies() == []
    link.answer(*link.requests())
    assert world.bodies() == [b"stored"]
    world.run(60_000)
    assert world.bodies() == [b"stored"]


def test_after_standing_still_answers_have_that_time_again_but_not_much_more():
    """The broker may have been stalled as well.

    But a process stopped for an hour does not wait another hour.
    """
    for stalled_ms, more_ms in ((3_500, 500), (3_600_000, GRACE_MS_MAX)):
        world = World()
        world.send()
        world.links[0].open()
        world.run()
        world.stand_still(stalled_ms)
        world.run(more_ms - 1)
        assert world.bodies() == []
        world.run(1)
        assert world.bodies() == [RequestTimeout]


def test_a_request_after_standing_still_has_its_own_deadline():
    world = World()
    world.send()
    world.links[0].open()
    world.run()
    world.stand_still(60_000)
    world.send(timeout_ms=100)
    world.run(100)
    assert world.bodies() == [RequestTimeout]
    world.run(GRACE_MS_MAX)
    assert world.bodies() == [RequestTimeout, RequestTimeout]


def test_a_silent_connection_is_closed_and_the_next_request_opens_another():
    world = World()
    world.send(timeout_ms=SILENCE_MS_MAX)
    world.links[0].open()
    world.run()
    world.run(SILENCE_MS_MAX)
    assert world.links[0].closed == "now"
    assert world.bodies() == [RequestTimeout]
    world.send()
    assert len(world.links) == 2


def test_a_connection_that_opens_after_the_stop_is_closed_and_its_requests_failed():
    world = World()
    world.send()
    world.remotes.close()
    assert world.bodies() == [ConnectionLost]
    world.links[0].open()
    assert world.links[0].closed == "now"
    world.send()
    assert world.bodies() == [ConnectionLost, ConnectionLost]
    assert len(world.links) == 1


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(caplog):
    """The log does not repeat it for each request that fails meanwhile."""
    world = World()
    world.remotes.outages = Outages(lambda: MonotonicMs(world.now_ms))
    for _ in range(3):
        world.send()
        world.links[-1].dialed.refused(ConnectFailed(f"cannot connect to {A}"))
    world.send()
    world.links[-1].open()
    world.links[-1].dialed.ended("")  # A server listens there and hangs up.
    world.now_ms += 2_500
    world.send()
    world.links[-1].open()
    world.run()
    world.links[-1].answer(*world.links[-1].requests())
    records = [record for record in caplog.records if record.name == "libramq.transport.outages"]
    assert [record.getMessage() for record in records] == [
        f"no connection; retrying until it succeeds address={A} reason='cannot connect to {A}'",
        f"connected again address={A} after='2.5 s'",
    ]


def test_an_address_that_never_answered_is_not_logged(caplog):
    world = World()
    world.remotes.outages = Outages(lambda: MonotonicMs(world.now_ms), of_known_only=True)
    world.send()
    world.links[-1].dialed.refused(ConnectFailed(f"cannot connect to {A}"))
    assert caplog.records == []


def test_an_address_that_has_answered_is_not_suspected_of_requiring_tls():
    """Its broker was killed: a new connection ends before anything is received on it."""
    world = World()
    world.send()
    world.links[-1].open()
    world.run()
    world.links[-1].answer(*world.links[-1].requests())
    world.links[-1].dialed.ended("reset by peer")
    world.send()
    world.links[-1].open()
    world.links[-1].dialed.ended("reset by peer")
    error = world.outcomes[-1]
    assert isinstance(error, ConnectionLost)
    assert "TLS" not in str(error)
