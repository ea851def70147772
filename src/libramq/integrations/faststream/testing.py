"""The FastStream test broker: calls an application's handlers in memory, without a server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from libramq.filter.sql import parse_sql
from libramq.filter.subscription import Selector, Sql
from libramq.integrations.faststream.broker import RocketMQBroker
from libramq.integrations.faststream.message import Received, RocketMQPublishCommand
from libramq.integrations.faststream.producer import Connection, RocketMQProducer
from libramq.integrations.faststream.publisher import RocketMQTopicPublisher
from libramq.integrations.faststream.subscriber import RocketMQSubscriber
from libramq.message.message import Message, MessageExt
from libramq.message.properties import encode_properties
from libramq.message.validation import validate


class TestRocketMQBroker(TestBroker[RocketMQBroker, EnterType], broker=RocketMQBroker):  # type: ignore[call-arg]
    """Tests an application: `async with TestRocketMQBroker(broker) as br: await br.publish(...)`.

    with_real: use real servers, and only record the handlers' calls.
    """

    def create_publisher_fake_subscriber(
        self, broker: RocketMQBroker, publisher: RocketMQTopicPublisher
    ) -> tuple[RocketMQSubscriber, bool]:
        """Return a subscriber of a publisher's topic, and whether it is the application's own."""
        for each in self.brokers:
            for subscriber in each.subscribers:
                assert isinstance(subscriber, RocketMQSubscriber)
                if subscriber.topic == publisher.topic:
                    return subscriber, True
        return broker.subscriber(publisher.topic, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Iterator[None]:
        with change_producer(broker.config.broker_config, FakeProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: RocketMQBroker, *args: Any, **kwargs: Any) -> None:
        """Connect to nothing."""


class FakeProducer(RocketMQProducer):
    """Calls the handlers of a message's topic instead of sending it."""

    def __init__(self, broker: RocketMQBroker, brokers: tuple[RocketMQBroker, ...]) -> None:
        config = broker.config
        super().__init__(Connection(), config.broker_parser, config.broker_decoder)
        self.connect(config.fd_config._serializer, config.broker_codec)
        self._brokers = brokers

    async def publish(self, cmd: RocketMQPublishCommand) -> None:
        """Call the handlers, one for each group."""
        received = stored(await self.message_of(cmd, cmd.body))
        for subscriber in self._subscribers(received):
            await subscriber.process_message(Received(received))

    async def request(self, cmd: RocketMQPublishCommand) -> Received:
        """Call a handler and return its result."""
        received = stored(await self.message_of(cmd, cmd.body))
        for subscriber in self._subscribers(received):
            with anyio.fail_after(cmd.timeout):
                result = await subscriber.process_message(Received(received))
            command = RocketMQPublishCommand.from_cmd(result.as_publish_command())
            command.destination = cmd.destination
            command.correlation_id = command.correlation_id or cmd.correlation_id
            return Received(stored(await self.message_of(command, command.body)))
        raise SubscriberNotFound

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> None:
        """Call the handlers with each message."""
        for body in cmd.batch_bodies:
            received = stored(await self.message_of(cmd, body))
            for subscriber in self._subscribers(received):
                await subscriber.process_message(Received(received))

    def _subscribers(self, message: MessageExt) -> Iterator[RocketMQSubscriber]:
        """Return the subscribers that get a message, one of each group."""
        groups: set[str] = set()
        for broker in self._brokers:
            for subscriber in broker.subscribers:
                assert isinstance(subscriber, RocketMQSubscriber)
                if subscriber.topic == message.topic and subscriber.group not in groups:
                    groups.add(subscriber.group)
                    if _is_selected(message, subscriber.selector):
                        yield subscriber


def _is_selected(message: MessageExt, selected: Selector) -> bool:
    if isinstance(selected, Sql):
        return parse_sql(selected.expression).matches(encode_properties(message.properties))
    return selected.matches(message.tags)


def stored(message: Message) -> MessageExt:
    """Return a message as if a broker had stored it; raises the same errors as a producer."""
    validate(message)
    return MessageExt(
        topic=message.topic,
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=0,
        born_host=("127.0.0.1", 0),
        store_timestamp_ms=0,
        store_host=("127.0.0.1", 0),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=message.body,
        properties=message.all_properties(),
        store_size=len(message.body),
        body_crc=0,
    )
