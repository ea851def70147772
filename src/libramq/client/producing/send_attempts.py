"""The attempts of one send: after which failures it is tried again, at which queue, and when it gives up.

        outcome                                   free choice of queue          fixed queue
    stored                                    done                          done
    stored, not safe yet                      done, or next if asked for    done
    cannot connect, timeout, connection lost  next                          next, same queue
    error answer, code worth another broker   next                          done
    error answer, any other code              done                          done

Upstream: DefaultMQProducerImpl.sendDefaultImpl (free choice), MQClientAPIImpl.onExceptionImpl (given queue).
"""

from dataclasses import dataclass, field
from typing import Final

from libramq.client.producing.fault_strategy import ISOLATION_LATENCY_MS, FaultStrategy
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.clock import MonotonicMs
from libramq.errors import BrokerError, FeatureNotSupported, LibraError, RemoteError
from libramq.message.queue import MessageQueue

#: DefaultMQProducer.retryResponseCodes: topic not there, not available, system error, busy, no permission,
#: no buyer id, not in current unit, go away.
RETRY_RESPONSE_CODES: Final = frozenset({17, 14, 1, 2, 16, 204, 205, 1500})


@dataclass(frozen=True, slots=True)
class Attempt:
    """Send to this queue; the answer must come within the time."""

    queue: MessageQueue
    timeout_ms: int


@dataclass(slots=True)
class SendAttempts:
    """The attempts of one send, from the first to the last. left: how many remain."""

    strategy: FaultStrategy
    info: TopicPublishInfo
    chosen_queue: MessageQueue | None
    left: int
    deadline_ms: MonotonicMs
    retry_when_not_safe: bool = False
    _queue: MessageQueue | None = field(default=None, init=False)
    _began_ms: MonotonicMs = field(default=MonotonicMs(0), init=False)

    def stored(self, now_ms: MonotonicMs, *, safe: bool) -> Attempt | None:
        """Handle a stored message; return the next attempt, if any."""
        assert self._queue is not None, "an outcome follows an attempt"
        latency_ms = now_ms - self._began_ms
        self.strategy.update(self._queue.broker_name, latency_ms, reachable=True, now_ms=now_ms)
        if safe or not self.retry_when_not_safe or self.chosen_queue is not None:
            return None
        return self.next(now_ms)

    def failed(self, error: LibraError, now_ms: MonotonicMs) -> Attempt | None:
        """Handle a failed attempt; return the next attempt, if any."""
        assert self._queue is not None, "an outcome follows an attempt"
        name = self._queue.broker_name
        if isinstance(error, BrokerError):
            self.strategy.update(name, ISOLATION_LATENCY_MS, reachable=False, now_ms=now_ms)
            if self.chosen_queue is not None or error.response_code not in RETRY_RESPONSE_CODES:
                return None
        elif isinstance(error, FeatureNotSupported):
            if self.chosen_queue is not None:  # Otherwise another broker may be of a later version.
                return None
        elif isinstance(error, RemoteError):
            # Without the detector, only another attempt can show whether it is reachable again.
            self.strategy.update(name, ISOLATION_LATENCY_MS, reachable=True, now_ms=now_ms)
        else:
            return None
        return self.next(now_ms)

    def next(self, now_ms: MonotonicMs) -> Attempt | None:
        """Return the first attempt, or the one after a failure; None: the time or the retries are used up."""
        left_ms = self.deadline_ms - now_ms
        if self.left <= 0 or left_ms <= 0:
            return None
        self.left -= 1
        if self.chosen_queue is not None:
            queue = self.chosen_queue
        else:
            last_broker = None
            if self._queue is not None:
                last_broker = self._queue.broker_name
                self.strategy.start_anew()
            queue = self.strategy.select(self.info, last_broker, now_ms)
        self._queue, self._began_ms = queue, now_ms
        return Attempt(queue, left_ms)
