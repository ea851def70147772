"""The admin commands about topics, besides updateTopic and deleteTopic, under mqadmin's names."""

from pathlib import Path
from typing import Annotated

from typer import Option, Typer

from libramq.cli import options
from libramq.cli.admin.frame import Answer, Changed, Operator, command, rows
from libramq.cli.lazy import calls, document, operator, tables
from libramq.errors import ConfigError

app = Typer()


@command(app, "updateTopicPerm")
async def update_topic_perm(
    *,
    topic: options.Topic,
    perm: Annotated[int, Option("-p", "--perm", help="2: write, 4: read, 6: both.")],
    admin: Operator,
    target: Changed,
) -> Answer:
    """Change a topic's permission: 4 lets consumers finish reading it while producers avoid it."""
    operator.check_permission(perm)
    before = await admin.ask_targets(calls.topic_config(topic), target)
    for address, config in before.items():
        await admin.ask(address, calls.create_topic(config, perm=perm))
    found = [{"broker": address, "from": config.perm, "to": perm} for address, config in before.items()]
    return rows(found, "broker, from: permission before, to: now")


@command(app, "updateTopicList")
async def update_topic_list(*, file: options.ConfigFile, admin: Operator, target: Changed) -> Answer:
    """Create or change all topics of a JSON file, or none of them."""
    configs = document.decode_body(read_file(file), list[tables.TopicConfig])
    changed = await admin.ask_targets(calls.create_topics(configs), target)
    topics = [config.topic_name for config in configs]
    return Answer({"topics": topics}, f"submit batch of topic config to {', '.join(changed)} success.")


@command(app, "updateOrderConf")
async def update_order_conf(
    *,
    topic: options.Topic,
    method: Annotated[str, Option("-m", "--method", help="get, put or delete.")],
    value: Annotated[
        str | None, Option("-v", "--orderConf", help="For put: broker:queues;broker:queues.")
    ] = None,
    admin: Operator,
) -> Answer:
    """Show or change the fixed brokers and queues of an ordered topic, whichever brokers are up."""
    if method == "put":
        if not value:
            raise ConfigError("put needs -v, as in broker-a:4;broker-b:4")
        what = "update"
        await admin.ask_name_servers(calls.put_value(operator.ORDER, topic, _checked(value)))
    elif method == "get":
        what, value = "get", await admin.ask_name_server(calls.get_value(operator.ORDER, topic))
    elif method == "delete":
        what, value = "delete", None
        await admin.ask_name_servers(calls.delete_value(operator.ORDER, topic))
    else:
        raise ConfigError(f"{method!r} is not a method; use get, put or delete")
    text = f"{what} orderConf success. topic=[{topic}]" + (f", orderConf=[{value}]" if value else "")
    return Answer({"topic": topic, "orderConf": value}, text)


def _checked(text: str) -> str:
    """Return a valid order configuration; ConfigError names a part that clients could not parse."""
    for part in text.split(";"):
        broker, _, count = part.rpartition(":")
        if not broker or not (count.isascii() and count.isdigit()) or int(count) < 1:
            raise ConfigError(f"{part!r} in the order configuration is not BROKER:QUEUES")
    return text


@command(app, "topicClusterList")
async def topic_cluster_list(*, topic: options.Topic, admin: Operator) -> Answer:
    """List the clusters that have a topic."""
    clusters = sorted({broker.cluster for broker in (await admin.route(topic)).broker_datas})
    return Answer(clusters, *clusters)


@command(app, "allocateMQ")
async def allocate_mq(
    *,
    topic: options.Topic,
    members: Annotated[str, Option("-i", "--ipList", help="Members, separated by commas.")],
    admin: Operator,
) -> Answer:
    """Show how the strategy `averagely` would divide a topic's queues among members."""
    from libramq.balance.topic_rules import averagely
    from libramq.client.routing.publish_info import subscribe_queues

    names = [name.strip() for name in members.split(",") if name.strip()]
    queues = sorted(subscribe_queues(topic, await admin.route(topic)))
    shares = {
        name: [f"{queue.broker_name}:{queue.queue_id}" for queue in averagely(name, queues, names)]
        for name in names
    }
    return Answer(shares, {name: ", ".join(share) for name, share in shares.items()})


def read_file(path: Path) -> bytes:
    """Return a file's content; raises ConfigError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
