"""SeaweedFS: an S3 store and an Iceberg REST catalog in one process, and a gate that can be held."""

import contextlib
import re
import socket
import subprocess
import threading
from pathlib import Path
from typing import Final, Self

import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.interop.apache import CACHE, HERE, SETUP_TIMEOUT_S, START_TIMEOUT_S
from tests.interop.ports import free_port
from tests.interop.process import Process

ACCESS_KEY: Final = "libramq-tests"
SECRET_KEY: Final = "a-key-of-these-tests-alone"
WAREHOUSE: Final = "warehouse"
CHUNK_BYTES: Final = 1 << 16
#: The version in tests/interop/seaweedfs/setup.
NOT_FETCHED: Final = 75


def set_up_seaweedfs() -> None:
    """Compile the server if necessary; skip the test if its modules cannot be fetched."""
    command = [HERE / "seaweedfs" / "setup"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SETUP_TIMEOUT_S, check=False)
    if done.returncode == NOT_FETCHED:
        pytest.skip(f"SeaweedFS's modules cannot be fetched here: {done.stderr.strip()}")
    assert not done.returncode, done.stdout + done.stderr


class SeaweedFS:
    """A server on the loopback with an empty store; it makes buckets on the first write."""

    #: Environment variables that clients need.
    environment: Final = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "PYICEBERG_CATALOG__DEFAULT__CREDENTIAL": f"{ACCESS_KEY}:{SECRET_KEY}",
    }

    def __init__(self, home: Path) -> None:
        ports = {name: free_port() for name in ("master", "volume", "filer", "s3", "s3.iceberg", "admin")}
        grpc = {f"{name}.port.grpc": free_port() for name in ("master", "volume", "filer", "s3", "admin")}
        # `s3.iceberg` is called s3.port.iceberg; all the others are NAME.port.
        listening = {f"{name}.port": port for name, port in ports.items() if name != "s3.iceberg"}
        options = {
            "dir": str(home),
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.telemetry": "false",
            "admin.ui": "false",
            "webdav": "false",
            "tableBucket": WAREHOUSE,
            "s3.port.iceberg": ports["s3.iceberg"],
            "s3.port.lance": 0,
            "admin.port.legacy": 0,
            **listening,
            **grpc,
        }
        self.process = Process(
            "seaweedfs",
            [
                str(CACHE / "seaweedfs" / "weed"),
                "mini",
                *(f"-{name}={value}" for name, value in options.items()),
            ],
            directory=home,
            env=self.environment,
        )
        self.s3_port, self.catalog_port = ports["s3"], ports["s3.iceberg"]

    @property
    def s3_url(self) -> str:
        return f"http://127.0.0.1:{self.s3_port}"

    def catalog(self, url: str | None = None) -> dict[str, str]:
        """Return pyiceberg's properties of the catalog, at its own address or at another; no credential."""
        url = url or f"http://127.0.0.1:{self.catalog_port}"
        return {
            "uri": url,
            "warehouse": f"s3://{WAREHOUSE}",
            "oauth2-server-uri": f"{url}/v1/oauth/tokens",
        }

    def opened_catalog(self) -> Catalog:
        """Return the catalog as another program opens it."""
        # pyiceberg has read its environment when it was imported.
        known = {
            "credential": f"{ACCESS_KEY}:{SECRET_KEY}",
            "s3.endpoint": self.s3_url,
            "s3.region": "us-east-1",
        }
        return load_catalog("other", **self.catalog(), **known)

    def wait_ready(self) -> None:
        """Wait until everything has started; its banner is the last."""
        self.process.wait_line("Iceberg Catalog:", within_s=START_TIMEOUT_S)

    def stop(self) -> None:
        """Kill it: its data is not read again."""
        self.process.kill()


class Gate:
    """Connections to a server pass here; one may be held, with its request unseen or its answer unsent.

    S3's signatures cover the address that a client used, so bytes pass unchanged.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._holds: dict[re.Pattern[bytes], bool] = {}
        self._held = set[re.Pattern[bytes]]()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._listening.close()

    def hold(self, *requests: str, answers: bool = False) -> None:
        """Hold requests that match, and none that were named before; with `answers`, what follows them."""
        with self._changed:
            self._held.clear()
            self._holds = {re.compile(each.encode()): answers for each in requests}

    def wait_held(self, request: str, *, within_s: float) -> None:
        """Wait until a connection is held for a pattern."""
        with self._changed:
            found = self._changed.wait_for(lambda: re.compile(request.encode()) in self._held, within_s)
        assert found, request

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target_port))
            passage = Passage(client, server)
            for work in (self._pass_requests, self._pass_answers):
                threading.Thread(target=work, args=(passage,), daemon=True).start()

    def _pass_requests(self, passage: "Passage") -> None:
        with contextlib.suppress(OSError):
            while data := passage.client.recv(CHUNK_BYTES):
                with self._changed:
                    passage.found = passage.found or next(
                        (each for each in self._holds if each.search(data)), None
                    )
                if passage.found is None or self._holds.get(passage.found, True):
                    passage.server.sendall(data)
                else:
                    self._notice(passage.found)  # And keep reading until the client ends.
        passage.end()

    def _pass_answers(self, passage: "Passage") -> None:
        with contextlib.suppress(OSError):
            while data := passage.server.recv(CHUNK_BYTES):
                is_interim = data.startswith(b"HTTP/1.1 100")
                if is_interim or passage.found is None or not self._holds.get(passage.found):
                    passage.client.sendall(data)
                else:
                    self._notice(passage.found)
        passage.end()

    def _notice(self, found: re.Pattern[bytes]) -> None:
        with self._changed:
            self._held.add(found)
            self._changed.notify_all()


class Passage:
    """A connection of a client and that to the server; found: the pattern that a request matches."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.found: re.Pattern[bytes] | None = None

    def end(self) -> None:
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
