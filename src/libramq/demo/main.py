"""The demonstration, end to end, on real data: `scripts/demo`.

    flights ──► libra up ──► members of a group: delays           they join, leave and are killed
                        └──► Spark: two Parquet tables            exactly once
        at the end: do all counts agree?

Exit code 0 if they do, 1 if they do not or something failed, 2 if the demonstration cannot start.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from libramq.admin.groups import EventReader
from libramq.cli.servers.ports import choose_ports
from libramq.client import Producer
from libramq.demo import display, flights, pipeline
from libramq.demo.children import HOST, Child, Servers
from libramq.demo.group import Group, new_events
from libramq.demo.member import GROUP, Consumed
from libramq.demo.reconciliation import reconcile
from libramq.errors import ConfigError, LibraError
from libramq.message import Message
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.transport.access import VARIABLE

SECONDS_MAX: Final = 225
"""A run takes less than four minutes; after this time it is stopped."""
TICK_SECONDS: Final = 0.2
INTERRUPTED: Final = 130  # A shell's exit code after Ctrl-C.


class Demonstration:
    """One run, with all its files in one directory."""

    def __init__(self, console: Console, directory: Path, *, flight_count: int, keep: bool) -> None:
        self._console = console
        self._flight_count = flight_count
        self._directory = directory
        self._keep = keep
        self._ports = choose_ports(HOST, None, None)
        for name in ("logs", "group", "tables"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        self._servers = Servers(self._child("servers"), directory / "data", self._ports)
        self._sender = self._child("sender")
        self._pipeline = self._child("pipeline")
        self._group: Group | None = None
        self._sent = 0
        self._is_sent = False
        self._read = {"flights": 0, "delays": 0}
        self._tables: dict[str, Any] | None = None

    def _child(self, name: str) -> Child:
        return Child(name, self._directory / "logs" / f"{name}.log", self._handle_line)

    def _handle_line(self, child: Child, found: dict[str, Any]) -> None:
        match child.name, found["kind"]:
            case "sender", "progress":
                self._sent = found["sent"]
            case "sender", "result":
                self._is_sent = True
            case "pipeline", "progress":
                self._read = {"flights": found["flights"], "delays": found["delays"]}
            case "pipeline", "result":
                self._tables = found

    async def run(self) -> bool:
        """Run everything; return whether all counts agree."""
        say = self._console.print
        for remark in self._ports.remarks:
            say(remark)
        succeeded = False
        try:
            await self._servers.start({flights.TOPIC: flights.QUEUES, pipeline.CLOCK: 1})
            say(
                f"name server {self._servers.namesrv} and broker {self._ports.broker} are up, "
                f"data and logs are in {self._directory}"
            )
            consumed, tables = await self._work()
            stored = await self._servers.stored_count(flights.TOPIC)
            succeeded = self._conclude(stored, consumed, tables)
        finally:
            if self._keep and self._servers.child.is_running:
                self._say_kept()
            else:
                await self._servers.child.stop()
        return succeeded

    async def _work(self) -> tuple[Consumed, dict[str, Any]]:
        namesrv = self._servers.namesrv
        with display.Bars(self._console, self._flight_count) as bars:
            group = self._group = Group(namesrv, self._directory / "group", bars.say)
            events = EventReader(namesrv)
            try:
                await self._pipeline.start(
                    "libramq.demo.pipeline", [namesrv, str(self._directory / "tables")]
                )
                await self._sender.start("libramq.demo.flights", [namesrv, str(self._flight_count)])
                async with asyncio.timeout(SECONDS_MAX):
                    return await self._watch(group, events, bars)
            except TimeoutError:
                raise LibraError(
                    f"not finished after {SECONDS_MAX} s: {self._sent} sent, {group.entry_count} consumed, "
                    f"{self._read} read by Spark; the logs are in {self._directory / 'logs'}"
                ) from None
            finally:
                await group.stop()
                await asyncio.gather(self._sender.stop(), self._pipeline.stop())
                events.close()

    async def _watch(
        self, group: Group, events: EventReader, bars: display.Bars
    ) -> tuple[Consumed, dict[str, Any]]:
        """Wait until everything is sent, consumed and in the tables, and the group has settled."""
        loop = asyncio.get_running_loop()
        consumed: Consumed | None = None
        clock_sent = finish_sent = False
        duplicates = 0
        while True:
            for child in (self._servers.child, self._sender, self._pipeline):
                child.check()
            group.check()
            for event in await asyncio.to_thread(new_events, events):
                group.observe(event)
                line = display.rebalance_line(event, group.names)
                if line is not None:
                    bars.say(line)
                if event.kind == "settled":
                    before, duplicates = duplicates, (await asyncio.to_thread(group.consumed)).duplicate_count
                    bars.say(f"  {duplicates - before} flights consumed twice since the last rebalance")
            entries = group.entry_count
            await group.follow(entries / self._flight_count, loop.time())
            bars.show("sent to topic Flights", self._sent)
            bars.show("consumed by the group", entries)
            bars.show("read by Spark into table flights", self._read["flights"])
            bars.show("counted by Spark in table delays", self._read["delays"])
            if self._is_sent and not clock_sent and self._read["delays"] >= self._sent:
                # Not earlier: Spark would drop flights that arrive after this time as late.
                await self._send_the_time()
                clock_sent = True
            if (
                clock_sent
                and not finish_sent
                and min(self._read["flights"], self._read["delays"] - 1) >= self._sent
            ):
                await self._pipeline.write_line("finish")
                finish_sent = True
            if consumed is None and self._is_sent and entries >= self._sent:
                found = await asyncio.to_thread(group.consumed)
                consumed = found if found.distinct >= self._sent else None
            if consumed is not None and self._tables is not None and group.is_at_rest:
                return await asyncio.to_thread(group.consumed), self._tables
            await asyncio.sleep(TICK_SECONDS)

    async def _send_the_time(self) -> None:
        async with Producer(group="clock", namesrv=self._servers.namesrv) as producer:
            body = b'{"time_hour":"%s"}' % pipeline.CLOCK_TIME.encode()
            await producer.send(Message(pipeline.CLOCK, body))

    def _conclude(self, stored: int, consumed: Consumed, tables: dict[str, Any]) -> bool:
        console, directory = self._console, self._directory
        display.show_head(console, "table flights", tables["flights_head"])
        display.show_head(console, "table delays, the last day", tables["delays_head"])
        display.show_late(console, consumed)
        checks = reconcile(
            keys=[flights.key_of(row) for row in flights.read_rows(flights.archive())[: self._flight_count]],
            stored_count=stored,
            consumed=consumed,
            table_keys=Path(tables["keys"]).read_text().splitlines(),
            table=tables,
        )
        display.show_checks(console, checks)
        for what, where in (
            ("messages and offsets, in RocketMQ's format", directory / "data"),
            ("table flights, Parquet", directory / "tables" / "flights"),
            ("table delays, Parquet", directory / "tables" / "delays"),
            ("journals of the group's members", directory / "group"),
            ("logs", directory / "logs"),
        ):
            console.print(f"{what}: {where}")
        return all(check.holds for check in checks)

    def _say_kept(self) -> None:
        namesrv, pid = self._servers.namesrv, self._servers.child.pid
        self._console.print(
            f"name server {namesrv} and broker stay up; `kill {pid}` ends them. For example:\n"
            f"  libra admin topicRoute -n {namesrv} -t {flights.TOPIC}\n"
            f"  libra admin consumerProgress -n {namesrv} -g {GROUP}\n"
            f"  libra tail -n {namesrv} -t {REBALANCE_EVENTS_TOPIC} --from earliest"
        )


def _directory(path: Path | None) -> Path:
    if path is None:
        return Path(tempfile.mkdtemp(prefix="libramq-demo-"))
    try:
        path.mkdir(parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
    except OSError as error:
        raise ConfigError(f"{path} cannot be used: {error.strerror}; give another --data") from None
    if not is_empty:
        raise ConfigError(f"{path} is not empty; give --data a new directory")
    return path.resolve()


async def _run(console: Console, directory: Path, *, flight_count: int, keep: bool) -> bool:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await Demonstration(console, directory, flight_count=flight_count, keep=keep).run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="a new directory for everything (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave name server and broker running at the end")
    parser.add_argument(
        "--flights",
        type=int,
        default=flights.FLIGHT_COUNT,
        help="how many flights (default: all 336,776)",
        metavar="N",
    )
    options = parser.parse_args()
    if not 1 <= options.flights <= flights.FLIGHT_COUNT:
        parser.error(f"--flights {options.flights}: give a number from 1 to {flights.FLIGHT_COUNT}")
    os.environ.pop(VARIABLE, None)  # The demonstration's servers have no users.
    console = display.make_console()
    try:
        flights.archive()
        directory = _directory(options.data)
    except ConfigError as error:
        console.print(f"[bold red]error:[/] {error}")
        return 2
    try:
        if asyncio.run(_run(console, directory, flight_count=options.flights, keep=options.keep)):
            console.print("[bold green]every flight is accounted for[/]")
            return 0
        console.print("[bold red]the counts do not agree[/]")
    except LibraError as error:
        console.print(f"[bold red]error:[/] {error}", markup=True)
    except asyncio.CancelledError:
        console.print("interrupted")
        return INTERRUPTED
    return 1


if __name__ == "__main__":
    sys.exit(main())
