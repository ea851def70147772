"""Gathered sends: messages that are sent in one turn of the loop, and each awaited, travel together.

    64 tasks await send(…) ─► one request with 64 messages ─► its answer wakes 64 tasks ─► …

Nothing is delayed for it: a message leaves at the end of the turn in which it was sent, alone if no
other was. Under load a batch's answer wakes its senders together, so the next batch has all of them too.
"""

from collections.abc import Callable

from libramq.client.producing.accumulator import Waiting, split
from libramq.client.producing.batch_sender import BatchSender, Outcomes
from libramq.client.producing.send_request import encode_item, prepare_one, why_not_in_batch
from libramq.client.producing.sender import Sender, Sent
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.errors import LibraError
from libramq.message.message import Message
from libramq.runtime.seams import Timers

_Key = tuple[str, int]


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
        self._open: dict[_Key, tuple[TopicPublishInfo, list[tuple[Message, Sent]]]] = {}

    def takes(self, message: Message) -> bool:
        """Return whether a message may travel with others; compressed and delayed ones may not."""
        return len(message.body) < self._compress_over_bytes and why_not_in_batch(message) is None

    def send(self, message: Message, info: TopicPublishInfo, sent: Sent, *, timeout_ms: int) -> None:
        """Send a message with the others of this turn; `sent` is called once."""
        if not self._open:
            self._timers.after(0, self.send_now)
        key = (message.topic, timeout_ms)
        gathered = self._open.get(key)
        if gathered is None:
            self._open[key] = (info, [(message, sent)])
        else:
            gathered[1].append((message, sent))

    def send_now(self) -> None:
        """Send what was gathered."""
        gathered, self._open = self._open, {}
        for (topic, timeout_ms), (info, sends) in gathered.items():
            if len(sends) == 1:
                ((message, sent),) = sends
                prepared = prepare_one(message, self._next_id, compress_over_bytes=self._compress_over_bytes)
                self._sender.send(prepared, info, None, sent, timeout_ms=timeout_ms)
                continue
            waiting = [Waiting(*encode_item(message, self._next_id), sent) for message, sent in sends]
            for run in split(waiting):
                self._batches.send(topic, info, None, run, _Report(run), timeout_ms=timeout_ms)


class _Report:
    """Reports a batch's outcomes to its senders."""

    __slots__ = ("_run",)

    def __init__(self, run: list[Waiting[Sent]]) -> None:
        self._run = run

    def __call__(self, outcomes: Outcomes) -> None:
        for waiting, outcome in zip(self._run, outcomes, strict=True):
            waiting.token(outcome if isinstance(outcome, LibraError) else [outcome])
