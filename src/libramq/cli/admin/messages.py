"""The admin commands that find, read and send messages, under mqadmin's names."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Annotated, Any, Final

from typer import Option, Typer

import libramq
from libramq.cli import options
from libramq.cli.admin.frame import Answer, Operator, Table, command, plain, rows
from libramq.cli.lazy import access, calls, lookup, message_row
from libramq.cli.printable import printable, time_text
from libramq.errors import ConfigError, LibraError

app = Typer()

#: MessageStoreConfig.maxMsgsNumBatch: no broker returns more.
_FOUND_MAX: Final = 64
_LONG_MAX: Final = 2**63 - 1

_Id = Annotated[str, Option("-i", "--msgId", help="The message's id.")]
_Begin = Annotated[
    int, Option("-b", "--beginTimestamp", min=0, help="Stored at or after this time, in ms since 1970.")
]
_End = Annotated[
    int,
    Option("-e", "--endTimestamp", min=0, help="Stored at or before this time, in ms.", show_default=False),
]
_Consumer = Annotated[
    str | None, Option("-g", "--consumerGroup", help="With -d: let a member of this group process it again.")
]
_Member = Annotated[str | None, Option("-d", "--clientId", help="The member that processes it.")]


@command(app, "queryMsgById")
async def query_msg_by_id(
    *,
    topic: options.Topic,
    message_id: _Id,
    group: _Consumer = None,
    client_id: _Member = None,
    send: Annotated[str, Option("-s", "--sendMessage", help="true: send it again.")] = "false",
    admin: Operator,
) -> AsyncGenerator[Answer, None]:
    """Show messages by their offset ids or unique ids, several separated by commas, or send them again."""
    is_resent = options.truth_of("-s", send)
    found: list[libramq.MessageExt] = []
    for each in message_id.split(","):
        one = each.strip()
        at_offset = await lookup.by_offset_id(admin, topic, one)
        found += at_offset or await lookup.by_key(admin, topic, one, unique=True)
    if is_resent and found:
        yield await _resend(admin, found)
        return
    async for answer in _show_or_push(admin, found, message_id, group, client_id):
        yield answer


@command(app, "queryMsgByUniqueKey")
async def query_msg_by_unique_key(
    *,
    topic: options.Topic,
    message_id: _Id,
    show_all: Annotated[
        bool, Option("-a", "--showAll", help="Show every copy, not only the newest.")
    ] = False,
    group: _Consumer = None,
    client_id: _Member = None,
    admin: Operator,
) -> AsyncGenerator[Answer, None]:
    """Show a message by the unique id that its producer assigned."""
    found = await lookup.by_key(admin, topic, message_id, unique=True)
    shown = found if show_all else found[:1]
    async for answer in _show_or_push(admin, shown, message_id, group, client_id):
        yield answer


@command(app, "queryMsgByKey")
async def query_msg_by_key(
    *,
    topic: options.Topic,
    key: Annotated[str, Option("-k", "--msgKey", help="The key.")],
    begin: _Begin = 0,
    end: _End = _LONG_MAX,
    count: Annotated[int, Option("-m", "--maxNum", min=1, help="Messages, at most.")] = _FOUND_MAX,
    admin: Operator,
) -> Answer:
    """List the messages of a topic with a key, newest first."""
    found = await lookup.by_key(admin, topic, key, count=count, begin_ms=begin, end_ms=end)
    return rows(
        [message_row.detailed_row(message) for message in found[:count]],
        "messageId: message id, broker, queueId: queue, queueOffset: offset, storeTimestamp: stored, tags",
    )


@command(app, "queryMsgByOffset")
async def query_msg_by_offset(
    *,
    topic: options.Topic,
    broker: Annotated[str, Option("-b", "--brokerName", help="The broker's name.")],
    queue_id: Annotated[int, Option("-i", "--queueId", min=0, help="The queue.")],
    offset: Annotated[int, Option("-o", "--offset", min=0, help="The offset in the queue.")],
    admin: Operator,
) -> Answer:
    """Show the message at an offset of a queue."""
    queue = messages_of(admin.namesrv, topic, broker, queue_id, first=offset, count=1)
    found = [message for message in await asyncio.to_thread(list, queue) if message.queue_offset == offset]
    if not found:
        raise ConfigError(f"the queue {topic}@{broker}:{queue_id} has no message at offset {offset}")
    return _messages(found)


@command(app, "queryMsgTraceById")
async def query_msg_trace_by_id(
    *,
    message_id: _Id,
    topic: Annotated[str, Option("-t", "--traceTopic", help="The topic of traces.")] = "RMQ_SYS_TRACE_TOPIC",
    begin: _Begin = 0,
    end: _End = _LONG_MAX,
    count: Annotated[int, Option("-c", "--maxNum", min=1, help="Traces, at most.")] = _FOUND_MAX,
    admin: Operator,
) -> Answer:
    """Show the sending and consumption of a message, as recorded by clients that write traces."""
    traces = await lookup.by_key(admin, topic, message_id, count=count, begin_ms=begin, end_ms=end)
    found = [row for message in reversed(traces) for row in lookup.trace_rows(message, message_id)]
    if not found:
        raise ConfigError(
            f"no trace of {message_id} in {topic}: only clients with tracing enabled write traces"
        )
    return rows(found, "type, group, clientHost: client host, atTimestamp: time, costMs: ms, status")


async def _show_or_push(
    admin: Operator,
    found: Sequence["libramq.MessageExt"],
    message_id: str,
    group: str | None,
    client_id: str | None,
) -> AsyncGenerator[Answer, None]:
    """Show messages, or make a member process them and show the results."""
    from libramq.transport.address import join_address

    if not found:
        raise ConfigError(f"no message {message_id} in this topic; check both; it may have been deleted")
    if (group is None) != (client_id is None):
        raise ConfigError("name both the group (-g) and its member (-d) that should process the message")
    if group is None or client_id is None:
        yield _messages(found)
        return
    for message in found:
        call = calls.consume_directly(group, client_id, message.offset_id, topic=message.topic)
        result = plain(await admin.ask(join_address(*message.store_host), call))
        yield Answer(result, result)


def _messages(found: Sequence["libramq.MessageExt"]) -> Answer:
    times = ("bornTimestamp", "storeTimestamp")
    detailed = [message_row.detailed_row(message) for message in found]
    return Answer(detailed, *(row | {name: time_text(row[name]) for name in times} for row in detailed))


# Reading queues, without joining a group or committing offsets.

_When = "now, milliseconds since 1970, or yyyy-MM-dd#HH:mm:ss:SSS."
_Since = Annotated[
    str | None, Option("-b", "--beginTimestamp", help=f"Stored at or after this time: {_When}")
]
_Until = Annotated[str | None, Option("-e", "--endTimestamp", help=f"Stored before this time: {_When}")]
_Tags = Annotated[str, Option("-s", "--subExpression", help="Only these tags, as in TagA || TagB.")]
_Body = Annotated[str, Option("-d", "--printBody", help="Show bodies: true or false.")]


@command(app, "printMsg")
def print_msg(
    *,
    topic: options.Topic,
    tags: _Tags = "*",
    begin: _Since = None,
    end: _Until = None,
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
    begin: _Since = None,
    end: _Until = None,
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
    offset: Annotated[int | None, Option("-o", "--offset", min=0, help="With -i: the first offset.")] = None,
    begin: Annotated[
        str | None, Option("-s", "--beginTimestamp", help=f"Stored at or after this time: {_When}")
    ] = None,
    end: _Until = None,
    count: Annotated[
        int, Option("-c", "--MessageNumber", min=1, help="Messages of each queue, at most.")
    ] = 128,
    namesrv: options.Namesrv = None,
) -> Iterator[Answer]:
    """Print messages of a topic or of one queue, without consuming them."""
    if (broker is None) != (queue_id is None):
        raise ConfigError("a queue belongs to a broker: name both -b BROKER and -i QUEUE, or neither")
    if offset is not None and queue_id is None:
        raise ConfigError("an offset belongs to one queue: name the queue with -b and -i")
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
    count: Annotated[int, Option("-c", "--count", min=1, help="Units to show.")] = 10,
    broker: Annotated[
        str | None, Option("-b", "--broker", help="The broker, host:port. Default: the topic's first.")
    ] = None,
    admin: Operator,
) -> Answer:
    """Show units of a consume queue, which locate messages in the commit log."""
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
) -> Iterator["libramq.MessageExt"]:
    """Yield messages of a topic or of one queue, stored between two times.

    first, count: the first offset in each queue, and the most messages of each.
    """
    from libramq.client.queue_reader import PullFilter, QueueReader
    from libramq.transport.address import split_name_servers

    pull_filter = PullFilter.of(tags)
    servers = split_name_servers(namesrv)
    reader = QueueReader(
        servers, group="TOOLS_CONSUMER", pull_filter=pull_filter, access=access.environment_access()
    )
    try:
        for queue in reader.queues(topic):
            if broker not in (None, queue.broker_name) or queue_id not in (None, queue.queue_id):
                continue
            if begin is None:
                start = reader.min_offsets([queue])[queue]
            else:
                start = reader.offsets_at({queue: options.timestamp_of(begin)})[queue]
            if end is None:
                stop = reader.max_offsets([queue])[queue]
            else:
                stop = reader.offsets_at({queue: options.timestamp_of(end)})[queue]
            start = max(start, first)
            yield from reader.messages(queue, start, stop if count is None else min(stop, start + count))
    finally:
        reader.close()


def _lines(found: Iterator["libramq.MessageExt"], body: str) -> Iterator[Answer]:
    """Yield an answer for each message, of one line."""
    with_body = options.truth_of("-d", body)
    for message in found:
        row = message_row.detailed_row(message)
        text = row.get("body") or row.get("bodyBase64") or ""
        if not with_body:
            row = {name: value for name, value in row.items() if name not in ("body", "bodyBase64")}
            text = ""
        place = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
        stored = time_text(message.store_timestamp_ms)
        line = f"{stored} {place} {message.message_id} [{message.tags or ''}] {text}"
        yield Answer(row, printable(line), is_line=True)


# Sending one message, or many to measure the latency.

GROUP: Final = "LIBRA_ADMIN_SEND"
_Row = dict[str, Any]
_COLUMNS: Final = "broker, queueId: queue, status, ms, messageId: message id"

_Amount = Annotated[int, Option("-a", "--amount", min=1, help="Messages to send.")]
_Size = Annotated[int, Option("-s", "--size", min=1, help="Bytes of each body.")]


@command(app, "sendMessage")
async def send_message(
    *,
    topic: options.Topic,
    body: Annotated[str, Option("-p", "--body", help="The body, as text.")],
    keys: Annotated[str | None, Option("-k", "--key", help="Keys, separated by blanks.")] = None,
    tags: Annotated[str | None, Option("-c", "--tags", help="The tag.")] = None,
    broker: Annotated[str | None, Option("-b", "--broker", help="The name of the broker.")] = None,
    queue_id: Annotated[
        int | None, Option("-i", "--qid", min=0, help="With -b: the queue of that broker.")
    ] = None,
    admin: Operator,
) -> Answer:
    """Send one message, to any queue of a topic or to a named one."""
    if (broker is None) != (queue_id is None):
        raise ConfigError("name both the broker (-b) and its queue (-i), or neither")
    queue = (
        libramq.MessageQueue(topic, broker, queue_id) if broker is not None and queue_id is not None else None
    )
    message = libramq.Message(topic, body.encode(), tags=tags, keys=keys or ())
    async with _producer(admin) as producer:
        return rows([await _timed(producer, message, queue)], _COLUMNS)


@command(app, "sendMsgStatus")
async def send_msg_status(
    *,
    broker: Annotated[str, Option("-b", "--brokerName", help="The broker's name.")],
    size: Annotated[int, Option("-s", "--messageSize", min=1, help="Bytes of each body.")] = 128,
    count: Annotated[int, Option("-c", "--count", min=1, help="Messages to send.")] = 50,
    admin: Operator,
) -> Answer:
    """Send messages to a broker's own topic, which is named after the broker."""
    return _times(await _send_many(admin, broker, count, size))


@command(app, "checkMsgSendRT")
async def check_msg_send_rt(
    *, topic: options.Topic, amount: _Amount = 100, size: _Size = 128, admin: Operator
) -> Answer:
    """Send messages to the queues of a topic in turn, and show the time of each send."""
    return _times(await _send_many(admin, topic, amount, size))


@command(app, "clusterRT", no_args_is_help=False)
async def cluster_rt(
    *,
    amount: _Amount = 100,
    size: _Size = 128,
    cluster: Annotated[str | None, Option("-c", "--cluster", help="Only this cluster. Default: all.")] = None,
    interval: Annotated[
        int | None, Option("-i", "--interval", min=1, help="Repeat after this many seconds, until Ctrl-C.")
    ] = None,
    admin: Operator,
) -> AsyncGenerator[Answer, None]:
    """Measure sends to each broker, to the topic named after it; mqadmin repeats this for ever."""
    if cluster is not None:
        await admin.masters(cluster)  # Its error names the existing clusters.
    while True:
        table = (await admin.cluster_info()).cluster_addr_table
        found = []
        for name in sorted(table) if cluster is None else [cluster]:
            for broker in sorted(table.get(name, ())):
                sent = await _send_many(admin, broker, amount, size)
                failed = sum(not each["messageId"] for each in sent)
                row = {"cluster": name, "broker": broker, "ms": _average_ms(sent)}
                found.append(row | {"stored": len(sent) - failed, "failed": failed})
        yield rows(found, "cluster, broker, ms, stored, failed")
        if interval is None:
            return
        await asyncio.sleep(interval)


async def _resend(admin: Operator, found: Sequence["libramq.MessageExt"]) -> Answer:
    """Send stored messages to their topics again, with their tags, keys and user properties."""
    from libramq.message.properties import RESERVED

    sent = []
    async with _producer(admin) as producer:
        for each in found:
            own = {name: value for name, value in each.properties.items() if name not in RESERVED}
            marks: dict[str, Any] = {"tags": each.tags, "keys": each.keys, "properties": own}
            message = libramq.Message(each.topic, each.body, flag=each.flag, **marks)
            sent.append(await _timed(producer, message))
    return rows(sent, _COLUMNS)


def _producer(admin: Operator) -> "libramq.Producer":
    return libramq.Producer(group=GROUP, namesrv=admin.namesrv)


async def _timed(
    producer: "libramq.Producer",
    message: "libramq.Message",
    queue: "libramq.MessageQueue | None" = None,
    *,
    keeps_failures: bool = False,
) -> _Row:
    """Send a message; return a row with its queue and time.

    keeps_failures: return the error of a failed send as the row's status instead of raising it.
    """
    began_s = time.perf_counter()
    try:
        result = await producer.send(message, queue=queue)
        row: _Row = {"broker": result.queue.broker_name, "queueId": result.queue.queue_id}
        row |= {"status": result.status.value, "messageId": result.message_id}
    except LibraError as error:
        if not keeps_failures:
            raise
        row = {"broker": "", "queueId": None, "status": str(error), "messageId": ""}
    return row | {"ms": round((time.perf_counter() - began_s) * 1000, 2)}


async def _send_many(admin: Operator, topic: str, count: int, size: int) -> list[_Row]:
    """Send messages one after the other, to the topic's queues in turn; failures are rows as well."""
    async with _producer(admin) as producer:
        return [
            await _timed(producer, libramq.Message(topic, b"a" * size), keeps_failures=True)
            for _ in range(count)
        ]


def _average_ms(sent: Sequence[_Row]) -> float:
    """Return the average time, without the first send, which made the connection."""
    times: list[float] = [each["ms"] for each in sent[1:] or sent]
    return round(sum(times) / len(times), 2)


def _times(sent: Sequence[_Row]) -> Answer:
    return Answer(sent, Table(sent, _COLUMNS), f"Avg RT: {_average_ms(sent):.2f}")
