"""Gathered sends: messages that are sent in one turn of the loop, and each awaited, travel together.

    64 tasks await send(…) ─► one request with 64 messages ─► its answer wakes 64 tasks ─► …

Nothing is delayed for it: a message leaves at the end of the turn in which it was sent, alone if no
other was. Under load a batch's answer wakes its senders together, so the next batch has all of them too.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from libramq.client.producing.accumulator import split
from libramq.client.producing.batch_content import Content
from libramq.client.producing.batch_sender import BatchSender, Outcomes
from libramq.client.producing.send_request import content_of, prepare_one
from libramq.client.producing.sender import Sender, Sent
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.errors import InvalidMessage, LibraError
from libramq.message.message import Message
from libramq.runtime.seams import Timers

T = TypeVar("T")

#: Ours: by what share of the first message's timeout those of others that travel with it may differ.
#: What is left of a timeout is counted when a message is sent, and the clock may tick between two sends.
TIMEOUT_SPREAD: Final = 0.1


class _Gathered:
    """Messages of a topic that travel together, within the shortest of their timeouts."""

    __slots__ = ("_first_timeout_ms", "_tolerance_ms", "info", "sends", "timeout_ms")

    def __init__(self, info: TopicPublishInfo, timeout_ms: int) -> None:
        self.info = info
        self.sends: list[tuple[Message, Sent]] = []
        self.timeout_ms = timeout_ms
        self._first_timeout_ms = timeout_ms
        self._tolerance_ms = int(timeout_ms * TIMEOUT_SPREAD)

    def takes(self, timeout_ms: int) -> bool:
        """Return whether a message with this timeout may travel with those that are here."""
        return abs(timeout_ms - self._first_timeout_ms) <= self._tolerance_ms


class GatheredSends:
    """Sends for which any queue of the topic will do."""

    def __init__(
        self,
        sender: Sender,
        batches: BatchSender,
        timers: Timers,
        next_id: Callable[[], str],
        *,
        compress_over_bytes: int,
    ) -> None:
        self._sender = sender
        self._batches = batches
        self._timers = timers
        self._next_id = next_id
        self._compress_over_bytes = compress_over_bytes
        self._open: dict[str, list[_Gathered]] = {}

    def send(self, message: Message, info: TopicPublishInfo, sent: Sent, *, timeout_ms: int) -> None:
        """Send a message with the others of this turn; `sent` is called once."""
        if not self._open:
            self._timers.after(0, self.send_now)
        of_topic = self._open.setdefault(message.topic, [])
        for gathered in of_topic:
            if gathered.takes(timeout_ms):
                break
        else:
            gathered = _Gathered(info, timeout_ms)
            of_topic.append(gathered)
        gathered.sends.append((message, sent))
        gathered.timeout_ms = min(gathered.timeout_ms, timeout_ms)

    def send_now(self) -> None:
        """Send what was gathered."""
        opened, self._open = self._open, {}
        for topic, of_topic in opened.items():
            for gathered in of_topic:
                self._send(topic, gathered)

    def _send(self, topic: str, gathered: _Gathered) -> None:
        """Send messages that travel together; one alone is no batch."""
        info, timeout_ms = gathered.info, gathered.timeout_ms
        if len(gathered.sends) == 1:
            ((message, sent),) = gathered.sends
            prepare = partial(prepare_one, compress_over_bytes=self._compress_over_bytes)
            prepared = self._encoded(prepare, message, sent)
            if prepared is not None:
                self._sender.send(prepared, info, None, sent, timeout_ms=timeout_ms)
            return
        contents: list[Content] = []
        senders: list[Sent] = []
        for message, sent in gathered.sends:
            content = self._encoded(content_of, message, sent)
            if content is not None:
                contents.append(content)
                senders.append(sent)
        for run in split(contents):
            report = partial(_report, senders[run])
            self._batches.send(topic, info, None, contents[run], report, timeout_ms=timeout_ms)

    def _encoded(
        self, encode: Callable[[Message, Callable[[], str]], T], message: Message, sent: Sent
    ) -> T | None:
        """Return an encoded message; None if its sender got an error instead."""
        try:
            return encode(message, self._next_id)
        except Exception as error:  # It was changed since it was checked. The others of this turn travel.
            if not isinstance(error, LibraError):
                error = InvalidMessage(
                    f"the message could not be encoded: {error!r}; was it changed after send()?"
                )
            sent(error)
            return None


def _report(senders: list[Sent], outcomes: Outcomes) -> None:
    """Report a batch's outcomes to its senders."""
    for sent, outcome in zip(senders, outcomes, strict=True):
        sent(outcome if isinstance(outcome, LibraError) else [outcome])
