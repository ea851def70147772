"""Replication in a master: its HA service, who may be a slave, what sends wait for, who reads at slaves."""

import ipaddress
from typing import Final

from libramq.broker.config import BrokerConfig
from libramq.broker.messages.durability import Durability
from libramq.catalog import GroupTable
from libramq.formats.route import MASTER_ID
from libramq.kernel.gate import Gate
from libramq.kernel.parts import Kernel
from libramq.replication.copies import Copies, OneAfterTheOther
from libramq.replication.ha_service import HAService
from libramq.store.config import FlushDiskType
from libramq.store.message_store import MessageStore
from libramq.store.read import ReadResult

#: Where a record has its physical offset.
_PLACE_AT: Final = 28


class Replication:
    """The parts for slaves. gate: where sends wait, for the disk, for slaves, or for both in a row."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        groups: GroupTable,
        durability: Durability,
        kernel: Kernel,
    ) -> None:
        self._store = store
        self._groups = groups
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

    def suggested(self, group: str, read: ReadResult) -> int:
        """Return from which broker a group should read on: a slave, if it is far behind."""
        config = self._groups.get(group)
        if config is None:
            return MASTER_ID
        if read.count and self._store.end - _place(read) > self._store.config.in_memory_bytes:
            return config.which_broker_when_consume_slowly
        return config.broker_id

    def is_allowed(self, address: str) -> bool:
        """Return whether a slave may connect from "host:port": it gets every message."""
        try:
            host = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
        except ValueError:
            return False
        if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
            host = host.ipv4_mapped
        return any(host in network for network in self._networks)


def _place(read: ReadResult) -> int:
    """Return the physical offset of the first record that was read."""
    return int.from_bytes(read.data[0][_PLACE_AT : _PLACE_AT + 8])
