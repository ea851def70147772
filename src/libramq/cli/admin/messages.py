"""The admin commands that find messages, under mqadmin's names."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option, Typer

from libramq.cli import options
from libramq.cli.admin.frame import Answer, Operator, calls, command, plain, rows, time_text
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from libramq.message.message import MessageExt

app = Typer()

#: MessageStoreConfig.maxMsgsNumBatch: no broker returns more.
_FOUND_MAX: Final = 64
_LONG_MAX: Final = 2**63 - 1

_Id = Annotated[str, Option("-i", "--msgId", help="The message's id.")]
_Begin = Annotated[
    int, Option("-b", "--beginTimestamp", min=0, help="Stored at this time or later, in ms since 1970.")
]
_End = Annotated[
    int,
    Option("-e", "--endTimestamp", min=0, help="Stored at this time or before, in ms.", show_default=False),
]
_Consumer = Annotated[
    str | None, Option("-g", "--consumerGroup", help="With -d: have a member of this group process it again.")
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
    from libramq.admin.messages import by_key, by_offset_id
    from libramq.cli.admin.sending import resend

    is_resent = options.truth_of("-s", send)
    found: list[MessageExt] = []
    for each in message_id.split(","):
        one = each.strip()
        found += await by_offset_id(admin, topic, one) or await by_key(admin, topic, one, unique=True)
    if is_resent and found:
        yield await resend(admin, found)
        return
    async for answer in _show_or_push(admin, found, message_id, group, client_id):
        yield answer


@command(app, "queryMsgByUniqueKey")
async def query_msg_by_unique_key(
    *,
    topic: options.Topic,
    message_id: _Id,
    show_all: Annotated[
        bool, Option("-a", "--showAll", help="Show every copy of it; else only the newest.")
    ] = False,
    group: _Consumer = None,
    client_id: _Member = None,
    admin: Operator,
) -> AsyncGenerator[Answer, None]:
    """Show a message by the unique id that its producer gave it."""
    from libramq.admin.messages import by_key

    found = await by_key(admin, topic, message_id, unique=True)
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
    count: Annotated[int, Option("-m", "--maxNum", min=1, help="How many at most.")] = _FOUND_MAX,
    admin: Operator,
) -> Answer:
    """List the messages of a topic that have a key, the newest first."""
    from libramq.admin.messages import by_key
    from libramq.cli.message_row import detailed_row

    found = await by_key(admin, topic, key, count=count, begin_ms=begin, end_ms=end)
    return rows(
        [detailed_row(message) for message in found[:count]],
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
    from libramq.cli.admin.reading import messages_of

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
    count: Annotated[int, Option("-c", "--maxNum", min=1, help="Traces at most.")] = _FOUND_MAX,
    admin: Operator,
) -> Answer:
    """Show who sent and who consumed a message, as far as clients write traces."""
    from libramq.admin.messages import by_key, trace_rows

    traces = await by_key(admin, topic, message_id, count=count, begin_ms=begin, end_ms=end)
    found = [row for message in reversed(traces) for row in trace_rows(message, message_id)]
    if not found:
        raise ConfigError(
            f"no trace of {message_id} in {topic}: only clients with traces switched on write any"
        )
    return rows(found, "type, group, clientHost: client host, atTimestamp: time, costMs: ms, status")


async def _show_or_push(
    admin: Operator, found: Sequence["MessageExt"], message_id: str, group: str | None, client_id: str | None
) -> AsyncGenerator[Answer, None]:
    """Show messages, or have a member process them and show what it made of them."""
    from libramq.transport.address import join_address

    if not found:
        raise ConfigError(
            f"no message {message_id} in this topic; check both, and that it is not deleted yet"
        )
    if (group is None) != (client_id is None):
        raise ConfigError("name both the group (-g) and its member (-d) that is to process the message")
    if group is None or client_id is None:
        yield _messages(found)
        return
    for message in found:
        call = calls.consume_directly(group, client_id, message.offset_id, message.topic)
        result = plain(await admin.ask(join_address(*message.store_host), call))
        yield Answer(result, result)


def _messages(found: Sequence["MessageExt"]) -> Answer:
    from libramq.cli.message_row import detailed_row

    times = ("bornTimestamp", "storeTimestamp")
    rows = [detailed_row(message) for message in found]
    return Answer(rows, *(row | {name: time_text(row[name]) for name in times} for row in rows))
