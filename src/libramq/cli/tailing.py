"""Following a topic: its stored messages, then new ones, merged over the queues by store time.

It reads outside any group, as Spark's source does: it commits nothing and causes no rebalance.
"""

import heapq
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from libramq.cli.access import access
from libramq.cli.message_row import message_row
from libramq.cli.printable import printable, printable_json
from libramq.client.queue_reader import QueueReader
from libramq.errors import ConfigError
from libramq.message.message import MessageExt
from libramq.message.names import validate_topic
from libramq.message.queue import MessageQueue
from libramq.transport.address import split_name_servers

GROUP: Final = "LIBRA_TAIL"
#: How often the queues are checked for new messages while there are none.
POLL_SECONDS: Final = 0.2
#: How often new queues are looked for, in polls.
POLLS_PER_ROUTE: Final = 25


def tail(namesrv: str, topic: str, *, start: str, count: int | None, as_json: bool) -> None:
    """Print messages until `count` or an interrupt."""
    if start not in ("earliest", "latest"):
        raise ConfigError(f"--from {start}: earliest or latest is allowed")
    validate_topic(topic)
    reader = QueueReader(split_name_servers(namesrv), group=GROUP, access=access())
    write = _print_json if as_json else _print_line
    try:
        for number, message in enumerate(follow(reader, topic, from_earliest=start == "earliest"), start=1):
            write(message)
            if number == count:
                return
    finally:
        reader.close()


def follow(
    reader: QueueReader, topic: str, *, from_earliest: bool, sleep: Callable[[float], None] = time.sleep
) -> Iterator[MessageExt]:
    """Yield every message of the topic, endlessly."""
    positions: dict[MessageQueue, int] = {}
    noted: set[str] = set()
    polls = 0
    while True:
        if polls % POLLS_PER_ROUTE == 0:
            fresh = [queue for queue in reader.queues(topic) if queue not in positions]
            # All messages of a queue that appears meanwhile are new.
            earliest = from_earliest or polls > 0
            positions |= reader.min_offsets(fresh) if earliest else reader.max_offsets(fresh)
            absent = set(reader.absent_brokers([topic]))
            for name in sorted(absent - noted):
                line = f"libra: broker {name} is away; its messages of {topic} are not shown"
                print(printable(line), file=sys.stderr)
            noted = absent
        polls += 1
        ends = reader.max_offsets(positions)
        behind = [queue for queue, end in ends.items() if positions[queue] < end]
        runs = [reader.messages(queue, positions[queue], ends[queue]) for queue in behind]
        yield from heapq.merge(*runs, key=lambda message: message.store_timestamp_ms)
        positions |= {queue: ends[queue] for queue in behind}
        if not behind:
            sleep(POLL_SECONDS)


def _print_line(message: MessageExt) -> None:
    stored = time.strftime("%H:%M:%S", time.localtime(message.store_timestamp_ms / 1000))
    marks = "".join(
        f" {mark}" for mark in (message.tags and f"[{message.tags}]", ",".join(message.keys)) if mark
    )
    text = message.body.decode("utf-8", "backslashreplace")
    line = f"{stored} {message.broker_name}:{message.queue_id}@{message.queue_offset}{marks} {text}"
    print(printable(line), flush=True)


def _print_json(message: MessageExt) -> None:
    print(printable_json(json.dumps(message_row(message), ensure_ascii=False)), flush=True)
