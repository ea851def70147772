"""The batch sender: sends encoded messages of a topic in one request, and finds those that a broker refuses.

    refused as illegal ─► first half ─► second half      until the illegal message is alone

A broker stores a batch as a whole or not at all, so one message that it does not accept, or a batch over its
maxMessageSize, would fail its neighbours, which strangers may have sent. Halves keep their order.
"""

from collections.abc import Callable, Sequence

from libramq.client.producing.batch_content import Content, unique_ids
from libramq.client.producing.send_request import prepare_batch
from libramq.client.producing.send_result import SendResult
from libramq.client.producing.sender import Sender
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.clock import Clock, MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError
from libramq.message.ids import MessageIds
from libramq.message.queue import MessageQueue

#: What became of each message, in the order of the batch.
Outcomes = Sequence[SendResult | LibraError]


class BatchSender:
    """Sends batches to any queue of their topic, or to a given one."""

    def __init__(self, sender: Sender, clock: Clock, ids: MessageIds) -> None:
        self._sender = sender
        self._clock = clock
        self._ids = ids

    def send(
        self,
        topic: str,
        info: TopicPublishInfo,
        queue: MessageQueue | None,
        contents: Sequence[Content],
        sent: Callable[[Outcomes], None],
        *,
        timeout_ms: int,
    ) -> None:
        """Send messages; `sent` is called once, with an outcome for each."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self._send(topic, info, queue, contents, unique_ids(contents, self._ids), sent, deadline_ms)

    def _send(
        self,
        topic: str,
        info: TopicPublishInfo,
        queue: MessageQueue | None,
        contents: Sequence[Content],
        ids: Sequence[str],
        sent: Callable[[Outcomes], None],
        deadline_ms: MonotonicMs,
    ) -> None:
        def answered(outcome: Sequence[SendResult] | LibraError) -> None:
            if not isinstance(outcome, LibraError):
                sent(outcome)
            elif len(contents) > 1 and _is_refusal(outcome) and self._clock.monotonic_ms() < deadline_ms:
                half = len(contents) // 2

                def first_sent(first: Outcomes) -> None:
                    self._send(
                        topic, info, queue, contents[half:], ids[half:],
                        lambda second: sent([*first, *second]), deadline_ms,
                    )  # fmt: skip

                self._send(topic, info, queue, contents[:half], ids[:half], first_sent, deadline_ms)
            else:
                sent([outcome] * len(contents))

        prepared = prepare_batch(topic, contents, ids)
        left_ms = max(1, deadline_ms - self._clock.monotonic_ms())
        self._sender.send(prepared, info, queue, answered, timeout_ms=left_ms)


def _is_refusal(error: LibraError) -> bool:
    return isinstance(error, BrokerError) and error.response_code == ResponseCode.MESSAGE_ILLEGAL
