"""The printing of admin commands: JSON for programs, tables or names and values for people."""

import time
from collections.abc import Mapping, Sequence
from typing import Any


def done(text: str, value: Mapping[str, Any], *, json: bool) -> None:
    """Print that a change is made: a sentence, or its values as JSON."""
    if json:
        show(value, json=True)
    else:
        print(text)


def show(values: Mapping[str, Any], *, json: bool) -> None:
    """Print names and values."""
    from libramq.cli import output
    from libramq.cli.printable import printable

    if json:
        output.print_json(values)
        return
    for name, value in sorted(values.items()):
        print(f"{name:<32}: {printable(str(value))}")


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, json: bool) -> None:
    """Print rows: all of them as JSON, or a table of some values under the headings in `columns`."""
    from libramq.cli import output

    if json:
        output.print_json(rows)
        return
    output.print_table(
        tuple(columns.values()), [[_cell(name, row[name]) for name in columns] for row in rows]
    )


def _cell(name: str, value: Any) -> object:
    return time_text(value) if name.endswith("Timestamp") else value


def time_text(timestamp_ms: int) -> str:
    """Return a time in this machine's zone; a dash for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms / 1000)) if timestamp_ms else "–"


def plain(value: object) -> Any:
    """Return a document as dicts and lists, under its names on the wire."""
    import msgspec  # Help must be quick.

    return msgspec.to_builtins(value)
