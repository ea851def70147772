"""One system at a time under load: Apache's name server and broker, or `libra up`, with a fresh store.

Both get a topic of 8 queues and are stopped before the other starts, so that neither takes the other's cores.
"""

import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from trees import environment

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.interop.apache import (
    BINARY_HEADERS,
    TIMERS_FLUSHED,
    ApacheBroker,
    ApacheNameServer,
    java,
    set_up,
)
from tests.interop.cluster import Cluster
from tests.interop.libra import ENVIRONMENT, LibraServers, LibraUp
from tests.interop.process import Process

SYSTEMS = ("apache", "ours")
HEADERS: dict[str, dict[str, str]] = {"JSON": {}, "ROCKETMQ": BINARY_HEADERS}
QUEUES = 8
CLIENT_JVM = ("-Xms512m", "-Xmx1g")
PROGRAM_TIMEOUT_S = 600.0

Figures = dict[str, Any]


@contextlib.contextmanager
def running(
    system: str,
    *,
    brokers: int = 1,
    settings: Mapping[str, object] | None = None,
    tree: Path | None = None,
) -> Iterator[tuple[Cluster, Process]]:
    """Run the system; yield it with its broker's process. Its store and logs are removed afterwards.

    brokers: the number of brokers, for our system only. settings: of broker.conf, for one broker. tree: the
    sources of our system; None: this tree's.
    """
    home = Path(tempfile.mkdtemp(prefix=f"libra-bench-{system}-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.enter_context(patch.dict(ENVIRONMENT, environment(tree) if tree is not None else {}))
        if system == "apache":
            nameserver = ApacheNameServer(home / "namesrv", jvm=("-Xmx512m",))
            stack.callback(nameserver.stop)
            nameserver.wait_ready()
            broker = ApacheBroker(
                home / "broker",
                namesrv=nameserver.address,
                jvm=("-Xms2g", "-Xmx2g"),
                settings={**TIMERS_FLUSHED, **(settings or {})},
            )
            stack.callback(broker.process.kill)
            broker.wait_ready()
            yield Cluster(system, nameserver.address, home), broker.process
        elif settings:
            separate = LibraServers(home, "ours", settings=settings)
            stack.callback(separate.stop)
            yield Cluster(system, separate.namesrv, home), separate.process("ours")
        else:
            servers = LibraUp(home / "up", *(("--brokers", str(brokers)) if brokers > 1 else ()))
            stack.callback(servers.stop)
            servers.wait_ready(brokers)
            yield Cluster(system, servers.namesrv, home), servers.process


def run_program(cluster: Cluster, broker: Process, main: str, properties: dict[str, object]) -> Figures:
    """Run a program of tests/interop/java to its end; return its output and the broker's cost a message."""
    spent_before_s = cpu_seconds(broker)
    home = cluster.home / cluster.fresh_name(main.lower())
    command = java(main, home=home, jvm=CLIENT_JVM, properties={"namesrv": cluster.namesrv, **properties})
    with Process(main.lower(), command, directory=home) as process:
        if process.wait_end(within_s=PROGRAM_TIMEOUT_S) != 0:
            raise SystemExit(process.complaint())
        line = process.wait_line("{", within_s=10)
    figures: Figures = json.loads(line)
    if figures.get("failed") or figures.get("complete") is False:
        raise SystemExit(f"{main} against {cluster.kind}: {line}\n{process.complaint()}")
    spent_s = cpu_seconds(broker) - spent_before_s
    served: int = figures["with_warmup"] if "with_warmup" in figures else figures["msgs"]
    figures["cpu_us"] = spent_s * 1e6 / served
    return figures


def cpu_seconds(process: Process) -> float:
    """Return the processor time of the broker's threads, which other load hardly changes."""
    stat = Path(f"/proc/{process.pid}/stat")
    if not stat.exists():
        return float("nan")
    # The name, in brackets, may contain spaces; user and system time are fields 14 and 15 of proc(5).
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident_mb(process: Process) -> float:
    """Return the process's resident memory; for `libra up` that is everything, for Apache only the broker."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return float("nan")
    (kilobytes,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(kilobytes) / 1024


def median(figures: Sequence[Figures], name: str) -> float:
    return statistics.median(one[name] for one in figures) if figures else float("nan")


def prepare(only: str | None) -> Sequence[str]:
    set_up()
    return (only,) if only else SYSTEMS
