"""Outcomes: what a processor can decide: reply now, when durable, when announced, after long work, later, or
close.

    Reply               answer now
    ReplyWhenDurable    answer when the log is safe on disk up to an offset
    ReplyWhenAnnounced  answer when the name servers know the topics as they are now
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

#: Ours: rows of a reply that is encoded on the loop, in 4 µs each.
ROWS_INLINE_MAX: Final = 256


class Reply(msgspec.Struct, frozen=True):
    """Answer now. A Struct, because one is made for every request: a frozen dataclass takes 1 µs longer.

    pieces: more of the body, which are joined when the frame is: a pull's records are copied once less.
    """

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    ext: dict[str, str] | None = None
    body: bytes = b""
    pieces: tuple[bytes | memoryview, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyWhenAnnounced:
    """Answer when the name servers know the current topics: the client will look for them there."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class ReplyWhenDurable:
    """Answer when the commit log is durable up to `physical_offset`, or wait for name servers as well.

    is_send: a producer is told if disk or slaves have not confirmed its messages in time. Everybody else
    gets the same reply late: what was requested is done.
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


#: Long work returns the outcome; the connection's further requests wait.
Outcome = Reply | ReplyWhenDurable | ReplyWhenAnnounced | Work["Outcome"] | Hold | Close

HOLD = Hold()
SUCCESS = Reply()


def reply_encoded(encode: Callable[[], bytes], ext: dict[str, str] | None = None) -> Work[Outcome]:
    """Reply with a large body, which a thread encodes."""
    return Reply(ext=ext, body=(yield InThread(Thread.COMPUTE, encode)))


def reply_rows(make: Callable[[], Any], row_count: int, *, inline_max: int = ROWS_INLINE_MAX) -> Outcome:
    """Reply with the body that `make` returns; a thread makes and encodes one of many rows."""
    if row_count <= inline_max:
        return Reply(body=encode_body(make()))
    last = [make]  # The thread frees the rows, too: the loop would need 5 ms for 60,000.
    del make
    return reply_encoded(lambda: encode_body(last.pop()()))
