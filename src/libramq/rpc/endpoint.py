"""The endpoint: looks requests up in the one table, asks the authorizer, runs processors, performs outcomes.

Processors are plain functions of a `Request`. Those of hot requests take all neighbours that one read brought
at once (`batch_processors`), so that a read costs one append and one write. Requests of one connection take
effect in the order in which they came.
Upstream: NettyRemotingAbstract.processRequestCommand.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from libramq.auth.authorizer import ANONYMOUS, Authorizer
from libramq.clock import Clock, MonotonicMs, Now, WallMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, ConfigError, ProtocolError
from libramq.logs import get_logger
from libramq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, reply_to
from libramq.remoting.frame import encode_frame
from libramq.remoting.group_version import VERSION, VERSION_FIELD, version_refusal
from libramq.remoting.requests import REQUESTS, RequestSpec
from libramq.rpc.outcome import Close, Outcome, Reply, ReplyWhenAnnounced, ReplyWhenDurable, WaitForDisk
from libramq.store.segments import FileRange
from libramq.transport.server import Peer

log = get_logger(__name__)

#: Ours: a remark is read by people; a whole traceback is not for them.
REMARK_CHARACTERS_MAX: Final = 1000


class Request(NamedTuple):
    """One request, and when it was read."""

    command: Command
    peer: Peer
    wall_ms: WallMs
    monotonic_ms: MonotonicMs

    @property
    def now(self) -> Now:
        """When it was read, by both clocks."""
        return Now(wall_ms=self.wall_ms, monotonic_ms=self.monotonic_ms)


class Woken(NamedTuple):
    """A request that was held, and what was decided about it since."""

    request: Request
    outcome: Outcome


Processor = Callable[[Request], Outcome]
BatchProcessor = Callable[[Sequence[Request]], Sequence[Outcome]]
#: Called with (physical offset, answer) for a reply that must wait for the disk; `answer` is told whether it
#: got there in time.
WhenDurable = Callable[[int, Callable[[bool], None]], None]
#: Called with (ranges, what to do then) for an answer that must be read from disk first.
WhenRead = Callable[[tuple[FileRange, ...], Callable[[], None]], None]
#: Called with what to do when the name servers know our topics as they are now.
WhenAnnounced = Callable[[Callable[[], None]], None]


class Endpoint:
    """Serves requests on any number of connections; a `transport.server.Handler`.

    closed: called with a connection that ended, returns whom to notify.
    answered: called with the answer to a question of ours, and when it came (monotonic).
    after_read: called when everything one read brought has been worked off.
    when_announced: None where no name servers are told.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        authorizer: Authorizer,
        processors: Mapping[int, Processor],
        batch_processors: Mapping[int, BatchProcessor] | None = None,
        when_durable: WhenDurable | None = None,
        when_read: WhenRead | None = None,
        when_announced: WhenAnnounced | None = None,
        closed: Callable[[Peer, MonotonicMs], Reply] | None = None,
        answered: Callable[[Peer, Command, MonotonicMs], None] | None = None,
        after_read: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock
        self._authorizer = authorizer
        self._processors = processors
        self._batch_processors = batch_processors or {}
        self._when_durable = when_durable
        self._when_read = when_read
        self._when_announced = when_announced
        self._closed = closed
        self._answered = answered
        self._after_read = after_read

    def connected(self, peer: Peer) -> None:
        """A connection was accepted; it means nothing until it asks for something."""

    def closed(self, peer: Peer) -> None:
        """A connection ended."""
        if self._closed is not None:
            self.notify(self._closed(peer, self._clock.monotonic_ms()))
            if self._after_read is not None:
                self._after_read()

    def stop(self) -> None:
        """The server ends all connections: that says nothing about those who had them."""
        self._closed = None

    def received(self, peer: Peer, commands: list[Command]) -> None:
        """Work off what one read brought."""
        wall_ms, monotonic_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        batch: list[Request] = []  # Neighbours for one batch processor: what comes next sees their effect.
        batch_processor: BatchProcessor | None = None
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                if self._answered is not None:
                    self._answered(peer, command, monotonic_ms)
                continue
            request = Request(command, peer, wall_ms, monotonic_ms)
            refusal = self._refusal(command)
            processor = self._batch_processors.get(command.code) if refusal is None else None
            if batch and processor != batch_processor:
                self._perform_batch(batch_processor, batch)
                batch = []
            if refusal is not None:
                self.perform(request, refusal)
            elif processor is not None:
                batch_processor = processor
                batch.append(request)
            else:
                self.perform(request, self._run(self._processors[command.code], request))
        if batch:
            self._perform_batch(batch_processor, batch)
        if self._after_read is not None:
            self._after_read()

    def _perform_batch(self, processor: BatchProcessor | None, requests: Sequence[Request]) -> None:
        assert processor is not None
        for request, outcome in zip(requests, self._run_batch(processor, requests), strict=True):
            self.perform(request, outcome)

    def perform(self, request: Request, outcome: Outcome) -> None:
        """Do what was decided about a request."""
        if type(outcome) is Reply:
            if not request.command.flag & FLAG_ONEWAY:
                request.peer.write(_encode(request.command, outcome))
            if outcome.notify:
                self.notify(outcome)
        elif isinstance(outcome, ReplyWhenDurable):
            assert self._when_durable is not None, "only a broker with a store may wait for its disk"
            reply = outcome.reply
            self._when_durable(
                outcome.physical_offset,
                lambda is_durable: self.perform(request, reply if is_durable else not_durable(reply)),
            )
        elif isinstance(outcome, ReplyWhenAnnounced):
            announced = outcome.reply
            if self._when_announced is None:
                self.perform(request, announced)
            else:
                self._when_announced(lambda: self.perform(request, announced))
        elif isinstance(outcome, WaitForDisk):
            assert self._when_read is not None, "only a broker with a store may wait for its disk"
            again = outcome.again
            self._when_read(
                outcome.ranges, lambda: self.perform(request, self._run(lambda _: again(), request))
            )
        elif isinstance(outcome, Close):
            request.peer.close(outcome.reason)

    def _refusal(self, command: Command) -> Reply | None:
        """The answer to a request that no processor may see; None for all others."""
        code = command.code
        spec = REQUESTS.get(code)
        if spec is None or (code not in self._processors and code not in self._batch_processors):
            return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")
        if len(command.body) > spec.body_bytes_max:
            return Reply(ResponseCode.INVALID_PARAMETER, _too_large(spec, command))
        if spec.has_version and (remark := version_refusal(spec.code.name, command.ext)) is not None:
            return Reply(ResponseCode.VERSION_NOT_SUPPORTED, remark, {VERSION_FIELD: str(VERSION)})
        name = command.ext.get(spec.resource_field) if spec.resource_field is not None else None
        try:
            self._authorizer.authorize(ANONYMOUS, spec.resource, name, spec.action)
        except BrokerError as error:
            return Reply(error.response_code, error.remark)
        return None

    def _run(self, processor: Processor, request: Request) -> Outcome:
        try:
            return processor(request)
        except Exception as error:  # A processor that fails answers its own request only.
            return failure(error, request)

    def _run_batch(self, processor: BatchProcessor, requests: Sequence[Request]) -> Sequence[Outcome]:
        try:
            return processor(requests)
        except Exception as error:
            return [failure(error, request) for request in requests]

    def notify(self, reply: Reply) -> None:
        """Send a reply's notifications."""
        frame, ext = b"", None
        for notification in reply.notify:
            if notification.peer.is_open:
                if notification.ext is not ext or notification.number is not None:
                    # All members of a group are told the same.
                    frame, ext = encode_frame(notification.command()), notification.ext
                notification.peer.write(frame)


def not_durable(reply: Reply) -> Reply:
    """The answer for what is stored, but not known to be on the disk."""
    remark = "stored, but the disk did not confirm it"
    return msgspec.structs.replace(reply, code=ResponseCode.FLUSH_DISK_TIMEOUT, remark=remark)


def failure(error: Exception, request: Request) -> Reply:
    """The answer to a request whose processor raised."""
    remark = str(error)[:REMARK_CHARACTERS_MAX]
    if isinstance(error, BrokerError):
        return Reply(error.response_code, error.remark[:REMARK_CHARACTERS_MAX])
    if isinstance(error, ConfigError):
        return Reply(ResponseCode.INVALID_PARAMETER, remark)
    if isinstance(error, ProtocolError):
        return Reply(ResponseCode.SYSTEM_ERROR, remark)
    log.error("processor failed", code=request.command.code, peer=request.peer.address, exc_info=error)
    return Reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {remark}")


def _encode(request: Command, reply: Reply) -> bytes:
    """The answer's frame; where none can be made of it (too large, no proper text), that is the answer."""
    try:
        return encode_frame(
            reply_to(request, reply.code, remark=reply.remark, ext=reply.ext, body=reply.body)
        )
    except (ProtocolError, UnicodeError) as error:
        log.error("reply cannot be sent", code=request.code, reason=str(error))
        return encode_frame(
            reply_to(request, ResponseCode.SYSTEM_ERROR, remark="the answer cannot be sent in one frame")
        )


def _too_large(spec: RequestSpec, command: Command) -> str:
    return f"the body of {spec.code.name} has {len(command.body)} bytes; {spec.body_bytes_max} are allowed"
