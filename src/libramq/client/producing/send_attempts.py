"""The attempts of one send: after which failures it is tried again, at which queue, and when it gives up.

        outcome                                   free choice of queue          fixed queue
    stored                                    done                          done
    stored, not safe yet                      done, or next if asked for    done
    cannot connect, timeout, connection lost  next                          next, same queue
    error answer, code worth another broker   next                          done
    error answer, any other code              done                          done

Upstream: DefaultMQProducerImpl.sendDefaultImpl (free choice), MQClientAPIImpl.onExceptionImpl (given queue).
"""

from dataclasses import dataclass
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
    """The attempts of one send, from the first to the last. left: how many more there may be."""

    _strategy: FaultStrategy
    _info: TopicPublishInfo
    _chosen_queue: MessageQueue | None
    _left: int
    _began_ms: MonotonicMs
    _deadline_ms: MonotonicMs
    _retry_when_not_safe: bool = False
    _queue: MessageQueue | None = None

    def stored(self, now_ms: MonotonicMs, *, safe: bool) -> Attempt | None:
        """Handle a stored message; return None if that is the end."""
        assert self._queue is not None, "an outcome follows an attempt"
        latency_ms = now_ms - self._began_ms
        self._strategy.update(self._queue.broker_name, latency_ms, reachable=True, now_ms=now_ms)
        if safe or not self._retry_when_not_safe or self._chosen_queue is not None:
            return None
        return self.next(now_ms)

    def failed(self, error: LibraError, now_ms: MonotonicMs) -> Attempt | None:
        """Handle a failed attempt; return None if its error is the end."""
        assert self._queue is not None, "an outcome follows an attempt"
        name = self._queue.broker_name
        if isinstance(error, BrokerError):
            self._strategy.update(name, ISOLATION_LATENCY_MS, reachable=False, now_ms=now_ms)
            if self._chosen_queue is not None or error.response_code not in RETRY_RESPONSE_CODES:
                return None
        elif isinstance(error, FeatureNotSupported):
            if self._chosen_queue is not None:  # Otherwise another broker may be of a later version.
                return None
        elif isinstance(error, RemoteError):
            # Without the detector, only another attempt can show whether it is reachable again.
            self._strategy.update(name, ISOLATION_LATENCY_MS, reachable=True, now_ms=now_ms)
        else:
            return None
        return self.next(now_ms)

    def next(self, now_ms: MonotonicMs) -> Attempt | None:
        """Return the first attempt, or the one after a failure; None: the time or the retries are used up."""
        left_ms = self._deadline_ms - now_ms
        if self._left <= 0 or left_ms <= 0:
            return None
        self._left -= 1
        if self._chosen_queue is not None:
            queue = self._chosen_queue
        else:
            last_broker = None
            if self._queue is not None:
                last_broker = self._queue.broker_name
                self._strategy.start_anew()
            queue = self._strategy.select(self._info, last_broker, now_ms)
        self._queue, self._began_ms = queue, now_ms
        return Attempt(queue, left_ms)
