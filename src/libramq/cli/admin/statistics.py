"""The admin commands that count: producers, progress, rates, slaves; under mqadmin's names."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from libramq.cli import options
from libramq.cli.admin.printing import plain, show, show_rows
from libramq.errors import BrokerError, RemoteError

if TYPE_CHECKING:
    from libramq.cli.admin.session import AdminSession
    from libramq.remoting.body.administration import BrokerStatsData

app = typer.Typer()

#: Stats.java.
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
_GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"

_Broker = Annotated[str, typer.Option("-b", "--brokerAddr", "--broker", help="The broker, host:port.")]
_CONNECTION: Final = {
    "clientId": "client id",
    "clientAddr": "address",
    "language": "language",
    "version": "version",
}


@app.command("producerConnection", no_args_is_help=True)
def producer_connection(
    group: Annotated[str, typer.Option("-g", "--producerGroup", help="The producer group.")],
    topic: options.Topic,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show the producers of a group that are connected to a topic's brokers."""
    from libramq.cli.admin.session import addresses
    from libramq.rpc import admin_calls

    rows: dict[str, dict[str, Any]] = {}
    failure: BrokerError | None = None
    with options.session(namesrv) as session:
        for address in addresses(session.route(topic).broker_datas):
            try:
                connection = session.ask(address, admin_calls.producer_connection(group))
            except BrokerError as error:
                failure = error
                continue
            for member in connection.connection_set:
                row = plain(member)
                rows[member.client_id] = {name: row[name] for name in _CONNECTION}
    if failure is not None and not rows:
        raise failure
    show_rows([rows[client_id] for client_id in sorted(rows)], _CONNECTION, json=json)


@app.command("producer", no_args_is_help=True)
def producers(broker: _Broker, namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """List all producers that are connected to a broker."""
    from libramq.rpc import admin_calls

    with options.session(namesrv) as session:
        table = session.ask(broker, admin_calls.all_producers()).data
    rows = [
        {"group": group} | plain(producer) for group, members in sorted(table.items()) for producer in members
    ]
    columns = {
        "group": "group",
        "clientId": "client id",
        "remoteIP": "address",
        "language": "language",
        "version": "version",
        "lastUpdateTimestamp": "last heartbeat",
    }
    show_rows(rows, columns, json=json)


@app.command("brokerConsumeStats", no_args_is_help=True)
def broker_consume_stats(
    broker: _Broker,
    level: Annotated[
        int, typer.Option("-l", "--level", min=0, help="Only queues at least so far behind.")
    ] = 0,
    ordered: Annotated[str, typer.Option("-o", "--order", help="true: ordered topics only.")] = "false",
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show the progress of all groups at a broker, queue by queue."""
    from libramq.cli.admin.queries import truth_of
    from libramq.rpc import admin_calls

    call = admin_calls.broker_consume_stats(ordered=truth_of("-o", ordered))
    with options.session(namesrv) as session:
        stats = session.ask(broker, call)
    rows = [
        {
            "topic": queue.topic,
            "group": group,
            "broker": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": offset.broker_offset,
            "consumerOffset": offset.consumer_offset,
            "diff": offset.broker_offset - offset.consumer_offset,
            "lastTimestamp": offset.last_timestamp,
        }
        for each in stats.consume_stats_list
        for group, progress in sorted(each.items())
        for one in progress
        for queue, offset in sorted(one.offset_table.items())
        if offset.broker_offset - offset.consumer_offset >= level
    ]
    columns = {
        "topic": "topic",
        "group": "group",
        "queueId": "queue",
        "brokerOffset": "broker offset",
        "consumerOffset": "consumer offset",
        "diff": "behind",
        "lastTimestamp": "last message stored",
    }
    show_rows(rows, columns, json=json)


_RATES: Final = {
    "topic": "topic",
    "group": "group",
    "accumulation": "behind",
    "inTps": "in/s",
    "outTps": "out/s",
    "inMsg24Hour": "in a day",
    "outMsg24Hour": "out a day",
}


@app.command("statsAll")
def stats_all(
    active: Annotated[
        bool, typer.Option("-a", "--activeTopic", help="Only topics with traffic within a day.")
    ] = False,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic.")] = None,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show how much each topic takes in and each of its groups takes out."""
    from libramq.message.names import DLQ_PREFIX, RETRY_PREFIX
    from libramq.rpc import name_server_calls

    with options.session(namesrv) as session:
        topics = sorted(session.ask_name_server(name_server_calls.all_topics()))
        rows = [
            row
            for each in topics
            if not each.startswith((RETRY_PREFIX, DLQ_PREFIX)) and topic in (None, each)
            for row in _rates(session, each)
            if not active or row["inMsg24Hour"] or row["outMsg24Hour"]
        ]
    show_rows(rows, _RATES, json=json)


def _rates(session: "AdminSession", topic: str) -> Iterator[dict[str, Any]]:
    from libramq.cli.admin.session import addresses
    from libramq.rpc import admin_calls

    try:
        brokers = addresses(session.route(topic).broker_datas)
        groups = {
            group for address in brokers for group in session.ask(address, admin_calls.topic_consumers(topic))
        }
    except RemoteError:
        return  # A topic deleted just now, as mqadmin skips it.
    in_tps, taken_in = _total(session, brokers, TOPIC_PUT_NUMS, topic)
    for group in sorted(groups) or [""]:
        behind, out_tps, taken_out = 0, 0.0, 0
        if group:
            out_tps, taken_out = _total(session, brokers, _GROUP_GET_NUMS, f"{topic}@{group}")
            behind = sum(_behind(session, address, group, topic) for address in brokers)
        row = (topic, group, max(behind, 0), in_tps, out_tps, taken_in, taken_out)
        yield dict(zip(_RATES, row, strict=True))


def _behind(session: "AdminSession", address: str, group: str, topic: str) -> int:
    from libramq.rpc import admin_calls

    try:
        table = session.ask(address, admin_calls.consume_stats(group, topic)).offset_table
    except BrokerError:
        return 0  # The group has not committed here.
    return sum(offset.broker_offset - offset.consumer_offset for offset in table.values())


def _total(session: "AdminSession", brokers: list[str], name: str, key: str) -> tuple[float, int]:
    tps, count = 0.0, 0
    for address in brokers:
        stats = stats_of(session, address, name, key)
        if stats is not None:
            tps += stats.stats_minute.tps
            count += in_a_day(stats)
    return tps, count


def stats_of(session: "AdminSession", address: str, name: str, key: str) -> "BrokerStatsData | None":
    """Return what a broker counts; None where it has not counted anything."""
    from libramq.rpc import admin_calls

    try:
        return session.ask(address, admin_calls.stats_data(name, key))
    except BrokerError:
        return None


def in_a_day(stats: "BrokerStatsData") -> int:
    """Return the count of a day; of the longest window there is, for a broker that was just started."""
    return stats.stats_day.sum or stats.stats_hour.sum or stats.stats_minute.sum


@app.command("haStatus", no_args_is_help=True)
def ha_status(broker: _Broker, namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Show how far the slaves of a master are behind it."""
    from libramq.rpc import admin_calls

    with options.session(namesrv) as session:
        status = plain(session.ask(broker, admin_calls.ha_status()))
    if json:
        show(status, json=True)
        return
    slaves = status.pop("haConnectionInfo")
    show(status, json=False)
    columns = {"addr": "slave", "slaveAckOffset": "has up to", "diff": "lacks", "inSync": "in sync"}
    show_rows(slaves, columns, json=False)
