"""The admin commands that read queues from one end to the other, under mqadmin's names.

They join no group and commit nothing.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer

from libramq.cli import options
from libramq.cli.admin.frame import Answer, Operator, Table, calls, command, plain, rows, time_text
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from libramq.message.message import MessageExt

app = Typer()

_When = "now, milliseconds since 1970, or yyyy-MM-dd#HH:mm:ss:SSS."
_Begin = Annotated[
    str | None, Option("-b", "--beginTimestamp", help=f"Stored at this time or later: {_When}")
]
_End = Annotated[str | None, Option("-e", "--endTimestamp", help=f"Stored before this time: {_When}")]
_Tags = Annotated[str, Option("-s", "--subExpression", help="Only these tags, as in TagA || TagB.")]
_Body = Annotated[str, Option("-d", "--printBody", help="Show bodies: true or false.")]


@command(app, "printMsg")
def print_msg(
    *,
    topic: options.Topic,
    tags: _Tags = "*",
    begin: _Begin = None,
    end: _End = None,
    body: _Body = "true",
    namesrv: options.Namesrv = None,
) -> Iterator[Answer]:
    """Print the messages of a topic, queue by queue."""
    found = messages_of(options.name_servers(namesrv), topic, tags=tags, begin=begin, end=end)
    yield from _lines(found, body)


@command(app, "printMsgByQueue")
def print_msg_by_queue(
    *,
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
) -> Iterator[Answer]:
    """Print the messages of one queue, or their number for each tag."""
    servers = options.name_servers(namesrv)
    found = messages_of(servers, topic, broker, queue_id, tags=tags, begin=begin, end=end)
    if options.truth_of("-f", calculate):
        counts = Counter(message.tags or "" for message in found)
        by_tag = [{"tag": tag, "count": count} for tag, count in counts.most_common()]
        yield rows(by_tag, "tag, count: messages")
    elif options.truth_of("-p", print_messages):
        yield from _lines(found, body)
    else:
        raise ConfigError("name what to do: -p true to print the messages, -f true to count them by tag")


@command(app, "consumeMessage")
def consume_message(
    *,
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
) -> Iterator[Answer]:
    """Print messages of a topic or of one queue, without consuming them for any group."""
    if (broker is None) != (queue_id is None):
        raise ConfigError("a queue is a broker's: name both -b BROKER and -i QUEUE, or neither")
    if offset is not None and queue_id is None:
        raise ConfigError("an offset is one queue's: name the queue with -b and -i")
    servers = options.name_servers(namesrv)
    found = messages_of(
        servers, topic, broker, queue_id, begin=begin, end=end, first=offset or 0, count=count
    )
    yield from _lines(found, "true")


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
    units = [{"index": index + number, **plain(unit)} for number, unit in enumerate(reply.queue_data)]
    return Answer(
        plain(reply),
        f"max: {reply.max_queue_index}, min: {reply.min_queue_index}",
        Table(units, "index: offset, physicOffset: physical offset, physicSize: size, tagsCode: tag code"),
    )


def messages_of(
    namesrv: str,
    topic: str,
    broker: str | None = None,
    queue_id: int | None = None,
    *,
    tags: str = "*",
    begin: str | None = None,
    end: str | None = None,
    first: int = 0,
    count: int | None = None,
) -> Iterator["MessageExt"]:
    """Yield messages of a topic or of one queue, stored between two times.

    first, count: of each queue, from an offset on, and how many at most.
    """
    from libramq.cli.access import access
    from libramq.client.queue_reader import PullFilter, QueueReader
    from libramq.transport.address import split_name_servers

    pull_filter = PullFilter.of(tags)
    servers = split_name_servers(namesrv)
    reader = QueueReader(servers, group="TOOLS_CONSUMER", pull_filter=pull_filter, access=access())
    try:
        for queue in reader.queues(topic):
            if broker not in (None, queue.broker_name) or queue_id not in (None, queue.queue_id):
                continue
            start, stop = reader.min_offsets([queue])[queue], reader.max_offsets([queue])[queue]
            if begin is not None:
                start = reader.offsets_at({queue: options.timestamp_of(begin)})[queue]
            if end is not None:
                stop = reader.offsets_at({queue: options.timestamp_of(end)})[queue]
            start = max(start, first)
            yield from reader.messages(queue, start, stop if count is None else min(stop, start + count))
    finally:
        reader.close()


def _lines(found: Iterator["MessageExt"], body: str) -> Iterator[Answer]:
    """Answer with messages as they come, one line each."""
    from libramq.cli.message_row import detailed_row
    from libramq.cli.printable import printable

    with_body = options.truth_of("-d", body)
    for message in found:
        row = detailed_row(message)
        text = row.get("body") or row.get("bodyBase64") or ""
        if not with_body:
            row = {name: value for name, value in row.items() if name not in ("body", "bodyBase64")}
            text = ""
        place = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
        stored = time_text(message.store_timestamp_ms)
        line = f"{stored} {place} {message.message_id} [{message.tags or ''}] {text}"
        yield Answer(row, printable(line), is_line=True)
