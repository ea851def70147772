"""The admin commands about consumer groups and their members, under mqadmin's names."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option, Typer

from libramq.cli import options
from libramq.cli.admin.frame import Answer, Changed, Operator, command, plain, rows, sections
from libramq.cli.admin.topics import read_file
from libramq.cli.lazy import calls, document, names, operator, tables
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libramq.message.queue import MessageQueue

app = Typer()


def _switch(short: str, name: str, help_: str) -> Any:
    """Return an option that is true, false or unset."""
    parser = partial(options.truth_of, short)
    return Option(
        short, f"--{name}", help=f"{help_} true or false.", show_default=False, parser=parser, metavar="<str>"
    )


@command(app, "updateSubGroup")
async def update_sub_group(
    *,
    group: options.Group,
    admin: Operator,
    target: Changed,
    enable: Annotated[str | None, _switch("-s", "consumeEnable", "It may consume:")] = None,
    from_min: Annotated[
        str | None, _switch("-m", "consumeFromMinEnable", "It may begin at the oldest message:")
    ] = None,
    broadcast: Annotated[str | None, _switch("-d", "consumeBroadcastEnable", "It may broadcast:")] = None,
    orderly: Annotated[str | None, _switch("-o", "consumeMessageOrderly", "It consumes in order:")] = None,
    notify: Annotated[
        str | None, _switch("-a", "notifyConsumerIdsChanged", "Notify members when others come or go:")
    ] = None,
    retry_queues: Annotated[
        int | None, Option("-q", "--retryQueueNums", min=0, help="Queues of its retry topic.")
    ] = None,
    retry_times: Annotated[
        int | None, Option("-r", "--retryMaxTimes", min=-1, help="Attempts before a dead letter.")
    ] = None,
    broker_id: Annotated[
        int | None, Option("-i", "--brokerId", min=0, help="The broker id to read from.")
    ] = None,
    slow_id: Annotated[
        int | None,
        Option(
            "-w", "--whichBrokerWhenConsumeSlowly", min=0, help="The broker id to read from if it is slow."
        ),
    ] = None,
) -> Answer:
    """Create a consumer group, or change the named settings; mqadmin resets the others."""
    import msgspec

    names.validate_group(group)
    named: dict[str, Any] = {
        "consume_enable": enable,
        "consume_from_min_enable": from_min,
        "consume_broadcast_enable": broadcast,
        "consume_message_orderly": orderly,
        "notify_consumer_ids_changed_enable": notify,
        "retry_queue_nums": retry_queues,
        "retry_max_times": retry_times,
        "broker_id": broker_id,
        "which_broker_when_consume_slowly": slow_id,
    }
    changes = {name: value for name, value in named.items() if value is not None}
    brokers = await admin.targets(target)
    changed = []
    for address in brokers:
        known = (await admin.ask(address, calls.ALL_GROUP_CONFIGS)).get(group)
        config = msgspec.structs.replace(known or tables.SubscriptionGroupConfig(group_name=group), **changes)
        await admin.ask(address, calls.create_group(config))
        changed.append(plain(config))
    value = {"group": group, "brokers": brokers, **(changed[0] if changed else {})}
    return Answer(value, *(f"create subscription group to {address} success." for address in brokers))


@command(app, "updateSubGroupList")
async def update_sub_group_list(*, file: options.ConfigFile, admin: Operator, target: Changed) -> Answer:
    """Create or change all consumer groups of a JSON file, or none of them."""
    configs = document.decode_body(read_file(file), list[tables.SubscriptionGroupConfig])
    changed = await admin.ask_targets(calls.create_groups(configs), target)
    groups = [config.group_name for config in configs]
    return Answer({"groups": groups}, f"submit batch of group config to {', '.join(changed)} success.")


@command(app, "getConsumerConfig")
async def get_consumer_config(*, group: options.Group, admin: Operator) -> Answer:
    """Show a consumer group's configuration at each broker that has one."""
    brokers = operator.addresses((await admin.cluster_info()).broker_addr_table.values())
    tables = await admin.ask_each(brokers, calls.ALL_GROUP_CONFIGS)
    found = {address: plain(configs[group]) for address, configs in tables.items() if group in configs}
    if not found:
        raise ConfigError(f"no broker has a configuration of the group {group}")
    return sections(found)


@command(app, "setConsumeMode")
async def set_consume_mode(
    *,
    topic: Annotated[str, Option("-t", "--topicName", help="The topic.")],
    group: options.Group,
    mode: Annotated[str, Option("-m", "--mode", help="PULL or POP.")],
    share: Annotated[
        int, Option("-q", "--popShareQueueNum", help="Number of further members that share a queue.")
    ] = 0,
    admin: Operator,
    target: Changed,
) -> Answer:
    """Make members with server-side assignment pull or pop a topic."""
    if mode not in ("PULL", "POP"):
        raise ConfigError(f"{mode!r} is not a mode; use PULL or POP")
    call = calls.set_consume_mode(topic, group, mode, share)
    brokers = list(await admin.ask_targets(call, target))
    value = {"topic": topic, "group": group, "mode": mode, "popShareQueueNum": share, "brokers": brokers}
    return Answer(value, f"set consume mode to {', '.join(brokers)} success.")


@command(app, "cloneGroupOffset")
async def clone_group_offset(
    *,
    source: Annotated[str, Option("-s", "--srcGroup", help="The group whose offsets are copied.")],
    destination: Annotated[str, Option("-d", "--destGroup", help="The group that gets them.")],
    topic: options.Topic,
    offline: Annotated[
        str, Option("-o", "--offline", help="true: ignore the subscriptions of the source's members.")
    ] = "false",
    admin: Operator,
) -> Answer:
    """Set a group's offsets in a topic to those of another group, at all brokers of the topic."""
    call = calls.clone_offsets(source, destination, topic, offline=options.truth_of("-o", offline))
    brokers = list(await admin.ask_each(await admin.brokers_of(topic), call))
    text = f"clone group offset success. srcGroup[{source}], destGroup=[{destination}], topic[{topic}]"
    return Answer({"srcGroup": source, "destGroup": destination, "topic": topic, "brokers": brokers}, text)


RESETS: Final = "broker, queueId: queue, offset"


@command(app, "skipAccumulatedMessage")
async def skip_accumulated_message(
    *,
    group: Annotated[str, Option("-g", "--group", help="The consumer group.")],
    topic: options.Topic,
    admin: Operator,
) -> Answer:
    """Move a group's offsets in a topic to the end; unconsumed messages are skipped."""
    return rows(reset_rows(await admin.reset(group, topic)), RESETS)


def reset_rows(found: "Mapping[MessageQueue, int]") -> list[dict[str, Any]]:
    """Return a group's offsets after a reset as rows, one per queue."""
    return [
        {"broker": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in sorted(found.items())
    ]


@command(app, "consumerStatus")
async def consumer_status(
    *,
    group: options.Group,
    client_id: Annotated[
        str | None, Option("-i", "--clientId", help="Only this member, queue by queue.")
    ] = None,
    broker: Annotated[
        str | None, Option("-b", "--brokerAddr", help="Only members of this broker, host:port.")
    ] = None,
    threads: Annotated[
        bool, Option("-s", "--jstack", help="With -i: also the stacks of its threads.")
    ] = False,
    admin: Operator,
) -> Answer:
    """Show the settings, subscriptions and queues of a group's members, as they report them."""
    brokers = [broker] if broker else await admin.brokers_of_group(group)
    found: dict[str, Any] = {}
    for address in brokers:
        for member in sorted({one.client_id for one in await admin.connected(address, group)} - set(found)):
            if client_id in (None, member):
                info = await admin.ask(address, calls.running_info(group, member, jstack_enable=threads))
                found[member] = {
                    "properties": info.properties,
                    "subscriptionSet": plain(info.subscription_set),
                    "mqTable": {str(queue): plain(state) for queue, state in sorted(info.mq_table.items())},
                    "jstack": info.jstack,
                }
    if not found:
        raise ConfigError(f"no such member of the group {group} is connected")
    shown: list[Any] = []
    for member, info in found.items():
        shown += [f"============{member}============", info["properties"]]
        shown += [f"{queue}: {state}" for queue, state in info["mqTable"].items()]
        shown += filter(None, [info["jstack"]])
    return Answer(found, *shown)
