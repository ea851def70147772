"""The admin commands that read queues from one end to the other, under mqadmin's names.

They join no group and commit nothing.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from libramq.cli import options
from libramq.cli.admin.frame import (
    Answer,
    Operator,
    calls,
    columns,
    command,
    plain,
    show_rows,
    time_text,
    timestamp_of,
    truth_of,
)  # fmt: skip
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from libramq.client.queue_reader import QueueReader
    from libramq.message.message import MessageExt
    from libramq.message.queue import MessageQueue

app = typer.Typer()

_When = "now, milliseconds since 1970, or yyyy-MM-dd#HH:mm:ss:SSS."
_Begin = Annotated[
    str | None, Option("-b", "--beginTimestamp", help=f"Stored at this time or later: {_When}")
]
_End = Annotated[str | None, Option("-e", "--endTimestamp", help=f"Stored before this time: {_When}")]
_Tags = Annotated[str, Option("-s", "--subExpression", help="Only these tags, as in TagA || TagB.")]
_Body = Annotated[str, Option("-d", "--printBody", help="Show bodies: true or false.")]


@app.command("printMsg", no_args_is_help=True)
def print_msg(
    topic: options.Topic,
    tags: _Tags = "*",
    begin: _Begin = None,
    end: _End = None,
    body: _Body = "true",
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Print the messages of a topic, queue by queue."""
    _print(
        messages_of(options.name_servers(namesrv), topic, tags=tags, begin=begin, end=end), body, json=json
    )


@app.command("printMsgByQueue", no_args_is_help=True)
def print_msg_by_queue(
    topic: options.Topic,
    broker: Annotated[str, Option("-a", "--brokerName", help="The broker's name.")],
    queue_id: Annotated[int, Option("-i", "--queueId", min=0, help="The queue.")],
    tags: _Tags = "*",
    begin: _Begin = None,
    end: _End = None,
    print_messages: Annotated[str, Option("-p", "--print", help="Print them: true or false.")] = "false",
    body: _Body = "false",
    calculate: Annotated[str, Option("-f", "--calculate", help="Count by tag: true or false.")] = "false",
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Print the messages of one queue, or their number for each tag."""
    from libramq.cli import output

    servers = options.name_servers(namesrv)
    found = messages_of(servers, topic, broker, queue_id, tags=tags, begin=begin, end=end)
    if truth_of("-f", calculate):
        counts = Counter(message.tags or "" for message in found)
        rows = [{"tag": tag, "count": count} for tag, count in counts.most_common()]
        if json:
            output.print_json(rows)
        else:
            show_rows(rows, columns("tag, count: messages"))
    elif truth_of("-p", print_messages):
        _print(found, body, json=json)
    else:
        raise ConfigError("name what to do: -p true to print the messages, -f true to count them by tag")


@app.command("consumeMessage", no_args_is_help=True)
def consume_message(
    topic: options.Topic,
    broker: Annotated[str | None, Option("-b", "--brokerName", help="With -i: the broker.")] = None,
    queue_id: Annotated[int | None, Option("-i", "--queueId", min=0, help="Only this queue.")] = None,
    offset: Annotated[
        int | None, Option("-o", "--offset", min=0, help="With -i: from this offset on.")
    ] = None,
    begin: Annotated[
        str | None, Option("-s", "--beginTimestamp", help=f"Stored at this time or later: {_When}")
    ] = None,
    end: _End = None,
    count: Annotated[
        int, Option("-c", "--MessageNumber", min=1, help="How many of each queue at most.")
    ] = 128,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Print messages of a topic or of one queue, without consuming them for any group."""
    if (broker is None) != (queue_id is None):
        raise ConfigError("a queue is a broker's: name both -b BROKER and -i QUEUE, or neither")
    if offset is not None and queue_id is None:
        raise ConfigError("an offset is one queue's: name the queue with -b and -i")
    servers = options.name_servers(namesrv)
    found = messages_of(servers, topic, broker, queue_id, begin=begin, end=end, first=offset, count=count)
    _print(found, "true", json=json)


@command(app, "queryCq")
async def query_cq(
    *,
    topic: options.Topic,
    queue_id: Annotated[int, Option("-q", "--queue", min=0, help="The queue.")],
    index: Annotated[int, Option("-i", "--index", min=0, help="The first offset.")],
    count: Annotated[int, Option("-c", "--count", min=1, help="How many units.")] = 10,
    broker: Annotated[
        str | None, Option("-b", "--broker", help="The broker, host:port. Default: the topic's first.")
    ] = None,
    admin: Operator,
) -> Answer:
    """Show units of a consume queue: where messages lie in the log."""
    address = broker or (await admin.brokers_of(topic))[0]
    reply = await admin.ask(address, calls.consume_queue(topic, queue_id, index, count))
    rows = [{"index": index + number, **plain(unit)} for number, unit in enumerate(reply.queue_data)]
    headings = columns("index: offset, physicOffset: physical offset, physicSize: size, tagsCode: tag code")

    def show() -> None:
        print(f"max: {reply.max_queue_index}, min: {reply.min_queue_index}")
        show_rows(rows, headings)

    return Answer(plain(reply), show)


def messages_of(
    namesrv: str,
    topic: str,
    broker: str | None = None,
    queue_id: int | None = None,
    *,
    tags: str = "*",
    begin: str | None = None,
    end: str | None = None,
    first: int | None = None,
    count: int | None = None,
) -> Iterator["MessageExt"]:
    """Yield messages of a topic or of one queue.

    first, count: of each queue, from an offset on, and how many at most.
    """
    from libramq.cli.access import access
    from libramq.client.queue_reader import PullFilter, QueueReader
    from libramq.transport.address import split_name_servers

    reader = QueueReader(
        split_name_servers(namesrv), group="TOOLS_CONSUMER", pull_filter=PullFilter.of(tags), access=access()
    )
    try:
        for queue in reader.queues(topic):
            if broker in (None, queue.broker_name) and queue_id in (None, queue.queue_id):
                start, stop = _range(reader, queue, begin, end)
                start = max(start, first or 0)
                if count is not None and tags == "*":
                    stop = min(stop, start + count)
                yield from _read(reader, queue, start, stop)
    finally:
        reader.close()


def _range(
    reader: "QueueReader", queue: "MessageQueue", begin: str | None, end: str | None
) -> tuple[int, int]:
    ends = [reader.min_offsets([queue])[queue], reader.max_offsets([queue])[queue]]
    for index, text in enumerate((begin, end)):
        if text is not None:
            ends[index] = reader.offsets_at({queue: timestamp_of(text)})[queue]
    return ends[0], ends[1]


def _read(reader: "QueueReader", queue: "MessageQueue", start: int, stop: int) -> Iterator["MessageExt"]:
    def skip(queue: "MessageQueue", start: int, end: int) -> None:
        """Skip messages that the broker no longer has."""

    for stretch in reader.read(queue, start, stop, lost=skip):
        yield from stretch.messages()


def _print(found: Iterator["MessageExt"], body: str, *, json: bool) -> None:
    """Print messages as they come, one line each."""
    import json as json_module

    from libramq.cli.message_row import detailed_row
    from libramq.cli.printable import printable, printable_json

    with_body = truth_of("-d", body)
    for message in found:
        row: dict[str, Any] = detailed_row(message)
        text = row.get("body") or row.get("bodyBase64") or ""
        if not with_body:
            row = {name: value for name, value in row.items() if name not in ("body", "bodyBase64")}
            text = ""
        if json:
            print(printable_json(json_module.dumps(row, ensure_ascii=False)))
        else:
            place = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
            stored = time_text(message.store_timestamp_ms)
            print(printable(f"{stored} {place} {message.message_id} [{message.tags or ''}] {text}"))
