"""Replication in a broker: how its parts are put together, from which networks a slave may connect, and when
readers are redirected to a slave. The slave itself is in `slave.py`.
"""

import ipaddress
from typing import Final

from libramq.broker.cluster.registration import Registration
from libramq.broker.cluster.slave import Slave
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.durability import Durability
from libramq.clock import MonotonicMs
from libramq.formats.route import MASTER_ID
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Gate
from libramq.replication.copies import Copies, OneAfterTheOther
from libramq.replication.ha_service import HAService
from libramq.store.config import FlushDiskType
from libramq.store.reading.read import ReadResult

#: The position of the physical offset in a record.
_PLACE_AT: Final = 28


class Replication:
    """The parts that serve slaves, and those of a slave.

    gate: where sends wait for the disk, for slaves, or for both in turn. slave: None in a master.
    """

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        offsets: OffsetCommits,
        durability: Durability,
        registration: Registration,
        kernel: Kernel,
    ) -> None:
        store = self._store = files.store
        self._groups = files.tables.groups
        self._networks = config.ha_networks
        self._has_acting_slaves = config.waits_for_slaves and config.enable_slave_acting_master
        copies = self._copies = Copies(
            store,
            kernel,
            needed=config.replicas_needed,
            refuses=self._has_acting_slaves,
            timeout_ms=config.slave_timeout_ms,
        )
        self.service = HAService(
            store,
            kernel,
            is_allowed=self.is_allowed,
            secrets=config.brokers_secrets if config.authentication_enabled else (),
            acknowledged=copies.update if config.waits_for_slaves else lambda _: None,
        )
        self.gate: Gate = durability
        if config.waits_for_slaves:
            is_sync = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
            self.gate = OneAfterTheOther(durability, copies) if is_sync else copies

        self.slave = None
        if config.is_slave:
            self.slave = Slave(config, files, offsets, durability, registration, kernel)

    def begin(self) -> None:
        """Require slaves from now on; until here the broker's start had to store without them."""
        if self._has_acting_slaves:
            self._copies.update(self.service.slaves())

    def stalled(self, stall_ms: int, _: MonotonicMs) -> None:
        """Extend deadlines of the other side, whose messages are still unread after a stall."""
        self.service.stalled(stall_ms)
        if self.slave is not None:
            self.slave.client.stalled(stall_ms)

    def suggested(self, group: str, read: ReadResult) -> int:
        """Return the broker id from which a group should read next: a slave's if the group is far behind."""
        config = self._groups.get(group)
        if config is None:
            return MASTER_ID
        if read.count:
            place = int.from_bytes(read.data[0][_PLACE_AT : _PLACE_AT + 8])  # The first record's.
            if self._store.end - place > self._store.config.in_memory_bytes:
                return config.which_broker_when_consume_slowly
        return config.broker_id

    def is_allowed(self, address: str) -> bool:
        """Return whether a slave may connect from "host:port"; a slave receives every message."""
        try:
            host = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
        except ValueError:
            return False
        if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
            host = host.ipv4_mapped
        return any(host in network for network in self._networks)
