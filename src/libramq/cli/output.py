"""Output of commands: JSON (in camelCase), tables that adapt to the screen's width, and progress bars."""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from libramq.cli.printable import printable, printable_json

#: Without a terminal, lines are not cut to its width.
WIDTH_WITHOUT_TERMINAL: Final = 400
#: Ours: longer words, such as client ids, may be split.
UNBROKEN_MAX: Final = 16
_NUMBER: Final = re.compile(r"[0-9][0-9,.]*")


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as indented JSON; indent None: on one line."""
    print(printable_json(json.dumps(value, ensure_ascii=False, indent=indent)))


def camel(name: str) -> str:
    """Return a field's name in JSON."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under column headings; numbers are right-aligned."""
    target = console()
    target.print(table(columns, rows, width=target.width))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, width: int, caption: str | None = None
) -> Table:
    """Return a table of rows under column headings; on a narrow screen, with one line per cell."""
    rows = [list(row) for row in rows]
    cells = [
        [f"{cell:,.1f}" if isinstance(cell, float) else printable(str(cell)) for cell in row] for row in rows
    ]
    made = Table(
        caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    if width < _narrowest(columns, cells):
        made.show_header = False
        made.box = None
        for _ in range(2):
            made.add_column(overflow="fold")
        for row in cells:
            for heading, cell in zip(columns, row, strict=True):
                made.add_row(heading, cell)
            made.add_row("", "")
        return made
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(_is_number(row[index]) for row in rows)
        made.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in cells:
        made.add_row(*row)
    return made


def _narrowest(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the least width at which a table splits no word of up to UNBROKEN_MAX characters."""
    longest = [
        max(len(part) for text in column for part in (*text.split(), ""))
        for column in zip(columns, *rows, strict=True)
    ]
    return sum(min(length, UNBROKEN_MAX) + 2 for length in longest)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) or (isinstance(cell, str) and bool(_NUMBER.fullmatch(cell)))


def console(*, stderr: bool = False) -> Console:
    """Return a console that ignores markup in names, and does not cut lines in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDTH_WITHOUT_TERMINAL
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def progress_bars(*more: TextColumn, transient: bool = False, disable: bool = False) -> Progress:
    """Return progress bars on standard error: description, bar, count, more columns, and elapsed time."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *more,
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console(stderr=True), transient=transient, disable=disable)
