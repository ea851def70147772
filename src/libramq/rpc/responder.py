"""The responder: turns outcomes into replies, and answers requests whose wait for the disk, slaves or name
servers has timed out.

Reply               bytes for the connection, in the header form of its request
ReplyWhenDurable    parked until the log is on disk; all of a batch together
ReplyWhenAnnounced  parked until the name servers know the topics
Work                steps, some per turn, and work for threads; then the outcome that it returns
Hold                nothing: a service has the `RequestWaiter`, and answers it, perhaps much later
Close               the end of the connection
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import GeneratorType
from typing import Any

import msgspec

from libramq.codes import ResponseCode
from libramq.errors import ProtocolError
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Effects, Send
from libramq.kernel.purgatory import Gate, Gated, Missing
from libramq.kernel.work import Work
from libramq.logs import get_logger
from libramq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, reply_to
from libramq.remoting.frame import encode_frame, encode_head
from libramq.rpc.outcome import (
    HOLD,
    Close,
    Outcome,
    Reply,
    ReplyWhenAnnounced,
    ReplyWhenDurable,
)
from libramq.rpc.request import REMARK_CHARACTERS_MAX, Request, failure
from libramq.store.log.append import NOT_SAFE

log = get_logger(__name__)

#: The rest of a request after its wait.
Later = Reply | ReplyWhenAnnounced


class RequestWaiter:
    """The waiter of a request. translate: returns the reply for a service's result."""

    __slots__ = ("_answer", "_request", "_translate", "connection")

    def __init__(
        self,
        request: Request,
        answer: Callable[[Request, Outcome], None],
        translate: Callable[[Any], Outcome],
    ) -> None:
        self.connection = request.peer
        # Without header and body: thousands of pulls and polls may be held, and a header may have 1 MiB.
        self._request = Request(
            msgspec.structs.replace(request.command, ext={}, body=b""),
            request.peer,
            request.wall_ms,
            request.monotonic_ms,
            request.principal,
            is_held=True,
        )
        self._answer = answer
        self._translate = translate

    def answer(self, result: Any) -> None:
        """Send the reply for a result."""
        self._answer(self._request, self._translate(result))

    def refuse(self, error: Exception) -> None:
        """Send the reply for an error."""
        self._answer(self._request, failure(error, self._request))


class Responder:
    """Performs outcomes. durability, announcement: the gates; None if there is nothing to wait for."""

    def __init__(
        self, effects: Effects, *, durability: Gate | None = None, announcement: Gate | None = None
    ) -> None:
        self._effects = effects
        self._durability = durability
        self._announcement = announcement
        #: Called with each answer's request and code, or None.
        self.observer: Callable[[Request, int], None] | None = None

    def answer(self, request: Request, outcome: Outcome) -> None:
        """Perform a request's outcome, now or long after its arrival."""
        if type(outcome) is Reply:
            if self.observer is not None:
                self.observer(request, outcome.code)
            if not request.command.flag & FLAG_ONEWAY and request.peer.is_open:
                self._effects.add(Send(request.peer, encode_reply(request.command, outcome)))
        elif outcome is HOLD:  # The outcome of every pull; the pull's waiter is answered later.
            return
        elif isinstance(outcome, ReplyWhenDurable):
            give_up = not_durable if outcome.is_send else done_anyway
            self._park(self._durability, [(request, outcome.reply)], outcome.physical_offset, give_up)
        elif isinstance(outcome, ReplyWhenAnnounced):
            self._park(self._announcement, [(request, outcome.reply)], 0, lambda later, _: _reply(later))
        elif type(outcome) is GeneratorType:
            self._effects.proceed(request.peer, self._decide(request, outcome))
        elif isinstance(outcome, Close):
            self._effects.close(request.peer, outcome.reason)

    def answer_batch(self, requests: Sequence[Request], outcomes: Sequence[Outcome]) -> None:
        """Perform outcomes of neighbours on one connection, with at most one write and one parked value."""
        frames: list[bytes] = []
        durable: list[tuple[Request, Later]] = []
        physical_offset, is_send = 0, False
        for request, outcome in zip(requests, outcomes, strict=True):
            if type(outcome) is Reply:
                if self.observer is not None:
                    self.observer(request, outcome.code)
                if not request.command.flag & FLAG_ONEWAY:
                    frames.append(encode_reply(request.command, outcome))
            elif type(outcome) is ReplyWhenDurable:
                durable.append((request, outcome.reply))
                physical_offset = max(physical_offset, outcome.physical_offset)
                is_send = outcome.is_send  # All have the same processor.
            else:
                self.answer(request, outcome)
        if frames:
            data = frames[0] if len(frames) == 1 else b"".join(frames)
            self._effects.add(Send(requests[0].peer, data))
        if durable:
            self._park(self._durability, durable, physical_offset, not_durable if is_send else done_anyway)

    def answer_many(self, replies: Sequence[tuple[Request, Later]]) -> None:
        """Answer requests of one connection."""
        self.answer_batch([request for request, _ in replies], [reply for _, reply in replies])

    def ask(self, peer: Connection, request: Command) -> None:
        """Send a request to a connection, if it is still open; its answer carries the request's number."""
        if peer.is_open:
            self._effects.send(peer, encode_frame(request))

    def _decide(self, request: Request, outcome: Outcome) -> Work[None]:
        """Do long work and answer with its outcome; a failure affects only its own request."""
        try:
            while isinstance(outcome, GeneratorType):
                outcome = yield from outcome
        except Exception as error:
            outcome = failure(error, request)
        self.answer(request, outcome)

    def _park(
        self,
        gate: Gate | None,
        replies: list[tuple[Request, Later]],
        physical_offset: int,
        give_up: Callable[[Later, Missing], Reply],
    ) -> None:
        """Park replies of one connection at a gate; those that also wait for the disk do that first."""
        if gate is None:
            self.answer_many(replies)
            return
        for request, _ in replies:
            # The messages are stored; keeping them here as well could exhaust memory on a slow disk.
            request.command.body, request.header = b"", None
        parked = Gated(
            replies[0][0].peer,
            partial(self.answer_many, replies),
            partial(self._give_up, replies, give_up),
            cost_bytes=sum(len(_reply(reply).body) for _, reply in replies),
        )
        gate.wait(parked, physical_offset)

    def _give_up(
        self,
        replies: list[tuple[Request, Later]],
        give_up: Callable[[Later, Missing], Reply],
        missing: Missing,
    ) -> None:
        """Answer that the awaited condition was not met in time."""
        self.answer_many([(request, give_up(reply, missing)) for request, reply in replies])


def decide(processor: Callable[[], Outcome], request: Request) -> Outcome:
    """Run the rest of a processor; a failure affects only its own request."""
    try:
        return processor()
    except Exception as error:
        return failure(error, request)


def not_durable(later: Later, missing: Missing) -> Reply:
    """Return the answer for a message that was stored, but not confirmed on disk or at slaves."""
    code, remark = NOT_SAFE[missing]
    return msgspec.structs.replace(_reply(later), code=code, remark=remark)


def done_anyway(later: Later, missing: Missing) -> Reply:
    """Return the answer to a request other than a send, which has been carried out.

    Clients take any other code for a failure: they would drop popped messages, and send a copy of a message
    they have sent back.
    """
    return Reply(*NOT_SAFE[missing]) if missing is Missing.DISK else _reply(later)


def _reply(later: Later) -> Reply:
    return later.reply if isinstance(later, ReplyWhenAnnounced) else later


def encode_reply(request: Command, reply: Reply) -> bytes:
    """Return the reply's frame, or an error's if it cannot be encoded (too large, invalid text)."""
    try:
        # `reply_to` inlined: its call would be a tenth of a reply's cost.
        remark = reply.remark
        if remark is not None and len(remark) > REMARK_CHARACTERS_MAX:  # It quotes names from the request.
            remark = remark[:REMARK_CHARACTERS_MAX]
        command = Command(
            code=reply.code,
            opaque=request.opaque,
            flag=FLAG_RESPONSE,
            remark=remark,
            ext=reply.ext or {},
            body=reply.body,
            serialization=request.serialization,
        )
        return b"".join((encode_head(command, reply.pieces), reply.body, *reply.pieces))
    except (ProtocolError, UnicodeError) as error:
        log.error("reply cannot be sent", code=request.code, reason=str(error))
        return encode_frame(
            reply_to(request, ResponseCode.SYSTEM_ERROR, remark="the answer cannot be sent in one frame")
        )
