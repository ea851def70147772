"""The simulated slave: a real broker that copies the log of a simulated master, on a machine of its own."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from libramq.broker.broker import Broker
from libramq.broker.machine import Machine
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.replication.ha_client import State
from libramq.testing.nodes.broker_node import SimulatedBroker
from libramq.testing.world import SeededSecretBits, World

_SLAVE: Final = "slave"
_OF: Final = " of "


class SimulatedSlave(SimulatedBroker):
    """One slave process. Its end is no end of its master: invariants of masters do not hear of it."""

    def __init__(
        self,
        world: World,
        master: SimulatedBroker,
        ip: str,
        name_servers: Sequence[str],
        *,
        broker_id: int = 1,
        **options: Any,
    ) -> None:
        self.master = master
        #: Whether a power cut may have taken what our master has, which we have not copied again yet.
        self.may_lack = False
        as_slave = {
            "broker_name": master.name,
            "broker_id": broker_id,
            "broker_role": "SLAVE",
            "slave_read_enable": True,
        }
        which = _SLAVE if broker_id == 1 else f"{_SLAVE} {broker_id}"
        super().__init__(world, f"{which}{_OF}{master.name}", ip, name_servers, **as_slave, **options)

    def promoted(self) -> Broker:
        """Return what a master would be that is started on a copy of our disk, as it is now."""
        config = replace(
            self.config, broker_role="ASYNC_MASTER", broker_id=0, ha_listen_port=0, in_sync_replicas=1
        )
        return Broker(
            config,
            Machine(
                clock=self.process.clock,
                filesystem=self.disk.copy(),
                randomness=random.Random(0),
                process_id=1,
                secret_bits=SeededSecretBits(random.Random(0)),
            ),
        )

    def _note_end(self, durable_to: int | None) -> None:
        self.may_lack |= durable_to is not None and self.config.flush_disk_type == "ASYNC_FLUSH"
        self._world.history.slave_ended(self.name, durable_to)

    def _note_rebalance(self, event: RebalanceEvent) -> None:
        pass  # It sees its own connections only, and stores nothing of its own.

    def _note_recovery(self, broker: Broker) -> None:
        self._world.history.note(self.name, f"runs, log ends at {broker.store.end}")

    @property
    def is_copying(self) -> bool:
        """Return whether it follows its master, after the comparison of the logs, and is not ahead."""
        ours, theirs = self.broker, self.master.broker
        if ours is None or theirs is None:
            return False
        slave = ours.replication.slave
        assert slave is not None
        return slave.client.state is State.COPYING and ours.store.end <= theirs.store.end

    @property
    def is_caught_up(self) -> bool:
        """Return whether it has all that its master has."""
        ours, theirs = self.broker, self.master.broker
        return ours is not None and theirs is not None and ours.store.end == theirs.store.end


def master_name(process_name: str) -> str:
    """Return the broker name of a broker process: a slave's is its master's."""
    return process_name.rpartition(_OF)[2]


def is_slave(process_name: str) -> bool:
    """Return whether a broker process is a slave."""
    return process_name.startswith(_SLAVE)
