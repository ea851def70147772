"""The endpoint handles requests: it looks each one up in the table, decodes, authorises (another broker's by
its signature), audits and processes it, alone or in a batch with its neighbours.

Processors are plain functions of a `Request` with its header and body. Those of hot requests take all
adjacent ones of a read together (`batch_processors`), so that a read costs one append and one write.
Requests of one connection take effect in order. Upstream: NettyRemotingAbstract.processRequestCommand.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import GeneratorType
from typing import Final, NamedTuple

from libramq.auth.audit import Audit
from libramq.auth.authorizer import Authenticator, Authorizer, require_permission
from libramq.auth.signature import ACCESS_KEY
from libramq.clock import Clock, MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import NoPermission, broker_error
from libramq.kernel.connection import ANONYMOUS, Connection, Principal, host_of
from libramq.kernel.work import Work
from libramq.remoting.command import FLAG_RESPONSE, Command
from libramq.remoting.credentials import signed_fields
from libramq.remoting.group_version import VERSION, VERSION_FIELD, version_refusal
from libramq.remoting.headers import decode_header
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import BODY_BOUNDS, BatchProcessor, Processors, Request, failure, with_body
from libramq.rpc.request_table import REFUSED, REQUESTS, AtSlave
from libramq.rpc.responder import Responder

#: Called with the answer to one of our requests and its arrival time (monotonic).
Answered = Callable[[Connection, Command, MonotonicMs], None]
#: Ours: neighbours processed together, in 7 µs each, or 40 for timer or half messages; with 256, pings beside
#: twenty connections took 0.2 s.
BATCH_MAX: Final = 64
#: The protocol's name in the audit.
PROTOCOL: Final = "RocketMQ"


class PeerChecks(NamedTuple):
    """Checks that a request comes from another broker of the cluster; None: unchecked.

    is_signed: returns whether a request is signed as this cluster's brokers sign. require: raises BrokerError
    for an address without another broker of the cluster.
    """

    is_signed: Callable[[Command], bool] | None = None
    require: Callable[[str], None] | None = None


NO_PEER_CHECKS: Final = PeerChecks()


class Signatures(NamedTuple):
    """Checks of signatures. unsigned: the codes of requests that need none; unrestricted: those that need no
    permission.

    audit: records changes, sign-ins and refusals.
    """

    authenticator: Authenticator
    unsigned: frozenset[int] = frozenset()
    unrestricted: frozenset[int] = frozenset()
    audit: Audit | None = None


class Endpoint:
    """Serves RocketMQ's remoting protocol; a `kernel.engine.Translator`.

    answered: called with clients' answers to our requests. signatures: if None, requests have their
    connection's principal. peers: checks requests that only brokers of the cluster may make. at_slave:
    returns a slave's answer in its master's place; None: the broker serves all requests as a master.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        authorizer: Authorizer,
        responder: Responder,
        processors: Processors,
        answered: Answered | None = None,
        signatures: Signatures | None = None,
        peers: PeerChecks = NO_PEER_CHECKS,
        at_slave: Callable[[Request], Outcome | None] | None = None,
    ) -> None:
        self._clock = clock
        self._responder = responder
        self._authorizer = authorizer
        self._permits_everything = authorizer.permits_everything
        self._at_slave = at_slave
        self._processors = processors.singly
        self._batch_processors = batches = processors.in_batches
        self._served = frozenset((*self._processors, *batches))
        if at_slave is not None:  # `at_slave` decides about each request.
            served = (code for code in batches if REQUESTS[code].at_slave is AtSlave.SERVE)
            self._batch_processors = {code: batches[code] for code in served}
        self._audit = audit = signatures.audit if signatures is not None else None
        #: Whether requests go to their processors without any check.
        self._is_unchecked = self._permits_everything and at_slave is None and audit is None
        self._answered = answered
        self._signatures = signatures
        self._is_of_cluster, self._require_peer = peers

    def receive(self, connection: Connection, requests: Sequence[Command], start: int) -> int:
        """Process one request, or neighbours of one batch processor; return where the next ones begin."""
        command = requests[start]
        wall_ms, monotonic_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        if command.flag & FLAG_RESPONSE:
            if self._answered is not None:
                self._answered(connection, command, monotonic_ms)
            return start + 1
        request = Request(command, connection, wall_ms, monotonic_ms, connection.principal)
        refusal = self._refusal(request)
        if refusal is not None:
            self._responder.answer(request, refusal)
            return start + 1
        processor = self._batch_processors.get(command.code)
        if processor is None:
            row = REQUESTS[command.code]
            try:
                request.header = decode_header(command, row.header)
                if row.body is not None:
                    if row.from_broker:
                        self._require_broker(command, connection.address)
                    bounds = None if row.from_broker else BODY_BOUNDS
                    outcome = with_body(row.body, self._process, request, bounds)
                elif self._is_unchecked:  # `_process` inlined: it would cost each pull a call.
                    outcome = self._processors[command.code](request)
                else:
                    outcome = self._process(request)
            except Exception as error:  # A failing processor affects its own request only.
                outcome = failure(error, request)
            self._responder.answer(request, outcome)
            return start + 1
        batch = [request]
        position = start + 1
        while position < len(requests) and len(batch) < BATCH_MAX:
            command = requests[position]
            if self._batch_processors.get(command.code) != processor or command.flag & FLAG_RESPONSE:
                break
            following = Request(command, connection, wall_ms, monotonic_ms, connection.principal)
            if self._refusal(following) is not None:
                break
            batch.append(following)
            position += 1
        outcomes = self._run_batch(processor, batch)
        if len(batch) == 1:
            self._responder.answer(request, outcomes[0])
        else:
            self._responder.answer_batch(batch, outcomes)
        return position

    def _refusal(self, request: Request) -> Reply | None:
        """Return the refusal of a request that must not be processed; authenticate the others."""
        command = request.command
        code = command.code
        row = REQUESTS.get(code)
        if row is None or code not in self._served:
            reason = f": {REFUSED[code]}" if code in REFUSED else ""
            return Reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported{reason}"
            )
        if len(command.body) > row.body_bytes_max:
            size, size_max = len(command.body), row.body_bytes_max
            remark = f"the body of {row.code.name} has {size} bytes; {size_max} are allowed"
            return Reply(ResponseCode.INVALID_PARAMETER, remark)
        if row.has_version and (refusal := version_refusal(row.code.name, command.ext)) is not None:
            return Reply(ResponseCode.VERSION_NOT_SUPPORTED, refusal, {VERSION_FIELD: str(VERSION)})
        if self._signatures is not None:
            authenticator, unsigned, unrestricted, _ = self._signatures
            fields = signed_fields(command)
            try:
                request.principal = authenticator.by_signature(request.peer, fields, command.body)
                request.peer.is_authenticated = True
            except Exception as error:
                if code not in unsigned:
                    self._note_refusal(request, error)
                    return failure(error, request)
            if self._audit is not None and not _is_anyone(request.principal):
                self._audit.signed(request.principal, PROTOCOL)
            if code in unrestricted:
                request.principal = replace(request.principal, is_unrestricted=True)
        return None

    def _require_broker(self, command: Command, address: str) -> None:
        """Raise BrokerError unless a request comes from another broker: its body has no bounds."""
        if self._is_of_cluster is not None and not self._is_of_cluster(command):
            raise broker_error(
                ResponseCode.NO_PERMISSION,
                "the request is not signed with the innerClientAuthenticationCredentials of this cluster; "
                "set the same at all of its brokers",
            )
        if self._require_peer is not None:
            self._require_peer(address)

    def _process(self, request: Request) -> Outcome:
        """Authorise a request and process it with its header and body."""
        try:
            if not self._permits_everything:
                self._authorise(request)
            outcome = self._at_slave(request) if self._at_slave is not None else None
            if outcome is None:
                outcome = self._processors[request.command.code](request)
        except NoPermission as refused:
            self._note_refusal(request, refused)
            raise
        return outcome if self._audit is None else self._audited(self._audit, request, outcome)

    def _audited(self, audit: Audit, request: Request, outcome: Outcome) -> Outcome:
        """Record what a request changed; for long work, once it is done."""
        if isinstance(outcome, GeneratorType):
            return self._audited_work(audit, request, outcome)
        self._note_change(audit, request, outcome)
        return outcome

    def _audited_work(self, audit: Audit, request: Request, work: Work[Outcome]) -> Work[Outcome]:
        try:
            outcome = yield from work
        except NoPermission as refused:
            self._note_refusal(request, refused)
            raise
        return self._audited(audit, request, outcome)

    def _note_change(self, audit: Audit, request: Request, outcome: Outcome) -> None:
        """Record a request's change unless it failed."""
        row = REQUESTS[request.command.code]
        has_failed = isinstance(outcome, Reply) and outcome.code != ResponseCode.SUCCESS
        if row.changes is not None and not has_failed:
            named = row.changed(request.principal, request.header, request.body)
            audit.changed(row.changes, request.principal, row.code.name, named)

    def _note_refusal(self, request: Request, error: Exception) -> None:
        """Record the refusal of a request, with the name that it claims."""
        if self._audit is not None and isinstance(error, NoPermission):
            code, host = request.command.code, host_of(request.peer)
            is_proven = not _is_anyone(request.principal)
            name = request.principal.name if is_proven else request.command.ext.get(ACCESS_KEY)
            self._audit.refused(name, host, REQUESTS[code].code.name, error.remark, is_proven=is_proven)

    def _authorise(self, request: Request) -> None:
        """Raise BrokerError if a request's principal lacks a permission."""
        row = REQUESTS[request.command.code]
        body = request.command.body if row.body is None else request.body
        require_permission(self._authorizer, row.operation(request.principal, request.header, body))

    def _run_batch(self, processor: BatchProcessor, requests: Sequence[Request]) -> Sequence[Outcome]:
        """Process neighbours; an invalid or forbidden request does not affect the others."""
        count = len(requests)
        refused: dict[int, Outcome] = {}
        for position, request in enumerate(requests):
            try:
                request.header = decode_header(request.command, REQUESTS[request.command.code].header)
                if not self._permits_everything:
                    self._authorise(request)
            except Exception as error:
                self._note_refusal(request, error)
                refused[position] = failure(error, request)
        if refused:
            requests = [request for position, request in enumerate(requests) if position not in refused]
        try:
            outcomes = processor(requests) if requests else ()
        except Exception as error:
            outcomes = [failure(error, request) for request in requests]
        if not refused:
            return outcomes
        others = iter(outcomes)
        return [refused.get(position) or next(others) for position in range(count)]


def _is_anyone(principal: Principal) -> bool:
    """Return whether a principal is anonymous, or another broker of the cluster."""
    return principal is ANONYMOUS or principal.is_unrestricted
