"""The options of masters and slaves, under the names of Apache's MessageStoreConfig and BrokerConfig."""

import ipaddress
from dataclasses import dataclass

from libramq.broker.message_store_config import MessageStoreConfig
from libramq.broker.option import option
from libramq.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig(MessageStoreConfig):
    """The options of masters and slaves, beside those of their store."""

    ha_listen_port: int = option(  # Ours: Apache's is open always, at the listen port + 1.
        0,
        "haListenPort",
        "The port from which slaves copy the commit log; 0: none. Apache's is `listenPort` + 1.",
    )
    broker_role: str = option(
        "ASYNC_MASTER",
        "brokerRole",
        "`SYNC_MASTER`: a send is acknowledged when `inSyncReplicas` brokers have its message. "
        "`ASYNC_MASTER`: slaves follow. `SLAVE`: copies the master of its `brokerName`, which name servers "
        "know, and takes no messages itself.",
    )
    ha_master_address: str | None = option(
        None,
        "haMasterAddress",
        "The address from which a slave copies its master's log, `HOST:PORT`. Default: from the name "
        "servers.",
    )
    slave_read_enable: bool = option(
        False,
        "slaveReadEnable",
        "At a slave: let consumers read. At a master: send consumers that are further behind than "
        "`accessMessageInMemoryMaxRatio` to a slave (`whichBrokerWhenConsumeSlowly` of their group).",
    )
    enable_slave_acting_master: bool = option(
        False,
        "enableSlaveActingMaster",
        "While the master is gone, its slave serves locks of queues and pops beside reads and commits. To be "
        "set at master and slave, with `supportActingMaster` at the name servers.",
    )
    enable_remote_escape: bool = option(
        False,
        "enableRemoteEscape",
        "With `enableSlaveActingMaster`, at a slave: while the master is gone, messages whose delay level or "
        "time is over, open transactions, and messages that were popped and not acknowledged in time are "
        "sent to other masters that have their topic.",
    )
    in_sync_replicas: int = option(
        1,
        "inSyncReplicas",
        "The number of brokers, itself included, that must have a message before a `SYNC_MASTER` "
        "acknowledges it. While too few slaves are in sync, sends are answered with SLAVE_NOT_AVAILABLE: "
        "the message is stored, but on fewer brokers. With `enableSlaveActingMaster` they are answered with "
        "SYSTEM_ERROR, and nothing is stored.",
    )
    enable_auto_in_sync_replicas: bool = option(
        False,
        "enableAutoInSyncReplicas",
        "With `enableSlaveActingMaster`, at a `SYNC_MASTER`: while fewer brokers are in sync than "
        "`inSyncReplicas`, require as many as there are, and `minInSyncReplicas` at least.",
    )
    min_in_sync_replicas: int = option(
        1,
        "minInSyncReplicas",
        "The fewest brokers that `enableAutoInSyncReplicas` requires, itself included.",
    )
    total_replicas: int = option(
        1,
        "totalReplicas",
        "The number of brokers of this `brokerName`. If it is above 1, neither `inSyncReplicas` nor "
        "`minInSyncReplicas` may be more.",
    )
    slave_timeout_ms: int = option(
        3_000, "slaveTimeout", "How long a send waits for slaves, in ms; then it gets FLUSH_SLAVE_TIMEOUT."
    )
    ha_allowed_addresses: str = option(  # Ours alone.
        "127.0.0.0/8;::1",
        "haAllowedAddresses",
        "The addresses and networks from which slaves may connect, separated by `;`. "
        "A slave receives every message.",
    )

    @property
    def is_slave(self) -> bool:
        """Return whether the broker copies a master."""
        return self.broker_role == "SLAVE"

    @property
    def waits_for_slaves(self) -> bool:
        """Return whether sends are acknowledged only once slaves have them."""
        return self.broker_role == "SYNC_MASTER" and self.in_sync_replicas > 1

    def replicas_needed(self, in_sync: int) -> int:
        """Return how many brokers must have a message, with so many in sync (CommitLog.calcNeedAckNums)."""
        needed = self.in_sync_replicas if self.waits_for_slaves else 1
        if self.enable_auto_in_sync_replicas and self.enable_slave_acting_master:
            needed = max(min(needed, in_sync), self.min_in_sync_replicas)
        return needed

    @property
    def ha_networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        """Return the networks that slaves may connect from; raises ConfigError for invalid ones."""
        texts = [text.strip() for text in self.ha_allowed_addresses.split(";") if text.strip()]
        try:
            return [ipaddress.ip_network(text, strict=False) for text in texts]
        except ValueError as error:
            raise ConfigError(
                f"haAllowedAddresses {self.ha_allowed_addresses!r}: {error}; "
                "write addresses or networks, for example 10.0.0.2;10.1.0.0/16"
            ) from None
