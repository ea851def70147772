"""`libra lab run`: an error is one line and exit code 2; a dry run prints its plan."""

import asyncio
from pathlib import Path

import pytest

from libramq.nameserver import NameServer

from ..cli.commands import libra, one_line
from ..interop.ports import free_port


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--strategies", "AVG, AVGG"), "strategies: there is no strategy 'AVGG'; known are AVG"),
        (("--members", "0"), "members=0: give a whole number from 1 to 1000000"),
        (("--events", "127.0.0.1:1"), "no name server answered: cannot connect to 127.0.0.1:1"),
        (("--config", "nowhere.toml"), "cannot read nowhere.toml: No such file"),
        (("--conf", "x=1"), "--conf x=1: give spark.NAME=VALUE"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: tuple[str, ...], said: str):
    assert said in one_line(libra("lab", "run", *arguments, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_the_plan(tmp_path: Path):
    done = libra("lab", "run", "--small", "--histories", "flapping", "--dry-run", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "flapping" in done.out
    assert f"would be written: {tmp_path / 'lab' / 'report.html'}" in done.out
    assert done.out.endswith("nothing was changed\n")
    assert list(tmp_path.iterdir()) == []


async def test_brokers_without_rebalance_events_are_reported(tmp_path: Path):
    """Apache's are such brokers: they have no topic of rebalance events."""
    port = free_port()
    server = NameServer("127.0.0.1", port)
    await server.start()
    try:
        command = ("lab", "run", "--events", f"127.0.0.1:{port}")
        said = one_line(await asyncio.to_thread(libra, *command, cwd=tmp_path))
    finally:
        await server.stop()
    assert "no broker there records rebalances in LIBRA_REBALANCE_EVENTS, only LibraMQ's do" in said


def test_help_names_the_options():
    done = libra("lab")
    assert "Compare assignment strategies on Spark" in done.out + done.err
