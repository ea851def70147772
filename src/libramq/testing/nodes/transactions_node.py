"""The simulated producer of transactions: each message is committed or rolled back, at once or when asked.

What becomes of a message is drawn before it is sent, and every check is answered with it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from libramq.client.producing.producer_network import ProducerNetwork, ProducerSettings
from libramq.client.producing.send_result import SendResult, SendStatus
from libramq.client.producing.transactions import TransactionState
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.errors import LibraError
from libramq.message import Message
from libramq.message.message import MessageExt
from libramq.message.properties import UNIQ_KEY
from libramq.testing.machine.dialer import SimulatedDialer
from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedTimers
from libramq.testing.nodes.message_ids import NumberedIds
from libramq.testing.world import World

SEND_TIMEOUT_MS: Final = 3_000
ROUTES_MS: Final = 3_000
#: How often it shows itself to brokers, also to those that got a message from an acting slave.
HEARTBEAT_MS: Final = 2_000
ROLLED_BACK_CHANCE: Final = 0.4
#: How often the program leaves the end of a transaction to the broker's check.
LEFT_OPEN_CHANCE: Final = 0.8


class SimulatedTransactions:
    """One producer of transactions with messages of one topic. A message is sent once."""

    def __init__(
        self, world: World, name: str, topic: str, name_servers: Sequence[str], *, interval_ms: int
    ) -> None:
        self.name = name
        self.process = Process(name, world.time, clock=world.clock(name))
        self.is_stopped = False
        self._world = world
        self._topic = topic
        self._interval_ms = interval_ms
        self._random = world.stream(name)
        self._states: dict[str, TransactionState] = {}
        self.process.start()
        self._network = ProducerNetwork(
            ProducerSettings(
                group=f"TRANSACTIONS-{topic}",
                client_id=name,
                route_refresh_ms=ROUTES_MS,
                heartbeat_ms=HEARTBEAT_MS,
                retries=0,
            ),
            name_server_addresses=name_servers,
            dialer=SimulatedDialer(world.network, self.process),
            timers=SimulatedTimers(self.process),
            clock=self.process.clock,
            randomness=world.stream(f"name servers of {name}"),
            ids=NumberedIds(name, lambda: len(self._states)),
            check=self._check,
        )
        self._network.start()
        self.process.after(0, self._send_next)

    def stop(self) -> None:
        """Begin no more transactions; checks are still answered."""
        self.is_stopped = True

    def _send_next(self) -> None:
        if self.is_stopped:
            return
        message_id = f"{self.name}-{len(self._states) + 1}"
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
                return  # It may be stored nevertheless: checks are answered.
            broker = outcome[0].queue.broker_name
            if state is TransactionState.COMMIT:
                deferred = partial(
                    self._world.history.deferred, broker, self._topic, message_id, requested_ms
                )
                self.process.after(0, deferred)
            if not is_left_open:
                end = self._network.half_messages.end
                end(outcome[0], state, lambda _: None, timeout_ms=SEND_TIMEOUT_MS)

        self._network.routes.publish_info(self._topic, found)

    def _check(self, message: MessageExt, answer: Callable[[TransactionState], None]) -> None:
        answer(self._states[message.message_id])
