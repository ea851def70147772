"""The admin commands that send messages, under mqadmin's names: one, or many to see how long each takes."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option, Typer

from libramq.cli import options
from libramq.cli.admin.frame import Answer, Operator, Table, command, rows
from libramq.errors import ConfigError, LibraError

if TYPE_CHECKING:
    from libramq.client import Producer
    from libramq.message.message import Message, MessageExt
    from libramq.message.queue import MessageQueue

app = Typer()

GROUP: Final = "LIBRA_ADMIN_SEND"
_Row = dict[str, Any]
_COLUMNS: Final = "broker, queueId: queue, status, ms, messageId: message id"

_Amount = Annotated[int, Option("-a", "--amount", min=1, help="How many messages.")]
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
    """Send one message, to any queue of a topic or to the one that is named."""
    from libramq.message.message import Message
    from libramq.message.queue import MessageQueue

    if (broker is None) != (queue_id is None):
        raise ConfigError("name both the broker (-b) and its queue (-i), or neither")
    queue = MessageQueue(topic, broker, queue_id) if broker is not None and queue_id is not None else None
    async with _producer(admin) as producer:
        sent = await _timed(producer, Message(topic, body.encode(), tags=tags, keys=keys or ()), queue)
    return rows([sent], _COLUMNS)


@command(app, "sendMsgStatus")
async def send_msg_status(
    *,
    broker: Annotated[str, Option("-b", "--brokerName", help="The broker's name.")],
    size: Annotated[int, Option("-s", "--messageSize", min=1, help="Bytes of each body.")] = 128,
    count: Annotated[int, Option("-c", "--count", min=1, help="How many messages.")] = 50,
    admin: Operator,
) -> Answer:
    """Send messages to a broker's own topic, which has its name."""
    return _times(await _send_many(admin, broker, count, size))


@command(app, "checkMsgSendRT")
async def check_msg_send_rt(
    *, topic: options.Topic, amount: _Amount = 100, size: _Size = 128, admin: Operator
) -> Answer:
    """Send messages to the queues of a topic in turn, and show how long each took."""
    return _times(await _send_many(admin, topic, amount, size))


@command(app, "clusterRT", no_args_is_help=False)
async def cluster_rt(
    *,
    amount: _Amount = 100,
    size: _Size = 128,
    cluster: Annotated[str | None, Option("-c", "--cluster", help="Only this cluster. Default: all.")] = None,
    interval: Annotated[
        int | None, Option("-i", "--interval", min=1, help="Repeat after so many seconds, until Ctrl-C.")
    ] = None,
    admin: Operator,
) -> AsyncGenerator[Answer, None]:
    """Show how long sends to each broker take, to the topic of its name; mqadmin repeats it for ever."""
    while True:
        found = []
        for name, broker in await _brokers(admin, cluster):
            sent = await _send_many(admin, broker, amount, size)
            stored = sum(bool(each["messageId"]) for each in sent)
            found.append({
                "cluster": name,
                "broker": broker,
                "ms": _average_ms(sent),
                "stored": stored,
                "failed": len(sent) - stored,
            })  # fmt: skip
        yield rows(found, "cluster, broker, ms, stored, failed")
        if interval is None:
            return
        await asyncio.sleep(interval)


async def resend(admin: Operator, found: Sequence["MessageExt"]) -> Answer:
    """Send stored messages to their topics again, with their tags, keys and own properties."""
    async with _producer(admin) as producer:
        return rows([await _timed(producer, _again(message)) for message in found], _COLUMNS)


def _again(message: "MessageExt") -> "Message":
    from libramq.message import properties as p
    from libramq.message.message import Message

    own = {name: value for name, value in message.properties.items() if name not in p.RESERVED}
    return Message(
        message.topic, message.body, tags=message.tags, keys=message.keys, properties=own, flag=message.flag
    )


def _producer(admin: Operator) -> "Producer":
    from libramq.cli.access import client_options
    from libramq.client import Producer

    return Producer(group=GROUP, namesrv=admin.namesrv, **client_options())


async def _timed(producer: "Producer", message: "Message", queue: "MessageQueue | None" = None) -> _Row:
    """Send a message; return where it went and how long that took. Raises LibraError."""
    began_s = time.perf_counter()
    result = await producer.send(message, queue=queue)
    return {
        "broker": result.queue.broker_name,
        "queueId": result.queue.queue_id,
        "status": result.status.value,
        "messageId": result.message_id,
        "ms": _ms_since(began_s),
    }


async def _send_many(admin: Operator, topic: str, count: int, size: int) -> list[_Row]:
    """Send messages one after the other, to the topic's queues in turn; what failed is among the results."""
    from libramq.message.message import Message

    sent: list[_Row] = []
    async with _producer(admin) as producer:
        for _ in range(count):
            began_s = time.perf_counter()
            try:
                sent.append(await _timed(producer, Message(topic, b"a" * size)))
            except LibraError as error:
                row = {"broker": "", "queueId": None, "status": str(error), "messageId": ""}
                sent.append(row | {"ms": _ms_since(began_s)})
    return sent


def _ms_since(began_s: float) -> float:
    return round((time.perf_counter() - began_s) * 1000, 2)


def _average_ms(sent: Sequence[_Row]) -> float:
    """Return the average time; the first send is left out, since it made the connection."""
    times: list[float] = [each["ms"] for each in sent[1:] or sent]
    return round(sum(times) / len(times), 2)


def _times(sent: Sequence[_Row]) -> Answer:
    return Answer(sent, Table(sent, _COLUMNS), f"Avg RT: {_average_ms(sent):.2f}")


async def _brokers(admin: Operator, cluster: str | None) -> list[tuple[str, str]]:
    """Return clusters and their brokers by name; ConfigError if there is no such cluster."""
    if cluster is not None:
        await admin.masters(cluster)  # It names the clusters there are.
    table = (await admin.cluster_info()).cluster_addr_table
    return [
        (name, broker) for name in sorted(table) if cluster in (None, name) for broker in sorted(table[name])
    ]
