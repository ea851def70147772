"""The body of a request: bounded before it is decoded, and decoded on a thread if it is large."""

from functools import partial
from typing import Any, Final

from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.formats.fastjson import Bounds
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Room, Work
from libramq.rpc.outcome import Outcome
from libramq.rpc.request import Processor, Request

#: Ours: standard JSON of this size takes 50 µs; a client's heartbeat has 1 KiB.
INLINE_BODY_BYTES_MAX: Final = 4 * 1024
#: Ours: fastjson's dialect takes up to 2 µs a byte, and twenty clients may send it at once.
INLINE_LOOSE_BYTES_MAX: Final = 256
#: Ours: what a body takes when it is decoded, for each of its bytes; 1,000 groups of 90 KB take 1 MB.
DECODED_BYTES_PER_BYTE: Final = 20
#: Ours: 1,000 groups with 10 subscriptions each have 200,000 marks. Clients write standard JSON; the dialect
#: is for tables with numbers and queues as keys, which no client sends: 20,000 marks take 50 ms on a thread.
BODY_BOUNDS: Final = Bounds(marks=400_000, loose_marks=20_000, loose_bytes=256 * 1024)


def with_body(
    kind: type[Any], serve: Processor, request: Request, bounds: Bounds | None = BODY_BOUNDS
) -> Outcome:
    """Decide with a request's body, now or when a thread has decoded it."""
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
