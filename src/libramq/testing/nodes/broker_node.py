"""The simulated broker: the real broker under the real performer, on virtual time, network and disk.

start ─► running ─┬─► stop        everything is on the disk, the name server is informed
                  ├─► kill        written data is in the page cache and survives
                  └─► cut_power   unsynced data may be lost

A simulated slave copies the log of a simulated master, on another machine.
"""

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from libramq.broker.broker import Broker
from libramq.broker.config import BrokerConfig
from libramq.broker.machine import Machine
from libramq.errors import LibraError, SyncFailed
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.kernel.engine import Translator
from libramq.replication.blocks import ReportReader
from libramq.replication.ha_client import State
from libramq.runtime.performer import Performer
from libramq.runtime.seams import Seams
from libramq.testing.history import fail_the_simulation
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.network import SimulatedDialer, simulated_remotes
from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedThreads, SimulatedTimers, drawn_turns
from libramq.testing.world import SeededSecretBits, World
from libramq.transport.server import IDLE_MS_MAX, Handler

if TYPE_CHECKING:
    from libramq.testing.nodes.kafka_port import KafkaPort


#: The pause before another attempt to start a broker, like a supervisor's.
START_AGAIN_MS: Final = 500


class SimulatedBroker:
    """One broker process, with a disk that survives its restarts."""

    def __init__(self, world: World, name: str, ip: str, name_servers: Sequence[str], **options: Any) -> None:
        self.name = name
        self.process = Process(name, world.time, host=ip, clock=world.clock(name))
        self.disk = MemoryDisk(world.time, world.stream(f"disk of {name}"))
        defaults: dict[str, Any] = {
            "broker_name": name,
            "store_path": f"/{name}",
            "commit_log_file_bytes": 1 << 16,
            "consume_queue_file_bytes": 2_000,
            "timer_log_file_bytes": 1 << 16,
            "default_topic_queue_nums": 4,
            "namesrv_addr": ";".join(name_servers),
            "message_delay_level": "1s 1s 1s 2s 3s",
        }
        self.config = BrokerConfig(broker_ip=ip, **(defaults | options))
        self._world = world
        self._random = world.stream(name)
        self._broker: Broker | None = None
        self._cut_is_power = False
        #: The port for Kafka's clients in the current run; None while it does not listen.
        self.kafka: KafkaPort | None = None

    @property
    def address(self) -> str:
        """Return the broker's address."""
        return self.config.address

    @property
    def broker(self) -> Broker | None:
        """Return the real broker; None while the process is not running."""
        return self._broker if self.process.is_alive else None

    @property
    def _running(self) -> Broker:
        assert self._broker is not None, f"{self.name} does not run"
        return self._broker

    def entrance(self, translator: Translator) -> Handler:
        """Return the current run's handler for connections of another protocol."""
        return self._performer.entrance(translator)

    # Start and stop.

    def start(self) -> None:
        """Recover from the disk and serve; retried while the disk fails."""
        if self.process.is_alive:
            return
        self.process.start(on_cut=self._cut_off)
        self.process.do(self._start)

    def stop(self) -> None:
        """Stop as on a signal: unregister first, then close connections, then files."""
        if self.broker is not None:
            self.process.do(self._leave)  # The stop itself may be cut off.

    def _leave(self) -> None:
        self._running.leave(self._stopped)
        self._performer.follow()

    def kill(self) -> None:
        """Kill the process, as by SIGKILL."""
        self._end(power=False)

    def cut_power(self) -> None:
        """Cut the machine's power; only synced data surely survives."""
        self._end(power=True)

    def cut_power_after(self, calls: int, *, is_power: bool) -> None:
        """Cut the power or kill the process after this many disk calls, in the middle of an operation."""
        self._cut_is_power = is_power
        self.disk.cut_power_after(calls)

    def _cut_off(self) -> None:
        self._end(power=self._cut_is_power)
        self._world.time.at(self._world.time.now_ms + START_AGAIN_MS, self.start)

    def _end(self, *, power: bool) -> None:
        if not self.process.is_alive:
            return
        durable_to = None
        if power:
            durable_to = self._broker.store.flushed_offset if self._broker is not None else -1
        self.process.kill()
        self._world.network.died(self.process)
        if power:
            self.disk.power_cut()
            self.process.clock.reboot()
        else:
            self.disk.process_died()
        self._broker = self.kafka = None
        self._note_end(durable_to)

    def _note_end(self, durable_to: int | None) -> None:
        self._world.history.broker_died(self.name, durable_to=durable_to)

    def _start(self) -> None:
        world = self._world
        try:
            self._broker = broker = Broker(
                self.config,
                Machine(
                    clock=self.process.clock,
                    filesystem=self.disk,
                    randomness=random.Random(self._random.random()),
                    process_id=1,
                    secret_bits=SeededSecretBits(random.Random(self._random.random())),
                ),
                recorded=self._note_rebalance,
            )
        except (OSError, LibraError) as error:
            self._cannot_start(error)
            return
        self._remotes = simulated_remotes(world.network, self.process, lost=self._lost)
        self._performer = Performer(
            broker.engine,
            Seams(
                remotes=self._remotes,
                timers=SimulatedTimers(self.process),
                threads=SimulatedThreads(self.process, self._random, self._work_failed),
                dialer=SimulatedDialer(world.network, self.process),
            ),
            monotonic_ms=self.process.clock.monotonic_ms,
            listen=self._listen,
            failed=fail_the_simulation,
        )
        broker.engine.workload.begin_turn = drawn_turns(random.Random(self._random.random()))
        self._note_recovery(broker)
        self.process.every(IDLE_MS_MAX // 4, self._close_idle)
        broker.start(lambda: None)
        self._performer.follow()

    def _note_rebalance(self, event: RebalanceEvent) -> None:
        self._world.history.rebalance_recorded(self.name, event)

    def _note_recovery(self, broker: Broker) -> None:
        self._world.history.broker_recovered(self.name, broker)

    def _listen(self, listening: Callable[[], None]) -> None:
        network, config = self._world.network, self.config
        network.listen(self.address, self.process, self._performer)
        if config.ha_listen_port and not config.is_slave:
            slaves = self._performer.entrance(self._running.replication.service)
            ha_address = f"{config.broker_ip}:{config.ha_listen_port}"
            network.listen(ha_address, self.process, slaves, reader=ReportReader)
        listening()
        if config.kafka_listen_port:
            self.process.after(0, self._listen_for_kafka)

    def _listen_for_kafka(self) -> None:
        """Serve Kafka's clients, as the command does after its broker listens."""
        from libramq.testing.nodes.kafka_port import KafkaPort  # Needs the extra `kafka`.

        secret_bits = SeededSecretBits(random.Random(self._random.random()))
        try:
            self.kafka = KafkaPort(self._running, self.config, self.disk, secret_bits)
        except (OSError, LibraError) as error:
            self._cannot_start(error)
            return
        self.kafka.listen(self._world.network, self.process, self._performer)
        self._performer.follow()

    def _cannot_start(self, error: Exception) -> None:
        """Try to start again later, like a supervisor; raises errors for which the disk is not to blame."""
        self._world.history.note(self.name, f"does not start: {error}")
        if not (self.disk.write_error_chance or self.disk.sync_error_chance):
            raise error
        self._end(power=False)
        self._world.time.at(self._world.time.now_ms + START_AGAIN_MS, self.start)

    def _lost(self, address: str) -> None:
        self._performer.lost(address)

    def _stopped(self) -> None:
        if self.broker is None:
            return
        self._performer.stop()
        for connection in self._world.network.connections():
            if connection.ends[1] is self.process:
                connection.close_by_server()
        self._remotes.close()
        with contextlib.suppress(OSError, LibraError):  # With a failing disk this is just a kill.
            self._running.close()
        self._end(power=False)

    def _work_failed(self, error: OSError | LibraError) -> None:
        if isinstance(error, SyncFailed):
            self._world.history.note(self.name, "cannot flush; restarts")
            self.process.after(START_AGAIN_MS, self._restart)

    def _restart(self) -> None:
        """Restart after a failed flush, as the store requires; the cache may hold unsynced data."""
        self.cut_power()
        self._world.time.at(self._world.time.now_ms + START_AGAIN_MS, self.start)

    def _close_idle(self) -> None:
        for connection in self._world.network.connections():
            if connection.ends[1] is self.process and connection.server_silent_ms > IDLE_MS_MAX:
                connection.close_by_server()


_SLAVE: Final = "slave"
_OF: Final = " of "


class SimulatedSlave(SimulatedBroker):
    """One slave process. Its end is not reported to invariants as a broker's death, only as a slave's end."""

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
        #: Whether a power cut may have lost confirmed data that has not been copied from the master again.
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
        """Return a broker started as a master on a copy of this slave's present disk."""
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
        pass  # A slave sees only its own connections, and stores no records of its own.

    def _note_recovery(self, broker: Broker) -> None:
        self._world.history.note(self.name, f"runs, log ends at {broker.store.end}")

    @property
    def is_copying(self) -> bool:
        """Return whether the slave has compared logs with its master, now copies, and is not ahead."""
        ours, theirs = self.broker, self.master.broker
        if ours is None or theirs is None:
            return False
        slave = ours.replication.slave
        assert slave is not None
        return slave.client.state is State.COPYING and ours.store.end <= theirs.store.end

    @property
    def is_caught_up(self) -> bool:
        """Return whether the slave has its master's whole log."""
        ours, theirs = self.broker, self.master.broker
        return ours is not None and theirs is not None and ours.store.end == theirs.store.end


def master_name(process_name: str) -> str:
    """Return a broker process's broker name, which slaves share with their master."""
    return process_name.rpartition(_OF)[2]


def is_slave(process_name: str) -> bool:
    """Return whether a broker process is a slave."""
    return process_name.startswith(_SLAVE)
