"""Outcomes: a processor's decision: reply now, when durable, when announced, after long work or later, or
close.

    Reply               answer now
    ReplyWhenDurable    answer when the log is safe on disk up to an offset
    ReplyWhenAnnounced  answer when the name servers know the current topics
    Work                decide in steps, with other requests in between; threads read and compute for it
    Hold                answer later; a wait table has the request
    Close               close the connection
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from libramq.codes import ResponseCode
from libramq.formats.document import encode_body
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Work

#: Ours: at most this many rows of a reply are encoded on the loop, in 4 µs each.
ROWS_INLINE_MAX: Final = 256


class Reply(msgspec.Struct, frozen=True):
    """Answer now. A Struct, because there is one for every request: a frozen dataclass takes 1 µs longer.

    pieces: further parts of the body, joined with the frame; this saves a copy of a pull's records.
    """

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    ext: dict[str, str] | None = None
    body: bytes = b""
    pieces: tuple[bytes | memoryview, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyWhenAnnounced:
    """Answer when the name servers know the current topics, because the client will look there."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class ReplyWhenDurable:
    """Answer when the commit log is durable up to `physical_offset`, then perhaps wait for name servers.

    is_send: a producer is told if disk or slaves have not confirmed its messages in time. Other clients get
    the same reply late, because their request has been carried out.
    """

    physical_offset: int
    reply: Reply | ReplyWhenAnnounced
    is_send: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Do not answer yet: the processor has put the request into a wait table."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection."""

    reason: str


#: Long work returns the outcome; meanwhile the connection's further requests wait.
Outcome = Reply | ReplyWhenDurable | ReplyWhenAnnounced | Work["Outcome"] | Hold | Close

HOLD = Hold()
SUCCESS = Reply()


def reply_encoded(encode: Callable[[], bytes], ext: dict[str, str] | None = None) -> Work[Outcome]:
    """Reply with a large body, encoded on a thread."""
    return Reply(ext=ext, body=(yield InThread(Thread.COMPUTE, encode)))


def reply_rows(make: Callable[[], Any], row_count: int, *, inline_max: int = ROWS_INLINE_MAX) -> Outcome:
    """Reply with the body that `make` returns; if it has many rows, a thread makes and encodes it."""
    if row_count <= inline_max:
        return Reply(body=encode_body(make()))
    last = [make]  # The thread also frees the rows: that would occupy the loop for 5 ms for 60,000.
    del make
    return reply_encoded(lambda: encode_body(last.pop()()))
