"""Reports: progress of the demonstration's processes to the main one, one line of JSON each."""

import sys
from typing import Any

import msgspec


def report(kind: str, **fields: Any) -> None:
    """Write one line to standard output at once."""
    sys.stdout.buffer.write(msgspec.json.encode({"kind": kind, **fields}) + b"\n")
    sys.stdout.buffer.flush()


def read_report(line: bytes) -> dict[str, Any] | None:
    """Read a line; None for anything that is not a report, such as a library's output."""
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) and "kind" in found else None
