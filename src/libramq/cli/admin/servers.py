"""The admin commands about servers' options, permissions, KV values and disks, under mqadmin's names."""

import itertools
from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer

from libramq.cli.admin.frame import Answer, Changed, Operator, Shown, Target, command, sections
from libramq.cli.lazy import calls
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from libramq.rpc.call import Call

app = Typer()

_Broker = Annotated[str, Option("-b", "--brokerAddr", help="The broker, host:port.")]
_BrokerName = Annotated[str, Option("-b", "--brokerName", help="The broker's name.")]
_Key = Annotated[str, Option("-k", "--key", help="The key.")]
_Value = Annotated[str, Option("-v", "--value", help="The value.")]
_Namespace = Annotated[str, Option("-s", "--namespace", help="The namespace of the key.")]
_OneOrAll = Annotated[
    Target,
    Option("-b", "--brokerAddr", help="Only this broker, host:port."),
    Option("-c", "--cluster", help="The brokers of this cluster. Default: all brokers."),
]


@command(app, "brokerStatus")
async def broker_status(*, target: Shown, admin: Operator) -> Answer:
    """Show the state of a broker, or of a cluster's masters, as names and values."""
    return await _values(admin, calls.RUNTIME_INFO, target)


@command(app, "getBrokerConfig")
async def get_broker_config(*, target: Shown, admin: Operator) -> Answer:
    """Show the options of a broker, or of a cluster's masters, without secrets."""
    return await _values(admin, calls.BROKER_CONFIG, target)


async def _values(admin: Operator, call: "Call[dict[str, str]]", target: Target) -> Answer:
    found = await admin.ask_targets(call, target)
    return sections(found) if target.broker is None else Answer(*[found[target.broker]] * 2)


@command(app, "updateBrokerConfig")
async def update_broker_config(*, key: _Key, value: _Value, target: Changed, admin: Operator) -> Answer:
    """Change an option of a broker until it stops; a refusal lists the changeable ones."""
    brokers = list(await admin.ask_targets(calls.update_broker_config(key, value), target))
    return Answer({"brokers": brokers, key: value}, f"update broker config success, {', '.join(brokers)}")


@command(app, "resetMasterFlushOffset")
async def reset_master_flush_offset(
    *,
    broker: _Broker,
    offset: Annotated[int, Option("-o", "--offset", min=0, help="The offset.")],
    admin: Operator,
) -> Answer:
    """Set the offset up to which a slave takes its master's log to be on disk; only slaves have one."""
    await admin.ask(broker, calls.reset_master_flush_offset(offset))
    return Answer({"broker": broker, "offset": offset}, f"reset master flush offset to {offset} success")


@command(app, "wipeWritePerm")
async def wipe_write_perm(*, broker: _BrokerName, admin: Operator) -> Answer:
    """Make producers avoid a broker: its topics become read-only in routes until one of them changes."""
    return await _set_writable(admin, broker, "wipe")


@command(app, "addWritePerm")
async def add_write_perm(*, broker: _BrokerName, admin: Operator) -> Answer:
    """Let producers use a broker again: its topics become readable and writable in routes."""
    return await _set_writable(admin, broker, "add")


async def _set_writable(admin: Operator, broker: str, what: str) -> Answer:
    counts = await admin.ask_name_servers(calls.set_writable(broker, is_writable=what == "add"))
    if not any(counts.values()):
        raise ConfigError(
            f"no name server knows a topic of the broker {broker}; name it as clusterList does, not by its "
            "address"
        )
    text = f"{what} write perm of broker[{broker}] in name server"
    return Answer(
        {"broker": broker, "topics": counts},
        *(f"{text}[{address}] OK, {count}" for address, count in counts.items()),
    )


@command(app, "updateKvConfig")
async def update_kv_config(*, namespace: _Namespace, key: _Key, value: _Value, admin: Operator) -> Answer:
    """Set a value of the name servers' KV configuration."""
    await admin.ask_name_servers(calls.put_value(namespace, key, value))
    text = "create or update kv config to namespace success."
    return Answer({"namespace": namespace, "key": key, "value": value}, text)


@command(app, "deleteKvConfig")
async def delete_kv_config(*, namespace: _Namespace, key: _Key, admin: Operator) -> Answer:
    """Remove a value of the name servers' KV configuration."""
    await admin.ask_name_servers(calls.delete_value(namespace, key))
    return Answer({"namespace": namespace, "key": key}, "delete kv config from namespace success.")


@command(app, "getNamesrvConfig", no_args_is_help=False)
async def get_namesrv_config(*, admin: Operator) -> Answer:
    """Show the options of each name server."""
    return sections(await admin.ask_name_servers(calls.NAME_SERVER_CONFIG))


@command(app, "updateNamesrvConfig")
async def update_namesrv_config(*, key: _Key, value: _Value, admin: Operator) -> Answer:
    """Change an option of each name server until it stops; a refusal lists the changeable ones."""
    await admin.ask_name_servers(calls.update_name_server_config(key, value))
    return Answer({key: value}, "update name server config success!")


# Disks.


@command(app, "deleteExpiredCommitLog", no_args_is_help=False)
async def delete_expired_commit_log(*, admin: Operator, target: _OneOrAll) -> Answer:
    """Delete messages older than fileReservedTime now, instead of at the hour deleteWhen."""
    return await _free_disk(admin, calls.DELETE_EXPIRED_FILES, target)


@command(app, "cleanExpiredCQ", no_args_is_help=False)
async def clean_expired_cq(*, admin: Operator, target: _OneOrAll) -> Answer:
    """Remove consume queue files whose messages are deleted."""
    return await _free_disk(admin, calls.CLEAN_EXPIRED_QUEUES, target)


@command(app, "cleanUnusedTopic", no_args_is_help=False)
async def clean_unused_topic(*, admin: Operator, target: _OneOrAll) -> Answer:
    """Remove consume queues whose topics are deleted."""
    return await _free_disk(admin, calls.CLEAN_UNUSED_TOPICS, target)


async def _free_disk(admin: Operator, call: "Call[None]", target: Target) -> Answer:
    if target.broker is not None and target.cluster is not None:
        raise ConfigError("name -c CLUSTER or -b HOST:PORT, or neither for all brokers")
    if target.broker is None and target.cluster is None:
        names = sorted((await admin.cluster_info()).cluster_addr_table)
        masters = [await admin.masters(name) for name in names]
        brokers = list(dict.fromkeys(itertools.chain(*masters)))
    else:
        brokers = await admin.targets(target)
    await admin.ask_each(brokers, call)
    return Answer({"brokers": brokers}, *(f"success at broker [{address}]" for address in brokers))
