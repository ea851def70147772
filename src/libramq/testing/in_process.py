"""A broker for tests: a real one with its name server, in this process, on free ports of the loopback.

def test_orders_arrive():
    with Broker() as broker, Producer(group="orders", namesrv=broker.namesrv) as producer:
        producer.send(Message("Orders", b"one"))

async def test_orders_arrive():
    async with Broker() as broker, Producer(group="orders", namesrv=broker.namesrv) as producer:
        await producer.send(Message("Orders", b"one"))
"""

import random
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from libramq.broker.config import VIP_DISTANCE, BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.client.network_thread import NetworkThread
from libramq.clock import SystemClock
from libramq.errors import ConfigError, LocalProtocolError
from libramq.filesystem import LocalFileSystem
from libramq.nameserver import NameServer

HOST: Final = "127.0.0.1"
#: Ours: another process may take a free port before we listen on it.
PORT_TRIES: Final = 20
#: Ours: tests store little, and sparse files of a gigabyte are awkward for tools.
LOG_FILE_BYTES: Final = 64 << 20


class Broker:
    """Use it as `with Broker()` or `async with Broker()`.

    data: the directory for messages; by default a temporary one that is removed afterwards, with all
    messages. options: fields of `BrokerConfig`, such as auto_create_topic_enable=False.
    Raises ConfigError for invalid options.
    """

    def __init__(self, data: Path | None = None, **options: Any) -> None:
        self._options: dict[str, Any] = {"commit_log_file_bytes": LOG_FILE_BYTES} | options
        self._data = data
        self._temporary: TemporaryDirectory[str] | None = None
        self._thread: NetworkThread | None = None
        self._name_server: NameServer | None = None
        self._server: BrokerServer | None = None

    @property
    def namesrv(self) -> str:
        """Return its name server's address, for clients; LocalProtocolError while it does not run."""
        if self._name_server is None:
            raise LocalProtocolError("this broker does not run; use `with Broker()` or `async with Broker()`")
        return self._name_server.address

    async def start(self) -> None:
        """Listen."""
        if self._name_server is not None:
            raise LocalProtocolError("this broker runs already")
        if self._data is None:
            self._temporary = TemporaryDirectory(prefix="libramq-")
        self._name_server = NameServer(HOST, 0)
        try:
            await self._name_server.start()
            await self._start_broker()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop; a temporary directory is removed."""
        server, self._server = self._server, None
        name_server, self._name_server = self._name_server, None
        try:
            if server is not None:
                await server.stop()
            if name_server is not None:
                await name_server.stop()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        thread = NetworkThread("libramq-testing-broker")
        try:
            thread.run(self.start()).result()
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        return self

    def __exit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None
        try:
            thread.run(self.stop()).result()
        finally:
            thread.stop()

    async def _start_broker(self) -> None:
        data = self._data or Path(self._temporary.name if self._temporary is not None else "")
        for tries_left in reversed(range(PORT_TRIES)):
            defaults: dict[str, Any] = {
                "store_path": str(data),
                "namesrv_addr": self.namesrv,
                "listen_port": _free_port(),
            }
            server = BrokerServer(
                BrokerConfig(**(defaults | self._options)),
                clock=SystemClock(),
                filesystem=LocalFileSystem(),
                randomness=random.Random(),
            )
            try:
                await server.start()
            except ConfigError:
                if not tries_left or "listen_port" in self._options:
                    raise
            else:
                self._server = server
                return


def _free_port() -> int:
    """Return a free port whose second port, on which brokers also listen, is free too."""
    for _ in range(PORT_TRIES):
        with socket.socket() as first, socket.socket() as second:
            first.bind((HOST, 0))
            port = int(first.getsockname()[1])
            try:
                second.bind((HOST, port - VIP_DISTANCE))
            except OSError:
                continue
            return port
    raise ConfigError(f"no free port found on {HOST}")
