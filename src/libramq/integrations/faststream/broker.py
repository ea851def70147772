"""The FastStream broker of an application: its connection, its settings, its log, and publishing."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Unpack

import anyio
from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from libramq.client.producing.producer import Producer
from libramq.errors import InvalidMessage
from libramq.integrations.faststream.message import (
    PublishOptions,
    Received,
    RequestOptions,
    RocketMQMessage,
    RocketMQPublishCommand,
)
from libramq.integrations.faststream.producer import Connection, RocketMQBrokerConfig, RocketMQProducer
from libramq.integrations.faststream.registrator import RocketMQRegistrator
from libramq.integrations.faststream.subscriber import RocketMQSubscriber
from libramq.remoting.credentials import Credentials
from libramq.transport.tls import Tls

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto

#: The group of a broker's producer, and the prefix of its subscribers' groups.
GROUP: Final = "faststream"


class RocketMQLogStorage(DefaultLoggerStorage):
    """The log of a broker; its lines begin with topic and group."""

    __slots__ = ("_widths",)

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 4}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the log's columns to fit a subscriber's names."""
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> "LoggerProto":
        """Return the logger."""
        logger = self._get_logger_ref()
        if logger is None:
            columns = " | ".join(f"%({name})-{width}s" for name, width in self._widths.items())
            logger = get_broker_logger(
                name="rocketmq",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=10,
                fmt=f"%(asctime)s %(levelname)-8s - {columns} | %(message_id)-10s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_log = partial(make_logger_state, default_storage_cls=RocketMQLogStorage)


class RocketMQBroker(RocketMQRegistrator, BrokerUsecase[Received, Producer, RocketMQBrokerConfig]):
    """A FastStream broker. namesrv, credentials, tls: as in LibraMQ's clients.

    group: the producer's group, and the prefix of the groups of subscribers that name none.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str = GROUP,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        ack_policy: AckPolicy = EMPTY,
        graceful_timeout: float | None = 15.0,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[RocketMQRegistrator] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
        id_generator: Any = gen_cor_id,
        description: str | None = None,
        tags: Iterable[Any] = (),
        specification_url: str | Sequence[str] | None = None,
    ) -> None:
        connection = Connection(group, namesrv=namesrv, credentials=credentials, tls=tls)
        config = RocketMQBrokerConfig(
            connection=connection,
            producer=RocketMQProducer(connection, parser, decoder),
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            logger=make_log(logger=logger, log_level=log_level),
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types,
                serializer=serializer,
                provider=provider or dependency_provider,
                context=context or ContextRepo(),
            ),
            broker_dependencies=dependencies,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            id_generator=id_generator,
            extra_context={"broker": self},
        )
        url = specification_url or namesrv or "127.0.0.1:9876"
        super().__init__(
            routers=routers,
            config=config,
            specification=BrokerSpec(
                url=[url] if isinstance(url, str) else list(url),
                protocol="rocketmq",
                protocol_version=None,
                description=description,
                tags=list(tags),
                security=None,
            ),
        )

    async def _connect(self) -> Producer:
        config = self.config.broker_config
        config.producer.connect(  # type: ignore[attr-defined]
            config.fd_config._serializer, self.config.broker_codec
        )
        return await config.connection.connect()

    async def start(self) -> None:
        """Connect and start the subscribers."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, then the connection. If called from a handler, another task does this."""
        if any(isinstance(each, RocketMQSubscriber) and each.is_in_handler for each in self.subscribers):
            self._stopping = asyncio.create_task(self.stop(exc_type, exc_val, exc_tb))
            return
        await super().stop(exc_type, exc_val, exc_tb)
        await self.config.broker_config.connection.disconnect()
        self._connection = None

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        **options: Unpack[PublishOptions],
    ) -> Any:
        """Publish a message and return the send's result. options: as in PublishOptions."""
        options["correlation_id"] = options.get("correlation_id") or self.config.id_generator()
        command = RocketMQPublishCommand(message, topic=topic, _publish_type=PublishType.PUBLISH, **options)
        return await self._basic_publish(command, producer=self.config.producer)

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        timeout: float | None = 30.0,
        **options: Unpack[RequestOptions],
    ) -> RocketMQMessage:
        """Publish a request and return the reply; TimeoutError if none arrives in time (seconds)."""
        options["correlation_id"] = options.get("correlation_id") or self.config.id_generator()
        command = RocketMQPublishCommand(
            message, topic=topic, timeout=timeout, _publish_type=PublishType.REQUEST, **options
        )
        reply: RocketMQMessage = await self._basic_request(command, producer=self.config.producer)
        return reply

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> Any:
        """Publish messages to one topic as a batch; InvalidMessage if there are none."""
        if not messages:
            raise InvalidMessage("a batch holds at least one message")
        command = RocketMQPublishCommand(
            *messages,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        return await self._basic_publish_batch(command, producer=self.config.producer)

    async def ping(self, timeout: float | None = 3.0) -> bool:
        """Return whether a name server answers within the timeout (seconds) and knows a broker."""
        with anyio.move_on_after(timeout):
            return await self.config.broker_config.connection.ping()
        return False
