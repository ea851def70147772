"""The display of the demonstration: progress bars, rebalances as they happen, and tables at the end."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from libramq.demo.member import Consumed, Late
from libramq.demo.reconciliation import Check
from libramq.groups.rebalance_event import RebalanceEvent

WIDTH_WHEN_UNKNOWN = 110  # The width for a log file instead of a terminal.


def make_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_WHEN_UNKNOWN)


class Bars:
    """One progress bar for each count that must reach the number of flights."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._progress = Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=36),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, name: str, done: int) -> None:
        bar = self._bars.get(name)
        if bar is None:
            bar = self._bars[name] = self._progress.add_task(name, total=self._total)
        self._progress.update(bar, completed=min(done, self._total))

    def say(self, text: str) -> None:
        self._progress.console.print(text, soft_wrap=True)


def rebalance_line(event: RebalanceEvent, names: dict[str, str]) -> str | None:
    """Return a rebalance event as a sentence; None if another event covers it."""

    def name(client_id: str | None) -> str:
        return names.get(client_id or "", client_id or "somebody")

    if event.kind == "started":
        reason = (event.reason or "").replace("_", " ")
        members = ", ".join(name(member) for member in event.members or ()) or "nobody"
        return f"[bold yellow]rebalance {event.epoch}[/] {reason}: {name(event.who)} (members now: {members})"
    if event.kind == "moved":
        pauses = sorted(move.pause_ms for move in event.moves or () if move.stopped_ms is not None)
        if not pauses:
            return None
        moves = _grouped([(name(m.from_), name(m.to), m.queue) for m in event.moves or () if m.from_])
        middle = pauses[len(pauses) // 2]
        return f"  moved {moves}; paused for {middle} ms in the median, {pauses[-1]} ms at worst"
    if event.kind == "settled":
        loads = ", ".join(f"{name(member)} {count}" for member, count in sorted((event.loads or {}).items()))
        return (
            f"[bold green]settled {event.epoch}[/] after {event.time_to_stable_ms} ms: "
            f"{event.moved} queues moved ({event.minimum} needed), worst pause {event.worst_pause_ms} ms, "
            f"{_duplicates(event.redelivered_upper_bound)}; queues: {loads}"
        )
    return None


def _duplicates(bound: int | None) -> str:
    if bound is None:
        return "number of duplicates unknown"
    return f"at most {bound} duplicates" if bound else "no duplicates"


def _grouped(moves: Iterable[tuple[str, str, int]]) -> str:
    by_pair: dict[tuple[str, str], list[int]] = {}
    for old, new, queue in moves:
        by_pair.setdefault((old, new), []).append(queue)
    return "; ".join(
        f"{old} → {new}: {','.join(map(str, sorted(queues)))}"
        for (old, new), queues in sorted(by_pair.items())
    )


def show_head(console: Console, title: str, head: dict[str, Any]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in head["columns"]:
        table.add_column(column, overflow="fold")
    for row in head["rows"]:
        table.add_row(*row)
    console.print(table)


def show_late(console: Console, consumed: Consumed, *, rows: int = 8) -> None:
    """Show the delays that the group computed, by carrier and by destination."""
    for title, lines in (
        ("delays by carrier (the group's work)", consumed.by_carrier),
        ("delays by destination (the group's work)", consumed.by_destination),
    ):
        console.print(_late_table(title, lines[:rows], len(lines)))


def _late_table(title: str, lines: Sequence[Late], total: int) -> Table:
    table = Table(title=f"{title}, {len(lines)} of {total}", title_justify="left", title_style="bold")
    table.add_column("")
    for column in ("flights arrived", "mean delay, min", "15 min late or more"):
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(line.name, f"{line.flight_count:,}", f"{line.mean_delay:.1f}", f"{line.late_share:.1%}")
    return table


def show_checks(console: Console, checks: Sequence[Check]) -> None:
    table = Table(title="reconciliation", title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("expected", justify="right")
    table.add_column("found", justify="right")
    table.add_column("")
    table.add_column("", overflow="fold")
    for check in checks:
        verdict = "[green]ok[/]" if check.holds else "[bold red]WRONG[/]"
        table.add_row(check.what, f"{check.expected:,}", f"{check.found:,}", verdict, check.note)
    console.print(table)
