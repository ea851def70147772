"""Replication in a broker. A master: who may be a slave, what sends wait for, who reads at slaves.

A slave: see `slave.py`.
"""

import ipaddress
from collections.abc import Callable
from functools import partial
from typing import Final

from libramq.broker.cluster.registration import Registration
from libramq.broker.cluster.slave import Slave
from libramq.broker.cluster.slaves_progress import ESCAPING_FIELD
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.durability import Durability
from libramq.broker.pop.pops_at_slave import PopsAtSlave
from libramq.broker.processor.cluster.slave_refusals import Forwarding, refuse_at_slave
from libramq.broker.processor.messages.ack_at_slave import AckAtSlave
from libramq.broker.processor.messages.pop_at_slave import PopAtSlave
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode
from libramq.formats.route import MASTER_ID
from libramq.kernel.gate import Gate
from libramq.kernel.parts import Kernel
from libramq.replication.copies import Copies, OneAfterTheOther
from libramq.replication.ha_service import HAService
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import BatchProcessor, Processor, Request
from libramq.store.config import FlushDiskType
from libramq.store.reading.read import ReadResult

#: Where a record has its physical offset.
_PLACE_AT: Final = 28


class Replication:
    """The parts for slaves, and those of a slave.

    gate: where sends wait, for the disk, for slaves, or for both in a row. slave: None in a master.
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
        self._groups, self._modes = files.tables.groups, files.tables.request_modes
        self._networks = config.ha_networks
        self._has_acting_slaves = config.waits_for_slaves and config.enable_slave_acting_master
        copies = self._copies = Copies(
            store,
            kernel,
            needed=config.replicas_needed,
            refuses=self._has_acting_slaves,
            timeout_ms=config.slave_timeout_ms,
        )
        acknowledged = copies.update if config.waits_for_slaves else _ignore
        self.service = HAService(store, kernel, is_allowed=self.is_allowed, acknowledged=acknowledged)
        self.gate: Gate = durability
        if config.waits_for_slaves:
            is_sync = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
            self.gate = OneAfterTheOther(durability, copies) if is_sync else copies

        self._is_readable = config.slave_read_enable
        self.slave = None
        if config.is_slave:
            self.slave = Slave(config, files, offsets, durability, registration, kernel)

    def begin(self) -> None:
        """Require slaves from now on: what is stored before, the start needs."""
        if self._has_acting_slaves:
            self._copies.update(self.service.slaves())

    def stalled(self, stall_ms: int, _: MonotonicMs) -> None:
        """Extend the deadlines of the other side: what it sent meanwhile is not read yet."""
        self.service.stalled(stall_ms)
        if self.slave is not None:
            self.slave.client.stalled(stall_ms)

    def refuse(
        self,
        processors: dict[int, Processor],
        batch_processors: dict[int, BatchProcessor],
        pops: PopsAtSlave | None,
        answer: Callable[[Request, Outcome], None],
    ) -> None:
        """Have a slave refuse what only a master does, or forward it. pops: what it has handed out.

        answer: sends delayed replies.
        """
        slave = self.slave
        if slave is None or pops is None:
            return
        served = dict(processors)
        refuse_at_slave(
            processors, batch_processors, is_readable=self._is_readable, is_acting=lambda: slave.is_acting
        )
        at_slave = PopAtSlave(
            pops, self._groups.__contains__, self._modes, forwards=lambda: slave.is_named_for_master
        )
        at_slave.serve(served, processors)
        acks = AckAtSlave(pops, slave.escaping.acknowledge if slave.escaping is not None else lambda _: False)
        code = RequestCode.ACK_MESSAGE
        processors[code] = partial(acks.handle, processors[code])
        code = RequestCode.BATCH_ACK_MESSAGE
        processors[code] = partial(acks.handle_batch, processors[code])
        Forwarding(slave, answer).serve(processors)
        code = RequestCode.GET_ALL_DELAY_OFFSET
        processors[code] = _awaiting(processors[code], lambda _: slave.answer_master())
        code = RequestCode.SLAVE_PROGRESS
        processors[code] = _awaiting(processors[code], partial(_answer_peer, slave))

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


def _ignore(_: object) -> None:
    """Ignore what slaves acknowledge: nobody waits for it."""


def _answer_peer(slave: Slave, request: Request) -> bool:
    return slave.answer_peer(request.header.broker_id)


def _awaiting(serve: Processor, prepare: Callable[[Request], bool]) -> Processor:
    """Have a slave say what it has delivered. prepare: returns whether it awaits answers still."""

    def handle(request: Request) -> Outcome:
        is_moving, outcome = prepare(request), serve(request)
        if is_moving and isinstance(outcome, Reply):
            return Reply(body=outcome.body, ext={ESCAPING_FIELD: "1"})
        return outcome

    return handle


def _place(read: ReadResult) -> int:
    """Return the physical offset of the first record that was read."""
    return int.from_bytes(read.data[0][_PLACE_AT : _PLACE_AT + 8])
