"""A LibraMQ broker joins Apache's cluster, takes its traffic and leaves, by its page: nothing is lost."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import private_network
from tests.docs.test_documents import ROOT
from tests.interop.apache import BROKER_JVM, java, set_up
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S
from tests.interop.test_secured_cluster import end, ended, lines, pids

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

PAGE = ROOT / "docs" / "join-an-apache-cluster.md"
SECONDS_MAX = 800
NAMESRV = "127.0.0.1:9876"
#: Differences from Apache's defaults, for a machine with a full disk and much other work.
BROKER_LINES = (
    "waitTimeMillsInSendQueue=30000\nosPageCacheBusyTimeOutMills=30000\nmappedFileSizeCommitLog=67108864\n"
)
COMMANDS = {
    "mqnamesrv": "org.apache.rocketmq.namesrv.NamesrvStartup",
    "mqbroker": "org.apache.rocketmq.broker.BrokerStartup",
    "mqadmin": "org.apache.rocketmq.tools.command.MQAdminStartup",
}
#: Java's producer: a message, and after its answer the next one.
PRODUCER = """\
exec {command} < <(number=0; while sleep 0.05; do
  echo '{{"kind": "sync", "id": "java-'$number'", "topic": "orders", "body": "java-'$number'"}}'
  number=$((number + 1))
done)"""


def script(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(0o755)


def write_commands(directory: Path, home: Path) -> None:
    """Write Apache's commands under their names, as they are in `bin` of its distribution."""
    full = {
        "rocketmq.broker.diskSpaceWarningLevelRatio": "0.98",
        "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.97",
    }
    for name, main in COMMANDS.items():
        jvm = {"jvm": BROKER_JVM, "properties": full} if name == "mqbroker" else {}
        command = shlex.join(java(main, home=home, **jvm))
        extra = f"printf {shlex.quote(BROKER_LINES)} | cat $2 - >$2.run; set -- -c $2.run\n" * (
            name == "mqbroker"
        )
        script(directory / name, f'{extra}export ROCKETMQ_HOME={home}\nexec {command} "$@"')


def write_programs(directory: Path, notes: Path, home: Path) -> None:
    guided = f"exec {sys.executable} -m tests.interop.guided_program {{}} {notes}"
    script(directory / "orders-1", guided.format("orders-1"))
    script(directory / "billing", guided.format("billing-1"))
    settings = {"namesrv": NAMESRV, "timeout": 30_000}
    producer = shlex.join(java("Produce", home=home, properties={**settings, "group": "orders"}))
    consumer = shlex.join(
        java("Consume", home=home, properties={**settings, "group": "packing", "topic": "orders"})
    )
    script(directory / "orders-2", "echo Ctrl-C stops it.\n" + PRODUCER.format(command=producer))
    script(
        directory / "packing", f"echo Ctrl-C stops it.\nexec {consumer} < <(exec tail --pid=$$ -f /dev/null)"
    )


def events(file: Path, kind: str) -> Iterator[dict[str, object]]:
    for line in file.read_text().splitlines():
        if line.startswith("{") and (event := json.loads(line))["event"] == kind:
            yield event


def test_it_joins_takes_the_traffic_and_leaves_and_nothing_is_lost(tmp_path: Path) -> None:
    set_up()
    directory, notes, home = tmp_path / "cluster", tmp_path / "notes", tmp_path / "home"
    for each in (directory, notes, home):
        each.mkdir()
    write_commands(tmp_path / "bin", home)
    write_programs(directory, notes, home)
    for name in ("orders", "billing"):
        (directory / f"{name}.properties").touch(0o600)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    environment.pop("NAMESRV_ADDR", None)
    with ended(directory):
        done = subprocess.run(
            private_network.command([sys.executable, "-m", "tests.docs.executed", str(PAGE)]),
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2_000:]}\n{done.stderr[-4_000:]}"
        for pid in pids(directory, "orders-1", "orders-2"):
            end(pid, signal.SIGTERM)
        answers = list(events(directory / "orders-2.log", "sent"))
        sent = {text for _, text in lines(notes / "sent")} | {str(answer["id"]) for answer in answers}

        def not_handled() -> set[str]:
            packed = {str(event["body"]) for event in events(directory / "packing.log", "message")}
            return sent - (packed & {text for _, text in lines(notes / "handled")})

        Cluster.wait_until(lambda: not not_handled(), "all that was sent is handled", within_s=PATIENCE_S)
    assert lines(notes / "failed") == []
    assert {answer["status"] for answer in answers} == {"SEND_OK"}
    brokers = [str(answer["broker"]) for answer in answers]
    changes = [name for name, before in zip(brokers, ["", *brokers], strict=False) if name != before]
    print(f"sent {len(sent)}, {len(changes)} changes of brokers")
    assert {"apache-a", "libra-a"} == set(brokers)
    assert brokers[-1] == "apache-a"
    assert longest_run(brokers, "libra-a") > 100  # Apache's broker was away.


def longest_run(names: list[str], name: str) -> int:
    longest = run = 0
    for each in names:
        run = run + 1 if each == name else 0
        longest = max(longest, run)
    return longest
