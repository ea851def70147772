"""The statistics of clients: frozen snapshots of what one has done since its start, and has in hand.

Counts are of messages, times are in milliseconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """The messages of a producer, without one-way ones.

    in_flight: sent, and not answered yet. buffered_bytes: the memory of what `send_nowait` has taken and no
    broker has answered yet. sent: stored by brokers. failed: given up. retries: further attempts. requests:
    those that were answered or have failed; request_ms: the time that they took, together.
    """

    in_flight: int = 0
    buffered_bytes: int = 0
    sent: int = 0
    failed: int = 0
    retries: int = 0
    requests: int = 0
    request_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """The messages of a PushConsumer or a Consumer, whose program is the handler.

    queues: owned now, retry queues among them; none with `pop`. waiting: pulled, and not begun. in_flight: in
    handlers, or in the program's hands. handled: done. retried: given back by a handler that failed, to come
    again or to become dead letters. rejected: made dead letters by a handler. handler_calls: those that have
    ended; handler_ms: the time that they took, together (PushConsumer). lag: from what is done to the end of
    the queues, by the brokers' last answers; None if no end is known. queues_without_lag: queues whose end
    is not known.
    """

    queues: int = 0
    waiting: int = 0
    in_flight: int = 0
    handled: int = 0
    retried: int = 0
    rejected: int = 0
    handler_calls: int = 0
    handler_ms: int = 0
    lag: int | None = None
    queues_without_lag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerStatistics:
    """The messages of a SimpleConsumer.

    received: returned by `receive`. acknowledged, returned (`nack`): of these. in_flight: the others, those
    that are visible again since among them. Whatever is acknowledged twice counts twice.
    """

    received: int = 0
    acknowledged: int = 0
    returned: int = 0

    @property
    def in_flight(self) -> int:
        """Return how many were received, and neither acknowledged nor given back."""
        return max(0, self.received - self.acknowledged - self.returned)
