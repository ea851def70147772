"""The Kafka server: a broker's listening socket for Kafka's clients."""

import asyncio

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.clock import Clock
from libramq.filesystem import FileSystem
from libramq.protocols.kafka.node import Node
from libramq.protocols.kafka.translator import KafkaTranslator
from libramq.transport.server import Server
from libramq.wire.kafka.frame import FrameReader


class KafkaServer:
    """Serves Kafka's clients on a broker's `kafkaListenPort`; starts after its broker, and stops before.

    port: another one; 0: any free one.
    """

    def __init__(
        self,
        broker: BrokerServer,
        config: BrokerConfig,
        clock: Clock,
        filesystem: FileSystem,
        *,
        port: int | None = None,
    ) -> None:
        self._broker = broker
        self._bind_address = config.bind_address  # The broker has checked it.
        self._clock = clock
        self._filesystem = filesystem
        self._server: Server | None = None
        self._node = Node(
            config.broker_ip, config.kafka_listen_port if port is None else port, config.cluster_name
        )

    @property
    def address(self) -> str:
        """Return the address that clients are told to connect to."""
        return f"{self._node.host}:{self._node.port}"

    async def start(self) -> None:
        """Listen; raises ConfigError when the port is taken, StoreCorrupt where a file cannot be read."""
        translator = KafkaTranslator(self._broker.broker, self._node, self._filesystem)
        await asyncio.to_thread(translator.producers.recover)
        entrance = self._broker.entrance(translator)
        self._server = Server(entrance, self._clock.monotonic_ms, reader=FrameReader)
        self._node.port = await self._server.listen(self._bind_address, self._node.port)

    async def stop(self) -> None:
        """Close every connection."""
        if self._server is not None:
            await self._server.close()
