"""The admin commands that export what a cluster is, as JSON files in mqadmin's form."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option, Typer

from libramq.cli.admin.frame import Answer, Operator, Target, calls, command, first_number, plain
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from libramq.formats.tables import SubscriptionGroupConfig

app = Typer()

_Cluster = Annotated[str, Option("-c", "--clusterName", help="The cluster.")]
_Directory = Annotated[Path, Option("-f", "--filePath", help="The directory of the file.")]
#: ExportConfigsCommand.needBrokerProprties.
_OPTIONS: Final = frozenset({
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums",
    "flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn",
    "traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
})  # fmt: skip
_TRANSACTIONS: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
_Values = dict[str, Any]


@command(app, "exportMetadata")
async def export_metadata(
    *,
    target: Annotated[
        Target,
        Option("-c", "--clusterName", help="All masters of it."),
        Option("-b", "--brokerAddr", help="Or one broker, host:port."),
    ],
    directory: _Directory = Path(),
    topics: Annotated[bool, Option("-t", "--topic", help="Topics only.")] = False,
    groups: Annotated[bool, Option("-g", "--subscriptionGroup", help="Groups only.")] = False,
    special: Annotated[
        bool, Option("-s", "--specialTopic", help="Retry topics and dead letters, too.")
    ] = False,
    admin: Operator,
) -> Answer:
    """Export the configuration of users' topics and groups; numbers of queues are summed over brokers."""
    tables = await _metadata(admin, await admin.targets(target), special=special)
    if topics != groups:
        name = "topic.json" if topics else "subscriptionGroup.json"
        tables.pop("subscriptionGroupTable" if topics else "topicConfigTable")
    else:
        name = "metadata.json"
    return _write(directory / name, tables | {"exportTime": _now_ms()})


async def _metadata(admin: Operator, brokers: list[str], *, special: bool) -> _Values:
    from libramq.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

    topics: dict[str, _Values] = {}
    groups: dict[str, _Values] = {}
    for address in brokers:
        own = await admin.ask(address, calls.SYSTEM_TOPICS)
        for topic, config in (await admin.ask(address, calls.ALL_TOPIC_CONFIGS)).items():
            if topic in own or is_system_topic(topic):
                continue
            if special or not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                _add(topics, topic, plain(config), ("readQueueNums", "writeQueueNums"))
        for group, settings in (await _user_groups(admin, address)).items():
            _add(groups, group, plain(settings), ("retryQueueNums",))
    return {"topicConfigTable": topics, "subscriptionGroupTable": groups}


def _add(table: dict[str, _Values], name: str, row: _Values, sums: tuple[str, ...]) -> None:
    before = table.get(name)
    table[name] = row if before is None else row | {each: row[each] + before[each] for each in sums}


async def _user_groups(admin: Operator, address: str) -> "dict[str, SubscriptionGroupConfig]":
    from libramq.message.names import SYSTEM_GROUPS

    table = await admin.ask(address, calls.ALL_GROUP_CONFIGS)
    return {group: config for group, config in table.items() if group not in SYSTEM_GROUPS}


@command(app, "exportConfigs")
async def export_configs(*, cluster: _Cluster, directory: _Directory = Path(), admin: Operator) -> Answer:
    """Export the options of a cluster's masters that matter to operators, and the cluster's size."""
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
    """Return a master's name, and what mqadmin reports about it."""
    from libramq.admin.statistics import TOPIC_PUT_NUMS, day_of, stats_of

    runtime = await admin.ask(address, calls.RUNTIME_INFO)
    config = await admin.ask(address, calls.BROKER_CONFIG)
    groups = await _user_groups(admin, address)
    topics = (await _metadata(admin, [address], special=False))["topicConfigTable"]
    transactions = await stats_of(admin, address, TOPIC_PUT_NUMS, _TRANSACTIONS)
    delayed = await stats_of(admin, address, TOPIC_PUT_NUMS, _SCHEDULE)
    quota = {
        "diskRatio": {name: runtime.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")},
        "tps": {
            "normalInTps": first_number(runtime.get("putTps", "")),
            "normalOutTps": first_number(runtime.get("getTransferredTps", "")),
            "transInTps": transactions.stats_minute.tps if transactions else 0.0,
            "scheduleInTps": delayed.stats_minute.tps if delayed else 0.0,
        },
        "oneDayNum": {
            "normalOneDayInNum": _grown(runtime, "msgPutTotal"),
            "normalOneDayOutNum": _grown(runtime, "msgGetTotal"),
            "transOneDayInNum": day_of(transactions) if transactions else 0,
            "scheduleOneDayInNum": day_of(delayed) if delayed else 0,
        },
        "messageAverageSize": runtime.get("putMessageAverageSize"),
        "topicSize": len(topics),
        "groupSize": len(groups),
    }
    members = [member for group in groups for member in await admin.connected(address, group)]
    clients = sorted({f"{member.language}%{member.version}" for member in members})
    return config["brokerName"], {
        "runtimeEnv": {
            "cpuNum": config.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": runtime.get("totalMemKBytes"),
        },
        "runtimeQuota": quota,
        "runtimeVersion": {"rocketmqVersion": runtime.get("brokerVersionDesc"), "clientInfo": clients},
    }


def _grown(runtime: dict[str, str], name: str) -> int:
    return int(runtime.get(f"{name}TodayMorning", 0)) - int(runtime.get(f"{name}YesterdayMorning", 0))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _write(path: Path, value: _Values) -> Answer:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    return Answer({"file": str(path)}, f"export {path} success")
