"""A simulated broker's port for Kafka's clients: the real translator on the simulated network."""

from libramq.broker.broker import Broker
from libramq.broker.config import BrokerConfig
from libramq.filesystem import FileSystem
from libramq.message.queue import MessageQueue
from libramq.protocols.kafka.node import Node
from libramq.protocols.kafka.translator import KafkaTranslator
from libramq.runtime.performer import Performer
from libramq.secret_bits import SecretBits
from libramq.testing.machine.network import Network
from libramq.testing.machine.process import Process
from libramq.wire.kafka.frame import FrameReader


class KafkaPort:
    """One broker's port for one run. Recovers its records; raises OSError and StoreCorrupt."""

    def __init__(
        self, broker: Broker, config: BrokerConfig, filesystem: FileSystem, secret_bits: SecretBits
    ) -> None:
        node = Node(config.broker_ip, config.kafka_listen_port, config.cluster_name)
        self._nodes = broker.cluster.nodes
        self._node = node
        self.translator = KafkaTranslator(broker, node, filesystem, secret_bits)
        self.translator.producers.recover()
        self._nodes.load()

    def listen(self, network: Network, process: Process, performer: Performer) -> None:
        """Accept connections and announce the port to the other brokers."""
        address = f"{self._node.host}:{self._node.port}"
        network.listen(address, process, performer.entrance(self.translator), reader=FrameReader)
        self._nodes.serve(self._node.host, self._node.port)

    def group_epoch(self, group: str) -> int | None:
        """Return the epoch of a group that this broker coordinates; None if it has no such group."""
        found = self.translator.modern_groups.groups.get(group)
        return found.epoch if found is not None else None

    @property
    def expects_members(self) -> bool:
        """Return whether unknown members may commit, because they have yet to find a new coordinator."""
        return self.translator.classic_groups.expects_members

    def queue(self, topic: str, partition: int) -> MessageQueue | None:
        """Return the queue of a partition, by this broker's numbering."""
        return self._nodes.place(topic, partition)

    def is_settled(self, group: str) -> bool:
        """Return whether every member of a group has its target assignment."""
        found = self.translator.modern_groups.groups.get(group)
        return found is None or found.is_settled
