"""A member of the demonstration's group: records the delay of each consumed flight in its journal before the
message is acknowledged.

A killed member leaves its journal behind; flights that another member then gets again are in both journals.
Together the journals show which flights were consumed, how often, and how late they were.

    queue (1) | offset (4) | arrival delay in minutes (2) | carrier (2) | origin (3) | destination (3)

Run as a process: NAMESRV NAME DIRECTORY; leaves the group cleanly on SIGTERM or when its parent has ended.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from libramq.client import ConsumeFrom, PushConsumer
from libramq.demo import flights
from libramq.demo.children import report
from libramq.message import MessageExt

GROUP: Final = "flight-delays"
INPUT_BYTES: Final = 4096
BATCH: Final = 256  # Messages per call; each call is one write to the journal.
DELAY_UNKNOWN: Final = -(1 << 15)  # Cancelled, diverted, or not recorded.
ENTRY = Struct("<BIh2s3s3s")
ENTRIES = np.dtype(
    [
        ("queue", "u1"),
        ("offset", "<u4"),
        ("delay", "<i2"),
        ("carrier", "S2"),
        ("origin", "S3"),
        ("dest", "S3"),
    ]
)
SUFFIX: Final = ".journal"


class _Flight(msgspec.Struct):
    """The fields that a member reads from a body."""

    carrier: str
    origin: str
    dest: str
    arr_delay: int | None


_decode = msgspec.json.Decoder(_Flight).decode


def entry(queue_id: int, queue_offset: int, body: bytes) -> bytes:
    """Encode a journal entry for one consumed flight."""
    flight = _decode(body)
    delay = DELAY_UNKNOWN if flight.arr_delay is None else flight.arr_delay
    return ENTRY.pack(
        queue_id, queue_offset, delay, flight.carrier.encode(), flight.origin.encode(), flight.dest.encode()
    )


class Journal:
    """One member's journal, open for appending."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, entries: Iterable[bytes]) -> None:
        """Write entries to the operating system, so that they survive the process."""
        data = b"".join(entries)
        if os.write(self._file, data) != len(data):
            raise OSError("the disk is full: a journal entry was cut off")

    def close(self) -> None:
        os.close(self._file)


class Late(NamedTuple):
    """The delays of a carrier's flights or of flights to an airport."""

    name: str
    flight_count: int
    mean_delay: float
    late_share: float


class Consumed(NamedTuple):
    """The messages consumed by all members together."""

    total: int
    distinct: int
    by_member: dict[str, int]
    by_carrier: list[Late]
    by_destination: list[Late]

    @property
    def duplicate_count(self) -> int:
        return self.total - self.distinct


LATE_MINUTES: Final = 15  # What the US Department of Transportation counts as late.


def consumed(directory: Path) -> Consumed:
    """Read all journals; flights in several journals count once, except in the totals."""
    parts = {path.stem: _read(path) for path in sorted(directory.glob(f"*{SUFFIX}"))}
    together = np.concatenate([*parts.values(), np.empty(0, dtype=ENTRIES)])
    places = together["queue"].astype(np.int64) << 32 | together["offset"]
    _, first = np.unique(places, return_index=True)
    distinct = together[first]
    return Consumed(
        total=len(together),
        distinct=len(distinct),
        by_member={name: len(part) for name, part in parts.items()},
        by_carrier=_late_by(distinct, "carrier"),
        by_destination=_late_by(distinct, "dest"),
    )


def _read(path: Path) -> npt.NDArray[Any]:
    data = path.read_bytes()
    return np.frombuffer(data, dtype=ENTRIES, count=len(data) // ENTRIES.itemsize)


def _late_by(entries: npt.NDArray[Any], column: str) -> list[Late]:
    arrived = entries[entries["delay"] != DELAY_UNKNOWN]
    names, which = np.unique(arrived[column], return_inverse=True)
    counts = np.bincount(which, minlength=len(names))
    sums = np.bincount(which, weights=arrived["delay"], minlength=len(names))
    late = np.bincount(which, weights=arrived["delay"] >= LATE_MINUTES, minlength=len(names))
    rows = zip(
        names.tolist(), counts.tolist(), (sums / counts).tolist(), (late / counts).tolist(), strict=True
    )
    return sorted((Late(name.decode(), *rest) for name, *rest in rows), key=lambda row: -row.flight_count)


async def consume(namesrv: str, name: str, journal: Journal) -> None:
    """Consume until asked to stop."""
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave.set)
    loop.add_reader(sys.stdin, _leave_at_end_of_input, leave)

    async def handle(messages: list[MessageExt]) -> None:
        journal.append([entry(each.queue_id, each.queue_offset, each.body) for each in messages])

    first = ConsumeFrom.FIRST_OFFSET
    consumer = PushConsumer(group=GROUP, namesrv=namesrv, consume_from=first, batch_size=BATCH)
    consumer.subscribe(flights.TOPIC, "*", handle)
    async with consumer:
        report("started", member=name, client_id=consumer.client_id)
        await leave.wait()
    report("left", member=name)


def _leave_at_end_of_input(leave: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), INPUT_BYTES):
        asyncio.get_running_loop().remove_reader(sys.stdin)
        leave.set()


def main() -> None:
    namesrv, name, directory = sys.argv[1:]
    journal = Journal(Path(directory, f"{name}{SUFFIX}"))
    try:
        asyncio.run(consume(namesrv, name, journal))
    finally:
        journal.close()


if __name__ == "__main__":
    main()
