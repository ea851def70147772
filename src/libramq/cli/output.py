"""Output: JSON for programs, tables for people."""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from libramq.cli.printable import printable, printable_json

#: Anything but a terminal gets whole lines, not cut to a width.
WIDTH_WITHOUT_TERMINAL: Final = 400
_NUMBER: Final = re.compile(r"[0-9][0-9,.]*")


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON, readable; indent None: in one line."""
    print(printable_json(json.dumps(value, ensure_ascii=False, indent=indent)))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under column headings; numbers are aligned right."""
    console().print(table(columns, rows))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str | None = None) -> Table:
    """Return a table of rows under column headings."""
    rows = [list(row) for row in rows]
    made = Table(
        caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(_is_number(row[index]) for row in rows)
        made.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(f"{cell:,.1f}" if isinstance(cell, float) else printable(str(cell)) for cell in row))
    return made


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) or (isinstance(cell, str) and bool(_NUMBER.fullmatch(cell)))


def console(*, stderr: bool = False) -> Console:
    """Return a console that ignores markup in names, and cuts nothing in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDTH_WITHOUT_TERMINAL
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
