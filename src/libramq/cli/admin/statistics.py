"""The admin commands that count: producers, progress, rates, slaves; under mqadmin's names."""

from typing import Annotated, Any, Final

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
    rows,
    show_rows,
    show_values,
    truth_of,
)  # fmt: skip
from libramq.errors import BrokerError

app = typer.Typer()

_Broker = Annotated[str, Option("-b", "--brokerAddr", "--broker", help="The broker, host:port.")]
CONNECTION: Final = columns("clientId: client id, clientAddr: address, language, version")


@command(app, "producerConnection")
async def producer_connection(
    *,
    group: Annotated[str, Option("-g", "--producerGroup", help="The producer group.")],
    topic: options.Topic,
    admin: Operator,
) -> Answer:
    """Show the producers of a group that are connected to a topic's brokers."""
    found: dict[str, dict[str, Any]] = {}
    failure: BrokerError | None = None
    for address in await admin.brokers_of(topic):
        try:
            connection = await admin.ask(address, calls.producer_connection(group))
        except BrokerError as error:
            failure = error
            continue
        for member in connection.connection_set:
            row = plain(member)
            found[member.client_id] = {name: row[name] for name in CONNECTION}
    if failure is not None and not found:
        raise failure
    return rows([found[client_id] for client_id in sorted(found)], CONNECTION)


@command(app, "producer")
async def producers(*, broker: _Broker, admin: Operator) -> Answer:
    """List all producers that are connected to a broker."""
    table = (await admin.ask(broker, calls.all_producers())).data
    found = [
        {"group": group} | plain(producer) for group, members in sorted(table.items()) for producer in members
    ]
    headings = columns(
        "group, clientId: client id, remoteIP: address, language, version, "
        "lastUpdateTimestamp: last heartbeat"
    )
    return rows(found, headings)


@command(app, "brokerConsumeStats")
async def broker_consume_stats(
    *,
    broker: _Broker,
    level: Annotated[int, Option("-l", "--level", min=0, help="Only queues at least so far behind.")] = 0,
    ordered: Annotated[str, Option("-o", "--order", help="true: ordered topics only.")] = "false",
    admin: Operator,
) -> Answer:
    """Show the progress of all groups at a broker, queue by queue."""
    stats = await admin.ask(broker, calls.broker_consume_stats(ordered=truth_of("-o", ordered)))
    found = [
        {
            "topic": queue.topic,
            "group": group,
            "broker": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": offset.broker_offset,
            "consumerOffset": offset.consumer_offset,
            "diff": offset.behind,
            "lastTimestamp": offset.last_timestamp,
        }
        for each in stats.consume_stats_list
        for group, progress in sorted(each.items())
        for one in progress
        for queue, offset in sorted(one.offset_table.items())
        if offset.behind >= level
    ]
    headings = columns(
        "topic, group, queueId: queue, brokerOffset: broker offset, consumerOffset: consumer offset, "
        "diff: behind, lastTimestamp: last message stored"
    )
    return rows(found, headings)


_RATES: Final = columns(
    "topic, group, accumulation: behind, inTps: in/s, outTps: out/s, inMsg24Hour: in a day, "
    "outMsg24Hour: out a day"
)


@command(app, "statsAll", no_args_is_help=False)
async def stats_all(
    *,
    active: Annotated[
        bool, Option("-a", "--activeTopic", help="Only topics with traffic within a day.")
    ] = False,
    topic: Annotated[str | None, Option("-t", "--topic", help="Only this topic.")] = None,
    admin: Operator,
) -> Answer:
    """Show how much each topic takes in and each of its groups takes out."""
    from libramq.admin.statistics import rates
    from libramq.message.names import DLQ_PREFIX, RETRY_PREFIX

    found = []
    for each in await admin.topics():
        if not each.startswith((RETRY_PREFIX, DLQ_PREFIX)) and topic in (None, each):
            found += await rates(admin, each)
    shown = [one for one in found if not active or one.in_a_day or one.out_a_day]
    return rows([dict(zip(_RATES, one, strict=True)) for one in shown], _RATES)


@command(app, "haStatus")
async def ha_status(*, broker: _Broker, admin: Operator) -> Answer:
    """Show how far the slaves of a master are behind it."""
    status = plain(await admin.ask(broker, calls.ha_status()))
    headings = columns("addr: slave, slaveAckOffset: has up to, diff: lacks, inSync: in sync")

    def show() -> None:
        slaves = status.pop("haConnectionInfo")
        show_values(status)
        show_rows(slaves, headings)

    return Answer(status, show)
