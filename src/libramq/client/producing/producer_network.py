"""The network side of a producer: its routes, heartbeats and sends; sends of one loop turn that travel
together; brokers' checks of transactions, and their ends.

It uses neither sockets nor loops itself: `Producer` runs it on the user's loop, the simulator in virtual
time.
Upstream: impl/MQClientInstance.java, DefaultMQProducerImpl.java.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, Unpack

from libramq.client.network_thread import NetworkSeams
from libramq.client.producing.accumulator import Content, split
from libramq.client.producing.fault_strategy import FaultStrategy
from libramq.client.producing.producer_settings import ProducerSettings
from libramq.client.producing.queue_selector import QueueSelector, check_queue, selected
from libramq.client.producing.request_reply import Replied, Requests, reply_properties
from libramq.client.producing.send_pipeline import Callback, SendPipeline
from libramq.client.producing.send_request import (
    Prepared,
    content_of,
    prepare_one,
    travels_alone,
)
from libramq.client.producing.send_result import SendResult
from libramq.client.producing.sender import Outcomes, Sender, Sent
from libramq.client.producing.transactions import STATE_FLAGS, Check, TransactionState
from libramq.client.routing.name_servers import NameServers
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.client.routing.routes import Routes
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConnectionLost, InvalidMessage, LibraError, RemoteError, RemoteProtocolError
from libramq.formats.route import MASTER_ID
from libramq.logs import get_logger
from libramq.message.ids import MessageIds, decode_offset_id
from libramq.message.message import Message, MessageExt
from libramq.message.properties import CORRELATION_ID
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records
from libramq.remoting.body.cluster import ClusterInfo
from libramq.remoting.body.heartbeat import HeartbeatData, ProducerData
from libramq.remoting.command import Command, reply_to
from libramq.remoting.headers import CheckTransactionStateHeader, EndTransactionHeader, decode_header
from libramq.rpc.broker_calls import end_transaction, heartbeat, unregister_client
from libramq.rpc.name_server_calls import cluster_info
from libramq.runtime.seams import Timer, Timers
from libramq.transport.access import OPEN, REQUEST_TIMEOUT_MS
from libramq.transport.outages import Outages, log_failed_request
from libramq.transport.remotes import STOPPED, Remotes

log = get_logger(__name__)


T = TypeVar("T")

#: Ours: how much the timeouts of messages that travel together may differ, as a share of the first one's. The
#: remaining timeout is computed at each send, and the clock may tick between two sends.
TIMEOUT_SPREAD: Final = 0.1


@dataclass(slots=True)
class _Gathered:
    """Messages of a topic that travel together, within the shortest of their timeouts."""

    info: TopicPublishInfo
    first_timeout_ms: int
    timeout_ms: int
    sends: list[tuple[Message, Sent]]

    def takes(self, timeout_ms: int) -> bool:
        """Return whether a message with this timeout may travel with these."""
        return abs(timeout_ms - self.first_timeout_ms) <= self.first_timeout_ms * TIMEOUT_SPREAD


class GatheredSends:
    """Sends the messages of one turn of the loop together, if any queue of their topic will do.

        64 tasks await send(…) ─► one request with 64 messages ─► its answer wakes 64 tasks ─► …

    This delays nothing: a message leaves at the end of the turn in which it was sent, alone if there is no
    other. Under load a batch's answer wakes its senders together, so they share the next batch as well.
    """

    def __init__(
        self,
        sender: Sender,
        timers: Timers,
        next_id: Callable[[], str],
        *,
        compress_over_bytes: int,
    ) -> None:
        self._sender = sender
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
            gathered = _Gathered(info, timeout_ms, timeout_ms, [])
            of_topic.append(gathered)
        gathered.sends.append((message, sent))
        gathered.timeout_ms = min(gathered.timeout_ms, timeout_ms)

    def send_now(self) -> None:
        """Send the gathered messages."""
        opened, self._open = self._open, {}
        for topic, gathered in [(topic, each) for topic, of_topic in opened.items() for each in of_topic]:
            info, timeout_ms = gathered.info, gathered.timeout_ms
            if len(gathered.sends) == 1:  # A single message needs no batch.
                ((message, sent),) = gathered.sends
                prepare = partial(prepare_one, compress_over_bytes=self._compress_over_bytes)
                prepared = self._encoded(prepare, message, sent)
                if prepared is not None:
                    self._sender.send(prepared, info, None, sent, timeout_ms=timeout_ms)
                continue
            contents: list[Content] = []
            senders: list[Sent] = []
            for message, sent in gathered.sends:
                content = self._encoded(content_of, message, sent)
                if content is not None:
                    contents.append(content)
                    senders.append(sent)
            for run in split(contents):
                report = partial(_report_outcomes, senders[run])
                self._sender.send_batch(topic, info, None, contents[run], report, timeout_ms=timeout_ms)

    def _encoded(
        self, encode: Callable[[Message, Callable[[], str]], T], message: Message, sent: Sent
    ) -> T | None:
        """Return an encoded message; None if its sender got an error instead."""
        try:
            return encode(message, self._next_id)
        except Exception as error:  # It was changed after the check. The others are still sent.
            if not isinstance(error, LibraError):
                error = InvalidMessage(
                    f"the message could not be encoded: {error!r}; was it changed after send()?"
                )
            sent(error)
            return None


def _report_outcomes(senders: list[Sent], outcomes: Outcomes) -> None:
    """Report a batch's outcomes to its senders."""
    for sent, outcome in zip(senders, outcomes, strict=True):
        sent(outcome if isinstance(outcome, LibraError) else [outcome])


#: Ours: how long unregistering may take.
UNREGISTER_TIMEOUT_MS: Final = 1_000


class ProducerNetwork:
    """One run of a producer, from `start` to `stop`. All methods are called on one thread."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        ids: MessageIds,
        check: Check | None = None,
        **seams: Unpack[NetworkSeams],
    ) -> None:
        timers, clock, randomness = seams["timers"], seams["clock"], seams["randomness"]
        self._settings = settings
        self._timers, self._clock = timers, clock
        self._ids = ids
        self._contacted: set[str] = set()
        self._remotes = Remotes(
            seams["dialer"],
            timers,
            clock.monotonic_ms,
            on_request=self._request_received,
            lost=self._connection_lost,
            access=seams.get("access", OPEN),
            outages=Outages(clock.monotonic_ms, of_known_only=True),
        )
        self._name_servers = NameServers(
            self._remotes, seams["name_server_addresses"], randomness, clock.monotonic_ms
        )
        self.routes = Routes(self._name_servers, default_queue_count=settings.default_topic_queue_nums)
        self.sender = Sender(
            self._remotes,
            self.routes,
            FaultStrategy(randomness, enabled=settings.latency_fault, table=settings.back_off_table),
            settings,
            clock,
            ids,
            ask_version=self._ask_version,
        )
        self.gathered = GatheredSends(
            self.sender, timers, ids, compress_over_bytes=settings.compress_over_bytes
        )
        self.pipeline = SendPipeline(
            self.sender,
            self.routes,
            timers,
            ids,
            settings,
        )
        self.waiting_requests = Requests(timers, settings.client_id)
        self._check = check
        self._refreshing: Timer | None = None
        self._heartbeat_timer: Timer | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Start; brokers are contacted for the first send, or at once if they may check transactions."""
        self._refresh_later()
        self._send_heartbeats()

    def stop(self, stopped: Callable[[None], None]) -> None:
        """Unregister from the brokers, and close; messages that still wait are not sent."""
        self._is_stopped = True
        for timer in (self._refreshing, self._heartbeat_timer):
            if timer is not None:
                timer.cancel()
        self.pipeline.close()
        self.gathered.send_now()
        self.waiting_requests.close(ConnectionLost(STOPPED))
        self.routes.close()

        def unregistered() -> None:
            self._remotes.close()
            stopped(None)

        self._unregister(unregistered)

    def send(
        self,
        message: Message,
        info: TopicPublishInfo,
        sent: Sent,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int,
        is_half: bool = False,
    ) -> None:
        """Send a message to a queue of its topic, or to the one chosen for it. is_half: in a transaction.

        Without a chosen queue, it travels with the other messages of this turn of the loop.
        """
        settings = self._settings
        is_any_queue = queue is None and selector is None
        is_small = len(message.body) < settings.compress_over_bytes
        if is_any_queue and is_small and not is_half and not travels_alone(message):
            self.gathered.send(message, info, sent, timeout_ms=timeout_ms)
            return
        queue = wanted_queue(message, info, queue, selector)
        half_of = settings.group if is_half else None
        prepared = prepare_one(
            message, self._ids, compress_over_bytes=settings.compress_over_bytes, half_of=half_of
        )
        if is_half:
            sent = self._registering(sent)
        may_pass = is_half or message.is_delayed  # Such messages are stored elsewhere first.
        send = self.sender.send if may_pass else self.send_prepared
        send(prepared, info, queue, sent, timeout_ms=timeout_ms)

    def request(
        self,
        message: Message,
        info: TopicPublishInfo,
        replied: Replied,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int,
    ) -> None:
        """Send a message as a request; `replied` is called once, with the reply or the error."""
        queue = wanted_queue(message, info, queue, selector)
        self._contact(self.routes.table.masters() - self._contacted)  # Masters pass the reply on.
        added = self.waiting_requests.begin(message.topic, replied, timeout_ms=timeout_ms)

        def sent(outcome: Sequence[SendResult] | LibraError) -> None:
            if isinstance(outcome, LibraError):
                self.waiting_requests.end(added[CORRELATION_ID], outcome)

        prepared = prepare_one(
            message, self._ids, compress_over_bytes=self._settings.compress_over_bytes, added=added
        )
        self.send_prepared(prepared, info, queue, sent, timeout_ms=timeout_ms)

    def send_prepared(
        self,
        prepared: Prepared,
        info: TopicPublishInfo,
        queue: MessageQueue | None,
        sent: Sent,
        *,
        timeout_ms: int,
    ) -> None:
        """Send to any queue, or to the chosen one behind its messages of `send_nowait`."""
        if queue is None or not self.pipeline.is_in_use(queue):
            self.sender.send(prepared, info, queue, sent, timeout_ms=timeout_ms)
            return
        until_ms = self._clock.monotonic_ms() + timeout_ms

        def send(answered: Sent) -> None:
            left_ms = max(1, until_ms - self._clock.monotonic_ms())
            self.sender.send(prepared, info, queue, answered, timeout_ms=left_ms)

        callbacks = [_together(len(prepared.ids), sent)] * len(prepared.ids)
        self.pipeline.send_behind(queue, send, callbacks, len(prepared.body), wait_ms=timeout_ms)

    def send_oneway(self, prepared: Prepared, info: TopicPublishInfo, queue: MessageQueue | None) -> None:
        """Send without a response, in the same order."""
        if queue is None or not self.pipeline.is_in_use(queue):
            self.sender.send_oneway(prepared, info, queue)
            return

        def send(answered: Sent) -> None:
            with contextlib.suppress(LibraError):  # One-way messages may be lost.
                self.sender.send_oneway(prepared, info, queue)
            answered([])

        self.pipeline.send_behind(queue, send, [], len(prepared.body))

    def reply(
        self, request: MessageExt, message: Message, info: TopicPublishInfo, sent: Sent, *, timeout_ms: int
    ) -> None:
        """Send the reply to a request through the request's broker, which knows the requesting client."""
        prepared = prepare_one(
            message,
            self._ids,
            compress_over_bytes=self._settings.compress_over_bytes,
            added=reply_properties(request),
            is_reply=True,
        )
        queue = next((each for each in info.queues if each.broker_name == request.broker_name), None)
        self.sender.send(prepared, info, queue, sent, timeout_ms=timeout_ms)

    def _registering(self, sent: Sent) -> Sent:
        """Wrap `sent` so that this producer registers with the broker that stores the half message."""

        def stored(outcome: Sequence[SendResult] | LibraError) -> None:
            if not isinstance(outcome, LibraError):
                address = self.routes.table.master(outcome[0].queue.broker_name)
                if address is not None and address not in self._contacted:
                    self._send_heartbeat(address)
            sent(outcome)

        return stored

    def _request_received(self, address: str, request: Command, answer: Callable[[Command], None]) -> None:
        if self._is_stopped:
            return
        if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            answer(self.waiting_requests.reply_received(request))
        elif request.code != RequestCode.CHECK_TRANSACTION_STATE or self._check is None:
            remark = f"this producer does not serve request {request.code}"
            answer(reply_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
        else:
            self._check_transaction(self._check, address, request)

    def _check_transaction(self, check: Check, address: str, request: Command) -> None:
        """Find the outcome of a transaction for a broker, and send it as a request instead of an answer."""
        try:
            header = decode_header(request, CheckTransactionStateHeader)
            (message,) = decode_records(request.body)
        except (LibraError, ValueError) as error:  # ValueError: not exactly one message.
            log.warning("a broker's check of a transaction cannot be read", broker=address, reason=str(error))
            return

        def found(state: TransactionState) -> None:
            if state is TransactionState.UNKNOWN:  # The broker asks again by itself.
                return
            answer = EndTransactionHeader(
                producer_group=self._settings.group,
                tran_state_table_offset=header.tran_state_table_offset,
                commit_log_offset=header.commit_log_offset,
                commit_or_rollback=STATE_FLAGS[state],
                topic=message.topic,
                from_transaction_check=True,
                msg_id=header.msg_id,
                transaction_id=header.transaction_id,
            )
            self._remotes.send(address, end_transaction(answer, oneway=True).command(), None)

        check(message, found)

    def end_transaction(
        self,
        result: SendResult,
        state: TransactionState,
        ended: Callable[[LibraError | None], None],
        *,
        timeout_ms: int,
    ) -> None:
        """Commit or roll back; `ended` is called once. After an error the outcome is unknown."""
        try:
            physical_offset = decode_offset_id(result.offset_message_id).physical_offset
        except RemoteProtocolError as error:
            ended(error)
            return
        header = EndTransactionHeader(
            producer_group=self._settings.group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=STATE_FLAGS[state],
            topic=result.queue.topic,
            msg_id=result.message_id,
            transaction_id=result.transaction_id or result.message_id,
        )
        self.sender.ask(result.queue.broker_name, end_transaction(header), ended, timeout_ms=timeout_ms)

    def _refresh_later(self) -> None:
        if not self._is_stopped:
            self._refreshing = self._timers.after(self._settings.route_refresh_ms, self._refresh)

    def _refresh(self) -> None:
        self.routes.refresh(self._refresh_later)

    def _send_heartbeats(self) -> None:
        """Send a heartbeat to the masters of our topics; it also keeps the connections open."""
        self._heartbeat_timer = self._timers.after(self._settings.heartbeat_ms, self._send_heartbeats)
        if self._check is not None:
            self._name_servers.ask(cluster_info(), self._found_brokers)
        else:
            self._contact(self.routes.table.masters())

    def _found_brokers(self, outcome: ClusterInfo | LibraError) -> None:
        """Let every master ask us about its transactions: another process may have begun them."""
        masters = self.routes.table.masters()
        if isinstance(outcome, LibraError):
            log_failed_request(log, "brokers cannot be found that may ask check_transaction", outcome)
        else:
            found = (broker.broker_addrs.get(MASTER_ID) for broker in outcome.broker_addr_table.values())
            masters |= {address for address in found if address is not None}
        if not self._is_stopped:
            self._contact(masters)

    def _contact(self, addresses: Iterable[str]) -> None:
        for address in sorted(addresses):
            self._send_heartbeat(address)

    def _send_heartbeat(self, address: str) -> None:
        def answered(version: int | LibraError) -> None:
            if isinstance(version, LibraError):
                log_failed_request(log, "heartbeat failed", version, broker=address)

        self._ask_version(address, answered)

    def _connection_lost(self, address: str) -> None:
        self._contacted.discard(address)
        self.sender.connection_lost(address)

    def _ask_version(
        self,
        address: str,
        known: Callable[[int | LibraError], None],
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Send a heartbeat, and call back with the version in the broker's answer."""
        data = HeartbeatData(
            client_id=self._settings.client_id,
            producer_data_set=[ProducerData(group_name=self._settings.group)],
        )
        self._contacted.add(address)

        def answered(outcome: Command | RemoteError) -> None:
            known(outcome if isinstance(outcome, RemoteError) else outcome.version)

        self._remotes.send(address, heartbeat(data).command(), answered, timeout_ms=timeout_ms)

    def _unregister(self, unregistered: Callable[[], None]) -> None:
        call = unregister_client(
            self._settings.client_id, producer_group=self._settings.group, consumer_group=None
        )
        addresses = [address for address in self._contacted if self._remotes.is_connected(address)]
        waiting = len(addresses)

        def answered(_: object) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                unregistered()

        for address in sorted(addresses):
            self._remotes.send(address, call.command(), answered, timeout_ms=UNREGISTER_TIMEOUT_MS)
        if not addresses:
            unregistered()


def _together(count: int, sent: Sent) -> Callback:
    """Return a callback for each of several messages that reports their outcomes together."""
    outcomes: list[SendResult] = []
    errors: list[LibraError] = []

    def answered(outcome: SendResult | LibraError) -> None:
        if isinstance(outcome, LibraError):
            errors.append(outcome)
        else:
            outcomes.append(outcome)
        if len(outcomes) + len(errors) == count:
            sent(errors[0] if errors else outcomes)

    return answered


def wanted_queue(
    message: Message, info: TopicPublishInfo, queue: MessageQueue | None, selector: QueueSelector | None
) -> MessageQueue | None:
    """Return the user's choice of queue; None for any. Raises as `check_queue`."""
    if selector is not None:
        return selected(selector, info.queues, message)
    return None if queue is None else check_queue("the queue", queue, message)
