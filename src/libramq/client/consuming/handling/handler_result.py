"""The handler result: what a handler's return value means for its messages.

        None, True              all of them are done
        False                   all of them are redelivered later
        Retry(messages, after)  these are redelivered, the others are done
        Reject(messages)        these become dead letters, the others are done
        Busy(messages, within)  these come again within that time, uncounted; the others are done
        a list of these         as each of them says; messages that none of them names are done
        anything else           an error: InvalidResult

Upstream: listener/ConsumeConcurrentlyStatus.java, ConsumeConcurrentlyContext.java (ackIndex,
delayLevelWhenNextConsume).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from libramq.errors import ConfigError, InvalidResult
from libramq.message.message import MessageExt

#: The highest of Apache's delay levels (messageDelayLevel): two hours.
AFTER_MS_MAX: Final = 2 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Redeliver messages; all other messages of the call are done.

    messages: those to redeliver; None: all of the call. after: a minimum delay in seconds, up to two hours;
    None: growing delays (10 s, 30 s, 1 min …), or suspend_ms in orderly mode. A broker rounds the delay up to
    its next delay level (1, 5, 10, 30 s, 1 to 10, 20, 30 min, 1, 2 h); in orderly mode it is exact, and later
    messages of the queue wait.
    """

    messages: Sequence[MessageExt] | None = None
    after: float | timedelta | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", _messages(self.messages, "Retry"))
        seconds = self.after.total_seconds() if isinstance(self.after, timedelta) else self.after
        if seconds is None:
            return
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise ConfigError(f"Retry: after is a number of seconds, not a {type(seconds).__name__}")
        if not (math.isfinite(seconds) and 0 <= seconds * 1000 <= AFTER_MS_MAX):
            raise ConfigError(f"Retry: after is between 0 seconds and 2 hours, not {seconds} seconds")

    @property
    def after_ms(self) -> int | None:
        """Return the delay, rounded up; None if the broker decides."""
        if self.after is None:
            return None
        seconds = self.after.total_seconds() if isinstance(self.after, timedelta) else self.after
        return math.ceil(seconds * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Make messages dead letters of the group (%DLQ%group) without another attempt.

    messages: those to reject; None: all of the call. All other messages of the call are done.
    """

    messages: Sequence[MessageExt] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", _messages(self.messages, "Reject"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Deliver messages again without counting an attempt: another handler is at work on them.

    messages: those to redeliver; None: all of the call. within: the maximum delay in seconds.
    """

    messages: Sequence[MessageExt] | None = None
    within: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", _messages(self.messages, "Busy"))
        if not (math.isfinite(self.within) and 0 <= self.within * 1000 <= AFTER_MS_MAX):
            raise ConfigError(f"Busy: within is between 0 seconds and 2 hours, not {self.within} seconds")


#: The result of a handler, which may also return an awaitable of one.
HandlerResult = None | bool | Retry | Reject | Busy | Sequence[Retry | Reject | Busy]


class HandlerOutcome(Enum):
    """The outcome of a handler.

    SKIPPED: the handler never began, as its queue was taken away. FOREIGN: this member has no handler for the
    topic, to which other members of its group subscribe.
    """

    SUCCESS = "success"
    LATER = "later"
    SKIPPED = "skipped"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDone:
    """The messages of a delivery that are not done; all others are.

    retries: each with the requested delay in milliseconds, if any. busy: each with the maximum delay of its
    redelivery in milliseconds.
    """

    retries: tuple[tuple[MessageExt, int | None], ...] = ()
    rejects: tuple[MessageExt, ...] = ()
    busy: tuple[tuple[MessageExt, int], ...] = ()

    def done(self, messages: Iterable[MessageExt]) -> list[MessageExt]:
        """Return the messages of the delivery that are done."""
        left = {_place(message) for message, _ in (*self.retries, *self.busy)}
        left.update(map(_place, self.rejects))
        return [message for message in messages if _place(message) not in left]

    def results(self) -> "list[Retry | Reject | Busy]":
        """Return the equivalent results of a handler."""
        found: list[Retry | Reject | Busy] = [
            Retry(messages=[message], after=None if after_ms is None else after_ms / 1000)
            for message, after_ms in self.retries
        ]
        found += [Busy(messages=[message], within=within_ms / 1000) for message, within_ms in self.busy]
        return [*found, Reject(messages=self.rejects)] if self.rejects else found


#: The ending of a delivery: as a whole, or message by message.
Ending = HandlerOutcome | NotDone


def ending_of(
    returned: object, messages: Sequence[MessageExt], handed: Sequence[MessageExt] | None = None
) -> Ending:
    """Return the ending of a delivery from its handler's return value; raises InvalidResult.

    handed: the copies that the handler received and may have changed; None: it received the originals.
    """
    if returned is None or returned is True:
        return HandlerOutcome.SUCCESS
    if returned is False:
        return HandlerOutcome.LATER
    if isinstance(returned, Retry | Reject | Busy):
        return _not_done((returned,), messages, handed)
    if isinstance(returned, list | tuple):
        results = [each for each in returned if isinstance(each, Retry | Reject | Busy)]
        if len(results) == len(returned):
            return _not_done(results, messages, handed)
    raise InvalidResult(
        f"the handler of topic {messages[0].topic} returned a {type(returned).__name__}, which does not say "
        "whether its messages are done; return None when all are, else Retry or Reject (or a list of these)"
    )


def _not_done(
    results: Iterable[Retry | Reject | Busy],
    messages: Sequence[MessageExt],
    handed: Sequence[MessageExt] | None,
) -> Ending:
    # By identity, as the handler may have changed them; else by offset: it may return another process's
    # copies.
    known = dict(zip(map(id, handed or messages), messages, strict=True))
    left = {_place(message): message for message in messages}
    retries: list[tuple[MessageExt, int | None]] = []
    rejects: list[MessageExt] = []
    busy: list[tuple[MessageExt, int]] = []
    for result in results:
        for named in messages if result.messages is None else result.messages:
            message = left.pop(_place(known.get(id(named), named)), None)
            if message is None:
                raise InvalidResult(
                    f"the handler of topic {messages[0].topic} returned a {type(result).__name__} with a "
                    f"message that was not passed to it, or that it names twice: {named.message_id}"
                )
            if isinstance(result, Retry):
                retries.append((message, result.after_ms))
            elif isinstance(result, Busy):
                busy.append((message, math.ceil(result.within * 1000)))
            else:
                rejects.append(message)
    if not retries and not rejects and not busy:
        return HandlerOutcome.SUCCESS
    return NotDone(retries=tuple(retries), rejects=tuple(rejects), busy=tuple(busy))


def _place(message: MessageExt) -> tuple[str, int, int, int]:
    # With the log position: a popped retry may have the queue and offset of another message of its topic.
    return message.broker_name, message.queue_id, message.queue_offset, message.physical_offset


def _messages(messages: object, result: str) -> tuple[MessageExt, ...] | None:
    if messages is None:
        return None
    if isinstance(messages, Iterable):
        together = tuple(messages)
        if all(isinstance(each, MessageExt) for each in together):
            return together
    raise ConfigError(f"{result}: messages is a list of messages that were passed to the handler")
