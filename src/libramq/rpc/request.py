"""The request: one command with its connection, time and principal; which method serves which code; when a
thread decodes the body; how errors become replies.
"""

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from libramq.clock import MonotonicMs, Now, WallMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, ConfigError, ProtocolError
from libramq.filesystem import NO_SPACE
from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.formats.fastjson import Bounds
from libramq.kernel.connection import ANONYMOUS, Connection, Principal
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Room, Work
from libramq.logs import get_logger
from libramq.remoting.command import Command
from libramq.rpc.outcome import Outcome, Reply

log = get_logger(__name__)

#: Ours: remarks are read by people and contain no traceback.
REMARK_CHARACTERS_MAX: Final = 1000
#: Ours: standard JSON of this size takes 50 µs; a client's heartbeat has 1 KiB.
INLINE_BODY_BYTES_MAX: Final = 4 * 1024
#: Ours: fastjson's dialect takes up to 2 µs a byte, and twenty clients may send it at once.
INLINE_LOOSE_BYTES_MAX: Final = 256
#: Ours: the memory of a decoded body per encoded byte; 1,000 groups of 90 KB take 1 MB.
DECODED_BYTES_PER_BYTE: Final = 20
#: Ours: 1,000 groups with 10 subscriptions each have 200,000 marks. Clients write standard JSON; the dialect
#: is for tables with numbers and queues as keys, which no client sends: 20,000 marks take 50 ms on a thread.
BODY_BOUNDS: Final = Bounds(marks=400_000, loose_marks=20_000, loose_bytes=256 * 1024)


class Request(msgspec.Struct):
    """One request, the time it was read, and its principal. A Struct, like every effect.

    header, body: of the types in its row of `request_table.py`; body is None where the row has none.
    is_held: it awaits an answer and is kept without header and body (`RequestWaiter`).
    """

    command: Command
    peer: Connection
    wall_ms: WallMs
    monotonic_ms: MonotonicMs
    principal: Principal = ANONYMOUS
    header: Any = None
    body: Any = None
    is_held: bool = False

    @property
    def now(self) -> Now:
        """Return the time it was read, by both clocks."""
        return Now(wall_ms=self.wall_ms, monotonic_ms=self.monotonic_ms)


Processor = Callable[[Request], Outcome]
BatchProcessor = Callable[[Sequence[Request]], Sequence[Outcome]]


class Processors(NamedTuple):
    """The processors of requests, by code: those for single requests and those for batches."""

    singly: Mapping[int, Processor]
    in_batches: Mapping[int, BatchProcessor] = MappingProxyType({})


F = TypeVar("F", bound=Callable[[Any, Request], Outcome])


def serves(*codes: int) -> Callable[[F], F]:
    """Mark the method of a service that serves requests with these codes."""

    def mark(method: F) -> F:
        setattr(method, _CODES, codes)
        return method

    return mark


_CODES: Final = "serves"


class BatchService(Protocol):
    """Serves all neighbouring requests of one read together."""

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """Return the processors of its requests."""
        ...


def served_by(services: Iterable[object]) -> dict[int, Processor]:
    """Return the processors of all requests that services serve one by one."""
    return {
        code: getattr(service, name)
        for service in services
        for kind in type(service).__mro__
        for name, method in vars(kind).items()
        for code in getattr(method, _CODES, ())
    }


def failure(error: Exception, request: Request) -> Reply:
    """Return the reply to a request whose processor raised."""
    remark = str(error)[:REMARK_CHARACTERS_MAX]
    if isinstance(error, BrokerError):
        return Reply(error.response_code, error.remark[:REMARK_CHARACTERS_MAX])
    if isinstance(error, ConfigError):
        return Reply(ResponseCode.INVALID_PARAMETER, remark)
    if isinstance(error, ProtocolError):
        return Reply(ResponseCode.SYSTEM_ERROR, remark)
    if isinstance(error, OSError) and error.errno in NO_SPACE:  # A log entry may not fit.
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, f"the disk has no room for it: {remark}")
    if isinstance(error, OSError) and error.errno == errno.EROFS:  # Every request would log it.
        return Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
    log.error("processor failed", code=request.command.code, peer=request.peer.address, exc_info=error)
    return Reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {remark}")


def with_body(
    kind: type[Any], serve: Processor, request: Request, bounds: Bounds | None = BODY_BOUNDS
) -> Outcome:
    """Serve a request with its body, now or once a thread has decoded it."""
    data = request.command.body
    if len(data) <= INLINE_LOOSE_BYTES_MAX or (
        len(data) <= INLINE_BODY_BYTES_MAX and fastjson.is_standard(data)
    ):
        request.body = decode_body(data, kind, bounds)
        return serve(request)
    return _decoded_first(kind, serve, request, bounds)


def _decoded_first(
    kind: type[Any], serve: Processor, request: Request, bounds: Bounds | None
) -> Work[Outcome]:
    data = request.command.body
    yield Room(len(data) * DECODED_BYTES_PER_BYTE)
    request.body = yield InThread(Thread.COMPUTE, partial(decode_body, data, kind, bounds))
    return serve(request)
