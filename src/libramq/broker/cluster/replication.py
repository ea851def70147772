"""Replication in a broker: its HA service, who may be a slave, and what a send waits for."""

import ipaddress

from libramq.broker.config import BrokerConfig
from libramq.broker.messages.durability import Durability
from libramq.kernel.gate import Gate
from libramq.kernel.parts import Kernel
from libramq.replication.copies import Copies, OneAfterTheOther
from libramq.replication.ha_service import HAService
from libramq.store.config import FlushDiskType
from libramq.store.message_store import MessageStore


class Replication:
    """The parts for slaves. gate: where sends wait, for the disk, for slaves, or for both in a row."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, durability: Durability, kernel: Kernel
    ) -> None:
        self._networks = config.ha_networks
        copies = Copies(
            store,
            kernel,
            needed=config.in_sync_replicas if config.waits_for_slaves else 1,
            timeout_ms=config.slave_timeout_ms,
        )
        self.service = HAService(store, kernel, is_allowed=self.is_allowed, acknowledged=copies.update)
        self.gate: Gate = durability
        if config.waits_for_slaves:
            is_sync = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
            self.gate = OneAfterTheOther(durability, copies) if is_sync else copies

    def is_allowed(self, address: str) -> bool:
        """Return whether a slave may connect from "host:port": it gets every message."""
        try:
            host = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
        except ValueError:
            return False
        if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
            host = host.ipv4_mapped
        return any(host in network for network in self._networks)
