"""Displacement: an unsigned registration may replace a live broker of the same name and id on another
connection only if that connection does not answer a probe.

    signed with the cluster's credentials ────────────────────────────────► registered
        else: the connection of the live broker is probed
                  it has ended, ends meanwhile, or does not answer in 1 s ────► registered
                  any answer ─────────────────────────────────────────────────► refused

The probe goes over the old connection, not to the broker's address: if a broker has lost its connection and
returns over a new one, the broker is alive, but the old connection is not. No broker knows the probe's code.
Ours and Apache's both answer REQUEST_CODE_NOT_SUPPORTED (NettyRemotingAbstract does so on outgoing
connections as well).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from libramq.clock import MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Parked
from libramq.logs import get_logger
from libramq.remoting.command import Command
from libramq.rpc.outcome import HOLD, Outcome, Reply
from libramq.rpc.request import Request
from libramq.rpc.responder import Responder, decide

log = get_logger(__name__)

#: Ours: a live broker answers in milliseconds, and a restarted broker should not wait longer than this.
PROBE_MS: Final = 1_000

#: Decides on a registration again; its argument is the dead connections.
Decide = Callable[[frozenset[object]], Outcome]


@dataclass(eq=False, slots=True)
class _Registration(Parked):
    """A parked registration. owners: connections that have not answered yet."""

    request: Request
    owners: set[object]
    again: Decide


class Displacement:
    """Probes the connections of live brokers that a registration would replace."""

    def __init__(self, kernel: Kernel, responder: Responder) -> None:
        self._purgatory = kernel.purgatory
        self._clock = kernel.clock
        self._responder = responder
        self._registrations: dict[object, dict[_Registration, None]] = {}
        self._probes: dict[object, int] = {}
        self._number = 0

    def hold(self, request: Request, owners: Sequence[object], again: Decide) -> Outcome:
        """Park a registration until these connections answer or time out; raises BrokerError without room."""
        cost_bytes = len(request.command.body)
        registration = _Registration(request.peer, request, set(owners), again, cost_bytes=cost_bytes)
        if not self._purgatory.has_room(request.peer, registration.cost_bytes):
            raise broker_error(ResponseCode.SYSTEM_BUSY, "too many registrations wait; try again")
        self._park(registration)
        return HOLD

    def answered(self, connection: Connection, answer: Command, now_ms: MonotonicMs) -> None:
        """Handle an answer: the connection is alive, so registrations that wait for it are refused."""
        if self._probes.get(connection) != answer.opaque:
            return
        for registration in list(self._registrations[connection]):
            self._purgatory.release(registration)
            self._responder.answer(registration.request, _refusal(connection))

    def connection_ended(self, connection: Connection) -> None:
        """Handle the end of a connection: its brokers have left, and waiting registrations continue."""
        for registration in list(self._registrations.get(connection, ())):
            del self._registrations[connection][registration]
            registration.owners.discard(connection)
            if not registration.owners:
                self._purgatory.release(registration)
                self._decide(registration, frozenset())
        self._registrations.pop(connection, None)
        self._probes.pop(connection, None)

    def stalled(self, stall_ms: int, now_ms: MonotonicMs) -> None:
        """Extend the deadlines after a stall: answers may lie unread in sockets."""
        for registration in dict.fromkeys(
            registration
            for registrations in list(self._registrations.values())
            for registration in registrations
        ):
            self._purgatory.release(registration)
            self._park(registration)

    def _park(self, registration: _Registration) -> None:
        until_ms = self._clock.monotonic_ms() + PROBE_MS
        self._purgatory.park(registration, until_ms, self._expired, self._forget)
        for owner in registration.owners:
            self._registrations.setdefault(owner, {})[registration] = None
            if owner not in self._probes:
                self._number += 1
                self._probes[owner] = self._number
                probe = Command(code=RequestCode.PROBE, opaque=self._number)
                self._responder.ask(cast(Connection, owner), probe)

    def _expired(self, registration: _Registration) -> None:
        """Decide on a registration after the timeout: connections that did not answer count as dead."""
        self._decide(registration, frozenset(registration.owners))

    def _decide(self, registration: _Registration, dead: frozenset[object]) -> None:
        if registration.request.peer.is_open:
            self._responder.answer(
                registration.request, decide(lambda: registration.again(dead), registration.request)
            )

    def _forget(self, registration: _Registration) -> None:
        for owner in registration.owners:
            registrations = self._registrations.get(owner, {})
            registrations.pop(registration, None)
            if not registrations:
                self._registrations.pop(owner, None)
                self._probes.pop(owner, None)


def _refusal(connection: Connection) -> Reply:
    log.warning("registration refused: the broker of this name and id is alive", alive=connection.address)
    return Reply(
        ResponseCode.NO_PERMISSION,
        f"a live broker of this name and id is registered from {connection.address}; stop it first, "
        "or sign with innerClientAuthenticationCredentials, set at the brokers and at the name server",
    )
