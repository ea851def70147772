"""The topics command: every topic with its messages, or the queues of one."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from libramq.cli import options
from libramq.cli.lazy import names, output, running
from libramq.cli.printable import time_text
from libramq.errors import RemoteError

TOPIC_COLUMNS: Final = ("topic", "brokers", "queues", "messages", "last stored")
QUEUE_COLUMNS: Final = ("broker", "queue", "first offset", "end", "messages", "last stored")
#: Ours: topics looked up concurrently.
TOPICS_AT_ONCE: Final = 16
NO_TOPIC: Final = "no topic yet; a topic appears with its first message, or by libra admin updateTopic"


def topics(
    namesrv: options.Namesrv = None,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Show the queues of this topic.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also list retry topics, dead letters and brokers' own topics.")
    ] = False,
    json: options.Json = False,
    log_level: options.Log = options.LogLevel.WARNING,
) -> None:
    """Show every topic: brokers, queues and messages; or the queues of one."""
    rows = running.run(_rows(options.name_servers(namesrv), topic, every=every))
    if json:
        output.print_json(rows)
    elif not rows:
        print(NO_TOPIC)
    else:
        columns = TOPIC_COLUMNS if topic is None else QUEUE_COLUMNS
        output.print_table(columns, [_cells(row) for row in rows])


async def _rows(namesrv: str, topic: str | None, *, every: bool) -> list[dict[str, Any]]:
    from libramq.admin.admin import Admin

    async with Admin(namesrv=namesrv) as admin:
        if topic is not None:
            ends = await admin.topic_stats(topic)
            return [
                {
                    "broker": queue.broker_name,
                    "queueId": queue.queue_id,
                    "minOffset": found.min_offset,
                    "maxOffset": found.max_offset,
                    "messages": found.max_offset - found.min_offset,
                    "lastStored": found.last_update_timestamp,
                }
                for queue, found in sorted(ends.items())
            ]
        info = await admin.cluster_info()
        clusters = info.cluster_addr_table
        # Apache's brokers have topics named after themselves and their clusters; all have one for replies.
        own = {*info.broker_addr_table, *clusters, *map(names.reply_topic, clusters)}
        hidden = (names.RETRY_PREFIX, names.DLQ_PREFIX, "LIBRA_")
        shown = [
            name
            for name in await admin.topics()
            if every or not (names.is_system_topic(name) or name in own or name.startswith(hidden))
        ]
        at_once = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def row(name: str) -> dict[str, Any]:
            async with at_once:
                try:
                    ends = await admin.topic_stats(name)
                except RemoteError:  # The broker is away, or the topic is being deleted.
                    ends = {}
            return {
                "topic": name,
                "brokers": len({queue.broker_name for queue in ends}),
                "queues": len(ends),
                "messages": sum(found.max_offset - found.min_offset for found in ends.values()),
                "lastStored": max((found.last_update_timestamp for found in ends.values()), default=0),
            }

        return list(await asyncio.gather(*map(row, shown)))


def _cells(row: Mapping[str, Any]) -> list[str]:
    *numbers, last_ms = row.values()
    return [*(f"{each:,}" if isinstance(each, int) else str(each) for each in numbers), time_text(last_ms)]
