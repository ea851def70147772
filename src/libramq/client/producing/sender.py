"""The sender: sends prepared messages to brokers, attempt by attempt, and reports the result.

Callbacks and no tasks: one send of a fast producer costs a request and a closure.
Upstream: DefaultMQProducerImpl.sendDefaultImpl, MQClientAPIImpl.sendMessage.
"""

from collections.abc import Callable, Sequence

from libramq.client.producing.fault_strategy import FaultStrategy
from libramq.client.producing.send_attempts import Attempt, Fail, SendAttempts
from libramq.client.producing.send_request import Prepared, SendSettings, send_call
from libramq.client.producing.send_result import SendResult, send_results
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.client.routing.routes import Routes
from libramq.clock import Clock
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, ConnectFailed, FeatureNotSupported, LibraError, RemoteError
from libramq.message.queue import MessageQueue
from libramq.remoting.command import VERSION_5_0, Command, version_name
from libramq.transport.remotes import Remotes

#: Asks the broker at an address for its version, and calls back with its number, within milliseconds.
AskVersion = Callable[[str, Callable[[int | LibraError], None], int], None]
#: Called with one result per message, or the error.
Sent = Callable[[Sequence[SendResult] | LibraError], None]


class Sender:
    """Sends prepared requests."""

    def __init__(
        self,
        remotes: Remotes,
        routes: Routes,
        strategy: FaultStrategy,
        settings: SendSettings,
        clock: Clock,
        *,
        retries: int,
        retry_when_not_safe: bool,
        ask_version: AskVersion,
    ) -> None:
        self._remotes = remotes
        self._routes = routes
        self._table = routes.table
        self._strategy = strategy
        self._settings = settings
        self._clock = clock
        self._retries = retries
        self._retry_when_not_safe = retry_when_not_safe
        self._ask_version = ask_version
        self._have_timers: set[str] = set()  # Addresses of brokers.

    def send(
        self,
        prepared: Prepared,
        info: TopicPublishInfo,
        chosen_queue: MessageQueue | None,
        sent: Sent,
        *,
        timeout_ms: int,
    ) -> None:
        """Send to a queue of the topic, or to the given one; `sent` is called exactly once."""
        now_ms = self._clock.monotonic_ms()
        attempts = SendAttempts(
            self._strategy,
            info,
            chosen_queue=chosen_queue,
            retries=self._retries,
            timeout_ms=timeout_ms,
            now_ms=now_ms,
            retry_when_not_safe=self._retry_when_not_safe,
        )
        first = attempts.next(now_ms)
        assert first is not None, "a send starts before its time is up"
        self._try(prepared, attempts, first, sent)

    def send_oneway(
        self, prepared: Prepared, info: TopicPublishInfo, chosen_queue: MessageQueue | None
    ) -> None:
        """Send once, without a response."""
        queue = (
            chosen_queue
            if chosen_queue is not None
            else self._strategy.select(info, None, self._clock.monotonic_ms())
        )
        address = self._table.master(queue.broker_name)
        if address is None:
            raise self._no_master(queue)
        call = send_call(prepared, queue, self._settings, born_ms=self._clock.wall_ms(), oneway=True)
        self._remotes.send_oneway(address, call.command())

    def _try(self, prepared: Prepared, attempts: SendAttempts, attempt: Attempt, sent: Sent) -> None:
        queue = attempt.queue
        address = self._table.master(queue.broker_name)
        if address is None:
            self._failed(prepared, attempts, self._no_master(queue), sent)
            return
        if prepared.is_timed and address not in self._have_timers:
            self._require_timers(address, prepared, attempts, attempt, sent)
            return
        call = send_call(prepared, queue, self._settings, born_ms=self._clock.wall_ms())

        def done(outcome: Command | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                self._failed(prepared, attempts, outcome, sent)
                return
            try:
                reply = call.result(outcome, where=f"broker {queue.broker_name} at {address}")
                results = send_results(prepared.ids, queue, reply)
            except BrokerError as error:
                if error.response_code == ResponseCode.GO_AWAY:
                    self._remotes.close_connection(address)
                self._failed(prepared, attempts, error, sent)
                return
            except RemoteError as error:  # It cannot be read: the message may be stored.
                sent(error)
                return
            safe = reply.code == ResponseCode.SUCCESS
            following = attempts.stored(self._clock.monotonic_ms(), safe=safe)
            if following is None:
                sent(results)
            else:
                self._try(prepared, attempts, following, sent)

        self._remotes.send(address, call.command(), done, timeout_ms=attempt.timeout_ms)

    def _require_timers(
        self, address: str, prepared: Prepared, attempts: SendAttempts, attempt: Attempt, sent: Sent
    ) -> None:
        """Send a timer message if the broker has timers: one without delivers it at once."""

        asked_ms = self._clock.monotonic_ms()

        def known(version: int | LibraError) -> None:
            if isinstance(version, LibraError):
                self._failed(prepared, attempts, version, sent)
            elif 0 < version < VERSION_5_0:
                broker = f"broker {attempt.queue.broker_name} at {address}"
                error = FeatureNotSupported(
                    f"{broker} answers as RocketMQ {version_name(version)}, which delivers messages with "
                    "delay_ms or deliver_at at once; send them with a delay_level, or to brokers of 5.0 or "
                    "later"
                )
                self._failed(prepared, attempts, error, sent)
            else:
                self._have_timers.add(address)
                left_ms = attempt.timeout_ms - (self._clock.monotonic_ms() - asked_ms)
                self._try(prepared, attempts, Attempt(attempt.queue, max(1, left_ms)), sent)

        self._ask_version(address, known, attempt.timeout_ms)

    def connection_lost(self, address: str) -> None:
        """Handle the end of a connection: the broker may return as one of another version."""
        self._have_timers.discard(address)

    def _failed(self, prepared: Prepared, attempts: SendAttempts, error: LibraError, sent: Sent) -> None:
        following = attempts.failed(error, self._clock.monotonic_ms())
        if isinstance(following, Fail):
            sent(following.error)
        else:
            self._try(prepared, attempts, following, sent)

    def _no_master(self, queue: MessageQueue) -> ConnectFailed:
        self._routes.look_again(self._clock.monotonic_ms())
        return ConnectFailed(
            f"broker {queue.broker_name} has no master now, so queue {queue} cannot be written; start it, or "
            "let the producer choose another queue"
        )
