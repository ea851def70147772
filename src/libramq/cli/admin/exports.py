"""The admin commands that export a cluster's configuration and load, as JSON files in mqadmin's format."""

import json
import time
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Option, Typer

from libramq.cli.admin.frame import Answer, Operator, Target, command, plain
from libramq.cli.lazy import calls, monitor, names
from libramq.errors import ConfigError

app = Typer()

_Cluster = Annotated[str, Option("-c", "--clusterName", help="The cluster.")]
_Directory = Annotated[Path, Option("-f", "--filePath", help="The directory of the file.")]
#: ExportConfigsCommand.needBrokerProprties.
_OPTIONS: Final = frozenset({
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums",
    "flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn",
    "traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
})  # fmt: skip
_Values = dict[str, Any]


@command(app, "exportMetadata")
async def export_metadata(
    *,
    target: Annotated[
        Target,
        Option("-c", "--clusterName", help="All masters of this cluster; or use -b."),
        Option("-b", "--brokerAddr", help="One broker, host:port; or use -c."),
    ],
    directory: _Directory = Path(),
    topics: Annotated[bool, Option("-t", "--topic", help="Topics only.")] = False,
    groups: Annotated[bool, Option("-g", "--subscriptionGroup", help="Groups only.")] = False,
    special: Annotated[
        bool, Option("-s", "--specialTopic", help="Also export retry topics and dead letters.")
    ] = False,
    admin: Operator,
) -> Answer:
    """Export the configuration of users' topics and groups; queue counts are summed over brokers."""
    tables = await _metadata(admin, await admin.targets(target), special=special)
    if topics != groups:
        name = "topic.json" if topics else "subscriptionGroup.json"
        tables.pop("subscriptionGroupTable" if topics else "topicConfigTable")
    else:
        name = "metadata.json"
    return _write(directory / name, tables | {"exportTime": time.time_ns() // 1_000_000})


async def _metadata(admin: Operator, brokers: list[str], *, special: bool) -> _Values:
    topics: dict[str, _Values] = {}
    groups: dict[str, _Values] = {}
    for address in brokers:
        own = await admin.ask(address, calls.SYSTEM_TOPICS)
        for topic, config in (await admin.ask(address, calls.ALL_TOPIC_CONFIGS)).items():
            if topic in own or names.is_system_topic(topic):
                continue
            if special or not topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
                _add(topics, topic, plain(config), ("readQueueNums", "writeQueueNums"))
        for group, settings in (await _user_groups(admin, address)).items():
            _add(groups, group, plain(settings), ("retryQueueNums",))
    return {"topicConfigTable": topics, "subscriptionGroupTable": groups}


def _add(table: dict[str, _Values], name: str, row: _Values, sums: tuple[str, ...]) -> None:
    before = table.get(name)
    table[name] = row if before is None else row | {each: row[each] + before[each] for each in sums}


async def _user_groups(admin: Operator, address: str) -> _Values:
    table = await admin.ask(address, calls.ALL_GROUP_CONFIGS)
    return {group: config for group, config in table.items() if group not in names.SYSTEM_GROUPS}


@command(app, "exportConfigs")
async def export_configs(*, cluster: _Cluster, directory: _Directory = Path(), admin: Operator) -> Answer:
    """Export the main options of a cluster's masters, and the cluster's size."""
    masters = await admin.masters(cluster)
    table = (await admin.cluster_info()).broker_addr_table
    brokers = [data for data in table.values() if data.cluster == cluster]
    configs = (await admin.ask_each(masters, calls.BROKER_CONFIG)).values()
    scale = {
        "namesrvSize": len(admin.name_servers),
        "masterBrokerSize": len(masters),
        "slaveBrokerSize": sum(len(data.broker_addrs) for data in brokers) - len(masters),
    }
    chosen = {
        config["brokerName"]: {name: value for name, value in config.items() if name in _OPTIONS}
        for config in configs
    }
    return _write(directory / "configs.json", {"brokerConfigs": chosen, "clusterScale": scale})


@command(app, "exportMetrics")
async def export_metrics(*, cluster: _Cluster, directory: _Directory = Path(), admin: Operator) -> Answer:
    """Export the load of a cluster's masters: rates, a day's messages, disks, topics, groups, clients."""
    reports = [await _report(admin, address) for address in await admin.masters(cluster)]
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
    return _write(directory / "metrics.json", {"evaluateReport": dict(reports), "totalData": total})


async def _report(admin: Operator, address: str) -> tuple[str, _Values]:
    """Return a master's name, and the report that mqadmin makes of it."""
    runtime = await admin.ask(address, calls.RUNTIME_INFO)
    config = await admin.ask(address, calls.BROKER_CONFIG)
    groups = await _user_groups(admin, address)
    topics = (await _metadata(admin, [address], special=False))["topicConfigTable"]
    transactions, delayed = [
        await monitor.stats_of(admin, address, topic)
        for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
    ]
    quota = {
        "diskRatio": {name: runtime.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")},
        "tps": {
            "normalInTps": monitor.first_number(runtime.get("putTps", "")),
            "normalOutTps": monitor.first_number(runtime.get("getTransferredTps", "")),
            "transInTps": float(transactions.stats_minute.tps),
            "scheduleInTps": float(delayed.stats_minute.tps),
        },
        "oneDayNum": {
            "normalOneDayInNum": _grown(runtime, "msgPutTotal"),
            "normalOneDayOutNum": _grown(runtime, "msgGetTotal"),
            "transOneDayInNum": monitor.day_of(transactions),
            "scheduleOneDayInNum": monitor.day_of(delayed),
        },
        "messageAverageSize": runtime.get("putMessageAverageSize"),
        "topicSize": len(topics),
        "groupSize": len(groups),
    }
    members = [member for group in groups for member in await admin.connected(address, group)]
    clients = sorted({f"{member.language}%{member.version}" for member in members})
    environment = {
        "cpuNum": config.get("clientCallbackExecutorThreads"), "totalMemKBytes": runtime.get("totalMemKBytes")
    }  # fmt: skip
    version = {"rocketmqVersion": runtime.get("brokerVersionDesc"), "clientInfo": clients}
    report = {"runtimeEnv": environment, "runtimeQuota": quota, "runtimeVersion": version}
    return config["brokerName"], report


def _grown(runtime: dict[str, str], name: str) -> int:
    return int(runtime.get(f"{name}TodayMorning", 0)) - int(runtime.get(f"{name}YesterdayMorning", 0))


def _write(path: Path, value: _Values) -> Answer:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    return Answer({"file": str(path)}, f"export {path} success")
