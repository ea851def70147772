"""The Kafka endpoint of a broker process, which needs an extra of the package."""

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.cli.running import Service
from libramq.errors import ConfigError, needs_extra
from libramq.filesystem import LocalFileSystem


def kafka_servers(broker: BrokerServer, config: BrokerConfig) -> list[Service]:
    """Return the server for Kafka's clients, if there is one; raises ConfigError where it cannot be had."""
    if not config.kafka_listen_port:
        return []
    if config.is_slave:
        raise ConfigError("kafkaListenPort: a slave takes no messages; set it at its master only")
    with needs_extra("kafkaListenPort", "kafka"):
        from libramq.protocols.kafka.server import KafkaServer
    return [KafkaServer(broker, config, LocalFileSystem())]
