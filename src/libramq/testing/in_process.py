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
import string
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from libramq.broker.config import VIP_DISTANCE, BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.client.network_thread import NetworkThread
from libramq.clock import SystemClock
from libramq.errors import ConfigError, InvalidState
from libramq.filesystem import LocalFileSystem
from libramq.nameserver import NameServer
from libramq.remoting.credentials import Credentials
from libramq.secret_bits import SYSTEM_SECRETS

HOST: Final = "127.0.0.1"
#: The access key that the brokers share.
SECRET_BYTES: Final = 32
#: Ours: attempts to start, because another process may take a free port before we listen on it.
PORT_TRIES: Final = 20
#: The names of the brokers, as in `libra up`.
NAMES: Final = tuple(f"broker-{letter}" for letter in string.ascii_lowercase)
_OF_EACH: Final = frozenset(
    {"broker_name", "store_path", "listen_port", "ha_listen_port", "kafka_listen_port", "metrics_port"}
)
#: Ours: tests store little, and sparse files of a gigabyte are awkward for tools.
LOG_FILE_BYTES: Final = 64 << 20


class Broker:
    """A broker and its name server. Use it as `with Broker()` or `async with Broker()`.

    data: the directory for messages; by default a temporary one that is removed afterwards with all messages.
    brokers: the number of brokers, 1 to 26; the first is broker-a, and each has its own directory.
    options: fields of `BrokerConfig`, such as auto_create_topic_enable=False.
    Raises ConfigError for invalid options.
    """

    def __init__(self, data: Path | None = None, *, brokers: int = 1, **options: Any) -> None:
        if not 1 <= brokers <= len(NAMES):
            raise ConfigError(f"brokers={brokers}; 1 to {len(NAMES)} are allowed")
        own = sorted(_OF_EACH & options.keys()) if brokers > 1 else []
        if own:
            raise ConfigError(f"{own[0]} is an option of one broker, and there are {brokers}; leave it out")
        if options.get("kafka_listen_port"):
            raise ConfigError(
                "kafka_listen_port: a broker in a test does not serve Kafka's clients; start `libra up` with "
                "--kafka-port for those"
            )
        self._names = NAMES[:brokers]
        self._options: dict[str, Any] = {"commit_log_file_bytes": LOG_FILE_BYTES} | options
        self._data = data
        self._temporary: TemporaryDirectory[str] | None = None
        self._thread: NetworkThread | None = None
        self._name_server: NameServer | None = None
        self._servers: list[BrokerServer] = []

    @property
    def namesrv(self) -> str:
        """Return the name server's address, for clients; LocalProtocolError while the broker does not run."""
        if self._name_server is None:
            raise InvalidState("this broker does not run; use `with Broker()` or `async with Broker()`")
        return self._name_server.address

    async def start(self) -> None:
        """Start the name server and the brokers; return once they listen."""
        if self._name_server is not None:
            raise InvalidState("this broker runs already")
        if self._data is None:
            self._temporary = TemporaryDirectory(prefix="libramq-")
        credentials = None
        if len(self._names) > 1:  # The brokers trust each other's signatures, as in `libra up`.
            credentials = Credentials("libramq-testing", SYSTEM_SECRETS.token_hex(SECRET_BYTES))
        self._name_server = NameServer(HOST, 0, credentials=credentials)
        try:
            await self._name_server.start()
            for name in self._names:
                self._servers.append(await self._start_broker(name, credentials))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop, and remove a temporary directory."""
        servers, self._servers = self._servers, []
        name_server, self._name_server = self._name_server, None
        try:
            for server in reversed(servers):
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
            thread.start()
            thread.run(self.start()).result()
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        return self

    def __exit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None
        if thread.is_parents:  # A forked child must not stop its parent's servers.
            return
        try:
            thread.run(self.stop()).result()
        finally:
            thread.stop()

    async def _start_broker(self, name: str, credentials: Credentials | None) -> BrokerServer:
        for tries_left in reversed(range(PORT_TRIES)):
            server = BrokerServer(
                self._config(name, credentials),
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
                return server
        raise AssertionError  # The last attempt raised.

    def _config(self, name: str, credentials: Credentials | None) -> BrokerConfig:
        data = self._data or Path(self._temporary.name if self._temporary is not None else "")
        defaults: dict[str, Any] = {
            "broker_name": name,
            "store_path": str(data if len(self._names) == 1 else data / name),
            "namesrv_addr": self.namesrv,
            "listen_port": _free_port(),
            "credentials": credentials,
        }
        return BrokerConfig(**(defaults | self._options))


def _free_port() -> int:
    """Return a free port whose companion port, on which brokers also listen, is also free."""
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
