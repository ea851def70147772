"""The name server as a service: its listening socket, start and stop."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from libramq.clock import Clock, SystemClock
from libramq.filesystem import LocalFileSystem
from libramq.formats.access import UserInfo
from libramq.logs import get_logger
from libramq.nameserver.audit_file import AuditFile
from libramq.nameserver.config import NameServerConfig
from libramq.nameserver.engine import name_server_engine
from libramq.nameserver.kv_config import KVConfig
from libramq.nameserver.route_info import RouteInfo
from libramq.remoting.credentials import Credentials
from libramq.runtime.asyncio_seams import LoopTimers, WorkerThreads
from libramq.runtime.performer import Performer
from libramq.runtime.seams import Seams
from libramq.transport.access import Access
from libramq.transport.address import check_bind_address, join_address
from libramq.transport.admission import Census
from libramq.transport.asyncio_remotes import AsyncioRemotes
from libramq.transport.server import Server
from libramq.transport.tls import PLAIN, Encryption

log = get_logger(__name__)

#: NamesrvStartup.java.
NAME_SERVER_PORT: Final = 9876


class NameServer:
    """A name server. Use it as `async with NameServer(...)`, or call `start` and `stop`.

    port: 0 lets the system choose one; after the start `port` has the chosen one.
    operator: the only user who may change the name server.
    credentials: of the cluster's brokers; if set, registrations must be signed with them.
    config: the options. The KV configuration's file is read by the constructor, which raises ConfigError if
    the file is invalid.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = NAME_SERVER_PORT,
        clock: Clock | None = None,
        *,
        operator: UserInfo | None = None,
        allow_public: bool = False,
        credentials: Credentials | None = None,
        config: NameServerConfig | None = None,
        encryption: Encryption = PLAIN,
    ) -> None:
        self.host = host
        self.port = port
        self.route_info = RouteInfo()
        self._allow_public = allow_public
        clock = clock or SystemClock()
        self._threads = WorkerThreads()
        audit_path = Path(config.audit_path) if config is not None and config.audit_path else None
        self._audit_file = AuditFile(clock, audit_path)
        kv_file = Path(config.kv_config_path) if config is not None and config.kv_config_path else None
        self.engine = name_server_engine(
            self.route_info,
            clock=clock,
            operator=operator,
            credentials=credentials,
            config=replace(config or NameServerConfig(), listen_port=port, bind_address=host),
            kv=KVConfig(LocalFileSystem(), kv_file),
            audit_file=self._audit_file,
        )
        remotes = AsyncioRemotes(clock.monotonic_ms, access=Access(tls=encryption.outgoing))
        self.performer = Performer(
            self.engine,
            Seams(remotes=remotes, timers=LoopTimers(), threads=self._threads),
            monotonic_ms=clock.monotonic_ms,
            listen=lambda listening: listening(),
        )
        census = Census((config or NameServerConfig()).connection_limits)
        self._server = Server(self.performer, clock.monotonic_ms, census=census, tls=encryption.incoming)

    @property
    def address(self) -> str:
        """Return the address on which it listens, as "host:port"."""
        return join_address(self.host, self.port)

    async def start(self) -> None:
        """Listen; raises ConfigError if the port is in use, or the address is public and not allowed."""
        check_bind_address(self.host, allow_public=self._allow_public, remedy="use --allow-public")
        self.port = await self._server.listen(self.host, self.port)
        self.performer.follow()
        log.info("name server started", address=self.address)

    async def stop(self) -> None:
        """Close every connection and stop listening."""
        self.performer.stop()
        await self._server.close()
        await self._threads.close()
        self._audit_file.close()
        log.info("name server stopped", address=self.address)

    async def __aenter__(self) -> "NameServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
