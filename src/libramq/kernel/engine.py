"""The engine: events in, effects out, plain and synchronous; the hooks of each event, and when a late timer
means that the process stood still.

        receive            requests of a connection, as many as take effect together
        connection_ended   a client's connection
        address_lost       one of our own connections
        tick               time: everything that is due
        settle             what follows from these (`Kernel.soon`): a journal write, woken pulls, flushes

After each event the performer takes `effects` and sets its timer to `next_due_ms`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: how late a timer has to be to count as a stall; the shortest sessions last 1 s, with three requests
#: each.
LATE_MS_MIN: Final = 250


class Translator(Protocol):
    """A protocol: turns requests into operations of services, and their outcomes into bytes."""

    def receive(self, connection: Connection, requests: Sequence[Any], start: int) -> int:
        """Process the requests from `start` on that take effect together; return where the next begin."""
        ...


class Hooks(NamedTuple):
    """The events that a composition subscribes to, each in its order.

    settle: after every event, what depends on the time or on other services; all else enlists itself
    (`Kernel.soon`). ticked: after deadlines.
    """

    connection_ended: Sequence[Callable[[Connection], None]] = ()
    address_lost: Sequence[Callable[[str], None]] = ()
    settle: Sequence[Callable[[], None]] = ()
    ticked: Sequence[Callable[[], None]] = ()
    stalled: Sequence[Callable[[int, MonotonicMs], None]] = ()


class Engine:
    """One translator and its services; without a translator it serves nobody."""

    def __init__(self, kernel: Kernel, translator: Translator | None, hooks: Hooks) -> None:
        self.effects = kernel.effects
        self.longest_turn = kernel.longest_turn
        self.workload = kernel.workload
        if translator is not None:
            self.receive = translator.receive
        self._clock = kernel.clock
        self.deadlines = kernel.deadlines
        self._hooks = hooks
        self._following = kernel.following
        self._settled_ms = kernel.clock.monotonic_ms()

    def connection_ended(self, connection: Connection) -> None:
        """Handle the end of a client's connection."""
        _call_all(self._hooks.connection_ended, connection)

    def address_lost(self, address: str) -> None:
        """Handle the end of our own connection to an address."""
        _call_all(self._hooks.address_lost, address)

    def tick(self) -> None:
        """Do everything that is due.

        A timer that fires much too late shows that this process was stalled: it was stopped, or its machine
        was busy. Messages of others lie unread in sockets meanwhile; their silence is not their fault.
        """
        now_ms = self._clock.monotonic_ms()
        if self._hooks.stalled and self._is_late(now_ms):
            stall_ms = now_ms - self._settled_ms
            self._settled_ms = now_ms
            log.warning("the process was stalled; deadlines are extended by that time", ms=stall_ms)
            try:
                _call_all(self._hooks.stalled, stall_ms, now_ms)
            except Exception:
                log.exception(
                    "deadlines could not be extended after a stall; clients may be expired too early"
                )
        self.deadlines.run(now_ms, self.workload.begin_turn())
        _call_all(self._hooks.ticked)

    def _is_late(self, now_ms: MonotonicMs) -> bool:
        """Return whether what is due should have run long ago; what a run has left over is not late yet."""
        due_ms, ran_ms = self.deadlines.next_due_ms, self.deadlines.ran_ms
        if due_ms is None or now_ms - due_ms < LATE_MS_MIN:
            return False
        return ran_ms is None or now_ms - ran_ms >= LATE_MS_MIN

    def settle(self) -> None:
        """Run what follows from the events since the last call."""
        now_ms = self._clock.monotonic_ms()
        due_ms = self.deadlines.next_due_ms
        if due_ms is None or now_ms - due_ms < LATE_MS_MIN or not self._is_late(now_ms):
            # Else `tick` has yet to handle the stall.
            self._settled_ms = self.deadlines.floor_ms = now_ms
        failure: Exception | None = None
        for hook in self._hooks.settle:
            try:
                hook()
            except Exception as error:
                failure = _first(failure, error)
        while True:  # Without a call of its own: it is done for every request.
            for actions in self._following:
                if actions:
                    break
            else:
                break
            action = next(iter(actions))
            del actions[action]
            try:
                action()
            except Exception as error:
                failure = _first(failure, error)
        if failure is not None:
            raise failure

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return when `tick` is due next (monotonic); None: never, in the present state."""
        return self.deadlines.next_due_ms


def _call_all(hooks: Sequence[Callable[..., None]], *arguments: object) -> None:
    """Call every hook: a failing one does not stop the others. Raises the first failure."""
    failure: Exception | None = None
    for hook in hooks:
        try:
            hook(*arguments)
        except Exception as error:
            failure = _first(failure, error)
    if failure is not None:
        raise failure


def _first(failure: Exception | None, error: Exception) -> Exception:
    """Return the failure to raise: the first one."""
    if failure is None:
        return error
    log.error("another hook failed, too", exc_info=error)
    return failure
