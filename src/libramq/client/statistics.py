"""The statistics of clients: frozen snapshots of the work done since the start, and of current work.

Counts are of messages, times are in milliseconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """The messages of a producer, without one-way ones.

    in_flight: sent and not answered yet. buffered_bytes: the memory of unanswered messages of `send_nowait`.
    sent: stored by brokers. failed: given up. retries: further attempts. requests: answered or failed
    requests; request_ms: their total time.
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

    queues: owned queues, including retry queues; none with `pop`. waiting: pulled and not begun. in_flight:
    being processed by handlers or the program. handled: done. retried: failed in a handler, to be redelivered
    or to become dead letters. rejected: made dead letters by a handler. handler_calls: finished calls;
    handler_ms: their total time (PushConsumer). lag: from the done messages to the ends of the queues, by the
    brokers' last answers; None if no end is known. queues_without_lag: queues whose end is not known.
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

    received: returned by `receive`. acknowledged, returned (`nack`): how many of these. in_flight: the rest,
    including messages that have become visible again. Messages acknowledged twice count twice.
    """

    received: int = 0
    acknowledged: int = 0
    returned: int = 0

    @property
    def in_flight(self) -> int:
        """Return how many were received, and neither acknowledged nor returned."""
        return max(0, self.received - self.acknowledged - self.returned)
