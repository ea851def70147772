"""The results of the admin commands, as plain values: what `--json` prints and tables show.

Upstream: tools/command/topic, cluster, consumer, connection.
"""

import re
import time
from datetime import datetime
from typing import Any

import msgspec

from libramq.cli.admin.session import AdminSession, addresses
from libramq.cli.admin.topics import PERMISSIONS, put_order_conf
from libramq.errors import BrokerError, ConfigError, RemoteError, RouteNotFound
from libramq.filter.subscription import CONSUME_ACTIVELY
from libramq.formats.tables import TopicConfig
from libramq.message.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    dlq_topic,
    groups_of,
    retry_topic,
    validate_group,
    validate_topic,
)
from libramq.message.queue import MessageQueue
from libramq.rpc import admin_calls, name_server_calls
from libramq.rpc.call import Call

Row = dict[str, Any]

#: The longest list of queues that a client should get; Apache leaves it open.
QUEUES_PER_TOPIC_MAX = 65_536


def topic_list(session: AdminSession, *, with_clusters: bool) -> list[Row]:
    """Return all topics; with_clusters: and their clusters and groups."""
    topics = sorted(session.ask_name_server(name_server_calls.all_topics()))
    if not with_clusters:
        return [{"topic": topic} for topic in topics]
    return [
        {"cluster": cluster, "topic": topic, "groups": groups}
        for topic in topics
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        for cluster, groups in [_cluster_and_groups(session, topic)]
    ]


def _cluster_and_groups(session: AdminSession, topic: str) -> tuple[str, list[str]]:
    try:
        brokers = session.route(topic).broker_datas
        groups: set[str] = set()
        for address in addresses(brokers):
            groups |= set(session.ask(address, admin_calls.topic_consumers(topic)))
    except RemoteError:
        return "", []  # A topic deleted just now; mqadmin skips it too.
    return ", ".join(sorted({broker.cluster for broker in brokers})), sorted(groups)


def timestamp_of(text: str) -> int:
    """Return the milliseconds since 1970 of a time in one of mqadmin's notations."""
    if text == "now":
        return time.time_ns() // 1_000_000
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        seconds, _, milliseconds = text.rpartition(":")
        moment = datetime.strptime(seconds, "%Y-%m-%d#%H:%M:%S")
        return round(moment.timestamp() * 1_000) + int(milliseconds)
    except (ValueError, OverflowError):
        raise ConfigError(f"{text!r} is no time: now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS") from None


def truth_of(option: str, text: str) -> bool:
    """Return the value of the text `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{option} is true or false, not {text!r}")
    return text.lower() == "true"


def reset_offsets(
    session: AdminSession,
    group: str,
    topic: str,
    *,
    timestamp_ms: int,
    force: bool,
    broker: str | None,
) -> list[Row]:
    """Move a group's offsets at every broker of a topic, or at one; return where it continues."""
    validate_group(group)
    call = admin_calls.reset_offsets(group, topic, timestamp_ms=timestamp_ms, force=force)
    brokers = addresses(session.route(topic).broker_datas) if broker is None else [broker]
    found: dict[MessageQueue, int] = {}
    for address in brokers:
        found |= session.ask(address, call)
    return _resets(found)


def reset_queue(
    session: AdminSession,
    group: str,
    topic: str,
    queue_id: int,
    *,
    broker: str | None,
    timestamp_ms: int,
    offset: int | None,
) -> list[Row]:
    """Move a group's offset in one queue, to an offset or to a time; return where it continues."""
    validate_group(group)
    brokers = addresses(session.route(topic).broker_datas) if broker is None else [broker]
    if len(brokers) != 1:
        raise ConfigError(
            f"the topic {topic} has a queue {queue_id} at each of its brokers; name one with -b: "
            + ", ".join(brokers)
        )
    call = admin_calls.reset_offsets(
        group, topic, timestamp_ms=timestamp_ms, queue_id=queue_id, offset=offset
    )
    return _resets(session.ask(brokers[0], call))


def _resets(found: dict[MessageQueue, int]) -> list[Row]:
    return [
        {"broker": queue.broker_name, "queueId": queue.queue_id, "offset": found[queue]}
        for queue in sorted(found)
    ]


def delete_group(
    session: AdminSession, group: str, *, broker: str | None, cluster: str | None, offsets: bool
) -> list[str]:
    """Delete a group at a broker, or in a cluster with its retry topic and dead letters."""
    validate_group(group)
    targets = session.targets(broker=broker, cluster=cluster)
    session.ask_each(targets, admin_calls.delete_group(group, clean_offset=offsets))
    if cluster is not None:
        for topic in (retry_topic(group), dlq_topic(group)):
            session.ask_each(targets, admin_calls.delete_topic(topic))
            session.ask_each_name_server(name_server_calls.delete_topic(topic))
    return targets


def free_disk(
    session: AdminSession, call: Call[None], *, broker: str | None, cluster: str | None
) -> list[str]:
    """Have brokers free their disks: one, those of a cluster, or all; return their addresses."""
    if broker is not None and cluster is not None:
        raise ConfigError("name -c CLUSTER or -b HOST:PORT, or neither for all brokers")
    if broker is not None:
        targets = [broker]
    else:
        clusters = [cluster] if cluster is not None else sorted(session.clusters().cluster_addr_table)
        targets = list(dict.fromkeys(address for name in clusters for address in session.masters(name)))
    session.ask_each(targets, call)
    return targets


def update_topic(
    session: AdminSession,
    config: TopicConfig,
    *,
    broker: str | None,
    cluster: str | None,
    attributes: str = "",
    abandon_unread: bool = False,
) -> list[str]:
    """Create or change a topic; return the addresses of its brokers. An ordered one's brokers are kept."""
    validate_topic(config.topic_name)
    if config.perm not in PERMISSIONS:
        raise ConfigError(f"the permission {config.perm} is none; 2 is write, 4 read, 6 both")
    for count in (config.read_queue_nums, config.write_queue_nums):
        if not 0 < count <= QUEUES_PER_TOPIC_MAX:
            raise ConfigError(f"{count} queues; 1 to {QUEUES_PER_TOPIC_MAX} are allowed")
    targets = session.targets(broker=broker, cluster=cluster)
    session.ask_each(
        targets, admin_calls.create_topic(config, attributes=attributes, abandon_unread=abandon_unread)
    )
    if config.order:
        table = session.clusters().broker_addr_table.values()
        names = sorted(data.broker_name for data in table if data.master_address in targets)
        put_order_conf(session, config.topic_name, names, config.write_queue_nums)
    return targets


def delete_topic(session: AdminSession, topic: str, *, cluster: str) -> list[str]:
    """Delete a topic at every master of a cluster, and its route; return the brokers' addresses."""
    route = session.route(topic)  # An unknown name is an error, as everywhere.
    if cluster not in {broker.cluster for broker in route.broker_datas}:
        named = ", ".join(sorted({broker.cluster for broker in route.broker_datas}))
        raise ConfigError(f"the topic {topic} is not in cluster {cluster}; it is in: {named}")
    masters = session.masters(cluster)
    session.ask_each(masters, admin_calls.delete_topic(topic))
    session.ask_each_name_server(name_server_calls.delete_topic(topic))
    return masters


def topic_status(session: AdminSession, topic: str) -> list[Row]:
    """Return the ends of a topic's queues."""
    found: dict[MessageQueue, Row] = {}
    for address in addresses(session.route(topic).broker_datas):
        for queue, ends in session.ask(address, admin_calls.topic_stats(topic)).offset_table.items():
            found[queue] = {
                "broker": queue.broker_name,
                "queueId": queue.queue_id,
                "minOffset": ends.min_offset,
                "maxOffset": ends.max_offset,
                "lastUpdateTimestamp": ends.last_update_timestamp,
            }
    return [found[queue] for queue in sorted(found)]


def topic_route(session: AdminSession, topic: str) -> Row:
    """Return a topic's route from the name server."""
    route: Row = msgspec.to_builtins(session.route(topic))
    return route


def cluster_list(session: AdminSession) -> list[Row]:
    """Return every broker with its version and load."""
    info = session.clusters()
    return [
        {"cluster": cluster, "broker": name, "id": id_, "address": address, **_runtime(session, address)}
        for cluster, names in sorted(info.cluster_addr_table.items())
        for name in sorted(names)
        if name in info.broker_addr_table
        for id_, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]


def _runtime(session: AdminSession, address: str) -> Row:
    try:
        info = session.ask(address, admin_calls.runtime_info())
    except RemoteError as error:
        return {"error": str(error)}
    return {
        "version": info.get("brokerVersionDesc", ""),
        "inTps": _first_number(info.get("putTps", "")),
        "outTps": _first_number(info.get("getTransferredTps", "")),
        "diskRatio": _first_number(info.get("commitLogDiskRatio", "")),
        "active": info.get("brokerActive", "") == "true",
    }


def _first_number(text: str) -> float:
    """Return the first of the rates over 10 s, 1 min and 10 min."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0


def group_progress(session: AdminSession, group: str, topic: str | None) -> Row:
    """Return a group's progress, queue by queue."""
    queues: list[Row] = []
    tps = 0.0
    for address in brokers_of_group(session, group):
        stats = session.ask(address, admin_calls.consume_stats(group, topic))
        tps += stats.consume_tps
        queues += [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queueId": queue.queue_id,
                "brokerOffset": wrapper.broker_offset,
                "consumerOffset": wrapper.consumer_offset,
                "diff": wrapper.broker_offset - wrapper.consumer_offset,
                "inflight": wrapper.pull_offset - wrapper.consumer_offset,
                "lastTimestamp": wrapper.last_timestamp,
            }
            for queue, wrapper in stats.offset_table.items()
        ]
    queues.sort(key=lambda row: (row["topic"], row["broker"], row["queueId"]))
    absent = session.route(retry_topic(group)).lb_absent_brokers
    return {
        "group": group,
        **({"absentBrokers": absent} if absent else {}),
        "queues": queues,
        "consumeTps": tps,
        "diffTotal": sum(row["diff"] for row in queues),
        "inflightTotal": sum(row["inflight"] for row in queues),
    }


def groups_progress(session: AdminSession) -> list[Row]:
    """Return a summary of every group that has a retry topic."""
    topics = session.ask_name_server(name_server_calls.all_topics())
    return [_group_summary(session, group) for group in groups_of(topics)]


def _group_summary(session: AdminSession, group: str) -> Row:
    row: Row = {"group": group, "count": 0, "type": "", "model": "", "consumeTps": 0.0, "diffTotal": 0}
    try:
        progress = group_progress(session, group, None)
    except RemoteError:
        return row  # A group that never committed: mqadmin shows zeros as well.
    row |= {"consumeTps": progress["consumeTps"], "diffTotal": progress["diffTotal"]}
    try:
        connection = consumer_connection(session, group)
    except RemoteError:
        return row
    actively = connection["consumeType"] == CONSUME_ACTIVELY
    return row | {
        "count": len(connection["connections"]),
        "type": "PULL" if actively else "PUSH",
        "model": connection["messageModel"],
    }


def consumer_connection(session: AdminSession, group: str) -> Row:
    """Return a group's members and subscriptions. Each member is connected to every broker."""
    found: Row | None = None
    offline: BrokerError | None = None
    for address in brokers_of_group(session, group):
        try:
            connection = session.ask(address, admin_calls.consumer_connection(group))
        except BrokerError as error:
            offline = error
            continue
        row = {
            "group": group,
            "connections": {
                member.client_id: msgspec.to_builtins(member) for member in connection.connection_set
            },
            "subscriptions": {
                topic: subscription.sub_string
                for topic, subscription in sorted(connection.subscription_table.items())
            },
            "consumeType": connection.consume_type,
            "messageModel": connection.message_model,
            "consumeFromWhere": connection.consume_from_where,
        }
        if found is None:
            found = row
        else:
            found["connections"] |= row["connections"]
    if found is None:
        raise offline or ConfigError(f"no broker of group {group} is reachable")
    found["connections"] = [found["connections"][client_id] for client_id in sorted(found["connections"])]
    return found


def brokers_of_group(session: AdminSession, group: str) -> list[str]:
    """Return the brokers that have a group, by its retry topic."""
    validate_group(group)
    try:
        return addresses(session.route(retry_topic(group)).broker_datas)
    except RouteNotFound:
        raise RouteNotFound(
            f"no group {group} at name server {session.namesrv}: a group is known once its first consumer "
            "has started; check the name (libra admin consumerProgress lists all)"
        ) from None
