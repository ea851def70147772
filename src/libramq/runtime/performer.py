"""The performer: feeds events to an engine and performs its effects; how long a connection's turn is, whose
turn is next, and what happens to long work whose connection has ended.

    read ─► backlog ─► engine.receive, as many requests as take effect together ─► effects ─► bytes
                 ▲            │
                                  └── a turn ends when its time is up, or when the client has to read first

The output of a turn for a connection is one write, after the turn's decisions were journalled. A connection
whose turn ended early is not read; it continues after the others had their turns, when its client has read,
or when the work of its last request has ended (`Proceed`).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from libramq.clock import MonotonicMs
from libramq.errors import RemoteError
from libramq.kernel.connection import ANONYMOUS, NUMBERS, Connection
from libramq.kernel.effect import (
    Ask,
    Close,
    Defer,
    Dial,
    Listen,
    Offer,
    Proceed,
    Run,
    Send,
    Stream,
    Thread,
)
from libramq.kernel.engine import Engine, Translator
from libramq.kernel.parts import LongestTurn
from libramq.kernel.work import InThread, Room, UnderWay
from libramq.logs import BoundedLog, get_logger
from libramq.runtime.busy import Busy, LargeRequests
from libramq.runtime.outgoing import UNSENT_BYTES_HIGH, Outgoing, Unread
from libramq.runtime.seams import Channel, Link, Seams, Timer, Timers

log = get_logger(__name__)


class DialedConnection:
    """A connection attempt and its outcome; a `seams.Dialed` for its dialer, a `seams.Channel` for its
    performer.

    event: wraps a function so that its call is an event of the engine.
    """

    def __init__(
        self, address: str, stream: Stream, event: Callable[[Callable[[Any], None]], Callable[..., None]]
    ) -> None:
        self.address = address
        self.number = next(NUMBERS)
        self.principal = ANONYMOUS
        self.is_authenticated = False
        self.certificate_names: tuple[str, ...] = ()
        self.unsent_bytes = self.leaving_bytes = 0
        self._stream = stream
        self._event = event
        self._link: Link | None = None

    @property
    def is_open(self) -> bool:
        """Return whether data sent now can still arrive."""
        return self._link is not None

    def opened(self, link: Link) -> None:
        """Use the connection from now on."""
        self._link = link
        self._event(lambda _: self._stream.opened(self))()

    def received(self, data: bytes) -> None:
        """Handle the bytes of one read."""
        if self._link is not None:
            self._event(lambda _: self._stream.received(self, data))()

    def ended(self, reason: str) -> None:
        """Handle the end of the connection, whichever side closed it."""
        self._link = None
        self._event(lambda _: self._stream.ended(self, reason))()

    def refused(self, error: RemoteError) -> None:
        """Handle a failed attempt."""
        self._event(lambda _: self._stream.refused(str(error)))()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._link is not None:
            self._link.write(data)

    def close(self, reason: str) -> None:
        """Close the connection after all written data has left; ignore what still arrives."""
        link, self._link = self._link, None
        if link is not None:
            log.info("connection closed", peer=self.address, reason=reason)
            link.close()

    def abort(self, reason: str) -> None:
        """Close the connection now, dropping data that has not left yet."""
        link, self._link = self._link, None
        if link is not None:
            log.info("connection aborted", peer=self.address, reason=reason)
            link.abort()

    def pause_reading(self) -> None:
        """Do nothing: a stream is bounded by its protocol."""

    def resume_reading(self) -> None:
        """Do nothing."""


#: Ours: the interval at which connections are checked that wait for the total of unread data to shrink.
CROWDED_MS: Final = 20


class WaitingTurns:
    """Connections in the order of their turns.

    take_turn: serves a connection. has_backlog: returns whether a connection still has requests.

    put off  ─► must its client read first? ─► `Performer.writable` is called when it has
             ─► too much unread in total?   ─► crowded, checked again after CROWDED_MS, or when one has ended
             ─► enqueued                    ─► its turn comes, on a timer without delay
    """

    def __init__(
        self,
        timers: Timers,
        unread: Unread,
        *,
        take_turn: Callable[[Channel], None],
        has_backlog: Callable[[Channel], bool],
    ) -> None:
        self._timers = timers
        self._unread = unread
        self._take_turn = take_turn
        self._has_backlog = has_backlog
        #: By connection, when it was queued, in microseconds.
        self._enqueued: dict[Channel, int] = {}
        #: The longest time that a connection waited for its turn.
        self.longest_wait = LongestTurn()
        #: Connections whose turn ended early, until its output is written.
        self.waiting_for_output: list[Channel] = []
        self._crowded: list[Channel] = []
        self._crowded_timer: Timer | None = None
        self._is_stopped = False
        #: The timer of the next turn, for tests that run turns one by one.
        self.timer: Timer | None = None

    def enqueue(self, connection: Channel) -> None:
        """Queue a connection for a turn, behind the waiting ones."""
        self._enqueued.setdefault(connection, self._timers.elapsed_us())
        self._set_timer()

    def put_off(self, connection: Channel) -> None:
        """Put off a connection whose turn ended early until the turn's output is written."""
        self.waiting_for_output.append(connection)

    def enqueue_put_off(self) -> None:
        """Enqueue the connections whose turn ended early, except those whose client must read first."""
        put_off, self.waiting_for_output = self.waiting_for_output, []
        for connection in put_off:
            if not self._has_backlog(connection) or connection.unsent_bytes > UNSENT_BYTES_HIGH:
                continue
            if not self._unread.is_full and self._unread.may_serve(connection.unsent_bytes):
                self.enqueue(connection)
            else:
                self._crowded.append(connection)
        if self._crowded and self._crowded_timer is None:
            self._crowded_timer = self._timers.after(CROWDED_MS, self._look_at_crowded)

    def stop(self) -> None:
        """Stop serving."""
        self._is_stopped = True
        if self.timer is not None:
            self.timer.cancel()

    def _set_timer(self) -> None:
        if self.timer is None and self._enqueued and not self._is_stopped:
            self.timer = self._timers.after(0, self.next_turn)

    def next_turn(self) -> None:
        """Serve the connection that has waited longest."""
        self.timer = None
        connection = next(iter(self._enqueued))
        waited_us = self._timers.elapsed_us() - self._enqueued.pop(connection)
        if waited_us > self.longest_wait.noted_us:
            self.longest_wait.record(waited_us)
        self._take_turn(connection)
        self._set_timer()

    def check_crowded_soon(self) -> None:
        """Check soon whether connections that wait for the total of unread data may be served."""
        if self._crowded_timer is not None:
            self._crowded_timer.cancel()
            self._crowded_timer = self._timers.after(0, self._look_at_crowded)

    def _look_at_crowded(self) -> None:
        """Enqueue the connections that may be served again after the limit on unread data was exceeded."""
        self._crowded_timer = None
        self._unread.refresh()
        crowded, self._crowded = self._crowded, []
        if not self._is_stopped:
            self.waiting_for_output += crowded
            self.enqueue_put_off()


#: Processes requests from a position on; returns where the next ones begin.
Receive = Callable[[Connection, Sequence[object], int], int]


class Entrance:
    """A `transport.server_connection.Handler`. receives: the translators of connections, by connection.

    They share everything with the other connections of their performer: turns, effects, timers, services.
    """

    def __init__(
        self, performer: "Performer", receives: dict[Channel, Receive], translator: Translator
    ) -> None:
        self._performer = performer
        self._receives = receives
        self._receive = translator.receive
        self.received = performer.received
        self.writable = performer.writable
        self.closed = performer.closed

    def connected(self, connection: Channel) -> None:
        """Handle a new connection."""
        self._receives[connection] = self._receive
        self._performer.connected(connection)


#: Ours: how long one connection is served before the others have their turn; with 5 ms and twenty busy
#: connections, a request of another one waited 0.1 s.
TURN_US_MAX: Final = 2_000
#: Ours: timers have this resolution, and a deadline that is always due must not block the loop.
DELAY_MS_MIN: Final = 1
#: The functions that perform effects, by type of effect.
Performers = Mapping[type[msgspec.Struct], Callable[[Any], None]]
NO_OTHERS: Final[Performers] = {}
_RESULT_FAILED: Final = "the result of an effect could not be processed"
_SETTLING_FAILED: Final = "what follows from an event failed"


def log_failure(what: str, error: Exception) -> None:
    """Log a failure that is our bug, and continue."""
    log.error(what, exc_info=error)


class Performer:
    """Performs one engine's effects; a `transport.server_connection.Handler`.

    listen: starts to accept connections, then calls back. failed: called with failures that are our bugs.
    others: the performers of effects that only this engine has, by type.
    """

    def __init__(
        self,
        engine: Engine,
        seams: Seams,
        *,
        monotonic_ms: Callable[[], MonotonicMs],
        listen: Callable[[Callable[[], None]], None] | None = None,
        failed: Callable[[str, Exception], None] = log_failure,
        others: Performers = NO_OTHERS,
    ) -> None:
        self._engine = engine
        self._deadlines = engine.deadlines
        self._effects = engine.effects
        self._longest_turn = engine.longest_turn
        self._workload = engine.workload
        self._workload.begin_turn = self._begin_turn
        self._remotes, self._timers, self._threads, self._dialer = seams
        self._monotonic_ms = monotonic_ms
        self._listen = listen
        self._failed = failed
        self._others = others
        self._backlogs: dict[Channel, deque[Any]] = {}
        self._turn_began_us = 0
        #: Whether this turn has taken steps of long work.
        self._has_stepped = False
        self._busy = Busy()
        self._large = LargeRequests()
        self._unread = Unread(BoundedLog(log.warning, monotonic_ms))
        self._outgoing = Outgoing(self._unread)
        #: Connections waiting for their next turn.
        self.turns = WaitingTurns(
            self._timers, self._unread, take_turn=self._take_turn, has_backlog=self._backlogs.__contains__
        )
        self._timer: Timer | None = None
        self._due_ms: MonotonicMs | None = None
        self._receives: dict[Channel, Receive] = {}
        #: Ended connections not yet handled.
        self._ended: deque[Channel] = deque()
        self._is_stopped = False
        #: Whether brief work was done since the engine was last settled.
        self._is_unsettled = False

    def entrance(self, translator: Translator) -> Entrance:
        """Return the handler for connections of another protocol than the engine's own."""
        return Entrance(self, self._receives, translator)

    # Events.

    def connected(self, connection: Channel) -> None:
        """Handle a new connection; it has no effect until its first request."""

    def received(self, connection: Channel, requests: Sequence[Any]) -> None:
        """Handle the requests of one read."""
        if self._is_stopped:
            return
        backlog = self._backlogs.get(connection)
        if backlog is not None:
            backlog.extend(requests)
            return
        began_us = self._turn_began_us = self._timers.elapsed_us()
        self._serve(connection, requests, began_us)
        self.follow(began_us)

    def writable(self, connection: Channel) -> None:
        """Continue with a connection whose client has read."""
        self._unread.note(connection)
        if connection in self._backlogs:
            self.turns.enqueue(connection)

    def closed(self, connection: Channel) -> None:
        """Handle the end of a connection."""
        self._backlogs.pop(connection, None)
        self._receives.pop(connection, None)
        was_full = self._unread.is_full
        self._unread.forget(connection)
        if was_full and not self._unread.is_full:  # Others may be served again.
            self.turns.check_crowded_soon()
        if not self._is_stopped:
            self._ended.append(connection)
            if len(self._ended) == 1:
                self._timers.soon(self._end_connections)

    def _end_connections(self) -> None:
        """Handle the ends of connections, as many as fit into a turn: thousands may end together."""
        if self._is_stopped:
            return
        began_us = self._turn_began_us = self._timers.elapsed_us()
        while self._ended:
            connection = self._ended.popleft()
            self._deliver("the end of a connection", self._engine.connection_ended, connection)
            if self._timers.elapsed_us() - began_us >= TURN_US_MAX:
                break
        self.follow(began_us)
        if self._ended:
            self._timers.after(0, self._end_connections)

    def lost(self, address: str) -> None:
        """Handle the end of our own connection to an address."""
        if not self._is_stopped:
            self._deliver("the end of a connection of ours", self._engine.address_lost, address)
            self.follow()

    def follow(self, began_us: int | None = None, *, settles: bool = True) -> None:
        """Finish an event: settle, unless not needed, perform, send, set the timer.

        began_us: the beginning of its turn, which ends here.
        """
        self._has_stepped, self._is_unsettled = False, settles
        while self._is_unsettled or self._effects.pending:
            if self._is_unsettled:
                self._is_unsettled = False
                try:  # `_settle` inlined, as it runs for every event.
                    self._engine.settle()
                except Exception as error:
                    self._failed(_SETTLING_FAILED, error)
            self._perform()
        if self._outgoing.is_any:
            self._outgoing.flush()
        if self.turns.waiting_for_output:
            self.turns.enqueue_put_off()
        if self._deadlines.next_due_ms != self._due_ms:
            self._set_timer()
        if began_us is not None:
            turn_us = self._timers.elapsed_us() - began_us
            if turn_us > self._longest_turn.noted_us:
                self._longest_turn.record(turn_us)

    def _settle(self) -> None:
        self._is_unsettled = False
        try:
            self._engine.settle()
        except Exception as error:
            self._failed(_SETTLING_FAILED, error)

    def stop(self) -> None:
        """Ignore further events."""
        self._is_stopped = True
        self.turns.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _deliver(self, what: str, event: Callable[..., None], *arguments: object) -> None:
        """Pass an event to the engine; the consequences run even if that fails."""
        try:
            event(*arguments)
        except Exception as error:
            self._failed(f"{what} could not be processed", error)

    # Turns.

    def _serve(self, connection: Channel, requests: Sequence[Any], began_us: int) -> None:
        """Serve a connection until its requests, its time or the room for its replies is used up."""
        if self._unread.is_full:
            self._put_back(connection, requests)
            self.turns.put_off(connection)
            return
        position, end = 0, len(requests)
        receive: Receive = self._engine.receive
        if connection in self._receives:
            receive = self._receives[connection]
        try:
            while position < end and connection.is_open:
                position = receive(connection, requests, position)
                self._perform()
                if self._busy.is_any and self._busy.is_full(connection):
                    self._put_back(connection, requests[position:])
                    return
                if position < end and (
                    self._timers.elapsed_us() - began_us >= TURN_US_MAX
                    or not self._outgoing.has_room(connection)
                ):
                    self._put_back(connection, requests[position:])
                    self.turns.put_off(connection)
                    return
        except Exception as error:
            self._failed(f"a request of {connection.address} failed; the connection is closed", error)
            connection.close("handler failed")

    def _put_back(self, connection: Channel, requests: Sequence[Any]) -> None:
        connection.pause_reading()
        self._backlogs[connection] = deque(requests)

    def _take_turn(self, connection: Channel) -> None:
        began_us = self._turn_began_us = self._timers.elapsed_us()
        self._advance(connection, began_us)
        if not self._busy.is_full(connection):
            backlog = self._backlogs.pop(connection, None)
            if backlog is not None and connection.is_open:
                self._serve(connection, list(backlog), self._timers.elapsed_us())
                if connection not in self._backlogs:
                    connection.resume_reading()
        self.follow(began_us)

    def _begin_turn(self, began_us: int | None = None) -> Callable[[], bool]:
        """Begin or join a turn of long work; return a function that tells whether its time is over."""
        end_us = (self._timers.elapsed_us() if began_us is None else began_us) + TURN_US_MAX
        return lambda: self._timers.elapsed_us() >= end_us

    def _go_on(self, work: UnderWay) -> None:
        """Take steps at once if it is the connection's first work, at least one per turn."""
        connection: Any = work.connection
        if self._busy.add(connection, work):
            if not self._has_stepped or self._timers.elapsed_us() - self._turn_began_us < TURN_US_MAX:
                self._advance(connection, self._turn_began_us)
            else:
                self.turns.enqueue(connection)

    def _advance(self, connection: Channel, began_us: int) -> None:
        """Take as many steps of a connection's work as a turn has time for."""
        self._has_stepped = True
        is_over = self._workload.begin_turn(began_us)
        while (work := self._busy.first(connection)) is not None:
            try:
                must_wait = work.step(self._must_wait)
            except StopIteration:
                self._busy.remove_first(connection)
                self._end(work)
            except Exception as error:
                self._busy.remove_first(connection)
                self._end(work)
                self._failed(f"a request of {connection.address} failed; the connection is closed", error)
                connection.close("handler failed")
            else:
                if must_wait:
                    self._busy.remove_first(connection)
            if is_over():
                break
        self._perform()
        if self._busy.first(connection) is not None:
            self.turns.enqueue(connection)

    def _must_wait(self, work: UnderWay, wanted: Any) -> bool:
        """Request what a work yields; return whether it has to wait for that."""
        connection: Any = work.connection
        if isinstance(wanted, InThread):
            self._busy.began(connection, wanted.thread)
            assert self._threads is not None, "this performer has no threads"
            done = self._event(partial(self._done, work, wanted.thread))
            self._threads.run(wanted.thread, wanted.work, done)
            return True
        if not isinstance(wanted, Room) or work.size_bytes:
            raise TypeError(f"a request's work cannot wait for {wanted}")
        work.size_bytes = wanted.size_bytes
        if self._large.take(work):
            return False
        self._busy.wait(connection)
        return True

    def _done(self, work: UnderWay, thread: Thread, result: object) -> None:
        """Continue after a thread's work, unless it computed something for an ended connection."""
        connection: Any = work.connection
        self._busy.ended(connection, thread)
        if thread is Thread.COMPUTE and not connection.is_open:
            self._end(work)
        else:
            work.take(result)
            self._go_on(work)
        if connection in self._backlogs:
            self.turns.enqueue(connection)

    def _end(self, work: UnderWay) -> None:
        """Stop a work unless it has ended, and continue those that waited for its room."""
        self._close(work)
        if not work.size_bytes:
            return
        admitted = deque(self._large.free(work))
        while admitted:
            following = admitted.popleft()
            connection: Any = following.connection
            self._busy.admitted(connection)
            if connection.is_open:
                self._busy.add(connection, following)
                self.turns.enqueue(connection)
            else:  # Its client disconnected while it waited.
                self._close(following)
                admitted += self._large.free(following)

    def _close(self, work: UnderWay) -> None:
        try:
            work.steps.close()
        except Exception as error:
            self._failed("work could not be stopped", error)

    # Effects.

    def _perform(self) -> None:
        pending = self._effects.pending
        while pending:
            effects = pending.copy()
            pending.clear()
            for effect in effects:
                if type(effect) is Send:
                    self._outgoing.add(effect.connection, effect.data)
                else:
                    perform = self._others.get(type(effect), self._do)
                    try:
                        perform(effect)
                    except Exception as error:  # The others are still performed.
                        self._failed(f"{type(effect).__name__} could not be processed", error)

    def _do(self, effect: msgspec.Struct) -> None:
        match effect:
            case Offer():
                self._outgoing.offer(effect.connection, effect.data)
            case Close():
                self._settle()  # Output before the end must be journalled before it leaves as well.
                self._outgoing.flush()
                closing: Any = effect.connection
                closing.close(effect.reason)
            case Ask():
                self._ask(effect)
            case Run():
                self._run(effect)
            case Defer():
                self._timers.soon(partial(self._begin_deferred, effect.done))
            case Proceed():
                self._go_on(UnderWay(effect.steps, effect.connection))
            case Listen():
                assert self._listen is not None, "this performer accepts no connections"
                listening = effect.done
                self._listen(self._event(lambda _: listening()))
            case Dial():
                assert self._dialer is not None, "this performer makes no streams"
                dialed = DialedConnection(effect.address, effect.stream, self._event)
                self._dialer.dial(effect.address, dialed)

    def _ask(self, effect: Ask) -> None:
        question = effect.question
        done = self._event(question.done)
        try:
            self._remotes.send(question.address, question.command(), done, timeout_ms=question.timeout_ms)
        except Exception as error:  # Answer nevertheless: the caller would wait forever.
            refusal = RemoteError(f"{question.address} cannot be reached: {error}")
            self._timers.after(0, partial(done, refusal))
            self._failed("a request could not be sent", error)

    def _run(self, effect: Run) -> None:
        assert self._threads is not None, "this performer has no threads"
        if effect.is_brief:  # Run it at once if it is fast.
            try:
                was_run = self._threads.run_brief(effect.work, effect.done)
            except Exception as error:
                self._failed(_RESULT_FAILED, error)
                was_run = True
            if was_run:
                self._is_unsettled = True
                return
        self._threads.run(effect.thread, effect.work, self._event(effect.done))

    def _begin_deferred(self, deferred: Callable[[], None]) -> None:
        if not self._is_stopped:
            began_us = self._timers.elapsed_us()
            self._deliver("what was deferred", deferred)
            self.follow(began_us, settles=False)

    def _event(self, take: Callable[[Any], None]) -> Callable[..., None]:
        """Return a callback that passes a result to the engine and finishes the event."""

        def happened(result: Any = None) -> None:
            if self._is_stopped:
                return
            began_us = self._turn_began_us = self._timers.elapsed_us()
            try:
                take(result)
            except Exception as error:
                self._failed(_RESULT_FAILED, error)
            self.follow(began_us)

        return happened

    def _set_timer(self) -> None:
        due_ms = self._deadlines.next_due_ms
        if due_ms is None or self._is_stopped or (self._due_ms is not None and self._due_ms <= due_ms):
            return  # An early timer costs less than moving it at each event.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_ms = due_ms
        delay_ms = max(DELAY_MS_MIN, due_ms - self._monotonic_ms())
        self._timer = self._timers.after(delay_ms, self._tick)

    def _tick(self) -> None:
        self._timer = self._due_ms = None
        began_us = self._turn_began_us = self._timers.elapsed_us()
        self._deliver("what is due", self._engine.tick)
        self.follow(began_us)
