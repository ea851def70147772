"""The broker's shell: sockets, timers and threads around `Broker`.

The VIP port (listen port - 2) answers the same requests. Flushes and cold reads run on threads; everything
else on the event loop. Upstream: BrokerController.java.
"""

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from libramq.auth.authorizer import AllowAll
from libramq.broker.alarm import Alarm
from libramq.broker.broker import Broker
from libramq.broker.config import BrokerConfig
from libramq.broker.flushing import Flushing
from libramq.broker.question import Question
from libramq.broker.registration import Registration
from libramq.broker.schedule import DELIVERED_PER_ROUND_MAX
from libramq.broker.threads import on_thread
from libramq.catalog.config_ledger import run_fold
from libramq.clock import Clock
from libramq.errors import ConfigError, RemoteError
from libramq.filesystem import FileSystem
from libramq.logs import get_logger
from libramq.remoting.command import Command
from libramq.rpc.endpoint import Endpoint, Woken
from libramq.rpc.outcome import Reply
from libramq.store.read import warm
from libramq.store.segments import FileRange
from libramq.transport.address import split_name_servers
from libramq.transport.bind import check_bind_address
from libramq.transport.remote import Remotes
from libramq.transport.server import Server

if TYPE_CHECKING:
    from libramq.broker.metrics_server import MetricsServer

log = get_logger(__name__)

#: NettyRemotingServer's fast port (BrokerController.initializeRemotingServer).
VIP_PORT_OFFSET: Final = -2
#: How often held pulls and due messages are looked at; upstream: 5 s and 100 ms.
SCAN_MS: Final = 20
SCHEDULE_MS: Final = 100
TICK_MS: Final = 1_000
#: Ours: how exactly a repeated notification keeps its second.
HERD_MS: Final = 50
#: Ours: how often it is looked whether a file that says how far something is done may be written.
PROGRESS_MS: Final = 100
#: Ours: how long a start waits to see the other brokers.
LOOK_AROUND_MS_MAX: Final = 1_000
#: Ours: how soon topics.json has a new topic; the journal has it at once.
FOLD_MS: Final = 500
#: Ours: readers of old data side by side; each waits for the disk.
READ_THREADS: Final = 4


class BrokerServer:
    """A broker that listens."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        filesystem: FileSystem,
        randomness: random.Random | None = None,
    ) -> None:
        for address in (config.bind_address, config.metrics_host):
            check_bind_address(address, allow_public=config.allow_public, remedy="set allowPublic=true")
        self._config = config
        self._clock = clock
        self._filesystem = filesystem
        self._random = randomness or random.Random()
        self._servers: list[Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._read_threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="libra-read")
        self._remotes = Remotes(clock.monotonic_ms, lost=self._lost)
        self._has_view = asyncio.Event()
        self._is_stopping = False
        self._alarm = Alarm(clock.monotonic_ms, self._coordinate)
        self._broker: Broker | None = None
        self._registration: Registration | None = None
        self._metrics: MetricsServer | None = None

    @property
    def address(self) -> str:
        """What clients are told to connect to."""
        return self._config.address

    @property
    def broker(self) -> Broker:
        """The broker, once started."""
        assert self._broker is not None, "the broker has not started"
        return self._broker

    async def start(self) -> None:
        """Open the store, listen, register; raises StoreLocked, ConfigError and their kin."""
        name_servers = split_name_servers(self._config.namesrv_addr) if self._config.namesrv_addr else ()
        if self._config.serves_metrics:
            from libramq.broker.metrics_server import MetricsServer

            self._metrics = MetricsServer(self._config.metrics_host, self._config.metrics_port)
        self._broker = broker = Broker(
            self._config,
            clock=self._clock,
            filesystem=self._filesystem,
            randomness=self._random,
            process_id=os.getpid(),
            recorded=self._metrics.record if self._metrics is not None else None,
        )
        flushing = Flushing(broker.store, self._filesystem, self._clock, self._after_flush)
        self._durability = flushing.durability
        self._endpoint = Endpoint(
            clock=self._clock,
            authorizer=AllowAll(),
            processors=broker.processors(),
            batch_processors=broker.batch_processors(),
            when_durable=self._durability.when_durable,
            when_read=self._when_read,
            when_announced=self._when_announced,
            closed=broker.closed,
            answered=broker.answered,
            after_read=self._after_read,
        )
        try:
            await self._look_around()
            await self._listen()
            if self._metrics is not None:
                self._metrics.start()
        except ConfigError:
            await self.stop()
            raise
        self._run(flushing.run())
        self._run(
            self._every(SCAN_MS, lambda: self._perform(broker.expire_pulls(self._clock.monotonic_ms())))
        )
        self._run(self._every(SCHEDULE_MS, self._deliver_due))
        self._run(self._every(TICK_MS, self._tick))
        self._run(self._every(HERD_MS, self._herd))
        self._run(self._every(FOLD_MS, self._fold_tables))
        self._run(self._every(PROGRESS_MS, self._write_progress))
        registration = Registration(self._config, broker.topics, self._remotes, name_servers)
        self._registration = registration
        broker.topics.observe(lambda _: registration.announce())
        if name_servers:
            self._run(self._registration.run())
            await self._registration.wait_tried()

    async def stop(self) -> None:
        """Leave the name servers, end connections, close the store."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._registration is not None:
            await self._registration.unregister()
        if self._broker is not None:
            self._endpoint.stop()
        for server in self._servers:
            await server.close()
        if self._metrics is not None:
            await self._metrics.stop()
        await self._remotes.close()
        self._read_threads.shutdown()
        self._alarm.cancel()
        if self._broker is not None:
            self._broker.close()

    async def _listen(self) -> None:
        host, port = self._config.bind_address, self._config.listen_port
        ports = (port, port + VIP_PORT_OFFSET) if port > -VIP_PORT_OFFSET else (port,)
        for number in ports:
            server = Server(self._endpoint, self._clock.monotonic_ms)
            self._servers.append(server)
            await server.listen(host, number)

    def _after_read(self) -> None:
        self.broker.offsets.write_or_keep()
        self._perform(self.broker.wake())
        self._durability.appended()

    def _after_flush(self) -> None:
        self._perform(self.broker.wake())

    def _perform(self, woken: list[Woken]) -> None:
        for one in woken:
            if one.request.peer.is_open:
                self._endpoint.perform(one.request, one.outcome)
        for question in self.broker.take_questions():
            self._ask(question)
        self._alarm.ring_by(self.broker.next_due_ms)

    def _ask(self, question: Question) -> None:
        def done(outcome: Command | RemoteError) -> None:
            if not self._is_stopping:
                question.done(outcome)
                if self.broker.cluster is not None and self.broker.cluster.view.is_known:
                    self._has_view.set()
                self._perform(self.broker.wake())

        self._remotes.send(question.address, question.call.command(), done, timeout_ms=question.timeout_ms)

    async def _look_around(self) -> None:
        """See which other brokers there are before anybody asks us where groups live; do not insist."""
        if self.broker.cluster is None:
            return
        self._coordinate()
        try:
            async with asyncio.timeout(LOOK_AROUND_MS_MAX / 1000):
                await self._has_view.wait()
        except TimeoutError:
            log.warning("no name server answers; members of groups have to wait")

    def _coordinate(self) -> None:
        self._perform(self.broker.coordinate(self._clock.monotonic_ms()))
        self._herd()
        self._durability.appended()

    def _when_read(self, ranges: tuple[FileRange, ...], then: Callable[[], None]) -> None:
        future = asyncio.get_running_loop().run_in_executor(
            self._read_threads, warm, self._filesystem, ranges
        )
        future.add_done_callback(lambda _: then())

    def _when_announced(self, then: Callable[[], None]) -> None:
        if self._registration is None:
            then()
        else:
            self._registration.when_told(then)

    async def _deliver_due(self) -> None:
        while delivered := self.broker.schedule.deliver(self._clock.monotonic_ms()):
            self._perform(self.broker.wake())
            self._durability.appended()
            if delivered < DELIVERED_PER_ROUND_MAX:
                return
            await asyncio.sleep(0)

    def _herd(self) -> None:
        notify = self.broker.consumers.herd()
        if notify:
            self._endpoint.notify(Reply(notify=notify))

    def _tick(self) -> None:
        self._durability.give_up()
        self._endpoint.notify(self.broker.tick())
        if self._metrics is not None:
            self._metrics.sample(self.broker, sum(server.connection_count for server in self._servers))
        self._perform(self.broker.wake())
        self._durability.appended()

    def _lost(self, address: str) -> None:
        if self._registration is not None:
            self._registration.lost(address)
        if self.broker.cluster is not None and not self._is_stopping:
            self.broker.cluster.lost(address)
            self._perform(self.broker.wake())

    async def _write_progress(self) -> None:
        for file in self.broker.progress:
            if file.is_due(self._clock.monotonic_ms()):
                error: OSError | None = None
                try:
                    await on_thread(file.write)
                except OSError as failed:
                    error = failed
                file.done(error)

    async def _fold_tables(self) -> None:
        for fold in self.broker.tables.plan_folds():
            try:
                await on_thread(run_fold, fold.plan)
            except OSError as error:
                log.error("a table was not written; the journal stays", reason=str(error))
                fold.ledger.fail_fold()
            else:
                fold.ledger.complete_fold(fold.plan)

    async def _every(self, period_ms: int, action: Callable[[], object]) -> None:
        """Do something again and again; what fails is logged and done again next time."""
        while True:
            await asyncio.sleep(period_ms / 1000)
            try:
                result = action()
                if asyncio.iscoroutine(result):
                    await result
            except Exception:
                log.exception("periodic work failed")

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))
