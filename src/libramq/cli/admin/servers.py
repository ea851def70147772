"""The admin commands about options, permissions and values of servers, under mqadmin's names."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from libramq.cli import options

app = typer.Typer()

_Broker = Annotated[str, typer.Option("-b", "--brokerAddr", help="The broker, host:port.")]
_BrokerName = Annotated[str, typer.Option("-b", "--brokerName", help="The broker's name.")]
_Key = Annotated[str, typer.Option("-k", "--key", help="The key.")]
_Value = Annotated[str, typer.Option("-v", "--value", help="The value.")]
_Namespace = Annotated[str, typer.Option("-s", "--namespace", help="The namespace of the key.")]


@app.command("brokerStatus", no_args_is_help=True)
def broker_status(broker: _Broker, namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Show a broker's state as names and values."""
    from libramq.rpc import admin_calls

    with _session(namesrv) as session:
        _show(session.ask(broker, admin_calls.runtime_info()), json=json)


@app.command("getBrokerConfig", no_args_is_help=True)
def get_broker_config(broker: _Broker, namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Show a broker's options, without secrets."""
    from libramq.rpc import operator_calls

    with _session(namesrv) as session:
        _show(session.ask(broker, operator_calls.broker_config()), json=json)


@app.command("updateBrokerConfig", no_args_is_help=True)
def update_broker_config(
    broker: _Broker, key: _Key, value: _Value, namesrv: options.Namesrv = None, json: options.Json = False
) -> None:
    """Change an option of a broker until it stops; the broker says which ones can be changed."""
    from libramq.rpc import operator_calls

    with _session(namesrv) as session:
        session.ask(broker, operator_calls.update_broker_config(key, value))
    _done(f"update broker config success, {broker}", {"broker": broker, key: value}, json=json)


@app.command("wipeWritePerm", no_args_is_help=True)
def wipe_write_perm(broker: _BrokerName, namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Have producers avoid a broker: its topics become read-only in routes until one of them changes."""
    _set_writable(broker, namesrv, json=json, writable=False)


@app.command("addWritePerm", no_args_is_help=True)
def add_write_perm(broker: _BrokerName, namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Have producers use a broker again: its topics become readable and writable in routes."""
    _set_writable(broker, namesrv, json=json, writable=True)


def _set_writable(broker: str, namesrv: str | None, *, json: bool, writable: bool) -> None:
    from libramq.rpc import operator_calls

    call = operator_calls.add_write_perm if writable else operator_calls.wipe_write_perm
    with _session(namesrv) as session:
        counts = session.each_name_server(call(broker))
    if json:
        _show({"broker": broker, "topics": counts}, json=True)
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
    from libramq.rpc import operator_calls

    with _session(namesrv) as session:
        session.each_name_server(operator_calls.put_value(namespace, key, value))
    text = "create or update kv config to namespace success."
    _done(text, {"namespace": namespace, "key": key, "value": value}, json=json)


@app.command("deleteKvConfig", no_args_is_help=True)
def delete_kv_config(
    namespace: _Namespace, key: _Key, namesrv: options.Namesrv = None, json: options.Json = False
) -> None:
    """Remove a value of the name servers' KV configuration."""
    from libramq.rpc import operator_calls

    with _session(namesrv) as session:
        session.each_name_server(operator_calls.delete_value(namespace, key))
    _done("delete kv config from namespace success.", {"namespace": namespace, "key": key}, json=json)


@app.command("getNamesrvConfig")
def get_namesrv_config(namesrv: options.Namesrv = None, json: options.Json = False) -> None:
    """Show the options of each name server."""
    from libramq.rpc import operator_calls

    with _session(namesrv) as session:
        found = session.each_name_server(operator_calls.name_server_config())
    if json:
        _show(found, json=True)
        return
    for address, values in found.items():
        print(f"============{address}============")
        _show(values, json=False)


@app.command("updateNamesrvConfig", no_args_is_help=True)
def update_namesrv_config(
    key: _Key, value: _Value, namesrv: options.Namesrv = None, json: options.Json = False
) -> None:
    """Change an option of each name server until it stops; a name server says which ones can be changed."""
    from libramq.rpc import operator_calls

    with _session(namesrv) as session:
        session.each_name_server(operator_calls.update_name_server_config(key, value))
    _done("update name server config success!", {key: value}, json=json)


def _session(namesrv: str | None) -> Any:
    from libramq.cli.admin.session import AdminSession

    return AdminSession(options.name_servers(namesrv))


def _done(text: str, value: Mapping[str, Any], *, json: bool) -> None:
    if json:
        _show(value, json=True)
    else:
        print(text)


def _show(values: Mapping[str, Any], *, json: bool) -> None:
    from libramq.cli import output
    from libramq.cli.printable import printable

    if json:
        output.print_json(values)
        return
    for name, value in sorted(values.items()):
        print(f"{name:<32}: {printable(str(value))}")
