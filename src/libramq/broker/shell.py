"""The broker's shell: its listening sockets (including the VIP port), connections, timers and threads; the
order of start and stop; and its reports if a start fails, or if its store directory is gone when it stops.

The VIP port (listen port - 2) answers the same requests. Upstream: BrokerController.java.
"""

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from libramq.broker.broker import Broker
from libramq.broker.cluster.registration import FIRST_ROUND_MS_MAX
from libramq.broker.config import VIP_DISTANCE, BrokerConfig, check_peers_are_known
from libramq.broker.machine import Machine
from libramq.clock import Clock
from libramq.errors import ConfigError, StoreError
from libramq.filesystem import FileSystem, refuse_shared_directory
from libramq.kernel.engine import Translator
from libramq.kernel.parts import METRICS
from libramq.logs import get_logger
from libramq.replication.blocks import ReportReader
from libramq.replication.slave_proof import UNPROVEN_MAX
from libramq.runtime.asyncio_seams import LoopTimers, WorkerThreads
from libramq.runtime.performer import Performer
from libramq.runtime.seams import Seams
from libramq.transport.access import Access
from libramq.transport.address import check_bind_address
from libramq.transport.admission import Census, ConnectionLimits, for_slaves
from libramq.transport.asyncio_remotes import AsyncioRemotes, SocketDialer
from libramq.transport.server import Reader, Server
from libramq.transport.server_tls import encryption as encryption_of
from libramq.transport.tls import Encryption

if TYPE_CHECKING:
    from libramq.broker.metrics_server import MetricsServer

log = get_logger(__name__)

#: Ours: connections of slaves, of which a master has 16, and of unproven ones (64); the oldest of these make
#: room.
HA_CONNECTIONS_MAX: Final = 128
#: Ours: how often metrics are sampled, if they are served.
METRICS_MS: Final = 1_000


class BrokerServer:
    """A broker that listens on sockets. encryption: by default, as configured."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        filesystem: FileSystem,
        randomness: random.Random | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        for address in (config.bind_address, config.metrics_host):
            check_bind_address(address, allow_public=config.allow_public, remedy="set allowPublic=true")
        check_peers_are_known(config)
        refuse_shared_directory(Path(config.store_path), "storePathRootDir")
        self._config = config
        self._clock = clock
        self._filesystem = filesystem
        self._random = randomness or random.Random()
        self._servers: list[Server] = []
        #: Clients' connections of all protocols; slaves and readers of metrics are counted separately.
        self._census = Census(config.connection_limits)
        self._listening: asyncio.Task[None] | None = None
        self._has_listened = asyncio.Event()
        self._threads = WorkerThreads()
        self._encryption = encryption if encryption is not None else encryption_of(config.tls)
        access = Access(tls=self._encryption.outgoing)
        self._remotes = AsyncioRemotes(clock.monotonic_ms, lost=self._lost, access=access)
        self._dialer = SocketDialer(access.tls)
        self._broker: Broker | None = None
        self._performer: Performer | None = None
        self._metrics: MetricsServer | None = None
        self._metrics_timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Return the address that clients connect to."""
        return self._config.address

    @property
    def broker(self) -> Broker:
        """Return the broker, once started."""
        assert self._broker is not None, "the broker has not started"
        return self._broker

    def server(
        self,
        translator: Translator,
        reader: Callable[[], Reader],
        is_allowed: Callable[[str], bool] = lambda _: True,
        census: Census | None = None,
    ) -> Server:
        """Return a server of another protocol, once started, with the broker's encryption.

        census: counts its connections, unless they are counted with clients'. The caller must close the
        server before `stop`. See `tests/stranger`.
        """
        assert self._performer is not None, "the broker has not started"
        return Server(
            self._performer.entrance(translator),
            self._clock.monotonic_ms,
            reader=reader,
            is_allowed=is_allowed,
            census=census or self._census,
            tls=self._encryption.incoming,
        )

    def call(self, work: Callable[[], None]) -> None:
        """Do something at the started broker, and perform its effects."""
        assert self._performer is not None, "the broker has not started"
        work()
        self._performer.follow()

    async def start(self) -> None:
        """Open the store, listen, register; raises StoreLocked, ConfigError and others."""
        if self._config.serves_metrics:
            from libramq.broker.metrics_server import MetricsServer

            self._metrics = MetricsServer(
                self._config.metrics_host, self._config.metrics_port, self._encryption.incoming
            )
        self._broker = Broker(
            self._config,
            Machine(
                clock=self._clock,
                filesystem=self._filesystem,
                randomness=self._random,
                process_id=os.getpid(),
            ),
            recorded=self._metrics.record if self._metrics is not None else None,
            fetch_name_servers=_fetch_name_servers,
        )
        self._performer = Performer(
            self._broker.engine,
            Seams(remotes=self._remotes, timers=LoopTimers(), threads=self._threads, dialer=self._dialer),
            monotonic_ms=self._clock.monotonic_ms,
            listen=self._listen_soon,
        )
        self._is_started = asyncio.get_running_loop().create_future()
        try:
            self._broker.start(self._started)
            self._performer.follow()
            await self._wait_started()
            if self._metrics is not None:
                await self._metrics.start(self._performer, self._broker)
                self._sample_metrics()
        except BaseException:  # In any case: a store that stays open stays locked.
            await self.stop()
            raise

    async def stop(self) -> None:
        """Unregister, close connections and store; a failure does not stop the rest.

        Raises StoreError if the store's directory is gone, so that nothing could be written.
        """
        if self._metrics_timer is not None:
            self._metrics_timer.cancel()
        if self._listening is not None:
            await asyncio.gather(self._listening, return_exceptions=True)
        async with AsyncExitStack() as stack:  # Last in, first out.
            if self._broker is not None:
                stack.callback(self._broker.close)
            stack.push_async_callback(self._threads.close)
            stack.push_async_callback(self._remotes.aclose)
            stack.push_async_callback(self._dialer.abort_all)
            if self._metrics is not None:
                stack.push_async_callback(self._metrics.stop)
            for server in reversed(self._servers):
                stack.push_async_callback(server.close)
            if self._performer is not None:
                stack.callback(self._performer.stop)
                await self._leave(self._performer)
        if self._broker is not None and self._broker.store.lost is not None:
            raise StoreError(f"the broker's last state was not written: {self._broker.store.lost}")

    def _started(self) -> None:
        if not self._is_started.done():
            self._is_started.set_result(None)

    async def _wait_started(self) -> None:
        """Wait until the broker listens and is registered; silent name servers are not awaited for long.

        Listening has no deadline: the conditions it waits for have one (`StartUp`), and a busy machine may
        take its time.
        """
        await self._has_listened.wait()
        try:
            async with asyncio.timeout(FIRST_ROUND_MS_MAX / 1000):
                await self._is_started
        except TimeoutError:
            log.warning("name servers do not answer; the broker registers as soon as they do")

    async def _leave(self, performer: Performer) -> None:
        left = asyncio.Event()
        self.broker.leave(left.set)
        performer.follow()
        await left.wait()

    def _listen_soon(self, listening: Callable[[], None]) -> None:
        self._listening = asyncio.get_running_loop().create_task(self._listen(listening))
        self._listening.add_done_callback(lambda _: self._has_listened.set())

    async def _listen(self, listening: Callable[[], None]) -> None:
        assert self._performer is not None
        host = self._config.bind_address
        servers = {
            number: Server(
                self._performer,
                self._clock.monotonic_ms,
                census=self._census,
                tls=self._encryption.incoming,
            )
            for number in self._config.client_ports
        }
        if self._config.ha_listen_port and not self._config.is_slave:  # A slave has no slaves.
            replication = self.broker.replication
            limits = ConnectionLimits(
                connections_max=HA_CONNECTIONS_MAX,
                unauthenticated_max=UNPROVEN_MAX if self._config.authentication_enabled else None,
            )
            servers[self._config.ha_listen_port] = self.server(
                replication.service,
                ReportReader,
                replication.is_allowed,
                Census(limits, descriptors_max=for_slaves()),
            )
        for number, server in servers.items():
            self._servers.append(server)
            try:
                await server.listen(host, number)
            except Exception as error:  # Reported to the caller of `start`.
                if not self._is_started.done():
                    self._is_started.set_exception(self._explained(error, number))
                return
        listening()

    def _explained(self, error: Exception, port: int) -> Exception:
        listen_port = self._config.listen_port
        if port == listen_port or port not in self._config.client_ports:
            return error
        return ConfigError(
            f"{error}; listenPort={listen_port} needs it too: old clients are answered {VIP_DISTANCE} below"
        )

    def _lost(self, address: str) -> None:
        if self._performer is not None:
            self._performer.lost(address)

    def _sample_metrics(self) -> None:
        assert self._metrics is not None
        loop = asyncio.get_running_loop()
        self._metrics_timer = loop.call_later(METRICS_MS / 1000, self._sample_metrics)
        assert self._performer is not None
        count = sum(server.connection_count for server in self._servers)
        longest_wait_us = self._performer.turns.longest_wait.take_us(METRICS)
        self.call(partial(self._metrics.sample, self.broker, count, self._census.refused, longest_wait_us))


def _fetch_name_servers(url: str) -> tuple[str, ...]:
    """Return the name servers on a page; blocks. Few brokers need it, and urllib takes 20 ms to load."""
    from libramq.transport.name_server_lookup import fetch

    return fetch(url)
