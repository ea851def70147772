"""Our own servers, started as users start them: with `libra up`."""

import os
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.interop.apache import wait_broker
from tests.interop.ports import free_broker_port, free_port
from tests.interop.process import Process

SOURCES = Path(__file__).parent.parent.parent / "src"
LIBRA = (sys.executable, "-m", "libramq.cli.main")
# Processes import libramq from this tree, even if another version is installed.
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])}


class LibraUp:
    def __init__(self, home: Path, *options: str) -> None:
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.address = f"127.0.0.1:{free_broker_port()}"
        self.process = Process(
            "libra-up",
            [
                *LIBRA,
                "up",
                "--nameserver-port",
                self.namesrv.rpartition(":")[2],
                "--broker-port",
                self.address.rpartition(":")[2],
                "--data",
                str(home / "data"),
                *options,
            ],
            directory=home,
            env=ENVIRONMENT,
        )

    def wait_ready(self, brokers: int = 1) -> None:
        wait_broker(self.process, self.namesrv, brokers)

    def stop(self) -> None:
        self.process.stop()


@contextmanager
def running(home: Path, *options: str) -> Iterator[LibraUp]:
    """Run `libra up` until the end of the block, which begins when its broker is ready."""
    started = LibraUp(home, *options)
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


class LibraServers:
    """A name server and brokers in separate processes, so that each broker can be killed and restarted.

    ports: of the name server ("name server") and of brokers by name; free ones for all others.
    name_server: its settings. tls: with what the test itself connects.
    """

    def __init__(
        self,
        home: Path,
        *names: str,
        settings: Mapping[str, object] | None = None,
        ports: Mapping[str, int] | None = None,
        name_server: Mapping[str, object] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._home = home
        self._tls = tls
        self._settings = dict(settings or {})
        ports = ports or {}
        port = ports.get("name server") or free_port()
        self.namesrv = f"127.0.0.1:{port}"
        self._name_server = Process(
            "libra-nameserver",
            [*LIBRA, "nameserver", "--port", str(port), *self._file("namesrv", name_server)],
            directory=home,
            env=ENVIRONMENT,
        )
        self.ports = {name: ports.get(name) or free_broker_port() for name in names}
        self._brokers: dict[str, Process] = {}
        self._slaves: set[str] = set()
        for name in names:
            self.start(name)
        if not names:
            wait_broker(self._name_server, self.namesrv, 0, tls)

    def _file(self, name: str, settings: Mapping[str, object] | None) -> list[str]:
        """Return the options for a configuration file with these settings."""
        if settings is None:
            return []
        file = self._home / f"{name}.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return ["-c", str(file)]

    def start(self, name: str, **settings: object) -> None:
        """Start a broker; `settings` override those for all brokers."""
        self._run(name, settings)
        masters = self._brokers.keys() - self._slaves
        wait_broker(self._brokers[name], self.namesrv, len(masters), self._tls)

    def start_slave(self, name: str, of: str, **settings: object) -> None:
        """Start a slave of a broker; the name server may learn of it later."""
        role = {"brokerName": of, "brokerRole": "SLAVE", "brokerId": 1, "inSyncReplicas": 1}
        self._slaves.add(name)
        self._run(name, {**role, **settings})

    def _run(self, name: str, settings: Mapping[str, object]) -> None:
        self.ports.setdefault(name, free_broker_port())
        home = self._home / name
        home.mkdir(parents=True, exist_ok=True)
        configuration = home / "broker.conf"
        lines = {
            "brokerName": name,
            "listenPort": self.ports[name],
            "haListenPort": self.ports[name] + 1,
            "storePathRootDir": home / "store",
            **self._settings,
            **settings,
        }
        configuration.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._brokers[name] = Process(
            name,
            [*LIBRA, "broker", "-c", str(configuration), "-n", self.namesrv],
            directory=home,
            env=ENVIRONMENT,
        )

    @property
    def name_server(self) -> Process:
        return self._name_server

    def process(self, name: str) -> Process:
        return self._brokers[name]

    def has_written(self, name: str, topic: str) -> bool:
        """Return whether Apache's broker would find a topic after a kill of ours.

        Our journal has the topic at once, topics.json half a second later, or more on a busy disk.
        """
        topics = self._home / name / "store" / "config" / "topics.json"
        return topics.exists() and f'"{topic}"' in topics.read_text()

    def kill(self, name: str) -> None:
        self._brokers.pop(name).kill()

    def stop_broker(self, name: str) -> None:
        """Stop one broker cleanly."""
        self._brokers.pop(name).stop()

    def stop(self) -> None:
        for process in (*self._brokers.values(), self._name_server):
            process.stop()
