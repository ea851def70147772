"""The role of a broker, master or slave, and the options that contradict it. Upstream: BrokerStartup.java."""

from typing import TYPE_CHECKING

from libramq.errors import ConfigError
from libramq.transport.address import split_address

if TYPE_CHECKING:
    from libramq.broker.config import BrokerConfig


def check_role(config: "BrokerConfig") -> None:
    """Raise ConfigError for a role that contradicts other options."""
    if config.broker_role not in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"):
        raise ConfigError(f"brokerRole {config.broker_role!r}; ASYNC_MASTER, SYNC_MASTER or SLAVE is allowed")
    if config.is_slave != (config.broker_id > 0):
        raise ConfigError(
            f"brokerId {config.broker_id} with brokerRole={config.broker_role}: a master has 0, and a slave "
            "(brokerRole=SLAVE) 1 or more"
        )
    if config.is_slave and not config.namesrv_addr:
        raise ConfigError("brokerRole=SLAVE: a slave finds its master through name servers: set namesrvAddr")
    if config.ha_master_address is not None:
        if not config.is_slave:
            raise ConfigError("haMasterAddress is an option of slaves: set brokerRole=SLAVE, or remove it")
        split_address(config.ha_master_address)
    if config.in_sync_replicas > 1 and not config.waits_for_slaves:
        raise ConfigError(
            f"inSyncReplicas={config.in_sync_replicas}: an ASYNC_MASTER waits for no slave; set "
            "brokerRole=SYNC_MASTER, or remove it"
        )
    if config.min_in_sync_replicas > config.in_sync_replicas:
        raise ConfigError(
            f"minInSyncReplicas={config.min_in_sync_replicas} is above "
            f"inSyncReplicas={config.in_sync_replicas}"
        )
    if 1 < config.total_replicas < config.in_sync_replicas:
        raise ConfigError(
            f"inSyncReplicas={config.in_sync_replicas} is above totalReplicas={config.total_replicas}"
        )
    if config.waits_for_slaves and not config.ha_listen_port:
        raise ConfigError(
            f"brokerRole=SYNC_MASTER with inSyncReplicas={config.in_sync_replicas} waits for slaves, and "
            f"none can connect: set haListenPort, for example {config.listen_port + 1}"
        )
    if config.is_slave and config.enable_remote_escape and not config.enable_slave_acting_master:
        raise ConfigError(
            "enableRemoteEscape: only an acting slave sends messages on: set enableSlaveActingMaster, too"
        )
    if config.ha_listen_port and config.ha_listen_port in config.client_ports:
        raise ConfigError(f"haListenPort {config.ha_listen_port} is used for clients; choose another")
