"""The simulated broker: the real broker with the duties of `broker.shell`, in virtual time.

start ─► running ─┬─► stop        everything is on the disk, the name server knows
                  ├─► kill        what was written is in the page cache, and comes back
                  └─► cut_power   what was not synced may be gone
"""

import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from libramq.auth.authorizer import AllowAll
from libramq.broker import shell
from libramq.broker.alarm import DELAY_MS_MIN
from libramq.broker.broker import Broker
from libramq.broker.config import BrokerConfig
from libramq.broker.durability import POLL_MS, Durability
from libramq.broker.progress import ProgressFile
from libramq.broker.question import Question
from libramq.broker.schedule import DELIVERED_PER_ROUND_MAX
from libramq.broker.tables import Fold
from libramq.catalog.config_ledger import run_fold
from libramq.clock import MonotonicMs
from libramq.errors import LibraError, RemoteError, SyncFailed
from libramq.remoting.command import Command
from libramq.rpc.endpoint import Endpoint, Woken
from libramq.rpc.outcome import Reply
from libramq.store.flush import FlushPlan, run_flush
from libramq.store.read import warm
from libramq.store.segments import FileRange
from libramq.testing.disk import MemoryDisk
from libramq.testing.process import Process
from libramq.testing.registering import SimulatedRegistration
from libramq.testing.remotes import SimulatedRemotes
from libramq.testing.world import SeededSecretBits, World
from libramq.transport.server import IDLE_MS_MAX

#: How long threads take for a flush, for a table, for cold bytes.
FLUSH_MS_MAX: Final = 8
DISK_WORK_MS_MAX: Final = 20
#: When a broker that could not start tries again, as whoever watches over it would have it.
START_AGAIN_MS: Final = 500


class SimulatedBroker:
    """One broker process, with a disk that outlives it."""

    def __init__(self, world: World, name: str, ip: str, name_servers: Sequence[str], **options: Any) -> None:
        self.name = name
        self.process = Process(name, world.time, host=ip, clock=world.clock(name))
        self.disk = MemoryDisk(world.time, world.stream(f"disk of {name}"))
        defaults: dict[str, Any] = {
            "store_path": f"/{name}",
            "commit_log_file_bytes": 1 << 16,
            "consume_queue_file_bytes": 2_000,
            "default_topic_queue_nums": 4,
            "namesrv_addr": ";".join(name_servers),
            "message_delay_level": "1s 1s 1s 2s 3s",
        }
        self.config = BrokerConfig(broker_name=name, broker_ip=ip, **(defaults | options))
        self._world = world
        self._name_servers = tuple(name_servers)
        self._random = world.stream(name)
        self._broker: Broker | None = None
        self._cut_is_power = False
        self._is_stopping = False

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.config.address

    @property
    def broker(self) -> Broker | None:
        """The real broker; None while it does not run."""
        return self._broker if self.process.is_alive else None

    @property
    def _running(self) -> Broker:
        assert self._broker is not None, f"{self.name} does not run"
        return self._broker

    # Its life.

    def start(self) -> None:
        """Recover from what the disk has, and serve; tried again when the disk refuses."""
        if self.process.is_alive:
            return
        self.process.start(on_cut=self._cut_off)
        self._is_stopping = False
        self.process.do(self._start)

    def stop(self) -> None:
        """Stop as a signal does it: name server first, then connections, then files."""
        if self.broker is None:
            return
        self._is_stopping = True
        self._endpoint.stop()
        unheard = set(self._name_servers)

        def heard(name_server: str) -> None:
            unheard.discard(name_server)
            if not unheard:
                self._stopped()

        for name_server, registration in self._registrations.items():
            registration.end(partial(heard, name_server))

    def kill(self) -> None:
        """SIGKILL."""
        self._end(power=False)

    def cut_power(self) -> None:
        """The machine is gone, and comes back with what is on its platter."""
        self._end(power=True)

    def cut_power_after(self, calls: int, *, is_power: bool) -> None:
        """The same, or a kill, in the middle of what it does after so many calls of its disk."""
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
        self._broker = None
        self._world.history.broker_died(self.name, durable_to=durable_to)

    def _start(self) -> None:
        world = self._world
        try:
            self._broker = broker = Broker(
                self.config,
                clock=self.process.clock,
                filesystem=self.disk,
                randomness=random.Random(self._random.random()),
                process_id=1,
                recorded=lambda event: world.history.rebalance_recorded(self.name, event),
                secret_bits=SeededSecretBits(random.Random(self._random.random())),
            )
        except (OSError, LibraError) as error:
            world.history.note(self.name, f"does not start: {error}")
            if not self._is_transient(error):
                raise
            self._end(power=False)
            world.time.at(world.time.now_ms + START_AGAIN_MS, self.start)
            return
        self._flush_is_wanted = self._flushes = self._flushes_queues = self._serves = False
        self._alarm_ms: MonotonicMs | None = None
        self._durability = Durability(broker.store, self.process.clock, self._flush_soon)
        self._remotes = SimulatedRemotes(world.network, self.process, lost=self._lost)
        self._registrations = {
            name_server: SimulatedRegistration(
                self.config, broker.topics, self.process, self._remotes, name_server
            )
            for name_server in self._name_servers
        }
        self._endpoint = Endpoint(
            clock=self.process.clock,
            authorizer=AllowAll(),
            processors=broker.processors(),
            batch_processors=broker.batch_processors(),
            when_durable=self._durability.when_durable,
            when_read=self._when_read,
            closed=broker.closed,
            answered=broker.answered,
            after_read=self._after_read,
        )
        world.history.broker_recovered(self.name, broker)
        self._coordinate()
        self.process.after(shell.LOOK_AROUND_MS_MAX, self._serve)

    def _serve(self) -> None:
        """Listen, once it is known which other brokers there are; after a while, anyhow."""
        if self._serves:
            return
        self._serves = True
        broker = self._running
        self._world.network.listen(self.address, self.process, self._endpoint)
        self._perform_duties(broker)
        for registration in self._registrations.values():
            registration.begin()
        broker.topics.observe(lambda _: self._announce())

    def _announce(self) -> None:
        for registration in self._registrations.values():
            registration.announce()

    def _is_transient(self, error: Exception) -> bool:
        disk = self.disk
        return bool(disk.write_error_chance or disk.sync_error_chance)

    def _stopped(self) -> None:
        if self.broker is None:
            return
        for connection in self._world.network.connections():
            if connection.ends[1] is self.process:
                connection.close_by_server()
        self._remotes.close()
        with contextlib.suppress(OSError, LibraError):  # As good as killed, where the disk refuses.
            self._running.close()
        self._end(power=False)

    # Its duties: those of the shell, at the same times.

    def _perform_duties(self, broker: Broker) -> None:
        every, process = self.process.every, self.process
        every(POLL_MS, self._flush_soon)
        every(POLL_MS, self._flush_queues)
        every(shell.SCAN_MS, lambda: self._perform(broker.expire_pulls(process.now_ms)))
        every(shell.SCHEDULE_MS, self._deliver_due)
        every(shell.TICK_MS, self._tick)
        every(shell.HERD_MS, self._herd)
        every(shell.FOLD_MS, self._fold_tables)
        every(shell.PROGRESS_MS, self._write_progress)
        every(IDLE_MS_MAX // 4, self._close_idle)

    def _after_read(self) -> None:
        self._running.offsets.write_or_keep()
        self._perform(self._running.wake())
        self._durability.appended()

    def _perform(self, woken: list[Woken]) -> None:
        for one in woken:
            if one.request.peer.is_open:
                self._endpoint.perform(one.request, one.outcome)
        for question in self._running.take_questions():
            self._ask(question)
        self._ring_by(self._running.next_due_ms)

    def _ask(self, question: Question) -> None:
        def done(outcome: Command | RemoteError) -> None:
            if self._is_stopping:
                return
            question.done(outcome)
            cluster = self._running.cluster
            if cluster is not None and cluster.view.is_known:
                self._serve()
            self._perform(self._running.wake())

        self._remotes.send(question.address, question.call.command(), done, timeout_ms=question.timeout_ms)

    def _lost(self, address: str) -> None:
        if self._is_stopping:
            return
        if address in self._registrations:
            self._registrations[address].announce()
        cluster = self._running.cluster
        if cluster is not None:
            cluster.lost(address)
            self._perform(self._running.wake())

    def _coordinate(self) -> None:
        self._perform(self._running.coordinate(self.process.now_ms))
        self._herd()
        self._durability.appended()

    def _ring_by(self, due_ms: MonotonicMs | None) -> None:
        """Coordinate at that time at the latest; `broker.alarm` is the real one."""
        if due_ms is None or (self._alarm_ms is not None and self._alarm_ms <= due_ms):
            return
        self._alarm_ms = due_ms
        self.process.after(max(DELAY_MS_MIN, due_ms - self.process.now_ms), lambda: self._rung(due_ms))

    def _rung(self, due_ms: MonotonicMs) -> None:
        if self._alarm_ms == due_ms:  # Else an earlier time was asked for meanwhile.
            self._alarm_ms = None
            self._coordinate()

    def _when_read(self, ranges: tuple[FileRange, ...], then: Callable[[], None]) -> None:
        def read() -> None:
            with contextlib.suppress(OSError):
                warm(self.disk, ranges)
            then()

        self.process.after(self._disk_work_ms(), read)

    def _flush_soon(self) -> None:
        self._flush_is_wanted = True
        if not self._flushes:
            self._flushes = True
            self.process.after(0, self._flush)

    def _flush(self) -> None:
        if not self._flush_is_wanted:
            self._flushes = False
            return
        self._flush_is_wanted = False
        plan = self._durability.plan()
        if plan is None:
            self._flushes = False
            return

        def flushed() -> None:
            self._flushed(plan)
            self._flush()

        self.process.after(self._random.randint(0, FLUSH_MS_MAX), flushed)

    def _flush_queues(self) -> None:
        plan = None if self._flushes_queues else self._durability.plan_queues()
        if plan is None:
            return
        self._flushes_queues = True

        def flushed() -> None:
            self._flushed(plan)
            self._flushes_queues = False

        self.process.after(self._random.randint(0, FLUSH_MS_MAX), flushed)

    def _flushed(self, plan: FlushPlan) -> None:
        try:
            run_flush(self.disk, plan)
        except SyncFailed as error:
            self._durability.failed(error)
            self._world.history.note(self.name, "cannot flush; restarts")
            self.process.after(START_AGAIN_MS, self._restart)
        else:
            self._durability.done(plan)
            self._perform(self._running.wake())

    def _restart(self) -> None:
        """What the store asks for when a flush failed; the cache may hold what is not on the platter."""
        self.cut_power()
        self._world.time.at(self._world.time.now_ms + START_AGAIN_MS, self.start)

    def _deliver_due(self) -> None:
        while delivered := self._running.schedule.deliver(self.process.now_ms):
            self._perform(self._running.wake())
            self._durability.appended()
            if delivered < DELIVERED_PER_ROUND_MAX:
                return

    def _tick(self) -> None:
        self._durability.give_up()
        self._endpoint.notify(self._running.tick())
        self._perform(self._running.wake())
        self._durability.appended()

    def _herd(self) -> None:
        notify = self._running.consumers.herd()
        if notify:
            self._endpoint.notify(Reply(notify=notify))

    def _write_progress(self) -> None:
        for file in self._running.progress:
            if file.is_due(self.process.now_ms):
                self.process.after(self._disk_work_ms(), partial(self._write, file))

    def _write(self, file: ProgressFile) -> None:
        try:
            file.write()
        except OSError as error:
            file.done(error)
        else:
            file.done()

    def _fold_tables(self) -> None:
        for fold in self._running.tables.plan_folds():

            def run(fold: Fold = fold) -> None:
                try:
                    run_fold(fold.plan)
                except OSError:
                    fold.ledger.fail_fold()
                else:
                    fold.ledger.complete_fold(fold.plan)

            self.process.after(self._disk_work_ms(), run)

    def _close_idle(self) -> None:
        for connection in self._world.network.connections():
            if connection.ends[1] is self.process and connection.server_silent_ms > IDLE_MS_MAX:
                connection.close_by_server()

    def _disk_work_ms(self) -> int:
        return self._random.randint(0, DISK_WORK_MS_MAX)
