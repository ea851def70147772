"""Displacement: a registration that would replace a live broker, over another connection.

    signed with the credentials of the cluster ───────────────────────────► registered
        else: the connection of the live broker is probed
                  it has ended, or ends meanwhile, or no answer in 1 s ───────► registered
                  any answer ─────────────────────────────────────────────────► refused

The probe goes over the old connection, not to the broker's address: if a broker has lost its connection and
comes back over a new one, the broker is alive, but the old connection is not. The probe's code is unknown to
every broker: Apache's answers it as ours does, by REQUEST_CODE_NOT_SUPPORTED (NettyRemotingAbstract has no
processor for it, and answers so on outgoing connections, too). LibraMQ 0.1.0 does not answer; it can be
replaced without a check, as before.
"""

from collections.abc import Callable, Sequence
from typing import Final, cast

from libramq.clock import MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Parked
from libramq.logs import get_logger
from libramq.remoting.command import Command
from libramq.rpc.outcome import HOLD, Notify, Outcome, Reply
from libramq.rpc.request import Request
from libramq.rpc.responder import Responder, decide

log = get_logger(__name__)

#: Ours: a live broker answers in milliseconds; a restarted one need not wait longer for its place.
PROBE_MS: Final = 1_000

#: Decides about a registration again; the connections that it is called with are dead.
Decide = Callable[[frozenset[object]], Outcome]


class _Claim(Parked):
    """A registration that waits. owners: connections that have not answered yet."""

    __slots__ = ("_displacement", "again", "owners", "request")

    def __init__(
        self, displacement: "Displacement", request: Request, owners: Sequence[object], again: Decide
    ) -> None:
        super().__init__(request.peer, cost_bytes=len(request.command.body))
        self._displacement = displacement
        self.request = request
        self.owners = set(owners)
        self.again = again

    def expire(self, now_ms: MonotonicMs) -> None:
        """Continue: connections without an answer by now count as dead."""
        self._displacement._decide(self, frozenset(self.owners))

    def unlink(self) -> None:
        """Remove the probes."""
        self._displacement._forget(self)


class Displacement:
    """Probes the connections of live brokers that a registration would replace."""

    def __init__(self, kernel: Kernel, responder: Responder) -> None:
        self._purgatory = kernel.purgatory
        self._clock = kernel.clock
        self._responder = responder
        self._claims: dict[object, dict[_Claim, None]] = {}
        self._probes: dict[object, int] = {}
        self._number = 0

    def hold(self, request: Request, owners: Sequence[object], again: Decide) -> Outcome:
        """Park a registration until these connections have answered or not; BrokerError without room."""
        claim = _Claim(self, request, owners, again)
        if not self._purgatory.has_room(request.peer, claim.cost_bytes):
            raise broker_error(ResponseCode.SYSTEM_BUSY, "too many registrations wait; try again")
        self._park(claim)
        return HOLD

    def answered(self, connection: Connection, answer: Command, now_ms: MonotonicMs) -> None:
        """Handle an answer: the connection is alive, so its brokers are not replaced."""
        if self._probes.get(connection) != answer.opaque:
            return
        for claim in list(self._claims[connection]):
            self._purgatory.release(claim)
            self._responder.answer(claim.request, _refusal(connection))

    def connection_ended(self, connection: Connection) -> None:
        """Handle the end of a connection: its brokers have left, and waiting registrations continue."""
        for claim in list(self._claims.get(connection, ())):
            del self._claims[connection][claim]
            claim.owners.discard(connection)
            if not claim.owners:
                self._purgatory.release(claim)
                self._decide(claim, frozenset())
        self._claims.pop(connection, None)
        self._probes.pop(connection, None)

    def stalled(self, stall_ms: int, now_ms: MonotonicMs) -> None:
        """Extend the deadlines after a stall: answers may lie unread in sockets."""
        for claim in dict.fromkeys(claim for claims in list(self._claims.values()) for claim in claims):
            self._purgatory.release(claim)
            self._park(claim)

    def _park(self, claim: _Claim) -> None:
        self._purgatory.park(claim, self._clock.monotonic_ms() + PROBE_MS)
        for owner in claim.owners:
            self._claims.setdefault(owner, {})[claim] = None
            if owner not in self._probes:
                self._number += 1
                self._probes[owner] = self._number
                probe = Notify(cast(Connection, owner), RequestCode.PROBE, number=self._number)
                self._responder.notify((probe,))

    def _decide(self, claim: _Claim, dead: frozenset[object]) -> None:
        if claim.request.peer.is_open:
            self._responder.answer(claim.request, decide(lambda: claim.again(dead), claim.request))

    def _forget(self, claim: _Claim) -> None:
        for owner in claim.owners:
            claims = self._claims.get(owner, {})
            claims.pop(claim, None)
            if not claims:
                self._claims.pop(owner, None)
                self._probes.pop(owner, None)


def _refusal(connection: Connection) -> Reply:
    log.warning("registration refused: the broker of this name and id is alive", alive=connection.address)
    return Reply(
        ResponseCode.NO_PERMISSION,
        f"a live broker of this name and id is registered from {connection.address}; stop it first, "
        "or sign with innerClientAuthenticationCredentials, set at the brokers and at the name server",
    )
