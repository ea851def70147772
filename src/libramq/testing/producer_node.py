"""The simulated producer: sends a message now and then, and again until it is acknowledged.

It makes the requests of `client.core.send_request`; a failed one goes to another queue.
"""

from collections.abc import Sequence
from typing import Final

from libramq.client.core.route_table import RouteTable
from libramq.client.core.send_request import SendSettings, prepare_one, send_call
from libramq.client.name_servers import NameServers
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import LibraError
from libramq.message import Message
from libramq.message.ids import decode_offset_id
from libramq.message.queue import MessageQueue
from libramq.rpc.asking import ask
from libramq.rpc.broker_calls import SendReply
from libramq.rpc.name_server_calls import topic_route
from libramq.testing.dialer import simulated_remotes
from libramq.testing.process import Process
from libramq.testing.world import World

#: How soon a message that was not acknowledged is sent again, and how often routes are looked at.
AGAIN_MS: Final = 200
ROUTES_MS: Final = 3_000
SEND_TIMEOUT_MS: Final = 3_000


class SimulatedProducer:
    """One producer of one topic."""

    def __init__(
        self,
        world: World,
        name: str,
        topic: str,
        name_servers: Sequence[str],
        *,
        interval_ms: int,
        body_bytes: int,
    ) -> None:
        self.name = name
        self.process = Process(name, world.time, clock=world.clock(name))
        self.is_stopped = False
        self.unacknowledged = 0
        self._world = world
        self._topic = topic
        self._interval_ms = interval_ms
        self._body_bytes = body_bytes
        self._random = world.stream(name)
        self._routes = RouteTable()
        self._count = 0
        self._settings = SendSettings(group="PRODUCERS")
        self.process.start()
        self._remotes = simulated_remotes(world.network, self.process)
        self._name_servers = NameServers(self._remotes, name_servers, world.stream(f"name servers of {name}"))
        self._look_at_routes()
        self.process.after(0, self._send_next)

    def stop(self) -> None:
        """Begin no more messages; those that were begun are sent until they are acknowledged."""
        self.is_stopped = True

    def _look_at_routes(self) -> None:
        def answered(outcome: object) -> None:
            if not isinstance(outcome, LibraError):
                self._routes.update(self._topic, outcome)  # type: ignore[arg-type]

        self._name_servers.ask(topic_route(self._topic), answered)
        self.process.after(ROUTES_MS, self._look_at_routes)

    def _send_next(self) -> None:
        if self.is_stopped:
            return
        info = self._routes.publish_info(self._topic)
        if info is not None and info.queues:
            self._count += 1
            self.unacknowledged += 1
            self._send(f"{self.name}-{self._count}")
        self.process.after(self._random.randint(1, 2 * self._interval_ms), self._send_next)

    def _send(self, message_id: str) -> None:
        info = self._routes.publish_info(self._topic)
        address = None
        if info is not None and info.queues:
            queue = self._random.choice(info.queues)
            address = self._routes.master(queue.broker_name)
        if address is None:
            self.process.after(AGAIN_MS, lambda: self._send(message_id))
            return
        body = message_id.encode().ljust(self._body_bytes, b".")
        message = Message(self._topic, body)
        prepared = prepare_one(message, lambda: message_id, compress_over_bytes=1 << 30)
        call = send_call(prepared, queue, self._settings, born_ms=self.process.clock.wall_ms())

        asked_ms = self._world.time.now_ms

        def answered(outcome: SendReply | LibraError) -> None:
            self._answered(message_id, queue, outcome, asked_ms)

        ask(self._remotes, address, call, answered, SEND_TIMEOUT_MS)

    def _answered(
        self, message_id: str, queue: MessageQueue, outcome: SendReply | LibraError, asked_ms: MonotonicMs
    ) -> None:
        if isinstance(outcome, LibraError) or outcome.code != ResponseCode.SUCCESS:
            self.process.after(AGAIN_MS, lambda: self._send(message_id))
            return
        self.unacknowledged -= 1
        self._world.history.stored(
            MessageQueue(self._topic, queue.broker_name, outcome.queue_id),
            outcome.queue_offset,
            decode_offset_id(outcome.offset_message_id).physical_offset,
            message_id,
            asked_ms,
        )
