"""The sender: sends prepared messages, attempt by attempt, with one callback for the result; how it handles
partly refused batches, and brokers that go away (GO_AWAY) or have no timers.

It uses callbacks instead of tasks: one send of a fast producer costs a request and a closure.
Upstream: DefaultMQProducerImpl.sendDefaultImpl, MQClientAPIImpl.sendMessage.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from libramq.client.producing.accumulator import Content, unique_ids
from libramq.client.producing.fault_strategy import FaultStrategy
from libramq.client.producing.producer_settings import ProducerSettings
from libramq.client.producing.send_attempts import Attempt, SendAttempts
from libramq.client.producing.send_request import Prepared, prepare_batch, send_call
from libramq.client.producing.send_result import SendResult, send_results
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.client.routing.routes import Routes
from libramq.clock import Clock, MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, ConnectFailed, FeatureNotSupported, LibraError, RemoteError
from libramq.message.ids import MessageIds
from libramq.message.queue import MessageQueue
from libramq.remoting.command import VERSION_5_0, Command, version_name
from libramq.rpc.call import Call
from libramq.transport.remotes import Remotes

T = TypeVar("T")


#: Asks the broker at an address for its version number, and calls back; the last argument is a timeout in ms.
AskVersion = Callable[[str, Callable[[int | LibraError], None], int], None]
#: Called with one result per message, or the error.
Sent = Callable[[Sequence[SendResult] | LibraError], None]
#: The outcome of each message, in the order of the batch.
Outcomes = Sequence[SendResult | LibraError]


class SendCounts:
    """Counts a producer's messages and requests since its start."""

    def __init__(self) -> None:
        self.in_flight = self.sent = self.failed = self.retries = self.requests = self.milliseconds = 0


class Sender:
    """Sends prepared requests, and batches. ids: creates the ids of their messages."""

    def __init__(
        self,
        remotes: Remotes,
        routes: Routes,
        strategy: FaultStrategy,
        settings: ProducerSettings,
        clock: Clock,
        ids: MessageIds,
        *,
        ask_version: AskVersion,
    ) -> None:
        self._remotes = remotes
        self._routes = routes
        self._table = routes.table
        self._strategy = strategy
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._ask_version = ask_version
        self._have_timers: set[str] = set()  # Addresses of brokers.
        self.counts = SendCounts()

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
            chosen_queue,
            left=1 + self._settings.retries,
            deadline_ms=now_ms + timeout_ms,
            retry_when_not_safe=self._settings.retry_when_not_safe,
        )
        first = attempts.next(now_ms)
        assert first is not None, "a send starts before its time is up"
        count, counts = len(prepared.ids), self.counts
        counts.in_flight += count

        def ended(outcome: Sequence[SendResult] | LibraError) -> None:
            counts.in_flight -= count
            counts.requests += 1
            counts.milliseconds += self._clock.monotonic_ms() - now_ms
            if isinstance(outcome, LibraError):
                counts.failed += count
            else:
                counts.sent += count
            sent(outcome)

        self._try(prepared, attempts, first, ended)

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
        self._remotes.send(address, call.command(), None)

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
            except RemoteError as error:  # The answer cannot be read: the message may be stored.
                sent(error)
                return
            safe = reply.code == ResponseCode.SUCCESS
            following = attempts.stored(self._clock.monotonic_ms(), safe=safe)
            if following is None:
                sent(results)
            else:
                self.counts.retries += 1
                self._try(prepared, attempts, following, sent)

        self._remotes.send(address, call.command(), done, timeout_ms=attempt.timeout_ms)

    def _require_timers(
        self, address: str, prepared: Prepared, attempts: SendAttempts, attempt: Attempt, sent: Sent
    ) -> None:
        """Send a timer message if the broker has timers: others would deliver it at once."""

        began_ms = self._clock.monotonic_ms()

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
                left_ms = attempt.timeout_ms - (self._clock.monotonic_ms() - began_ms)
                self._try(prepared, attempts, Attempt(attempt.queue, max(1, left_ms)), sent)

        self._ask_version(address, known, attempt.timeout_ms)

    def connection_lost(self, address: str) -> None:
        """Handle the end of a connection: the broker may return with another version."""
        self._have_timers.discard(address)

    def _failed(self, prepared: Prepared, attempts: SendAttempts, error: LibraError, sent: Sent) -> None:
        following = attempts.failed(error, self._clock.monotonic_ms())
        if following is None:
            sent(error)
        else:
            self.counts.retries += 1
            self._try(prepared, attempts, following, sent)

    def _no_master(self, queue: MessageQueue) -> ConnectFailed:
        self._routes.look_again(self._clock.monotonic_ms())
        return ConnectFailed(
            f"broker {queue.broker_name} has no master now, so queue {queue} cannot be written; start it, or "
            "let the producer choose another queue"
        )

    def ask(
        self, broker_name: str, call: Call[T], answered: Callable[[T | LibraError], None], *, timeout_ms: int
    ) -> None:
        """Make any other request to a broker's master, in one attempt; `answered` is called once."""
        address = self._table.master(broker_name)
        if address is None:
            answered(ConnectFailed(f"broker {broker_name} is not known, or has no master now; start it"))
            return

        def done(reply: Command | LibraError) -> None:
            answered(call.outcome(reply, where=f"broker {broker_name} at {address}"))

        self._remotes.send(address, call.command(), done, timeout_ms=timeout_ms)

    # Batches.

    def send_batch(
        self,
        topic: str,
        info: TopicPublishInfo,
        queue: MessageQueue | None,
        contents: Sequence[Content],
        sent: Callable[[Outcomes], None],
        *,
        timeout_ms: int,
    ) -> None:
        """Send messages of a topic in one request, and find those that the broker refuses.

            refused as illegal ─► first half ─► second half      until the illegal message is alone

        A broker stores a batch as a whole or not at all, so one message that it does not accept, or a batch
        over its maxMessageSize, would fail its neighbours, which other callers may have sent. Halves keep
        their order. `sent` is called once, with all outcomes.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self._send_part(topic, info, queue, contents, unique_ids(contents, self._ids), sent, deadline_ms)

    def _send_part(
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
                self.counts.failed -= len(contents)  # The halves count.
                half = len(contents) // 2

                def first_sent(first: Outcomes) -> None:
                    self._send_part(
                        topic, info, queue, contents[half:], ids[half:],
                        lambda second: sent([*first, *second]), deadline_ms,
                    )  # fmt: skip

                self._send_part(topic, info, queue, contents[:half], ids[:half], first_sent, deadline_ms)
            else:
                sent([outcome] * len(contents))

        prepared = prepare_batch(topic, contents, ids)
        left_ms = max(1, deadline_ms - self._clock.monotonic_ms())
        self.send(prepared, info, queue, answered, timeout_ms=left_ms)


def _is_refusal(error: LibraError) -> bool:
    return isinstance(error, BrokerError) and error.response_code == ResponseCode.MESSAGE_ILLEGAL
