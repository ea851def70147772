"""The producer: sends messages to topics.

    async with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:
        result = await producer.send(Message("Orders", b"...", keys="17"))

`send` waits for the broker's answer; `send_nowait` collects messages into batches and is meant for many.
Upstream: client/producer/DefaultMQProducer.java.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self

from libramq.client.core.accumulator import Waiting, split
from libramq.client.core.fault_strategy import BACK_OFF_TABLE, BackOff, FaultStrategy
from libramq.client.core.publish_info import TopicPublishInfo
from libramq.client.core.queue_selector import QueueSelector
from libramq.client.core.send_request import (
    Prepared,
    SendSettings,
    check_batch,
    encode_item,
    prepare_batch,
    prepare_one,
)
from libramq.client.identity import local_address, name_server_addresses, new_client_id
from libramq.client.name_servers import NameServers
from libramq.client.options import instance_of, whole_number
from libramq.client.routes import Routes
from libramq.client.send_pipeline import BUFFER_BYTES_MAX, Callback, SendPipeline
from libramq.client.send_result import SendResult
from libramq.client.sender import Sender
from libramq.clock import Clock, MonotonicMs, SystemClock
from libramq.errors import BufferFull, ConfigError, LibraError, LocalProtocolError, RemoteError
from libramq.logs import get_logger
from libramq.message.ids import UniqueIdGenerator
from libramq.message.message import BODY_BYTES_MAX, Message, validate
from libramq.message.names import validate_group
from libramq.message.queue import MessageQueue
from libramq.remoting.body.heartbeat import HeartbeatData, ProducerData
from libramq.remoting.credentials import Credentials
from libramq.rpc.broker_calls import heartbeat, unregister_client
from libramq.transport.access import Access
from libramq.transport.asyncio_remotes import AsyncioRemotes
from libramq.transport.outages import Outages, log_failed_request
from libramq.transport.tls import Tls

log = get_logger(__name__)

#: DefaultMQProducer.sendMsgTimeout and retryTimesWhenSendFailed.
SEND_TIMEOUT_MS: Final = 3_000
RETRIES: Final = 2
#: ClientConfig.pollNameServerInterval and heartbeatBrokerInterval.
ROUTE_REFRESH_MS: Final = 30_000
HEARTBEAT_MS: Final = 30_000
#: Ours: how long goodbye may take.
UNREGISTER_TIMEOUT_MS: Final = 1_000

_A_QUEUE: Final = "a MessageQueue, as publish_queues() lists them"

Work = Callable[[], Awaitable[None]]


class Producer:
    """Sends messages. One for a process is enough; it belongs to the event loop it was started on.

    namesrv: "host:port", several separated by ";"; else the environment's NAMESRV_ADDR, else 127.0.0.1:9876.
    retries: further attempts, at other brokers, within send_timeout_ms.
    latency_fault: keep away from brokers that were slow or failed, for the times of back_off_table.
    linger_ms: how long `send_nowait` waits for company. buffer_bytes_max: how much may wait.
    credentials: whose requests these are, where brokers ask (ACL). tls: connections are encrypted.
    """

    def __init__(
        self,
        *,
        group: str = "LIBRA_PRODUCER",
        namesrv: str | Sequence[str] | None = None,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retries: int = RETRIES,
        retry_when_not_safe: bool = False,
        latency_fault: bool = False,
        back_off_table: Sequence[BackOff] = BACK_OFF_TABLE,
        body_bytes_max: int = BODY_BYTES_MAX,
        compress_over_bytes: int = 4096,
        default_topic_queue_nums: int = 4,
        route_refresh_ms: int = ROUTE_REFRESH_MS,
        heartbeat_ms: int = HEARTBEAT_MS,
        linger_ms: float = 1,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        clock: Clock | None = None,
        randomness: random.Random | None = None,
    ) -> None:
        for name, value, low in (
            ("send_timeout_ms", send_timeout_ms, 1),
            ("retries", retries, 0),
            ("body_bytes_max", body_bytes_max, 1),
            ("compress_over_bytes", compress_over_bytes, 0),
            ("default_topic_queue_nums", default_topic_queue_nums, 1),
            ("route_refresh_ms", route_refresh_ms, 1),
            ("heartbeat_ms", heartbeat_ms, 1),
            ("buffer_bytes_max", buffer_bytes_max, 1),
        ):
            whole_number(name, value, low)
        instance_of("retry_when_not_safe", retry_when_not_safe, bool, "True or False")
        instance_of("latency_fault", latency_fault, bool, "True or False")
        instance_of("back_off_table", back_off_table, Sequence, "a sequence of BackOff(…)")
        for each in back_off_table:
            instance_of("an entry of back_off_table", each, BackOff, "a BackOff(…)")
        if isinstance(linger_ms, bool) or not isinstance(linger_ms, int | float) or not linger_ms >= 0:
            raise ConfigError(f"linger_ms is a number of milliseconds, 0 or more, not {linger_ms!r}")
        self.group = validate_group(group)
        self._name_server_addresses = name_server_addresses(namesrv)
        self._settings = SendSettings(
            group=group,
            default_topic_queue_nums=default_topic_queue_nums,
            compress_over_bytes=compress_over_bytes,
            body_bytes_max=body_bytes_max,
        )
        self._send_timeout_ms = send_timeout_ms
        self._retries = retries
        self._retry_when_not_safe = retry_when_not_safe
        self._route_refresh_ms = route_refresh_ms
        self._heartbeat_ms = heartbeat_ms
        self._linger_ms = linger_ms
        self._buffer_bytes_max = buffer_bytes_max
        self._access = Access(credentials, tls)
        self._clock = clock or SystemClock()
        self._random = randomness or random.Random()
        self._strategy = FaultStrategy(self._random, enabled=latency_fault, table=back_off_table)
        ip = local_address(self._name_server_addresses[0])
        self.client_id = new_client_id(ip, self._clock)
        self._next_id = UniqueIdGenerator(ip, os.getpid(), self._clock, self._random)
        self._running = self._stopping = False
        self._greeted: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin; brokers are contacted when there is something to send."""
        if self._running or self._stopping:
            state = "is being stopped" if self._stopping else "runs already"
            raise LocalProtocolError(f"this producer {state}")
        self._loop = asyncio.get_running_loop()
        self._remotes = AsyncioRemotes(
            self._clock.monotonic_ms,
            lost=self._greeted.discard,
            access=self._access,
            outages=Outages(self._clock.monotonic_ms, of_known_only=True),
        )
        name_servers = NameServers(self._remotes, self._name_server_addresses, self._random)
        self._routes = Routes(name_servers, default_queue_count=self._settings.default_topic_queue_nums)
        self._sender = Sender(
            self._remotes,
            self._routes.table,
            self._strategy,
            self._settings,
            self._clock,
            retries=self._retries,
            retry_when_not_safe=self._retry_when_not_safe,
        )
        self._pipeline = SendPipeline(
            self._sender,
            self._routes,
            self._next_id,
            timeout_ms=self._send_timeout_ms,
            linger_ms=self._linger_ms,
            compress_over_bytes=self._settings.compress_over_bytes,
            buffer_bytes_max=self._buffer_bytes_max,
        )
        self._running = True
        self._spawn_every(self._route_refresh_ms, self._routes.refresh)
        self._spawn_every(self._heartbeat_ms, self._greet_all)

    async def stop(self) -> None:
        """Send what waits, say goodbye to the brokers, and end."""
        if not self._running:
            return
        self._check_loop()
        self._running, self._stopping = False, True
        try:
            await self._pipeline.flush()
        finally:
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            await self._pipeline.close()
            await self._routes.close()
            await self._say_goodbye()
            await self._remotes.aclose()
            self._stopping = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until the broker has stored it; raises LibraError."""
        validate(message, self._settings.body_bytes_max)
        began_ms = self._clock.monotonic_ms()
        info = await self._info(message.topic)
        given = _given(message, info, queue, selector)
        prepared = prepare_one(message, self._next_id, compress_over_bytes=self._settings.compress_over_bytes)
        return (await self._deliver(prepared, info, given, timeout_ms, began_ms))[0]

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together: one request, or as many as their size asks for."""
        check_batch(messages)
        if queue is not None:
            instance_of("queue", queue, MessageQueue, _A_QUEUE)
        for message in messages:
            validate(message, self._settings.body_bytes_max)
        topic = messages[0].topic
        info = await self._info(topic)
        waiting = [Waiting(*encode_item(message, self._next_id), None) for message in messages]
        results = []
        for run in split(waiting):
            prepared = prepare_batch(topic, [each.unique_id for each in run], [each.item for each in run])
            results += await self._deliver(prepared, info, queue, timeout_ms, self._clock.monotonic_ms())
        return results

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: QueueSelector | None = None
    ) -> None:
        """Send a message and ask for no answer: it may be lost."""
        validate(message, self._settings.body_bytes_max)
        info = await self._info(message.topic)
        given = _given(message, info, queue, selector)
        prepared = prepare_one(message, self._next_id, compress_over_bytes=self._settings.compress_over_bytes)
        self._sender.send_oneway(prepared, info, given)

    def send_nowait(
        self,
        message: Message,
        callback: Callback | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Hand a message over; it travels with others. Raises BufferFull when too much waits.

        callback: called with the SendResult or the LibraError. Errors of messages without one are raised by
        the next `flush`.
        """
        self.check(message)
        check_hand_over(callback, queue)
        if not self._pipeline.has_room:
            raise BufferFull(
                f"{self._pipeline.buffered_bytes} bytes wait to be sent; await wait_for_room() or flush()"
            )
        self._pipeline.send(message, callback, queue, selector)

    def check(self, message: Message) -> None:
        """Raise InvalidMessage for what no broker would take."""
        self._check_running()
        validate(message, self._settings.body_bytes_max)

    @property
    def has_room(self) -> bool:
        """Whether `send_nowait` takes a message now."""
        return self._pipeline.has_room

    async def flush(self) -> None:
        """Wait until everything given to `send_nowait` has been answered."""
        self._check_running()
        self._check_loop()
        await self._pipeline.flush()

    async def wait_for_room(self) -> None:
        """Wait until `send_nowait` takes more without raising BufferFull soon."""
        self._check_running()
        await self._pipeline.wait_for_room()

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a topic can be sent to, in route order."""
        return (await self._info(topic)).queues

    async def _info(self, topic: str) -> TopicPublishInfo:
        self._check_running()
        self._check_loop()
        info = self._routes.table.publish_info(topic)
        return info if info is not None and info.queues else await self._routes.publish_info(topic)

    async def _deliver(
        self,
        prepared: Prepared,
        info: TopicPublishInfo,
        given: MessageQueue | None,
        timeout_ms: int | None,
        began_ms: MonotonicMs,
    ) -> list[SendResult]:
        future: asyncio.Future[list[SendResult]] = asyncio.get_running_loop().create_future()

        def sent(outcome: list[SendResult] | LibraError) -> None:
            if future.done():
                return
            if isinstance(outcome, LibraError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        if timeout_ms is not None:
            whole_number("timeout_ms", timeout_ms, 1)
        spent_ms = self._clock.monotonic_ms() - began_ms
        budget_ms = self._send_timeout_ms if timeout_ms is None else timeout_ms
        self._sender.send(prepared, info, given, sent, timeout_ms=max(1, budget_ms - spent_ms))
        return await future

    def _check_running(self) -> None:
        if not self._running:
            raise LocalProtocolError("this producer does not run; use `async with` or await start()")

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise LocalProtocolError(
                "this producer was started on another event loop; make one for each loop, or use libramq.sync"
            )

    def _spawn_every(self, period_ms: int, work: Work) -> None:
        task = asyncio.get_running_loop().create_task(_every(period_ms, work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _greet_all(self) -> None:
        """Tell the masters of our topics that we are there; it also keeps the connections open."""
        data = HeartbeatData(
            client_id=self.client_id, producer_data_set=[ProducerData(group_name=self.group)]
        )
        for address in self._routes.table.masters():
            self._greeted.add(address)
            try:
                await self._remotes.call(address, heartbeat(data).command())
            except RemoteError as error:
                log_failed_request(log, "heartbeat failed", error, broker=address)

    async def _say_goodbye(self) -> None:
        call = unregister_client(self.client_id, producer_group=self.group, consumer_group=None)
        await asyncio.gather(
            *(
                self._remotes.call(address, call.command(), timeout_ms=UNREGISTER_TIMEOUT_MS)
                for address in self._greeted
                if self._remotes.is_connected(address)
            ),
            return_exceptions=True,
        )


def check_hand_over(callback: object, queue: object) -> None:
    """Raise ConfigError for what cannot go with a message that `send_nowait` takes."""
    if callback is not None and not callable(callback):
        raise ConfigError(f"the callback is a function, not {callback!r}")
    if queue is not None:
        instance_of("queue", queue, MessageQueue, _A_QUEUE)


def hand_over(
    producer: Producer,
    message: Message,
    callback: Callback | None,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
) -> None:
    """Do what `send_nowait` does, for shells of ours that have looked at `check` and `has_room` already."""
    producer._pipeline.send(message, callback, queue, selector)


def report_failure(producer: Producer, callback: Callback | None, error: Exception) -> None:
    """Report a message that could not be handed over as `send_nowait` reports one that was not sent."""
    producer._pipeline.fail(callback, error)


def _given(
    message: Message, info: TopicPublishInfo, queue: MessageQueue | None, selector: QueueSelector | None
) -> MessageQueue | None:
    """Return the queue the user wants; None for any."""
    wanted = selector(info.queues, message) if selector is not None else queue
    if wanted is not None:
        instance_of(
            "queue" if selector is None else "what the selector returned", wanted, MessageQueue, _A_QUEUE
        )
    return wanted


async def _every(period_ms: int, work: Work) -> None:
    while True:
        await asyncio.sleep(period_ms / 1000)
        try:
            await work()
        except LibraError as error:
            log.warning("background work failed", reason=str(error))
