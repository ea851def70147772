"""The blocking simple consumer: the asyncio one on a thread of its own."""

from collections.abc import Iterable
from typing import Unpack

from libramq.client.blocking_client import BlockingClient
from libramq.client.options import SimpleConsumerOptions
from libramq.client.popping import simple_consumer as asynchronous_simple_consumer
from libramq.client.popping.simple_consumer import AWAIT_MS, INVISIBLE_MS, POP_MESSAGES_MAX
from libramq.filter.selector import Sql
from libramq.message.message import MessageExt


class SimpleConsumer(BlockingClient):
    """Receives messages, which are acknowledged one by one; see libramq.client.SimpleConsumer."""

    def __init__(self, **options: Unpack[SimpleConsumerOptions]) -> None:
        super().__init__("consumer")
        self._consumer = asynchronous_simple_consumer.SimpleConsumer(**options)

    async def _start(self) -> None:
        await self._consumer.start()

    async def _stop(self) -> None:
        await self._consumer.stop()

    def subscribe(self, topic: str, expression: str | Sql = "*") -> None:
        """Receive a topic's messages: all, those with tags, or those that an Sql selects."""
        self._consumer.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Receive a topic's messages no longer."""
        self._consumer.unsubscribe(topic)

    def receive(
        self,
        max_messages: int = POP_MESSAGES_MAX,
        *,
        invisible_ms: int = INVISIBLE_MS,
        await_ms: int = AWAIT_MS,
    ) -> list[MessageExt]:
        """Return up to max_messages, at most 1,024; none if none came within await_ms."""
        received = self._consumer.receive(max_messages, invisible_ms=invisible_ms, await_ms=await_ms)
        return self._wait("receive", received)

    def ack(self, messages: MessageExt | Iterable[MessageExt]) -> None:
        """Acknowledge one message, or several by few requests."""
        self._wait("ack", self._consumer.ack(messages))

    def change_invisible_time(self, message: MessageExt, invisible_ms: int) -> None:
        """Have a message invisible for so long from now on."""
        self._wait("change_invisible_time", self._consumer.change_invisible_time(message, invisible_ms))

    def nack(self, message: MessageExt, *, delay_ms: int = 0) -> None:
        """Give a message back, to be received again at once or after delay_ms."""
        self._wait("nack", self._consumer.nack(message, delay_ms=delay_ms))
