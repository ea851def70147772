"""The performer: feeds events to an engine and performs its effects. One class for real sockets and the
simulator.

    read ─► backlog ─► engine.receive, as many requests as take effect together ─► effects ─► bytes
                 ▲            │
                 └── a turn ends when its time is up, or when the connection has much to read first

What a turn sends to a connection leaves in one write, after what the turn decided is journalled. A connection
whose turn ended early is read no further; it goes on after the others had theirs, or when its client has
read.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Ask, Close, Effect, Listen, Run, Send
from libramq.kernel.engine import Engine
from libramq.logs import get_logger
from libramq.runtime.seams import Channel, Remotes, Threads, Timer, Timers

log = get_logger(__name__)

#: Ours: how long one connection is served before the others have their turn.
TURN_US_MAX: Final = 5_000
#: NettyServerConfig.writeBufferHighWaterMark is off upstream; ours is from where on a client must read first.
UNSENT_BYTES_HIGH: Final = 8 * 1024 * 1024
#: Ours: timers are not finer, and what is always due does not keep the loop from everything else.
DELAY_MS_MIN: Final = 1


class _Outgoing:
    """What a turn has for one connection."""

    __slots__ = ("pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0


def log_failure(what: str, error: Exception) -> None:
    """Log a failure that is a bug of ours, and go on."""
    log.error(what, exc_info=error)


class Performer:
    """Performs one engine's effects; a `transport.server.Handler`.

    listen: begins to accept connections, then calls back. failed: hears of failures that are bugs of ours.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        remotes: Remotes,
        timers: Timers,
        threads: Threads,
        monotonic_ms: Callable[[], MonotonicMs],
        listen: Callable[[Callable[[], None]], None],
        failed: Callable[[str, Exception], None] = log_failure,
    ) -> None:
        self._engine = engine
        self._remotes = remotes
        self._timers = timers
        self._threads = threads
        self._monotonic_ms = monotonic_ms
        self._listen = listen
        self._failed = failed
        self._backlogs: dict[Channel, deque[Any]] = {}
        self._put_off: list[Channel] = []
        self._waiting_turns: deque[Channel] = deque()
        self._outgoing: dict[Connection, _Outgoing] = {}
        self._turns: Timer | None = None
        self._timer: Timer | None = None
        self._due_ms: MonotonicMs | None = None
        self._is_stopped = False

    # Events.

    def connected(self, connection: Channel) -> None:
        """A connection was accepted; it means nothing until it asks for something."""

    def received(self, connection: Channel, requests: Sequence[Any]) -> None:
        """One read brought these requests."""
        if self._is_stopped:
            return
        backlog = self._backlogs.get(connection)
        if backlog is not None:
            backlog.extend(requests)
            return
        self._serve(connection, requests)
        self.follow()

    def writable(self, connection: Channel) -> None:
        """A connection's client has read what was sent to it."""
        if connection in self._backlogs:
            self._enqueue(connection)

    def closed(self, connection: Channel) -> None:
        """A connection ended."""
        self._backlogs.pop(connection, None)
        if not self._is_stopped:
            self._engine.connection_ended(connection)
            self.follow()

    def lost(self, address: str) -> None:
        """Our own connection to an address ended."""
        if not self._is_stopped:
            self._engine.address_lost(address)
            self.follow()

    def follow(self) -> None:
        """Do what follows from an event: settle, perform, send, set the timer."""
        try:
            self._engine.settle()
            self._perform()
        except Exception as error:
            self._failed("what follows from an event failed", error)
        self._flush()
        if self._put_off:
            self._queue_put_off()
        self._set_timer()

    def stop(self) -> None:
        """Take no more events: what ends from now on says nothing about those it belonged to."""
        self._is_stopped = True
        for timer in (self._timer, self._turns):
            if timer is not None:
                timer.cancel()

    # Turns.

    def _serve(self, connection: Channel, requests: Sequence[Any]) -> None:
        """Serve a connection until its requests, its time or the room for its answers are used up."""
        engine, position, end = self._engine, 0, len(requests)
        began_us = self._timers.elapsed_us()
        try:
            while position < end and connection.is_open:
                position = engine.receive(connection, requests, position)
                self._perform()
                if position < end and (
                    self._timers.elapsed_us() - began_us >= TURN_US_MAX
                    or self._unsent_bytes(connection) >= UNSENT_BYTES_HIGH
                ):
                    connection.pause_reading()
                    self._backlogs[connection] = deque(requests[position:])
                    self._put_off.append(connection)
                    return
        except Exception as error:
            self._failed(f"a request of {connection.address} failed; the connection is closed", error)
            connection.close("handler failed")

    def _queue_put_off(self) -> None:
        """Have connections whose turn ended early go on, but for those that must read first (`writable`)."""
        put_off, self._put_off = self._put_off, []
        for connection in put_off:
            if connection in self._backlogs and connection.unsent_bytes <= UNSENT_BYTES_HIGH:
                self._enqueue(connection)

    def _enqueue(self, connection: Channel) -> None:
        if connection not in self._waiting_turns:
            self._waiting_turns.append(connection)
        if self._turns is None:
            self._turns = self._timers.after(0, self._next_turn)

    def _next_turn(self) -> None:
        self._turns = None
        connection = self._waiting_turns.popleft()
        backlog = self._backlogs.pop(connection, None)
        if backlog is not None and connection.is_open:
            self._serve(connection, list(backlog))
            if connection not in self._backlogs:
                connection.resume_reading()
        self.follow()
        if self._waiting_turns and self._turns is None:
            self._turns = self._timers.after(0, self._next_turn)

    def _unsent_bytes(self, connection: Channel) -> int:
        outgoing = self._outgoing.get(connection)
        return connection.unsent_bytes + (outgoing.size if outgoing is not None else 0)

    # Effects.

    def _perform(self) -> None:
        take = self._engine.effects.take
        while effects := take():
            for effect in effects:
                if type(effect) is Send:
                    outgoing = self._outgoing.get(effect.connection)
                    if outgoing is None:
                        outgoing = self._outgoing[effect.connection] = _Outgoing()
                    outgoing.pieces.append(effect.data)
                    outgoing.size += len(effect.data)
                else:
                    self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Close():
                self._flush()
                closing: Any = effect.connection
                closing.close(effect.reason)
            case Ask():
                question = effect.question
                done = self._event(question.done)
                self._remotes.send(question.address, question.command(), done, timeout_ms=question.timeout_ms)
            case Run():
                self._threads.run(effect.thread, effect.work, self._event(effect.done))
            case Listen():
                listening = effect.done
                self._listen(self._event(lambda _: listening()))

    def _event(self, take: Callable[[Any], None]) -> Callable[..., None]:
        """Return a callback that hands a result to the engine, and does what follows."""

        def happened(result: Any = None) -> None:
            if self._is_stopped:
                return
            try:
                take(result)
            except Exception as error:
                self._failed("the result of an effect could not be worked off", error)
            self.follow()

        return happened

    def _flush(self) -> None:
        """Write what the turn has for each connection, by one write each."""
        if self._outgoing:
            flushed, self._outgoing = self._outgoing, {}
            for connection, outgoing in flushed.items():
                channel: Any = connection  # Engines know connections as opaque handles only.
                pieces = outgoing.pieces
                channel.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _set_timer(self) -> None:
        due_ms = self._engine.next_due_ms
        if due_ms is None or self._is_stopped or (self._due_ms is not None and self._due_ms <= due_ms):
            return  # A timer that rings too early costs less than one that is moved at each event.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_ms = due_ms
        delay_ms = max(DELAY_MS_MIN, due_ms - self._monotonic_ms())
        self._timer = self._timers.after(delay_ms, self._tick)

    def _tick(self) -> None:
        self._timer = self._due_ms = None
        self._engine.tick()
        self.follow()
