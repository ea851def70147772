"""The admin commands that export what a cluster is, as JSON files in mqadmin's form."""

import json as json_module
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from libramq.cli import options
from libramq.cli.admin.printing import done, plain
from libramq.cli.admin.statistics import TOPIC_PUT_NUMS, in_a_day, stats_of
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from libramq.cli.admin.session import AdminSession
    from libramq.formats.tables import SubscriptionGroupConfig

app = typer.Typer()

_Cluster = Annotated[str, typer.Option("-c", "--clusterName", help="The cluster.")]
_Directory = Annotated[Path, typer.Option("-f", "--filePath", help="The directory of the file.")]
#: ExportConfigsCommand.needBrokerProprties.
_OPTIONS: Final = frozenset({
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums",
    "flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn",
    "traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
})  # fmt: skip
_TRANSACTIONS: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
_Values = dict[str, Any]


@app.command("exportMetadata", no_args_is_help=True)
def export_metadata(
    cluster: Annotated[str | None, typer.Option("-c", "--clusterName", help="All masters of it.")] = None,
    broker: Annotated[
        str | None, typer.Option("-b", "--brokerAddr", help="Or one broker, host:port.")
    ] = None,
    directory: _Directory = Path(),
    topics: Annotated[bool, typer.Option("-t", "--topic", help="Topics only.")] = False,
    groups: Annotated[bool, typer.Option("-g", "--subscriptionGroup", help="Groups only.")] = False,
    special: Annotated[
        bool, typer.Option("-s", "--specialTopic", help="Retry topics and dead letters, too.")
    ] = False,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Export the configuration of users' topics and groups; numbers of queues are summed over brokers."""
    with options.session(namesrv) as session:
        targets = session.targets(broker=broker, cluster=cluster)
        tables = _metadata(session, targets, special=special)
    if topics != groups:
        name = "topic.json" if topics else "subscriptionGroup.json"
        tables.pop("subscriptionGroupTable" if topics else "topicConfigTable")
    else:
        name = "metadata.json"
    _write(directory / name, tables | {"exportTime": _now_ms()}, json=json)


def _metadata(session: "AdminSession", brokers: list[str], *, special: bool) -> _Values:
    from libramq.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
    from libramq.rpc import admin_calls

    topics: dict[str, _Values] = {}
    groups: dict[str, _Values] = {}
    for address in brokers:
        own = session.ask(address, admin_calls.system_topics())
        for topic, config in session.ask(address, admin_calls.all_topic_configs()).items():
            if topic in own or is_system_topic(topic):
                continue
            if special or not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                _add(topics, topic, plain(config), ("readQueueNums", "writeQueueNums"))
        for group, settings in _user_groups(session, address).items():
            _add(groups, group, plain(settings), ("retryQueueNums",))
    return {"topicConfigTable": topics, "subscriptionGroupTable": groups}


def _add(table: dict[str, _Values], name: str, row: _Values, sums: tuple[str, ...]) -> None:
    before = table.get(name)
    table[name] = row if before is None else row | {each: row[each] + before[each] for each in sums}


def _user_groups(session: "AdminSession", address: str) -> "dict[str, SubscriptionGroupConfig]":
    from libramq.message.names import SYSTEM_GROUPS
    from libramq.rpc import admin_calls

    table = session.ask(address, admin_calls.all_group_configs())
    return {group: config for group, config in table.items() if group not in SYSTEM_GROUPS}


@app.command("exportConfigs", no_args_is_help=True)
def export_configs(
    cluster: _Cluster,
    directory: _Directory = Path(),
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Export the options of a cluster's masters that matter to operators, and the cluster's size."""
    from libramq.rpc import admin_calls

    with options.session(namesrv) as session:
        masters = session.masters(cluster)
        brokers = [data for data in session.clusters().broker_addr_table.values() if data.cluster == cluster]
        configs = session.ask_each(masters, admin_calls.broker_config())
        name_servers = session.name_server_count
    scale = {
        "namesrvSize": name_servers,
        "masterBrokerSize": len(masters),
        "slaveBrokerSize": sum(len(data.broker_addrs) for data in brokers) - len(masters),
    }
    chosen = {
        config["brokerName"]: {name: value for name, value in config.items() if name in _OPTIONS}
        for config in configs
    }
    _write(directory / "configs.json", {"brokerConfigs": chosen, "clusterScale": scale}, json=json)


@app.command("exportMetrics", no_args_is_help=True)
def export_metrics(
    cluster: _Cluster,
    directory: _Directory = Path(),
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Export the load of a cluster's masters: rates, a day's messages, disks, topics, groups, clients."""
    with options.session(namesrv) as session:
        reports = [_report(session, address) for address in session.masters(cluster)]
    quotas = [report["runtimeQuota"] for _, report in reports]
    total = {
        "totalTps": {
            f"total{name[0].upper()}{name[1:]}": sum(quota["tps"][name] for quota in quotas)
            for name in quotas[0]["tps"]
        },
        "totalOneDayNum": {
            name: sum(quota["oneDayNum"][name] for quota in quotas) for name in quotas[0]["oneDayNum"]
        },
    }
    _write(directory / "metrics.json", {"evaluateReport": dict(reports), "totalData": total}, json=json)


def _report(session: "AdminSession", address: str) -> tuple[str, _Values]:
    """Return a master's name, and what mqadmin reports about it."""
    from libramq.rpc import admin_calls

    runtime = session.ask(address, admin_calls.runtime_info())
    config = session.ask(address, admin_calls.broker_config())
    groups = _user_groups(session, address)
    topics = _metadata(session, [address], special=False)["topicConfigTable"]
    transactions = stats_of(session, address, TOPIC_PUT_NUMS, _TRANSACTIONS)
    delayed = stats_of(session, address, TOPIC_PUT_NUMS, _SCHEDULE)
    quota = {
        "diskRatio": {name: runtime.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")},
        "tps": {
            "normalInTps": _first(runtime.get("putTps", "")),
            "normalOutTps": _first(runtime.get("getTransferredTps", "")),
            "transInTps": transactions.stats_minute.tps if transactions else 0.0,
            "scheduleInTps": delayed.stats_minute.tps if delayed else 0.0,
        },
        "oneDayNum": {
            "normalOneDayInNum": _grown(runtime, "msgPutTotal"),
            "normalOneDayOutNum": _grown(runtime, "msgGetTotal"),
            "transOneDayInNum": in_a_day(transactions) if transactions else 0,
            "scheduleOneDayInNum": in_a_day(delayed) if delayed else 0,
        },
        "messageAverageSize": runtime.get("putMessageAverageSize"),
        "topicSize": len(topics),
        "groupSize": len(groups),
    }
    clients = sorted({client for group in groups for client in _clients(session, address, group)})
    return config["brokerName"], {
        "runtimeEnv": {
            "cpuNum": config.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": runtime.get("totalMemKBytes"),
        },
        "runtimeQuota": quota,
        "runtimeVersion": {"rocketmqVersion": runtime.get("brokerVersionDesc"), "clientInfo": clients},
    }


def _clients(session: "AdminSession", address: str, group: str) -> set[str]:
    from libramq.errors import BrokerError
    from libramq.rpc import admin_calls

    try:
        connection = session.ask(address, admin_calls.consumer_connection(group))
    except BrokerError:
        return set()  # Nobody is connected.
    return {f"{member.language}%{member.version}" for member in connection.connection_set}


def _first(rates: str) -> float:
    return float((rates.split() or ["0"])[0])


def _grown(runtime: dict[str, str], name: str) -> int:
    return int(runtime.get(f"{name}TodayMorning", 0)) - int(runtime.get(f"{name}YesterdayMorning", 0))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _write(path: Path, value: _Values, *, json: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json_module.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    done(f"export {path} success", {"file": str(path)}, json=json)
