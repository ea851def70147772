"""The admin commands that find messages, under mqadmin's names."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from libramq.cli import options
from libramq.cli.admin.printing import plain, show, show_rows, time_text
from libramq.errors import BrokerError, ConfigError, RemoteProtocolError

if TYPE_CHECKING:
    from libramq.cli.admin.session import AdminSession
    from libramq.message.message import MessageExt

app = typer.Typer()

#: MessageStoreConfig.maxMsgsNumBatch: no broker returns more.
_FOUND_MAX: Final = 64
_LONG_MAX: Final = 2**63 - 1

_Id = Annotated[str, typer.Option("-i", "--msgId", help="The message's id.")]
_Begin = Annotated[
    int, typer.Option("-b", "--beginTimestamp", min=0, help="Stored at this time or later, in ms since 1970.")
]
_End = Annotated[
    int,
    typer.Option(
        "-e", "--endTimestamp", min=0, help="Stored at this time or before, in ms.", show_default=False
    ),
]
_Consumer = Annotated[
    str | None,
    typer.Option("-g", "--consumerGroup", help="With -d: have a member of this group process it again."),
]
_Member = Annotated[str | None, typer.Option("-d", "--clientId", help="The member that processes it.")]


@app.command("queryMsgById", no_args_is_help=True)
def query_msg_by_id(
    topic: options.Topic,
    message_id: _Id,
    group: _Consumer = None,
    client_id: _Member = None,
    send: Annotated[str, typer.Option("-s", "--sendMessage", help="true: send it again.")] = "false",
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show messages by their offset ids or unique ids, several separated by commas, or send them again."""
    from libramq.cli.admin.queries import truth_of
    from libramq.cli.admin.sending import resend

    is_resent = truth_of("-s", send)
    with options.session(namesrv) as session:
        found: list[MessageExt] = []
        for one in message_id.split(","):
            found += _by_offset_id(session, topic, one.strip()) or _by_key(
                session, topic, one.strip(), unique=True
            )
        if not (is_resent and found):
            _show_or_push(session, found, message_id, group, client_id, json=json)
            return
    resend(namesrv, found, json=json)


@app.command("queryMsgByUniqueKey", no_args_is_help=True)
def query_msg_by_unique_key(
    topic: options.Topic,
    message_id: _Id,
    show_all: Annotated[
        bool, typer.Option("-a", "--showAll", help="Show every copy of it; else only the newest.")
    ] = False,
    group: _Consumer = None,
    client_id: _Member = None,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show a message by the unique id that its producer gave it."""
    with options.session(namesrv) as session:
        found = _by_key(session, topic, message_id, unique=True)
        _show_or_push(session, found if show_all else found[:1], message_id, group, client_id, json=json)


@app.command("queryMsgByKey", no_args_is_help=True)
def query_msg_by_key(
    topic: options.Topic,
    key: Annotated[str, typer.Option("-k", "--msgKey", help="The key.")],
    begin: _Begin = 0,
    end: _End = _LONG_MAX,
    count: Annotated[int, typer.Option("-m", "--maxNum", min=1, help="How many at most.")] = _FOUND_MAX,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """List the messages of a topic that have a key, the newest first."""
    with options.session(namesrv) as session:
        found = _by_key(session, topic, key, count=count, begin_ms=begin, end_ms=end)
    _show_list(found[:count], json=json)


@app.command("queryMsgByOffset", no_args_is_help=True)
def query_msg_by_offset(
    topic: options.Topic,
    broker: Annotated[str, typer.Option("-b", "--brokerName", help="The broker's name.")],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", min=0, help="The queue.")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="The offset in the queue.")],
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show the message at an offset of a queue."""
    from libramq.cli.admin.reading import messages_of

    found = [
        message
        for message in messages_of(
            options.name_servers(namesrv), topic, broker, queue_id, first=offset, count=1
        )
        if message.queue_offset == offset
    ]
    if not found:
        raise ConfigError(f"the queue {topic}@{broker}:{queue_id} has no message at offset {offset}")
    _show_messages(found, json=json)


_TRACE: Final = {
    "type": "type",
    "group": "group",
    "clientHost": "client host",
    "atTimestamp": "time",
    "costMs": "ms",
    "status": "status",
}


@app.command("queryMsgTraceById", no_args_is_help=True)
def query_msg_trace_by_id(
    message_id: _Id,
    topic: Annotated[
        str, typer.Option("-t", "--traceTopic", help="The topic of traces.")
    ] = "RMQ_SYS_TRACE_TOPIC",
    begin: _Begin = 0,
    end: _End = _LONG_MAX,
    count: Annotated[int, typer.Option("-c", "--maxNum", min=1, help="Traces at most.")] = _FOUND_MAX,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show who sent and who consumed a message, as far as clients write traces."""
    from libramq.cli.admin.trace_rows import trace_rows

    with options.session(namesrv) as session:
        found = _by_key(session, topic, message_id, count=count, begin_ms=begin, end_ms=end)
    rows = [row for message in reversed(found) for row in trace_rows(message, message_id)]
    if not rows:
        raise ConfigError(
            f"no trace of {message_id} in {topic}: only clients with traces switched on write any"
        )
    show_rows(rows, _TRACE, json=json)


def _by_offset_id(session: "AdminSession", topic: str, message_id: str) -> list["MessageExt"]:
    """Return the message with an offset id; none if it is not one, or of no broker of this topic."""
    from libramq.message.ids import decode_offset_id
    from libramq.rpc import admin_calls
    from libramq.transport.address import join_address

    try:
        (host, port), physical_offset = decode_offset_id(message_id)
    except RemoteProtocolError:
        return []
    for broker in session.route(topic).broker_datas:
        if join_address(host, port) in broker.broker_addrs.values():
            try:
                call = admin_calls.view_message(physical_offset, topic)
                message = session.ask(join_address(host, port), call)
            except BrokerError:
                return []  # The bytes of a unique id may look like this broker's address.
            message.broker_name = broker.broker_name
            return [message]
    return []


def _by_key(
    session: "AdminSession", topic: str, key: str, *, unique: bool = False, **limits: int
) -> list["MessageExt"]:
    """Return the messages with a key, the newest first; brokers know only its hash, so they are compared."""
    from libramq.cli.admin.session import addresses
    from libramq.rpc import admin_calls

    found: list[MessageExt] = []
    for broker in session.route(topic).broker_datas:
        for address in addresses([broker]):
            for message in session.ask(
                address, admin_calls.query_messages(topic, key, unique=unique, **limits)
            ):
                if key == message.message_id if unique else key in message.keys:
                    message.broker_name = broker.broker_name
                    found.append(message)
    return sorted(found, key=lambda message: -message.store_timestamp_ms)


def _show_or_push(
    session: "AdminSession",
    found: list["MessageExt"],
    message_id: str,
    group: str | None,
    client_id: str | None,
    *,
    json: bool,
) -> None:
    if not found:
        raise ConfigError(
            f"no message {message_id} in this topic; check both, and that it is not deleted yet"
        )
    if (group is None) != (client_id is None):
        raise ConfigError("name both the group (-g) and its member (-d) that is to process the message")
    if group is None or client_id is None:
        _show_messages(found, json=json)
        return
    for message in found:
        show(_push(session, message, group, client_id), json=json)


def _push(session: "AdminSession", message: "MessageExt", group: str, client_id: str) -> dict[str, Any]:
    from libramq.rpc import admin_calls
    from libramq.transport.address import join_address

    call = admin_calls.consume_directly(group, client_id, message.offset_id, message.topic)
    result: dict[str, Any] = plain(session.ask(join_address(*message.store_host), call))
    return result


def _show_messages(found: Iterable["MessageExt"], *, json: bool) -> None:
    from libramq.cli import output
    from libramq.cli.message_row import detailed_row

    rows = [detailed_row(message) for message in found]
    if json:
        output.print_json(rows)
        return
    for row in rows:
        times = {name: time_text(row[name]) for name in ("bornTimestamp", "storeTimestamp")}
        show(row | times, json=False)


def _show_list(found: Iterable["MessageExt"], *, json: bool) -> None:
    from libramq.cli.message_row import detailed_row

    columns = {
        "messageId": "message id",
        "broker": "broker",
        "queueId": "queue",
        "queueOffset": "offset",
        "storeTimestamp": "stored",
        "tags": "tags",
    }
    show_rows([detailed_row(message) for message in found], columns, json=json)
