"""A call: one request, and how its answer is decoded. Shells of every kind (asyncio, blocking) make it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

from libramq.codes import RequestCode, ResponseCode
from libramq.errors import LibraError, RemoteError, broker_error
from libramq.formats.document import decode_body
from libramq.kernel.work import Callback
from libramq.logs import get_logger
from libramq.remoting.command import FLAG_ONEWAY, Command
from libramq.remoting.credentials import Credentials, sign_for
from libramq.remoting.group_version import VERSION, VERSION_FIELD
from libramq.remoting.headers import Header, encode_header

log = get_logger(__name__)


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """A request and the parser of its answer.

    accepts: the response codes the parser understands; every other one is raised as BrokerError.
    """

    code: RequestCode
    parse: Callable[[Command], T_co]
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    oneway: bool = False
    accepts: frozenset[int] = frozenset({ResponseCode.SUCCESS})

    def command(self) -> Command:
        """Return the request as a command, without its number."""
        return Command(code=self.code, ext=self.ext, body=self.body, flag=FLAG_ONEWAY if self.oneway else 0)

    def outcome(self, reply: Command | LibraError, *, where: str) -> T_co | LibraError:
        """Return the result in an answer, or its error; never raises."""
        if isinstance(reply, LibraError):
            return reply
        try:
            return self.result(reply, where=where)
        except LibraError as error:
            return error

    def result(self, reply: Command, *, where: str) -> T_co:
        """Decode the answer; raises BrokerError if it is an error, naming `where` it came from.

        Raises RemoteError if it cannot be decoded.
        """
        if reply.code not in self.accepts:
            # Apache's servers name a request that they do not know by its number alone.
            request = self.code.name if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED else ""
            raise broker_error(reply.code, reply.remark, where=where, request=request)
        try:
            return self.parse(reply)
        except (KeyError, ValueError) as error:
            raise RemoteError(f"the answer of {where} cannot be read: {error!r}") from None


def header_call(
    code: RequestCode, header: Header | None, parse: Callable[[Command], T_co], *, body: bytes = b""
) -> Call[T_co]:
    """Return a call with a typed header."""
    return Call(code, parse, encode_header(header) if header is not None else {}, body)


def body_call(code: RequestCode, header: Header | None, kind: type[T]) -> Call[T]:
    """Return a call whose answer is a document."""
    return header_call(code, header, lambda reply: decode_body(reply.body, kind))


def group_call(
    code: RequestCode, header: Header | None, parse: Callable[[Command], T_co], *, body: bytes = b""
) -> Call[T_co]:
    """Return a call of the group protocol, which carries its version."""
    ext = encode_header(header) if header is not None else {}
    return Call(code, parse, ext | {VERSION_FIELD: str(VERSION)}, body)


def nothing(_: Command) -> None:
    """Parse an answer without content."""


class Question(NamedTuple):
    """answered: called once, with the result of the call or the LibraError instead."""

    address: str
    call: Call[Any]
    answered: Callable[[Any], None]
    timeout_ms: int

    def command(self) -> Command:
        """Return the request."""
        return self.call.command()

    def done(self, outcome: Command | LibraError) -> None:
        """Pass on the result of the request."""
        try:
            self.answered(self.call.outcome(outcome, where=self.address))
        except Exception:  # A fault in one response must not close the connection for all.
            log.exception("a response could not be processed", address=self.address)


Ask = Callable[[Question], None]


def answer_to(ask: Ask, address: str, call: Call[Any], timeout_ms: int) -> Callback:
    """Return the answer to a call, for long work that waits for it; the error is raised there."""
    return Callback(lambda done: ask(Question(address, call, done, timeout_ms)))


def signing(ask: Ask, credentials: Credentials | None) -> Ask:
    """Wrap `ask` so that requests are signed for their addresses; without credentials return it as it is."""
    if credentials is None:
        return ask

    def ask_signed(question: Question) -> None:
        command = sign_for(question.command(), credentials, question.address)
        ask(question._replace(call=replace(question.call, ext=command.ext)))

    return ask_signed
