"""The most used admin commands, under mqadmin's names: topics, cluster list, consumer progress, offset reset,
group removal.
"""

import contextlib
import sys
from typing import Annotated, Any

from typer import Option, Typer

from libramq.cli import options
from libramq.cli.admin import exports, groups, messages, servers, statistics, topics, users
from libramq.cli.admin.frame import Answer, Changed, Operator, Table, command, plain, rows
from libramq.cli.lazy import calls, monitor, names, operator, tables
from libramq.cli.printable import printable
from libramq.errors import ConfigError, RemoteError, counted

app = Typer(
    help="Inspect and change clusters, topics and groups, with mqadmin's command names and options.",
    no_args_is_help=True,
)
for _room in (topics, groups, messages, statistics, exports, servers, users):
    app.add_typer(_room.app)
app.add_typer(statistics.last)


@command(app, "topicList", no_args_is_help=False)
async def topic_list(
    *,
    admin: Operator,
    clusters: Annotated[
        bool, Option("-c", "--clusterModel", help="Show each topic's cluster and consumer groups.")
    ] = False,
) -> Answer:
    """List all topics."""
    all_topics = await admin.topics()
    if not clusters:
        return Answer(all_topics, *all_topics)
    found = []
    for topic in all_topics:
        if topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
            continue
        its_clusters, its_groups = "", list[str]()
        with contextlib.suppress(RemoteError):  # A topic deleted just now; mqadmin skips it too.
            route = await admin.route(topic)
            its_groups = await admin.groups_at(operator.addresses(route.broker_datas), topic)
            its_clusters = ", ".join(sorted({broker.cluster for broker in route.broker_datas}))
        found.append({"cluster": its_clusters, "topic": topic, "groups": its_groups})
    shown = [row | {"groups": ", ".join(row["groups"])} for row in found]
    return Answer(found, Table(shown, "cluster, topic, groups"))


@command(app, "updateTopic")
async def update_topic(
    *,
    topic: options.Topic,
    admin: Operator,
    target: Changed,
    read_queues: Annotated[int, Option("-r", "--readQueueNums", help="Queues to read from.")] = 8,
    write_queues: Annotated[int, Option("-w", "--writeQueueNums", help="Queues to write to.")] = 8,
    perm: Annotated[int, Option("-p", "--perm", help="2: write, 4: read, 6: both.")] = 6,
    attributes: Annotated[
        str, Option("-a", "--attributes", help="Attributes to set or remove: +name=value,-name.")
    ] = "",
    order: Annotated[
        str, Option("-o", "--order", help="true: the topic is ordered; name servers store its brokers.")
    ] = "false",
    unit: Annotated[str, Option("-u", "--unit", help="true: the topic belongs to a unit.")] = "false",
    unit_subscription: Annotated[
        str, Option("-s", "--hasUnitSub", help="true: groups of units subscribe to it.")
    ] = "false",
    abandon_unread: Annotated[
        bool,
        Option("--abandon-unread", help="Reduce the read queues even if groups have unread messages there."),
    ] = False,
) -> Answer:
    """Create a topic, or change its queues, permission and attributes."""
    config = tables.TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=perm,
        order=options.truth_of("-o", order),
        topic_sys_flag=(tables.FLAG_UNIT if options.truth_of("-u", unit) else 0)
        | (tables.FLAG_UNIT_SUBSCRIPTION if options.truth_of("-s", unit_subscription) else 0),
    )
    brokers = await admin.update_topic(config, target, attributes=attributes, abandon_unread=abandon_unread)
    lines = [f"create topic to {address} success." for address in brokers]
    lines.append(
        f"{topic}: {counted(read_queues, 'queue')} to read, {write_queues} to write, permission {perm}"
    )
    return Answer({"topic": topic, "brokers": brokers}, *lines)


@command(app, "deleteTopic")
async def delete_topic(
    *,
    topic: options.Topic,
    cluster: Annotated[str, Option("-c", "--clusterName", help="The cluster to delete it from.")],
    admin: Operator,
) -> Answer:
    """Delete a topic, its messages and its route, without asking for confirmation."""
    route = await admin.route(topic)  # An unknown name is an error, as everywhere.
    if cluster not in {broker.cluster for broker in route.broker_datas}:
        named = ", ".join(sorted({broker.cluster for broker in route.broker_datas}))
        raise ConfigError(f"the topic {topic} is not in cluster {cluster}; it is in: {named}")
    masters = await admin.masters(cluster)
    await admin.delete_topic(topic, cluster=cluster)
    return Answer(
        {"topic": topic, "cluster": cluster, "brokers": masters},
        f"delete topic [{topic}] from cluster [{cluster}] success.",
        f"delete topic [{topic}] from NameServer success.",
    )


@command(app, "topicStatus")
async def topic_status(*, topic: options.Topic, admin: Operator) -> Answer:
    """Show the first and last offsets of a topic's queues, and the times of their last writes."""
    found = [
        {"broker": queue.broker_name, "queueId": queue.queue_id} | plain(ends)
        for queue, ends in (await admin.topic_ends(topic)).items()
    ]
    return rows(
        found,
        "broker, queueId: queue, minOffset: min offset, maxOffset: max offset, "
        "lastUpdateTimestamp: last written",
    )


@command(app, "topicRoute")
async def topic_route(*, topic: options.Topic, admin: Operator) -> Answer:
    """Show the brokers of a topic's queues."""
    route = await admin.route(topic)
    brokers = {broker.broker_name: broker for broker in route.broker_datas}
    queues = []
    for queue in sorted(route.queue_datas, key=lambda queue: queue.broker_name):
        broker = brokers.get(queue.broker_name)
        hosts = ", ".join(f"{id_}={host}" for id_, host in broker.broker_addrs.items()) if broker else ""
        queues.append({"cluster": broker.cluster if broker else "", "addresses": hosts} | plain(queue))
    headings = (
        "cluster, brokerName: broker, addresses, readQueueNums: read queues, "
        "writeQueueNums: write queues, perm"
    )
    return Answer(plain(route), Table(queues, headings))


@command(app, "clusterList", no_args_is_help=False)
async def cluster_list(*, admin: Operator) -> Answer:
    """List clusters and their brokers, with versions and load."""
    info = await admin.cluster_info()
    found = [
        {"cluster": cluster, "broker": name, "id": id_, "address": address, **await _load(admin, address)}
        for cluster, of_cluster in sorted(info.cluster_addr_table.items())
        for name in sorted(of_cluster)
        for id_, address in sorted(info.addresses_of(name).items())
    ]
    headings = "cluster, broker, id, address, version, inTps: in/s, outTps: out/s, disk, active"
    shown = [
        row | {"version": row["error"], "inTps": "", "outTps": "", "disk": "", "active": "no"}
        if "error" in row
        else row | {"disk": f"{row['diskRatio']:.0%}", "active": "yes" if row["active"] else "no"}
        for row in found
    ]
    return Answer(found, Table(shown, headings))


async def _load(admin: Operator, address: str) -> dict[str, Any]:
    try:
        info = await admin.ask(address, calls.RUNTIME_INFO)
    except RemoteError as error:
        return {"error": str(error)}
    return {
        "version": info.get("brokerVersionDesc", ""),
        "inTps": monitor.first_number(info.get("putTps", "")),
        "outTps": monitor.first_number(info.get("getTransferredTps", "")),
        "diskRatio": monitor.first_number(info.get("commitLogDiskRatio", "")),
        "active": info.get("brokerActive", "") == "true",
    }


@command(app, "consumerProgress", no_args_is_help=False)
async def consumer_progress(
    *,
    admin: Operator,
    group: Annotated[str | None, Option("-g", "--groupName", help="Show one group, queue by queue.")] = None,
    topic: Annotated[
        str | None, Option("-t", "--topicName", help="Show only this topic of the group.")
    ] = None,
) -> Answer:
    """Show the offsets of consumer groups, and their lag."""
    if group is None:
        found = [await _summary(admin, group) for group in await admin.groups()]
        if not found:
            return Answer(found, "no consumer group yet; a group appears when its first consumer starts")
        return rows(found, "group, count: members, type, model, consumeTps: consumed/s, diffTotal: behind")
    progress = await admin.progress(group, topic)
    for name in progress.absent_brokers:
        print(f"libra: broker {printable(name)} is away; its queues are missing here", file=sys.stderr)
    queues = [
        statistics.progress_row(queue, offset)
        | {"inflight": offset.pull_offset - offset.consumer_offset, "lastTimestamp": offset.last_timestamp}
        for queue, offset in sorted(progress.offsets.items())
    ]
    in_flight = sum(row["inflight"] for row in queues)
    value = {
        "group": group,
        **({"absentBrokers": progress.absent_brokers} if progress.absent_brokers else {}),
        "queues": queues,
        "consumeTps": progress.consume_tps,
        "diffTotal": progress.behind,
        "inflightTotal": in_flight,
    }
    headings = (
        "topic, broker, queueId: queue, brokerOffset: broker offset, consumerOffset: consumer offset, "
        "diff: behind, inflight: in flight, lastTimestamp: last consumed message stored"
    )
    total = f"{progress.consume_tps:.2f} consumed/s, {progress.behind:,} behind, {in_flight:,} in flight"
    return Answer(value, Table(queues, headings), total)


async def _summary(admin: Operator, group: str) -> dict[str, Any]:
    from libramq.filter.subscription import CONSUME_ACTIVELY

    row: dict[str, Any] = {
        "group": group, "count": 0, "type": "", "model": "", "consumeTps": 0.0, "diffTotal": 0
    }  # fmt: skip
    try:
        progress = await admin.progress(group)
        row |= {"consumeTps": progress.consume_tps, "diffTotal": progress.behind}
        connection = await admin.consumer_connection(group)
    except RemoteError:
        return row  # No member is connected, or the group never committed; mqadmin shows zeros as well.
    return row | {
        "count": len(connection.connection_set),
        "type": "PULL" if connection.consume_type == CONSUME_ACTIVELY else "PUSH",
        "model": connection.message_model,
    }


@command(app, "resetOffsetByTime")
async def reset_offset_by_time(
    *,
    group: Annotated[str, Option("-g", "--group", help="The consumer group.")],
    topic: options.Topic,
    timestamp: Annotated[
        str | None,
        Option(
            "-s", "--timestamp", help="The time: now, milliseconds since 1970, or yyyy-MM-dd#HH:mm:ss:SSS."
        ),
    ] = None,
    admin: Operator,
    force: Annotated[
        str, Option("-f", "--force", help="true: move offsets back or forward; false: only back.")
    ] = "true",
    broker: Annotated[
        str | None, Option("-b", "--brokerAddr", help="Move them at this broker only, host:port.")
    ] = None,
    queue: Annotated[
        int | None, Option("-q", "--queueId", min=0, help="Move the offset of this queue only.")
    ] = None,
    offset: Annotated[
        int | None, Option("-o", "--offset", min=0, help="With -q: the offset, instead of a time.")
    ] = None,
) -> Answer:
    """Move a group's offsets in a topic to the messages stored at a given time, or one queue to an offset."""
    if offset is not None and queue is None:
        raise ConfigError("an offset belongs to one queue: name the queue with -q")
    if offset is None and timestamp is None:
        raise ConfigError("name the target: -s TIME, or -q QUEUE -o OFFSET")
    timestamp_ms = options.timestamp_of(timestamp or "now")
    forwards = options.truth_of("-f", force)
    reached = await admin.reset(
        group,
        topic,
        timestamp_ms=timestamp_ms,
        force=forwards,
        broker=broker,
        queue_id=queue,
        offset=offset,
    )
    found = groups.reset_rows(reached)
    if queue is not None:
        return Answer(found, f"reset consumer offset to {found[0]['offset']}")
    text = (
        f"reset consumer offset by specified, group[{group}], topic[{topic}], force[{force}], "
        f"timestamp(string)[{timestamp}], timestamp(long)[{timestamp_ms}]"
    )
    return Answer(found, text, Table(found, groups.RESETS))


@command(app, "deleteSubGroup")
async def delete_sub_group(
    *,
    group: options.Group,
    admin: Operator,
    target: Changed,
    offsets: Annotated[
        bool, Option("-r", "--removeOffset", help="Also delete its committed offsets.")
    ] = False,
) -> Answer:
    """Delete a consumer group, without asking for confirmation.

    With -c, its retry topic and its dead letters are deleted as well.
    """
    names.validate_group(group)
    brokers = await admin.targets(target)
    if target.cluster is not None:
        await admin.delete_group(group, cluster=target.cluster, offsets=offsets)
    else:
        await admin.ask_each(brokers, calls.delete_group(group, clean_offset=offsets))
    place = f" in cluster [{target.cluster}]" if target.cluster is not None else ""
    lines = [f"delete subscription group [{group}] from broker [{one}]{place} success." for one in brokers]
    return Answer({"group": group, "brokers": brokers}, *lines)


@command(app, "consumerConnection")
async def consumer_connection(*, group: options.Group, admin: Operator) -> Answer:
    """Show a group's connected members and their subscriptions."""
    connection = await admin.consumer_connection(group)
    members = plain(connection.connection_set)
    subscriptions = {
        topic: subscription.sub_string
        for topic, subscription in sorted(connection.subscription_table.items())
    }
    found = {
        "group": group,
        "connections": members,
        "subscriptions": subscriptions,
        "consumeType": connection.consume_type,
        "messageModel": connection.message_model,
        "consumeFromWhere": connection.consume_from_where,
    }
    texts = [{"topic": topic, "subscription": text} for topic, text in subscriptions.items()]
    return Answer(
        found,
        Table(members, statistics.CONNECTION),
        Table(texts, "topic, subscription"),
        f"{connection.consume_type}, {connection.message_model}, {connection.consume_from_where}",
    )
