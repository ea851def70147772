"""The admin commands, under the names and options of RocketMQ's mqadmin."""

import sys
from typing import Annotated, Any, Final

import typer

from libramq.cli import options
from libramq.cli.admin import (
    disk,
    exports,
    groups,
    messages,
    monitoring,
    reading,
    sending,
    servers,
    statistics,
    topics,
)
from libramq.cli.admin.printing import time_text
from libramq.errors import ConfigError

app = typer.Typer(
    help="Inspect and change clusters, topics and groups, with mqadmin's command names and options.",
    no_args_is_help=True,
)
for _room in (
    topics, groups, messages, reading, sending, statistics, exports, servers, disk, monitoring
):  # fmt: skip
    app.add_typer(_room.app)


@app.command("topicList")
def topic_list(
    namesrv: options.Namesrv = None,
    clusters: Annotated[
        bool,
        typer.Option("-c", "--clusterModel", help="Show the cluster and the consumer groups of each topic."),
    ] = False,
    json: options.Json = False,
) -> None:
    """List all topics."""
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries

    with options.session(namesrv) as session:
        rows = admin_queries.topic_list(session, with_clusters=clusters)
    if json:
        output.print_json(rows if clusters else [row["topic"] for row in rows])
    elif clusters:
        output.print_table(
            ("cluster", "topic", "groups"),
            ([row["cluster"], row["topic"], ", ".join(row["groups"])] for row in rows),
        )
    else:
        for row in rows:
            print(row["topic"])


@app.command("updateTopic", no_args_is_help=True)
def update_topic(
    topic: options.Topic,
    namesrv: options.Namesrv = None,
    broker: options.Broker = None,
    cluster: options.Cluster = None,
    read_queues: Annotated[int, typer.Option("-r", "--readQueueNums", help="Queues to read from.")] = 8,
    write_queues: Annotated[int, typer.Option("-w", "--writeQueueNums", help="Queues to write to.")] = 8,
    perm: Annotated[int, typer.Option("-p", "--perm", help="2: write, 4: read, 6: both.")] = 6,
    attributes: Annotated[
        str, typer.Option("-a", "--attributes", help="Attributes to set or remove: +name=value,-name.")
    ] = "",
    order: Annotated[
        str, typer.Option("-o", "--order", help="true: it is ordered; name servers keep its brokers.")
    ] = "false",
    unit: Annotated[str, typer.Option("-u", "--unit", help="true: it belongs to a unit.")] = "false",
    unit_subscription: Annotated[
        str, typer.Option("-s", "--hasUnitSub", help="true: groups of units subscribe to it.")
    ] = "false",
    abandon_unread: Annotated[
        bool,
        typer.Option(
            "--abandon-unread", help="Reduce the queues to read although groups have unread messages there."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Create a topic, or change its queues, permission and attributes."""
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries
    from libramq.formats.tables import FLAG_UNIT, FLAG_UNIT_SUBSCRIPTION, TopicConfig

    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=perm,
        order=admin_queries.truth_of("-o", order),
        topic_sys_flag=(FLAG_UNIT if admin_queries.truth_of("-u", unit) else 0)
        | (FLAG_UNIT_SUBSCRIPTION if admin_queries.truth_of("-s", unit_subscription) else 0),
    )
    with options.session(namesrv) as session:
        brokers = admin_queries.update_topic(
            session,
            config,
            broker=broker,
            cluster=cluster,
            attributes=attributes,
            abandon_unread=abandon_unread,
        )
    if json:
        output.print_json({"topic": topic, "brokers": brokers})
    else:
        for address in brokers:
            print(f"create topic to {address} success.")
        print(f"{topic}: {read_queues} queues to read, {write_queues} to write, permission {perm}")


@app.command("deleteTopic", no_args_is_help=True)
def delete_topic(
    topic: options.Topic,
    cluster: Annotated[str, typer.Option("-c", "--clusterName", help="The cluster to delete it from.")],
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Delete a topic, its messages and its route, without asking for confirmation."""
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries

    with options.session(namesrv) as session:
        brokers = admin_queries.delete_topic(session, topic, cluster=cluster)
    if json:
        output.print_json({"topic": topic, "cluster": cluster, "brokers": brokers})
    else:
        print(f"delete topic [{topic}] from cluster [{cluster}] success.")
        print(f"delete topic [{topic}] from NameServer success.")


@app.command("topicStatus", no_args_is_help=True)
def topic_status(topic: options.Topic, namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Show the first and last offsets of a topic's queues, and when each was last written to."""
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries

    with options.session(namesrv) as session:
        rows = admin_queries.topic_status(session, topic)
    if json:
        output.print_json(rows)
        return
    output.print_table(
        ("broker", "queue", "min offset", "max offset", "last written"),
        ([*list(row.values())[:-1], time_text(row["lastUpdateTimestamp"])] for row in rows),
    )


@app.command("topicRoute", no_args_is_help=True)
def topic_route(topic: options.Topic, namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Show which brokers have a topic's queues."""
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries

    with options.session(namesrv) as session:
        route = admin_queries.topic_route(session, topic)
    if json:
        output.print_json(route)
        return
    brokers = {broker["brokerName"]: broker for broker in route["brokerDatas"]}
    output.print_table(
        ("cluster", "broker", "addresses", "read queues", "write queues", "perm"),
        (
            [
                brokers.get(queue["brokerName"], {}).get("cluster", ""),
                queue["brokerName"],
                _addresses(brokers.get(queue["brokerName"], {})),
                queue["readQueueNums"],
                queue["writeQueueNums"],
                queue["perm"],
            ]
            for queue in sorted(route["queueDatas"], key=lambda queue: str(queue["brokerName"]))
        ),
    )


@app.command("clusterList")
def cluster_list(namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """List clusters and their brokers, with versions and load."""
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries

    with options.session(namesrv) as session:
        rows = admin_queries.cluster_list(session)
    if json:
        output.print_json(rows)
        return
    output.print_table(
        ("cluster", "broker", "id", "address", "version", "in/s", "out/s", "disk", "active"),
        (
            [row["cluster"], row["broker"], row["id"], row["address"], row["error"], "", "", "", "no"]
            if "error" in row
            else [
                row["cluster"],
                row["broker"],
                row["id"],
                row["address"],
                row["version"],
                row["inTps"],
                row["outTps"],
                f"{row['diskRatio']:.0%}",
                "yes" if row["active"] else "no",
            ]
            for row in rows
        ),
    )


@app.command("consumerProgress")
def consumer_progress(
    namesrv: options.Namesrv = None,
    group: Annotated[
        str | None, typer.Option("-g", "--groupName", help="Show one group, queue by queue.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("-t", "--topicName", help="Show only this topic of the group.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show the offsets of consumer groups, and their lag."""
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries
    from libramq.cli.printable import printable

    if group is None:
        with options.session(namesrv) as session:
            rows = admin_queries.groups_progress(session)
        if json:
            output.print_json(rows)
        elif not rows:
            print("no consumer group yet; a group appears when its first consumer starts")
        else:
            output.print_table(
                ("group", "members", "type", "model", "consumed/s", "behind"),
                (list(row.values()) for row in rows),
            )
        return
    with options.session(namesrv) as session:
        progress = admin_queries.group_progress(session, group, topic)
    for name in progress.get("absentBrokers", ()):
        print(f"libra: broker {printable(name)} is away; its queues are missing here", file=sys.stderr)
    if json:
        output.print_json(progress)
        return
    output.print_table(
        (
            "topic",
            "broker",
            "queue",
            "broker offset",
            "consumer offset",
            "behind",
            "in flight",
            "last message stored",
        ),
        ([*list(row.values())[:-1], time_text(row["lastTimestamp"])] for row in progress["queues"]),
    )
    print(
        f"{progress['consumeTps']:.2f} consumed/s, {progress['diffTotal']:,} behind, "
        f"{progress['inflightTotal']:,} in flight"
    )


@app.command("resetOffsetByTime", no_args_is_help=True)
def reset_offset_bytime_text(
    group: Annotated[str, typer.Option("-g", "--group", help="The consumer group.")],
    topic: options.Topic,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "-s", "--timestamp", help="The time: now, milliseconds since 1970, or yyyy-MM-dd#HH:mm:ss:SSS."
        ),
    ] = None,
    namesrv: options.Namesrv = None,
    force: Annotated[
        str, typer.Option("-f", "--force", help="true: move offsets back or forward; false: only back.")
    ] = "true",
    broker: Annotated[
        str | None, typer.Option("-b", "--brokerAddr", help="Move them at this broker only, host:port.")
    ] = None,
    queue: Annotated[
        int | None, typer.Option("-q", "--queueId", min=0, help="Move the offset of this queue only.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("-o", "--offset", min=0, help="With -q: to this offset, not to a time.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Move a group's offsets in a topic to the messages stored at a given time, or one queue to an offset."""
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries

    if offset is not None and queue is None:
        raise ConfigError("an offset is one queue's: name the queue with -q")
    if offset is None and timestamp is None:
        raise ConfigError("name the target: -s TIME, or -q QUEUE -o OFFSET")
    timestamp_ms = admin_queries.timestamp_of(timestamp or "now")
    forwards = admin_queries.truth_of("-f", force)
    with options.session(namesrv) as session:
        if queue is None:
            rows = admin_queries.reset_offsets(
                session, group, topic, timestamp_ms=timestamp_ms, force=forwards, broker=broker
            )
        else:
            rows = admin_queries.reset_queue(
                session, group, topic, queue, broker=broker, timestamp_ms=timestamp_ms, offset=offset
            )
    if json:
        output.print_json(rows)
    elif queue is not None:
        print(f"reset consumer offset to {rows[0]['offset']}")
    else:
        print(
            f"reset consumer offset by specified, group[{group}], topic[{topic}], force[{force}], "
            f"timestamp(string)[{timestamp}], timestamp(long)[{timestamp_ms}]"
        )
        output.print_table(("broker", "queue", "offset"), (list(row.values()) for row in rows))


@app.command("deleteSubGroup", no_args_is_help=True)
def delete_sub_group(
    group: options.Group,
    namesrv: options.Namesrv = None,
    broker: options.Broker = None,
    cluster: options.Cluster = None,
    offsets: Annotated[
        bool, typer.Option("-r", "--removeOffset", help="Delete its committed offsets, too.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Delete a consumer group, without asking for confirmation.

    With -c, its retry topic and its dead letters are deleted, too.
    """
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries

    with options.session(namesrv) as session:
        brokers = admin_queries.delete_group(session, group, broker=broker, cluster=cluster, offsets=offsets)
    if json:
        output.print_json({"group": group, "brokers": brokers})
    else:
        place = f" in cluster [{cluster}]" if cluster is not None else ""
        for address in brokers:
            print(f"delete subscription group [{group}] from broker [{address}]{place} success.")


#: The fields of a connection in the table, under its headings.
_CONNECTION: Final = ("clientId", "clientAddr", "language", "version")


@app.command("consumerConnection", no_args_is_help=True)
def consumer_connection(
    group: options.Group, namesrv: options.Namesrv = None, json: options.Json = False
) -> None:
    """Show a group's connected members and their subscriptions."""
    from libramq.cli import output
    from libramq.cli.admin import queries as admin_queries

    with options.session(namesrv) as session:
        connection = admin_queries.consumer_connection(session, group)
    if json:
        output.print_json(connection)
        return
    output.print_table(
        ("client id", "address", "language", "version"),
        ([member[name] for name in _CONNECTION] for member in connection["connections"]),
    )
    output.print_table(("topic", "subscription"), connection["subscriptions"].items())
    print(f"{connection['consumeType']}, {connection['messageModel']}, {connection['consumeFromWhere']}")


def _addresses(broker: dict[str, Any]) -> str:
    return ", ".join(f"{id_}={address}" for id_, address in broker.get("brokerAddrs", {}).items())
