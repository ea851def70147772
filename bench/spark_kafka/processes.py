"""Processor time of a query's processes by kind: brokers, Spark's Java, its Python workers."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: A mark in the command line of each kind, the more specific one first.
KINDS = (
    ("kafka.Kafka", "Kafka"),
    ("pyspark.daemon", "workers"),
    ("org.apache.spark", "Java"),
    ("-m libramq", "LibraMQ"),
)
_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> Counter[str]:
    """Return the processor time so far of a process's descendants, including ended ones."""
    spent = Counter[str]()
    for each in (pid, *_descendants(pid)):
        with suppress(OSError):  # It has ended, and its parent now includes its time.
            command = Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            kind = next((kind for text, kind in KINDS if text in command), "driver" if each == pid else "")
            # utime, stime; cutime and cstime for children that have been waited for.
            spent[kind] += sum(map(int, fields[11 : 13 if each == pid else 15])) / _TICKS
    return spent


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from _descendants(child)
