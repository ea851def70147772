"""The Kafka server: the socket for Kafka's clients (`kafkaListenPort`) and its advertised address."""

import asyncio

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.errors import ConfigError
from libramq.filesystem import FileSystem
from libramq.formats.properties_file import shown
from libramq.protocols.kafka.node import Node
from libramq.protocols.kafka.translator import KafkaTranslator
from libramq.transport.address import check_announced, join_address, split_address
from libramq.transport.server import Server
from libramq.wire.kafka.frame import FrameReader


class KafkaServer:
    """Serves Kafka's clients on a broker's `kafkaListenPort`; starts after its broker, and stops before it.

    port: replaces kafkaListenPort; 0 lets the system choose one.
    """

    def __init__(
        self,
        broker: BrokerServer,
        config: BrokerConfig,
        filesystem: FileSystem,
        *,
        port: int | None = None,
    ) -> None:
        self._broker = broker
        self._bind_address = config.bind_address  # The broker has checked the address.
        self._filesystem = filesystem
        self._server: Server | None = None
        self._port = config.kafka_listen_port if port is None else port
        self._advertised = _advertised(config.kafka_advertised)
        self._node = Node(config.broker_ip, self._port, config.cluster_name)

    @property
    def address(self) -> str:
        """Return the address to which clients connect."""
        return join_address(self._node.host, self._node.port)

    async def start(self) -> None:
        """Listen; raises ConfigError if the port is in use, StoreCorrupt if a file cannot be read."""
        translator = KafkaTranslator(self._broker.broker, self._node, self._filesystem)
        nodes = self._broker.broker.cluster.nodes
        await asyncio.to_thread(translator.producers.recover)
        await asyncio.to_thread(nodes.load)
        self._server = self._broker.server(translator, FrameReader)
        self._port = self._node.port = await self._server.listen(self._bind_address, self._port)
        if self._advertised is not None:
            self._node.host, self._node.port = self._advertised
        self._broker.call(lambda: nodes.serve(self._node.host, self._node.port))

    async def stop(self) -> None:
        """Close every connection."""
        if self._server is not None:
            await self._server.close()


def _advertised(text: str) -> tuple[str, int] | None:
    """Return the option's host and port; raises ConfigError if it is invalid."""
    if not text:
        return None
    try:
        host, port = split_address(text)
    except ConfigError:
        raise ConfigError(
            f"kafkaAdvertised={shown(text)}: write HOST:PORT, the address of this broker for clients"
        ) from None
    check_announced(host, "kafkaAdvertised", is_name_allowed=True)
    return host, port  # Without brackets, as Kafka's brokers send it.
