"""The engine: events in, effects out, plain and synchronous; the hooks of each event, and when a late timer
shows that the process was stalled.

        receive            requests of a connection, as many as take effect together
        connection_ended   a client's connection
        address_lost       one of our own connections
        tick               time: everything that is due
        settle             the consequences (`Kernel.soon`): a journal write, woken pulls, flushes

After each event the performer takes `effects` and sets its timer to `next_due_ms`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: a timer this late counts as a stall; the shortest sessions last 1 s, with three requests each.
LATE_MS_MIN: Final = 250


class Translator(Protocol):
    """A protocol: turns requests into operations of services, and their outcomes into bytes."""

    def receive(self, connection: Connection, requests: Sequence[Any], start: int) -> int:
        """Process requests from `start` on that take effect together; return where the next ones begin."""
        ...


class Hooks(NamedTuple):
    """The events that a composition subscribes to, each with its hooks in order.

    settle: after every event, for what depends on the time or on other services; everything else enlists
    itself (`Kernel.soon`). ticked: after deadlines.
    """

    connection_ended: Sequence[Callable[[Connection], None]] = ()
    address_lost: Sequence[Callable[[str], None]] = ()
    settle: Sequence[Callable[[], None]] = ()
    ticked: Sequence[Callable[[], None]] = ()
    stalled: Sequence[Callable[[int, MonotonicMs], None]] = ()


class Engine:
    """One translator and its services; without a translator it serves no clients."""

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

        A very late timer shows that this process was stalled, because it was stopped or its machine was busy.
        Then others' messages are still unread in sockets, so their silence must not count against them.
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
        """Return whether something due is long overdue, apart from what the last run has left over."""
        due_ms, ran_ms = self.deadlines.next_due_ms, self.deadlines.ran_ms
        if due_ms is None or now_ms - due_ms < LATE_MS_MIN:
            return False
        return ran_ms is None or now_ms - ran_ms >= LATE_MS_MIN

    def settle(self) -> None:
        """Run the consequences of the events since the last call."""
        now_ms = self._clock.monotonic_ms()
        due_ms = self.deadlines.next_due_ms
        if due_ms is None or now_ms - due_ms < LATE_MS_MIN or not self._is_late(now_ms):
            # Otherwise `tick` has yet to handle the stall.
            self._settled_ms = self.deadlines.floor_ms = now_ms
        failure: Exception | None = None
        for hook in self._hooks.settle:
            try:
                hook()
            except Exception as error:
                failure = _first(failure, error)
        while True:  # Inlined, as it runs for every request.
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
    """Call every hook, even after a failure; raise the first failure."""
    failure: Exception | None = None
    for hook in hooks:
        try:
            hook(*arguments)
        except Exception as error:
            failure = _first(failure, error)
    if failure is not None:
        raise failure


def _first(failure: Exception | None, error: Exception) -> Exception:
    """Return the first failure, which is the one to raise."""
    if failure is None:
        return error
    log.error("another hook failed as well", exc_info=error)
    return failure
