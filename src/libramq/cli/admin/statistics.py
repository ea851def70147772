"""The admin commands for statistics: producers, progress, rates, slaves, and monitoring in rounds."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option, Typer

from libramq.cli import options
from libramq.cli.admin.frame import Answer, Operator, Table, command, plain, rows
from libramq.cli.lazy import calls, monitor, names
from libramq.cli.printable import printable
from libramq.errors import BrokerError

if TYPE_CHECKING:
    from libramq.message.queue import MessageQueue
    from libramq.remoting.body.consumers import OffsetWrapper

app = Typer()
#: Commands that --help lists last.
last = Typer()

_Broker = Annotated[str, Option("-b", "--brokerAddr", "--broker", help="The broker, host:port.")]
#: MonitorConfig.roundInterval.
INTERVAL_SECONDS: Final = 60
CONNECTION: Final = "clientId: client id, clientAddr: address, language, version"


@command(app, "producerConnection")
async def producer_connection(
    *,
    group: Annotated[str, Option("-g", "--producerGroup", help="The producer group.")],
    topic: options.Topic,
    admin: Operator,
) -> Answer:
    """Show the producers of a group connected to a topic's brokers."""
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
            found[member.client_id] = {
                name: row[name] for name in ("clientId", "clientAddr", "language", "version")
            }
    if failure is not None and not found:
        raise failure
    return rows([found[client_id] for client_id in sorted(found)], CONNECTION)


@command(app, "producer")
async def producers(*, broker: _Broker, admin: Operator) -> Answer:
    """List all producers connected to a broker."""
    table = (await admin.ask(broker, calls.ALL_PRODUCERS)).data
    found = [
        {"group": group} | plain(producer) for group, members in sorted(table.items()) for producer in members
    ]
    return rows(
        found,
        "group, clientId: client id, remoteIP: address, language, version, "
        "lastUpdateTimestamp: last heartbeat",
    )


@command(app, "brokerConsumeStats")
async def broker_consume_stats(
    *,
    broker: _Broker,
    level: Annotated[int, Option("-l", "--level", min=0, help="Only queues with at least this lag.")] = 0,
    ordered: Annotated[str, Option("-o", "--order", help="true: ordered topics only.")] = "false",
    admin: Operator,
) -> Answer:
    """Show the progress of all groups at a broker, queue by queue."""
    stats = await admin.ask(broker, calls.broker_consume_stats(is_order=options.truth_of("-o", ordered)))
    found = [
        {"topic": queue.topic, "group": group}
        | progress_row(queue, offset)
        | {"lastTimestamp": offset.last_timestamp}
        for each in stats.consume_stats_list
        for group, progress in sorted(each.items())
        for one in progress
        for queue, offset in sorted(one.offset_table.items())
        if offset.behind >= level
    ]
    return rows(
        found,
        "topic, group, queueId: queue, brokerOffset: broker offset, consumerOffset: consumer offset, "
        "diff: behind, lastTimestamp: last consumed message stored",
    )


def progress_row(queue: "MessageQueue", offset: "OffsetWrapper") -> dict[str, Any]:
    """Return a group's progress in a queue as a row."""
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queueId": queue.queue_id,
        "brokerOffset": offset.broker_offset,
        "consumerOffset": offset.consumer_offset,
        "diff": offset.behind,
    }


@command(app, "statsAll", no_args_is_help=False)
async def stats_all(
    *,
    active: Annotated[
        bool, Option("-a", "--activeTopic", help="Only topics with traffic within a day.")
    ] = False,
    topic: Annotated[str | None, Option("-t", "--topic", help="Only this topic.")] = None,
    admin: Operator,
) -> Answer:
    """Show the rates and daily counts of each topic and its groups."""
    found = []
    for each in await admin.topics():
        if not each.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)) and topic in (None, each):
            found += await monitor.rates(admin, each)
    return rows(
        [row for row in found if not active or row["inMsg24Hour"] or row["outMsg24Hour"]],
        "topic, group, accumulation: behind, inTps: in/s, outTps: out/s, inMsg24Hour: in a day, "
        "outMsg24Hour: out a day",
    )


@command(app, "haStatus")
async def ha_status(*, broker: _Broker, admin: Operator) -> Answer:
    """Show the replication lag of a master's slaves."""
    status = plain(await admin.ask(broker, calls.HA_STATUS))
    values = {name: value for name, value in status.items() if name != "haConnectionInfo"}
    headings = "addr: slave, slaveAckOffset: has up to, diff: behind, inSync: in sync"
    return Answer(status, values, Table(status["haConnectionInfo"], headings))


@command(last, "startMonitoring", no_args_is_help=False)
async def start_monitoring(
    *,
    interval: Annotated[
        int, Option("-i", "--interval", min=1, help="Seconds from one round to the next.")
    ] = INTERVAL_SECONDS,
    rounds: Annotated[int, Option("-r", "--rounds", min=0, help="0: until Ctrl-C.")] = 0,
    admin: Operator,
) -> AsyncGenerator[Answer, None]:
    """Show every minute the lag of each group, and members that are stuck or differ from the others."""
    headings = "group, topic, undone, undoneOfQueue: most in a queue, delayMs: delay in ms"
    for done in itertools.count(1):
        groups, notices = await monitor.one_round(admin, int(time.time() * 1000))
        value = {"groups": groups, "notices": notices}
        yield Answer(value, Table(groups, headings), *map(printable, notices))
        if done == rounds:
            return
        await asyncio.sleep(interval)
