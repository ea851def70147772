"""Following a topic (`libra tail`): start positions, polling, and merging queues by store time.

It reads without a group, as Spark's source does: nothing is committed, and no rebalance occurs.
"""

import heapq
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from itertools import islice
from typing import Final

from libramq.cli.message_row import message_row
from libramq.cli.options import moment_ms
from libramq.cli.printable import printable, printable_json
from libramq.client.queue_reader import PullFilter, QueueReader
from libramq.errors import ConfigError, did_you_mean
from libramq.filter.subscription import Sql
from libramq.filter.tag import parse_tag_filter
from libramq.message.message import MessageExt
from libramq.message.names import validate_topic
from libramq.message.queue import MessageQueue
from libramq.transport.access import environment_access
from libramq.transport.address import split_name_servers

GROUP: Final = "LIBRA_TAIL"
#: How often the queues are checked for new messages while there are none.
POLL_SECONDS: Final = 0.2
#: New queues are looked for once in this many polls.
POLLS_PER_ROUTE: Final = 25


def tail(
    namesrv: str,
    topic: str,
    *,
    start: str,
    offset: int | None,
    queue: str | None,
    expression: str | Sql,
    line: str | None,
    as_json: bool,
    count: int | None,
    to_end: bool,
) -> None:
    """Print messages until the count is reached, or an interrupt.

    start: earliest, latest or a time. offset: in each queue, instead of start. queue: a number, or
    `BROKER:NUMBER` for a queue of one broker. expression: tags, or an Sql. line: a template of `FIELDS`;
    None: the default line. count: None for all. to_end: stop at the current end.
    """
    validate_topic(topic)
    begin = beginning(start, offset)
    write = _print_json if as_json else _print_line if line is None else _template_writer(line)
    is_wanted = _queue_test(queue)
    pull_filter = PullFilter.of(expression)
    tags = parse_tag_filter(expression).tags if isinstance(expression, str) else None
    servers, access = split_name_servers(namesrv), environment_access()
    with closing(QueueReader(servers, group=GROUP, access=access, pull_filter=pull_filter)) as reader:
        found = follow(reader, topic, begin, tags=tags, is_wanted=is_wanted, to_end=to_end)
        for message in islice(found, count):
            write(message)


#: Returns the start offsets of queues.
Beginning = Callable[["QueueReader", list[MessageQueue]], dict[MessageQueue, int]]


def earliest(reader: QueueReader, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
    """Begin with the oldest stored message."""
    return reader.min_offsets(queues)


def latest(reader: QueueReader, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
    """Begin with the next message to be stored."""
    return reader.max_offsets(queues)


def beginning(start: str, offset: int | None) -> Beginning:
    """Return the beginning for these options; raises ConfigError for an invalid start."""
    if offset is not None:

        def at_offset(reader: QueueReader, queues: list[MessageQueue]) -> dict[MessageQueue, int]:
            first, end = reader.min_offsets(queues), reader.max_offsets(queues)
            return {queue: min(max(offset, first[queue]), end[queue]) for queue in queues}

        return at_offset
    if start in ("earliest", "latest"):
        return earliest if start == "earliest" else latest
    try:
        since_ms = moment_ms(start)
    except ConfigError as error:
        raise ConfigError(f"--from {start}: earliest, latest or a time; {error}") from None
    return lambda reader, queues: reader.offsets_at(dict.fromkeys(queues, since_ms))


def _queue_test(queue: str | None) -> Callable[[MessageQueue], bool]:
    if queue is None:
        return lambda _: True
    broker, _, number = queue.rpartition(":")
    if not number.isdecimal():
        raise ConfigError(f"--queue {queue}: a queue's number, or BROKER:NUMBER for one of a single broker")
    return lambda each: each.queue_id == int(number) and broker in ("", each.broker_name)


def follow(
    reader: QueueReader,
    topic: str,
    begin: Beginning,
    *,
    tags: frozenset[str] | None = None,
    is_wanted: Callable[[MessageQueue], bool] = lambda _: True,
    to_end: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[MessageExt]:
    """Yield a topic's messages, endlessly or up to the current end. tags: None or empty: any."""
    positions: dict[MessageQueue, int] = {}
    noted: set[str] = set()
    polls = 0
    while True:
        if polls % POLLS_PER_ROUTE == 0:
            known = [queue for queue in reader.queues(topic) if is_wanted(queue)]
            if not known:
                raise ConfigError(f"the topic {topic} has no such queue; libra topics -t {topic} lists them")
            fresh = [queue for queue in known if queue not in positions]
            # All messages of a queue that appears later are new.
            positions |= (earliest if polls > 0 else begin)(reader, fresh)
            absent = set(reader.absent_brokers([topic]))
            for name in sorted(absent - noted):
                line = f"libra: broker {name} is away; its messages of {topic} are not shown"
                print(printable(line), file=sys.stderr)
            noted = absent
        polls += 1
        ends = reader.max_offsets(positions)
        behind = [queue for queue, end in ends.items() if positions[queue] < end]
        runs = [reader.messages(queue, positions[queue], ends[queue]) for queue in behind]
        for message in heapq.merge(*runs, key=lambda message: message.store_timestamp_ms):
            if not tags or message.tags in tags:  # Brokers compare hashes only.
                yield message
        positions |= {queue: ends[queue] for queue in behind}
        if to_end:
            return
        if not behind:
            sleep(POLL_SECONDS)


#: The fields of a template, besides `p.NAME` for a property.
FIELDS: Final[dict[str, Callable[[MessageExt], object]]] = {
    "body": lambda message: message.body.decode("utf-8", "backslashreplace"),
    "topic": lambda message: message.topic,
    "broker": lambda message: message.broker_name,
    "queue": lambda message: message.queue_id,
    "offset": lambda message: message.queue_offset,
    "tags": lambda message: message.tags or "",
    "keys": lambda message: " ".join(message.keys),
    "id": lambda message: message.message_id,
    "stored": lambda message: _date(message.store_timestamp_ms),
    "born": lambda message: _date(message.born_timestamp_ms),
    "size": lambda message: len(message.body),
}
_FIELD: Final = re.compile(r"\{([^{}]*)\}")


def _template_writer(line: str) -> Callable[[MessageExt], None]:
    if not _is_balanced(line):
        raise ConfigError(f"--format {line!r} has an unmatched brace; a field looks like {{body}}")
    template = line.replace("\\n", "\n").replace("\\t", "\t")
    for name in _FIELD.findall(template):
        if name not in FIELDS and not name.startswith("p."):
            hint = did_you_mean(f"{{{name}}}", [f"{{{each}}}" for each in FIELDS])
            known = ", ".join(FIELDS)
            raise ConfigError(
                f"--format has no field {{{name}}}{hint}: there are {known}, and p.NAME for a property"
            )

    def write(message: MessageExt) -> None:
        def field(found: re.Match[str]) -> str:
            name = found[1]
            if name.startswith("p."):
                return printable(message.properties.get(name[2:], ""))
            return printable(str(FIELDS[name](message)))

        print(_FIELD.sub(field, template), flush=True)

    return write


def _is_balanced(template: str) -> bool:
    depth = 0
    for brace in re.findall(r"[{}]", template):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return not depth


def _date(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000).astimezone().isoformat(timespec="milliseconds")


def _print_line(message: MessageExt) -> None:
    then, now = time.localtime(message.store_timestamp_ms / 1_000), time.localtime()
    stored = time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)
    marks = "".join(
        f" {mark}" for mark in (message.tags and f"[{message.tags}]", ",".join(message.keys)) if mark
    )
    text = message.body.decode("utf-8", "backslashreplace")
    line = f"{stored} {message.broker_name}:{message.queue_id}@{message.queue_offset}{marks} {text}"
    print(printable(line), flush=True)


def _print_json(message: MessageExt) -> None:
    print(printable_json(json.dumps(message_row(message), ensure_ascii=False)), flush=True)
