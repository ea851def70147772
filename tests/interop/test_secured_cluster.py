"""The guide that secures a running cluster, step by step, on three brokers under load: nothing is lost."""

import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs import private_network
from tests.docs.test_documents import ROOT
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1_300)]

PAGE = ROOT / "docs" / "secure-a-cluster.md"
SECONDS_MAX = 1_200
#: A broker is away for some seconds; senders turn to the others, readers of its queues wait.
PAUSE_MS_MAX = 5_000
PROGRAMS = ("orders-1", "orders-2", "billing-1", "billing-2")
SECRETS = (
    "a-long-random-text", "another-random-text", "the-first-of-orders", "the-first-of-billing",
    "the-second-of-orders", "the-next-random-text", "the-next-of-admin",
)  # fmt: skip


def lines(file: Path) -> list[tuple[int, str]]:
    """Return the lines noted by programs, with their times."""
    if not file.exists():
        return []
    parts = (line.partition(" ") for line in file.read_text().splitlines())
    return [(int(at_ms), text) for at_ms, _, text in parts]


def pids(directory: Path, *names: str) -> Iterator[int]:
    for name in names or ("*",):
        for file in directory.glob(f"{name}.pid"):
            yield int(file.read_text())


@contextmanager
def ended(directory: Path) -> Iterator[None]:
    """End everything the page has started."""
    try:
        yield
    finally:
        for pid in pids(directory):
            end(pid, signal.SIGKILL)


def end(pid: int, by: signal.Signals) -> None:
    try:
        os.kill(pid, by)
    except ProcessLookupError:
        return
    Cluster.wait_until(lambda: has_ended(pid), f"{pid} ends", within_s=60)


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_every_step_is_taken_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    directory, notes = tmp_path / "cluster", tmp_path / "notes"
    directory.mkdir()
    notes.mkdir()
    for name in PROGRAMS:
        program = directory / name
        program.write_text(
            f"#!/bin/bash\nexec {sys.executable} -m tests.interop.guided_program {name} {notes}\n"
        )
        program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    environment.pop("NAMESRV_ADDR", None)
    writing = ["--write"] if "LIBRA_WRITE" in os.environ else []
    page = [sys.executable, "-m", "tests.docs.executed", *writing, str(PAGE)]
    with ended(directory):
        done = subprocess.run(
            private_network.command(page),
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        logs = {file.name: file.read_text() for file in directory.glob("*.log")}
        assert done.returncode == 0, f"{done.stderr[-4_000:]}\n{list(logs)}"
        for pid in pids(directory, "orders-1", "orders-2"):
            end(pid, signal.SIGTERM)
        sent = {text for _, text in lines(notes / "sent")}
        Cluster.wait_until(
            lambda: sent <= {text for _, text in lines(notes / "handled")},
            "acknowledged messages have been handled",
            within_s=PATIENCE_S,
        )
        for pid in pids(directory, "billing-1", "billing-2"):
            end(pid, signal.SIGTERM)
    report(notes)
    assert lines(notes / "failed") == []
    assert longest_pause_ms(notes / "sent") <= PAUSE_MS_MAX
    for name, log in logs.items():
        assert not [secret for secret in SECRETS if secret in log], name
    for name in ("security.conf", "users.json"):
        assert not [each for each in directory.rglob(f"{name}*") if each.stat().st_mode & 0o077]


def longest_pause_ms(file: Path) -> int:
    times = sorted(at_ms for at_ms, _ in lines(file))
    return max(after - before for before, after in itertools.pairwise(times))


def report(notes: Path) -> None:
    """Print the counts of sent and read messages, and the longest pauses."""
    sent, handled = lines(notes / "sent"), Counter(text for _, text in lines(notes / "handled"))
    again = sum(count - 1 for count in handled.values())
    print(
        f"sent {len(sent)}, handled {len(handled)} and {again} again; longest pause of all senders "
        f"{longest_pause_ms(notes / 'sent')} ms, of all readers {longest_pause_ms(notes / 'handled')} ms"
    )
