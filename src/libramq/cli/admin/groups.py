"""The admin commands about consumer groups and their members, under mqadmin's names."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from libramq.cli import options
from libramq.cli.admin.printing import done, plain, show, show_rows
from libramq.cli.admin.topics import read_file
from libramq.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from libramq.remoting.body.running_info import ConsumerRunningInfo

app = typer.Typer()

_Switch = str | None


def _switch(short: str, name: str, help_: str) -> Any:
    return typer.Option(short, f"--{name}", help=f"{help_} true or false.", show_default=False)


@app.command("updateSubGroup", no_args_is_help=True)
def update_sub_group(
    group: options.Group,
    namesrv: options.Namesrv = None,
    broker: options.Broker = None,
    cluster: options.Cluster = None,
    enable: Annotated[_Switch, _switch("-s", "consumeEnable", "It may consume:")] = None,
    from_min: Annotated[_Switch, _switch("-m", "consumeFromMinEnable", "It may begin at the oldest:")] = None,
    broadcast: Annotated[_Switch, _switch("-d", "consumeBroadcastEnable", "It may broadcast:")] = None,
    orderly: Annotated[_Switch, _switch("-o", "consumeMessageOrderly", "It consumes in order:")] = None,
    notify: Annotated[_Switch, _switch("-a", "notifyConsumerIdsChanged", "Notify members of others:")] = None,
    retry_queues: Annotated[
        int | None, typer.Option("-q", "--retryQueueNums", min=0, help="Queues of its retry topic.")
    ] = None,
    retry_times: Annotated[
        int | None, typer.Option("-r", "--retryMaxTimes", min=-1, help="Attempts before a dead letter.")
    ] = None,
    broker_id: Annotated[
        int | None, typer.Option("-i", "--brokerId", min=0, help="The broker id that it reads from.")
    ] = None,
    slow_id: Annotated[
        int | None,
        typer.Option(
            "-w", "--whichBrokerWhenConsumeSlowly", min=0, help="The id that it reads from if slow."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Create a consumer group, or change what is named; mqadmin resets everything else."""
    switches = {
        "consume_enable": ("-s", enable),
        "consume_from_min_enable": ("-m", from_min),
        "consume_broadcast_enable": ("-d", broadcast),
        "consume_message_orderly": ("-o", orderly),
        "notify_consumer_ids_changed_enable": ("-a", notify),
    }
    numbers = {
        "retry_queue_nums": retry_queues,
        "retry_max_times": retry_times,
        "broker_id": broker_id,
        "which_broker_when_consume_slowly": slow_id,
    }
    changed = _change(group, switches, numbers, namesrv, broker, cluster)
    if json:
        show({"group": group, "brokers": list(changed), **next(iter(changed.values()))}, json=True)
    else:
        for address in changed:
            print(f"create subscription group to {address} success.")


def _change(
    group: str,
    switches: Mapping[str, tuple[str, str | None]],
    numbers: Mapping[str, int | None],
    namesrv: str | None,
    broker: str | None,
    cluster: str | None,
) -> dict[str, dict[str, Any]]:
    """Change a group's configuration where a value is named; return what each broker has then."""
    import msgspec

    from libramq.cli.admin.queries import truth_of
    from libramq.formats.tables import SubscriptionGroupConfig
    from libramq.message.names import validate_group
    from libramq.rpc import admin_calls

    validate_group(group)
    changes: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    changes |= {name: truth_of(option, text) for name, (option, text) in switches.items() if text is not None}
    found: dict[str, dict[str, Any]] = {}
    with options.session(namesrv) as session:
        for address in session.targets(broker=broker, cluster=cluster):
            known = session.ask(address, admin_calls.all_group_configs())
            config = known.get(group) or SubscriptionGroupConfig(group_name=group)
            changed = msgspec.structs.replace(config, **changes)
            session.ask(address, admin_calls.create_group(changed))
            found[address] = plain(changed)
    return found


@app.command("updateSubGroupList", no_args_is_help=True)
def update_sub_group_list(
    file: options.ConfigFile,
    namesrv: options.Namesrv = None,
    broker: options.Broker = None,
    cluster: options.Cluster = None,
    json: options.Json = False,
) -> None:
    """Create or change all consumer groups of a JSON file, or none of them."""
    from libramq.formats.document import decode_body
    from libramq.formats.tables import SubscriptionGroupConfig
    from libramq.rpc import admin_calls

    configs = decode_body(read_file(file), list[SubscriptionGroupConfig])
    with options.session(namesrv) as session:
        targets = session.targets(broker=broker, cluster=cluster)
        session.ask_each(targets, admin_calls.create_groups(configs))
    groups = [config.group_name for config in configs]
    done(f"submit batch of group config to {', '.join(targets)} success.", {"groups": groups}, json=json)


@app.command("getConsumerConfig", no_args_is_help=True)
def get_consumer_config(
    group: options.Group, namesrv: options.Namesrv = None, json: options.Json = False
) -> None:
    """Show a consumer group's configuration at each broker that has one."""
    from libramq.cli.admin.session import addresses
    from libramq.rpc import admin_calls

    found: dict[str, Any] = {}
    with options.session(namesrv) as session:
        for address in addresses(list(session.clusters().broker_addr_table.values())):
            config = session.ask(address, admin_calls.all_group_configs()).get(group)
            if config is not None:
                found[address] = plain(config)
    if not found:
        raise ConfigError(f"no broker has a configuration of the group {group}")
    if json:
        show(found, json=True)
        return
    for address, config in found.items():
        print(f"============{address}============")
        show(config, json=False)


@app.command("setConsumeMode", no_args_is_help=True)
def set_consume_mode(
    topic: Annotated[str, typer.Option("-t", "--topicName", help="The topic.")],
    group: options.Group,
    mode: Annotated[str, typer.Option("-m", "--mode", help="PULL or POP.")],
    share: Annotated[
        int, typer.Option("-q", "--popShareQueueNum", help="With how many more members a queue is shared.")
    ] = 0,
    namesrv: options.Namesrv = None,
    broker: options.Broker = None,
    cluster: options.Cluster = None,
    json: options.Json = False,
) -> None:
    """Have members with server-side assignment pull or pop a topic."""
    from libramq.rpc import admin_calls

    if mode not in ("PULL", "POP"):
        raise ConfigError(f"the mode {mode!r} is none; use PULL or POP")
    with options.session(namesrv) as session:
        targets = session.targets(broker=broker, cluster=cluster)
        session.ask_each(targets, admin_calls.set_consume_mode(topic, group, mode, share))
    value = {"topic": topic, "group": group, "mode": mode, "popShareQueueNum": share, "brokers": targets}
    done(f"set consume mode to {', '.join(targets)} success.", value, json=json)


@app.command("cloneGroupOffset", no_args_is_help=True)
def clone_group_offset(
    source: Annotated[str, typer.Option("-s", "--srcGroup", help="The group whose offsets are copied.")],
    target: Annotated[str, typer.Option("-d", "--destGroup", help="The group that gets them.")],
    topic: options.Topic,
    offline: Annotated[
        str, typer.Option("-o", "--offline", help="true: whatever the source's members subscribe to.")
    ] = "false",
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Set a group's offsets in a topic to those of another group, at all brokers of the topic."""
    from libramq.cli.admin.queries import truth_of
    from libramq.cli.admin.session import addresses
    from libramq.rpc import admin_calls

    call = admin_calls.clone_offsets(source, target, topic, offline=truth_of("-o", offline))
    with options.session(namesrv) as session:
        brokers = addresses(session.route(topic).broker_datas)
        session.ask_each(brokers, call)
    text = f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
    value = {"srcGroup": source, "destGroup": target, "topic": topic, "brokers": brokers}
    done(text, value, json=json)


@app.command("skipAccumulatedMessage", no_args_is_help=True)
def skip_accumulated_message(
    group: Annotated[str, typer.Option("-g", "--group", help="The consumer group.")],
    topic: options.Topic,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Move a group's offsets in a topic to the end: what it has not consumed yet is skipped."""
    from libramq.cli.admin.queries import reset_offsets

    with options.session(namesrv) as session:
        rows = reset_offsets(session, group, topic, timestamp_ms=-1, force=True, broker=None)
    show_rows(rows, {"broker": "broker", "queueId": "queue", "offset": "offset"}, json=json)


@app.command("consumerStatus", no_args_is_help=True)
def consumer_status(
    group: options.Group,
    client_id: Annotated[
        str | None, typer.Option("-i", "--clientId", help="Only this member, queue by queue.")
    ] = None,
    broker: Annotated[
        str | None, typer.Option("-b", "--brokerAddr", help="Only members of this broker, host:port.")
    ] = None,
    threads: Annotated[
        bool, typer.Option("-s", "--jstack", help="With -i: also what its threads do.")
    ] = False,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show the settings, subscriptions and queues of a group's members, as they report them."""
    from libramq.cli.admin.queries import brokers_of_group
    from libramq.rpc import admin_calls

    found: dict[str, Any] = {}
    with options.session(namesrv) as session:
        for address in [broker] if broker else brokers_of_group(session, group):
            try:
                connection = session.ask(address, admin_calls.consumer_connection(group))
            except BrokerError:
                continue  # Nobody is connected to this broker.
            for member in sorted({each.client_id for each in connection.connection_set} - set(found)):
                if client_id in (None, member):
                    call = admin_calls.running_info(group, member, threads=threads)
                    found[member] = _running(session.ask(address, call))
    if not found:
        raise ConfigError(f"no such member of the group {group} is connected")
    if json:
        show(found, json=True)
        return
    for member, info in found.items():
        print(f"============{member}============")
        show(info["properties"], json=False)
        for queue, state in info["mqTable"].items():
            print(f"{queue}: {state}")
        if info["jstack"]:
            print(info["jstack"])


def _running(info: "ConsumerRunningInfo") -> dict[str, Any]:
    return {
        "properties": info.properties,
        "subscriptionSet": plain(info.subscription_set),
        "mqTable": {str(queue): plain(state) for queue, state in sorted(info.mq_table.items())},
        "jstack": info.jstack,
    }
