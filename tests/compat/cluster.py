"""A cluster of servers, members and producers; each process runs either version, but for Kafka's clients."""

import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.compat.release import ROOT, environment
from tests.interop import wire
from tests.interop.apache import wait_broker
from tests.interop.ports import free_broker_port, free_port
from tests.interop.process import Process, Program

LIBRA = (sys.executable, "-m", "libramq.cli.main")
CLUSTER = "DefaultCluster"
UPDATE_CONSUMER_OFFSET = 15
#: A deadline, not an expected latency: each step takes only some seconds.
PATIENCE_S = 150.0
POLL_S = 0.1  # Conditions look at everything that was said.


def wait_until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until a condition over the output of several processes holds."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / POLL_S)):
        if condition():
            return
        pause.wait(POLL_S)
    raise AssertionError(f"{what()} within {PATIENCE_S} s")


class Cluster:
    """Two name servers and brokers, by their ports and directories; `site`: the version a process runs."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._name_servers: dict[str, Process | None] = {f"127.0.0.1:{free_port()}": None for _ in range(2)}
        self.namesrv = ";".join(self._name_servers)
        self._ports: dict[str, int] = {}
        self._kafka_ports: dict[str, int] = {}
        self._brokers: dict[str, Process] = {}
        self._programs: list[Program] = []

    @property
    def kafka(self) -> str:
        """Return the addresses for Kafka's clients."""
        return ",".join(f"127.0.0.1:{port}" for port in self._kafka_ports.values())

    def start_name_servers(self, site: Path) -> None:
        for address in self._name_servers:
            self._start_name_server(address, site)

    def _start_name_server(self, address: str, site: Path) -> None:
        port = address.rpartition(":")[2]
        self._name_servers[address] = self._process(f"nameserver-{port}", site, "nameserver", "--port", port)

    def start_broker(self, name: str, site: Path) -> None:
        home = self._home / name
        home.mkdir(exist_ok=True)
        port = self._ports.setdefault(name, free_broker_port())
        kafka_port = self._kafka_ports.setdefault(name, free_port())
        configuration = home / "broker.conf"
        configuration.write_text(
            f"brokerName={name}\nlistenPort={port}\nkafkaListenPort={kafka_port}\n"
            f"storePathRootDir={home / 'store'}\n"
            "mappedFileSizeCommitLog=4194304\nmappedFileSizeConsumeQueue=200000\n"
        )
        broker = self._process(name, site, "broker", "-c", str(configuration), "-n", self.namesrv)
        self._brokers[name] = broker
        for address in self._name_servers:
            wait_broker(broker, address, len(self._brokers))

    def restart_name_servers(self, site: Path, then: Callable[[], None]) -> None:
        """Replace one name server after the other; `then` is called after each."""
        for address, process in list(self._name_servers.items()):
            assert process is not None
            process.stop()
            self._start_name_server(address, site)
            wait_broker(next(iter(self._brokers.values())), address, len(self._brokers))
            then()

    def restart_broker(self, name: str, site: Path, *, kills: bool = False) -> None:
        broker = self._brokers[name]
        broker.kill() if kills else broker.stop()
        self.start_broker(name, site)

    def create_topic(self, topic: str, queues: int, site: Path) -> None:
        program = self.start("create", site, topic=topic, queues=queues)
        program.finish(within_s=PATIENCE_S)

    def start(self, role: str, site: Path, **options: object) -> Program:
        """Start a role of tests.compat.program."""
        return self._program("tests.compat.program", role, site, {"namesrv": self.namesrv, **options})

    def start_kafka(self, role: str, **options: object) -> Program:
        """Start a role of bench.soaking.program with Kafka's C client."""
        return self._program("bench.soaking.program", role, ROOT, {"kafka": self.kafka, **options})

    def _program(self, module: str, role: str, site: Path, options: Mapping[str, object]) -> Program:
        name = f"{role}-{len(self._programs)}"
        program = Program(
            name,
            [sys.executable, "-m", module, role, json.dumps(options)],
            directory=self._home / name,
            env=environment(site),
        )
        self._programs.append(program)
        program.wait_event("started", within_s=PATIENCE_S)
        return program

    def commit_without_claim(self, broker: str, group: str, topic: str) -> int:
        """Commit like a client that does not know epochs; return the response code.

        The request is not marked as Java's: such a commit from a program that is not a member and waits for
        the answer counts as an operator's.
        """
        fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
        answer = wire.ask(f"127.0.0.1:{self._ports[broker]}", UPDATE_CONSUMER_OFFSET, fields, language="CPP")
        code: int = answer.header["code"]
        return code

    def stop(self) -> None:
        servers = [*self._brokers.values(), *filter(None, self._name_servers.values())]
        for process in (*self._programs, *servers):
            process.stop()

    def _process(self, name: str, site: Path, *arguments: str) -> Process:
        directory = self._home / f"{name}-output"
        return Process(name, [*LIBRA, *arguments], directory=directory, env=environment(site))
