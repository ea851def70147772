"""The simulated producer: the real network side of a producer, and a program that sends messages.

A message is sent again until it is acknowledged, with growing pauses. Some programs wait for each response,
others send in bursts.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from libramq.client.producing.producer_network import ProducerNetwork
from libramq.client.producing.producer_settings import ProducerSettings
from libramq.client.producing.send_result import SendResult, SendStatus
from libramq.client.producing.transactions import TransactionState
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.errors import LibraError
from libramq.message import Message
from libramq.message.ids import decode_offset_id
from libramq.message.properties import UNIQ_KEY
from libramq.testing.history import StoredMessage
from libramq.testing.machine.network import SimulatedDialer
from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedTimers
from libramq.testing.world import World


class NumberedIds:
    """Message ids from a producer's own count of messages."""

    def __init__(self, name: str, number: Callable[[], int]) -> None:
        self._name = name
        self._number = number

    def __call__(self) -> str:
        """Return the id of the last counted message."""
        return f"{self._name}-{self._number()}"

    def many(self, count: int) -> list[str]:
        """Return ids for several messages; simulated producers draw them one by one instead."""
        return [f"{self()}-{position}" for position in range(count)]


#: The first and the longest pause before a message is sent again. A SYNC_MASTER without its slave stores
#: another copy each time; with short pauses only, that was more than a group consumes in ten minutes.
AGAIN_MS: Final = 200
AGAIN_MS_MAX: Final = 5_000
ROUTES_MS: Final = 3_000
SEND_TIMEOUT_MS: Final = 3_000
#: The most messages that a program sends at once without waiting.
BURST_MAX: Final = 3
#: The highest delay level; SimulatedBroker has five.
LEVEL_MAX: Final = 5
#: The shortest and the longest timer delay. Slots are seconds, and times are rounded down.
TIMER_MS_MIN: Final = 2_000
TIMER_MS_MAX: Final = 8_000


class _Delay(NamedTuple):
    """The delay of a message: a level or a time; 0 for none."""

    level: int = 0
    ms: int = 0


class ProducerPlan(NamedTuple):
    """A producer's messages: one every interval_ms on average. delay_chance: the chance of a delay."""

    topic: str
    interval_ms: int
    body_bytes: int
    delay_chance: float = 0.0


class _Program:
    """A process with a producer."""

    def __init__(
        self, world: World, settings: ProducerSettings, name_servers: Sequence[str], **more: Any
    ) -> None:
        self.name = name = settings.client_id
        self.process = Process(name, world.time, clock=world.clock(name))
        self.is_stopped = False
        self._world = world
        self._random = world.stream(name)
        self._count = 0
        self.process.start()
        self._network = ProducerNetwork(
            settings,
            name_server_addresses=name_servers,
            dialer=SimulatedDialer(world.network, self.process),
            timers=SimulatedTimers(self.process),
            clock=self.process.clock,
            randomness=world.stream(f"name servers of {name}"),
            ids=NumberedIds(name, lambda: self._count),
            **more,
        )
        self._network.start()

    def stop(self) -> None:
        """Begin no more messages; those already begun continue."""
        self.is_stopped = True


class SimulatedProducer(_Program):
    """One producer of one topic. Each message is sent until it is acknowledged."""

    def __init__(self, world: World, name: str, name_servers: Sequence[str], plan: ProducerPlan) -> None:
        settings = ProducerSettings(
            group="PRODUCERS", client_id=name, route_refresh_ms=ROUTES_MS, compress_over_bytes=1 << 30
        )
        super().__init__(world, settings, name_servers)
        self.unacknowledged = 0
        self._plan = plan
        self._delays = world.stream(f"delays of {name}")
        self._waits = self._random.random() < 0.5
        self.process.after(0, self._send_next)

    def leave(self) -> None:
        """Begin no more messages, and end like a program that closes its producer."""
        self.stop()
        self.process.do(lambda: self._network.stop(self._closed))

    def _closed(self, _: None) -> None:
        self.process.after(0, self.kill)

    def kill(self) -> None:
        """Kill the process, as by SIGKILL."""
        if self.process.is_alive:
            self.process.kill()
            self._world.network.died(self.process)

    def _send_next(self) -> None:
        if self.is_stopped:
            return
        burst = 1 if self._waits else self._random.randint(1, BURST_MAX)
        for _ in range(burst):
            self._count += 1
            self.unacknowledged += 1
            self._send(f"{self.name}-{self._count}", self._delay())
        self.process.after(burst * self._random.randint(1, 2 * self._plan.interval_ms), self._send_next)

    def _delay(self) -> _Delay:
        """Draw a message's delay."""
        if self._delays.random() >= self._plan.delay_chance:
            return _Delay()
        if self._delays.random() < 0.5:
            return _Delay(level=self._delays.randint(1, LEVEL_MAX))
        return _Delay(ms=self._delays.randint(TIMER_MS_MIN, TIMER_MS_MAX))

    def _send(self, message_id: str, delay: _Delay, again_ms: int = AGAIN_MS) -> None:
        body = message_id.encode().ljust(self._plan.body_bytes, b".")
        message = Message(
            self._plan.topic,
            body,
            properties={UNIQ_KEY: message_id},
            delay_level=delay.level,
            delay_ms=delay.ms,
        )
        requested_ms = self._world.time.now_ms

        def ended(outcome: SendResult | LibraError) -> None:
            if isinstance(outcome, LibraError) or outcome.status is not SendStatus.SEND_OK:
                later_ms = min(2 * again_ms, AGAIN_MS_MAX)
                self.process.after(again_ms, lambda: self._send(message_id, delay, later_ms))
                return
            self.unacknowledged -= 1
            if message.is_delayed:
                broker = outcome.queue.broker_name
                deferred = partial(
                    self._world.history.deferred, broker, self._plan.topic, message_id, requested_ms
                )
                self.process.after(0, deferred)
                return
            physical_offset = decode_offset_id(outcome.offset_message_id).physical_offset
            stored = StoredMessage(
                outcome.queue, outcome.queue_offset, physical_offset, message_id, requested_ms
            )
            # Deferred, because an invariant's exception must not reach the producer.
            self.process.after(0, partial(self._world.history.stored, stored))

        def found(info: TopicPublishInfo | LibraError) -> None:
            if isinstance(info, LibraError):
                ended(info)
            else:
                self._network.send(message, info, sent, timeout_ms=SEND_TIMEOUT_MS)

        def sent(outcome: Sequence[SendResult] | LibraError) -> None:
            ended(outcome if isinstance(outcome, LibraError) else outcome[0])

        if self._waits:
            self._network.routes.publish_info(self._plan.topic, found)
        else:
            self._network.pipeline.send(message, ended, None, None)


#: The heartbeat interval; heartbeats also reach brokers that got a message from an acting slave.
HEARTBEAT_MS: Final = 2_000
ROLLED_BACK_CHANCE: Final = 0.4
#: The chance that the program leaves the end of a transaction to the broker's check.
LEFT_OPEN_CHANCE: Final = 0.8


class SimulatedTransactions(_Program):
    """One transaction producer of one topic. Each message is sent once.

    A transaction's state is drawn before its message is sent, and is the answer to every check.
    """

    def __init__(
        self, world: World, name: str, topic: str, name_servers: Sequence[str], *, interval_ms: int
    ) -> None:
        self._topic = topic
        self._interval_ms = interval_ms
        self._states: dict[str, TransactionState] = {}
        settings = ProducerSettings(
            group=f"TRANSACTIONS-{topic}",
            client_id=name,
            route_refresh_ms=ROUTES_MS,
            heartbeat_ms=HEARTBEAT_MS,
            retries=0,
        )
        super().__init__(
            world,
            settings,
            name_servers,
            check=lambda message, answer: answer(self._states[message.message_id]),
        )
        self.process.after(0, self._send_next)

    def _send_next(self) -> None:
        if self.is_stopped:
            return
        self._count += 1
        message_id = f"{self.name}-{self._count}"
        is_rolled_back = self._random.random() < ROLLED_BACK_CHANCE
        state = TransactionState.ROLLBACK if is_rolled_back else TransactionState.COMMIT
        self._states[message_id] = state
        if is_rolled_back:
            self._world.history.rolled_back(message_id)
        self._send(message_id, state, is_left_open=self._random.random() < LEFT_OPEN_CHANCE)
        self.process.after(self._random.randint(1, 2 * self._interval_ms), self._send_next)

    def _send(self, message_id: str, state: TransactionState, *, is_left_open: bool) -> None:
        message = Message(self._topic, message_id.encode(), properties={UNIQ_KEY: message_id})
        requested_ms = self._world.time.now_ms

        def found(info: TopicPublishInfo | LibraError) -> None:
            if not isinstance(info, LibraError):
                self._network.send(message, info, sent, timeout_ms=SEND_TIMEOUT_MS, is_half=True)

        def sent(outcome: Sequence[SendResult] | LibraError) -> None:
            if isinstance(outcome, LibraError) or outcome[0].status is not SendStatus.SEND_OK:
                return  # It may still be stored; checks will be answered.
            broker = outcome[0].queue.broker_name
            if state is TransactionState.COMMIT:
                deferred = partial(
                    self._world.history.deferred, broker, self._topic, message_id, requested_ms
                )
                self.process.after(0, deferred)
            if not is_left_open:
                end = self._network.end_transaction
                end(outcome[0], state, lambda _: None, timeout_ms=SEND_TIMEOUT_MS)

        self._network.routes.publish_info(self._topic, found)
