"""Outcomes: what a processor decided. It returns one of these values; the endpoint performs it.

    Reply               answer now
    ReplyWhenDurable    answer when the log is safe on disk up to an offset
    ReplyWhenAnnounced  answer when the name servers know the topics as they are now
        WaitForDisk         decide again after a thread has read what is not in memory
        Compute             decide after a thread has decoded, or encoded, something large
        InSteps             decide in steps, with other requests in between
    Hold                answer later; a wait table has the request
        Close               close the connection

Each can carry notifications for other connections.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from libramq.codes import ResponseCode
from libramq.kernel.connection import Connection
from libramq.remoting.command import FLAG_ONEWAY, Command


@dataclass(frozen=True, slots=True)
class Notify:
    """A request to another connection: one-way, or a probe whose answer carries the number."""

    peer: Connection
    code: int
    ext: dict[str, str] = field(default_factory=dict)
    number: int | None = None
    body: bytes = b""

    def command(self) -> Command:
        """Return the request as a command."""
        if self.number is None:
            return Command(code=self.code, flag=FLAG_ONEWAY, ext=self.ext, body=self.body)
        return Command(code=self.code, opaque=self.number, ext=self.ext, body=self.body)


class Reply(msgspec.Struct, frozen=True):
    """Answer now. A Struct, because one is made for every request: a frozen dataclass takes 1 µs longer.

    pieces: more of the body, which are joined when the frame is: a pull's records are copied once less.
    """

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    ext: dict[str, str] | None = None
    body: bytes = b""
    notify: tuple[Notify, ...] = ()
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
class WaitForDisk:
    """Decide again after a thread has run `read`, which brings the data into memory."""

    read: Callable[[], None]
    again: Callable[[], "Outcome"]


@dataclass(frozen=True, slots=True)
class Compute:
    """Decide with the result of `work`, run by a thread; it must not touch the engine's state.

    If it raises, the error is the answer. The connection's further requests wait.
    size_bytes: what the result and the steps that follow are expected to take, if that is much; requests that
    take too much together wait for each other.
    """

    work: Callable[[], Any]
    then: Callable[[Any], "Outcome"]
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class InSteps:
    """Decide in steps: each is bounded in its work, and other requests are served in between.

    The connection's further requests wait. The steps' return value is the outcome.
    """

    steps: Generator[None, None, "Outcome"]


@dataclass(frozen=True, slots=True)
class Hold:
    """Do not answer yet: the processor has put the request into a wait table."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection."""

    reason: str


Outcome = Reply | ReplyWhenDurable | ReplyWhenAnnounced | WaitForDisk | Compute | InSteps | Hold | Close

HOLD = Hold()
SUCCESS = Reply()
