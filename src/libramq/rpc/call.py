"""A call: one request and the decoding of its answer, for shells of every kind (asyncio, blocking)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from libramq.codes import RequestCode, ResponseCode
from libramq.errors import LibraError, RemoteError, broker_error
from libramq.formats.document import decode_body
from libramq.remoting.command import FLAG_ONEWAY, Command
from libramq.remoting.group_version import VERSION, VERSION_FIELD
from libramq.remoting.headers import Header, encode_header

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """A request and the parser of its answer.

    accepts: the response codes the parser understands; any other one is raised as BrokerError.
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
        """Return an answer's result, or its error; never raises."""
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
            # For an unknown request, Apache's servers state only its number.
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
