"""The admin commands about options, permissions and values of servers, under mqadmin's names."""

from typing import TYPE_CHECKING, Annotated

import typer

from libramq.cli import options
from libramq.cli.admin.printing import done, show
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from libramq.rpc.call import Call

app = typer.Typer()

_Broker = Annotated[str, typer.Option("-b", "--brokerAddr", help="The broker, host:port.")]
_AnyBroker = Annotated[str | None, typer.Option("-b", "--brokerAddr", help="The broker, host:port; or -c.")]
_AnyCluster = Annotated[
    str | None, typer.Option("-c", "--clusterName", help="All masters of this cluster; or -b.")
]
_BrokerName = Annotated[str, typer.Option("-b", "--brokerName", help="The broker's name.")]
_Key = Annotated[str, typer.Option("-k", "--key", help="The key.")]
_Value = Annotated[str, typer.Option("-v", "--value", help="The value.")]
_Namespace = Annotated[str, typer.Option("-s", "--namespace", help="The namespace of the key.")]


@app.command("brokerStatus", no_args_is_help=True)
def broker_status(
    broker: _AnyBroker = None,
    cluster: _AnyCluster = None,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show a broker's state as names and values, or that of a cluster's masters."""
    from libramq.rpc import admin_calls

    _show_each(admin_calls.runtime_info(), broker, cluster, namesrv, json=json)


@app.command("getBrokerConfig", no_args_is_help=True)
def get_broker_config(
    broker: _AnyBroker = None,
    cluster: _AnyCluster = None,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show a broker's options, without secrets, or those of a cluster's masters."""
    from libramq.rpc import admin_calls

    _show_each(admin_calls.broker_config(), broker, cluster, namesrv, json=json)


def _show_each(
    call: "Call[dict[str, str]]", broker: str | None, cluster: str | None, namesrv: str | None, *, json: bool
) -> None:
    with options.session(namesrv) as session:
        targets = session.targets(broker=broker, cluster=cluster)
        found = dict(zip(targets, session.ask_each(targets, call), strict=True))
    if broker is not None or json:
        show(found if broker is None else found[broker], json=json)
        return
    for address, values in found.items():
        print(f"============{address}============")
        show(values, json=False)


@app.command("updateBrokerConfig", no_args_is_help=True)
def update_broker_config(
    key: _Key,
    value: _Value,
    broker: options.Broker = None,
    cluster: options.Cluster = None,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Change an option of a broker until it stops; the broker says which ones can be changed."""
    from libramq.rpc import admin_calls

    with options.session(namesrv) as session:
        targets = session.targets(broker=broker, cluster=cluster)
        session.ask_each(targets, admin_calls.update_broker_config(key, value))
    text = f"update broker config success, {', '.join(targets)}"
    done(text, {"brokers": targets, key: value}, json=json)


@app.command("resetMasterFlushOffset", no_args_is_help=True)
def reset_master_flush_offset(
    broker: _Broker,
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="The offset.")],
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Set up to where a slave takes its master's log to be on disk; no other broker has such an offset."""
    from libramq.rpc import admin_calls

    with options.session(namesrv) as session:
        session.ask(broker, admin_calls.reset_master_flush_offset(offset))
    text = f"reset master flush offset to {offset} success"
    done(text, {"broker": broker, "offset": offset}, json=json)


@app.command("wipeWritePerm", no_args_is_help=True)
def wipe_write_perm(broker: _BrokerName, namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Have producers avoid a broker: its topics become read-only in routes until one of them changes."""
    _set_writable(broker, namesrv, json=json, writable=False)


@app.command("addWritePerm", no_args_is_help=True)
def add_write_perm(broker: _BrokerName, namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Have producers use a broker again: its topics become readable and writable in routes."""
    _set_writable(broker, namesrv, json=json, writable=True)


def _set_writable(broker: str, namesrv: str | None, *, json: bool, writable: bool) -> None:
    from libramq.rpc import admin_calls

    call = admin_calls.add_write_perm if writable else admin_calls.wipe_write_perm
    with options.session(namesrv) as session:
        counts = session.each_name_server(call(broker))
    if not any(counts.values()):
        raise ConfigError(
            f"no name server knows a topic of the broker {broker}; name it as clusterList does, not by its "
            "address"
        )
    if json:
        show({"broker": broker, "topics": counts}, json=True)
        return
    for address, count in counts.items():
        what = "add" if writable else "wipe"
        print(f"{what} write perm of broker[{broker}] in name server[{address}] OK, {count}")


@app.command("updateKvConfig", no_args_is_help=True)
def update_kv_config(
    namespace: _Namespace,
    key: _Key,
    value: _Value,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Set a value of the name servers' KV configuration."""
    from libramq.rpc import admin_calls

    with options.session(namesrv) as session:
        session.each_name_server(admin_calls.put_value(namespace, key, value))
    text = "create or update kv config to namespace success."
    done(text, {"namespace": namespace, "key": key, "value": value}, json=json)


@app.command("deleteKvConfig", no_args_is_help=True)
def delete_kv_config(
    namespace: _Namespace, key: _Key, namesrv: options.Namesrv = None, json: options.Json = False
) -> None:
    """Remove a value of the name servers' KV configuration."""
    from libramq.rpc import admin_calls

    with options.session(namesrv) as session:
        session.each_name_server(admin_calls.delete_value(namespace, key))
    done("delete kv config from namespace success.", {"namespace": namespace, "key": key}, json=json)


@app.command("getNamesrvConfig")
def get_namesrv_config(namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Show the options of each name server."""
    from libramq.rpc import admin_calls

    with options.session(namesrv) as session:
        found = session.each_name_server(admin_calls.name_server_config())
    if json:
        show(found, json=True)
        return
    for address, values in found.items():
        print(f"============{address}============")
        show(values, json=False)


@app.command("updateNamesrvConfig", no_args_is_help=True)
def update_namesrv_config(
    key: _Key, value: _Value, namesrv: options.Namesrv = None, json: options.Json = False
) -> None:
    """Change an option of each name server until it stops; a name server says which ones can be changed."""
    from libramq.rpc import admin_calls

    with options.session(namesrv) as session:
        session.each_name_server(admin_calls.update_name_server_config(key, value))
    done("update name server config success!", {key: value}, json=json)
