"""The admin commands that change topics, beside updateTopic and deleteTopic, under mqadmin's names."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from libramq.cli import options
from libramq.cli.admin.printing import done, show, show_rows
from libramq.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from libramq.cli.admin.session import AdminSession

app = typer.Typer()

_Perm = Annotated[int, typer.Option("-p", "--perm", help="2: write, 4: read, 6: both.")]
#: PermName: 2 write, 4 read, 6 both.
PERMISSIONS: Final = (2, 4, 6)
#: NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG: topic → "broker:queues;broker:queues".
_ORDER: Final = "ORDER_TOPIC_CONFIG"


@app.command("updateTopicPerm", no_args_is_help=True)
def update_topic_perm(
    topic: options.Topic,
    perm: _Perm,
    namesrv: options.Namesrv = None,
    broker: options.Broker = None,
    cluster: options.Cluster = None,
    json: options.Json = False,
) -> None:
    """Change who may use a topic: 4 lets consumers finish reading it while producers avoid it."""
    from libramq.rpc import admin_calls

    if perm not in PERMISSIONS:
        raise ConfigError(f"the permission {perm} is none; 2 is write, 4 read, 6 both")
    with options.session(namesrv) as session:
        targets = session.targets(broker=broker, cluster=cluster)
        before = {address: session.ask(address, admin_calls.topic_config(topic)) for address in targets}
        for address, config in before.items():
            session.ask(address, admin_calls.create_topic(config, perm=perm))
    rows = [{"broker": address, "from": config.perm, "to": perm} for address, config in before.items()]
    show_rows(rows, {"broker": "broker", "from": "permission before", "to": "now"}, json=json)


@app.command("updateTopicList", no_args_is_help=True)
def update_topic_list(
    file: options.ConfigFile,
    namesrv: options.Namesrv = None,
    broker: options.Broker = None,
    cluster: options.Cluster = None,
    json: options.Json = False,
) -> None:
    """Create or change all topics of a JSON file, or none of them."""
    from libramq.formats.document import decode_body
    from libramq.formats.tables import TopicConfig
    from libramq.rpc import admin_calls

    configs = decode_body(read_file(file), list[TopicConfig])
    with options.session(namesrv) as session:
        targets = session.targets(broker=broker, cluster=cluster)
        session.ask_each(targets, admin_calls.create_topics(configs))
    topics = [config.topic_name for config in configs]
    done(f"submit batch of topic config to {', '.join(targets)} success.", {"topics": topics}, json=json)


@app.command("updateOrderConf", no_args_is_help=True)
def update_order_conf(
    topic: options.Topic,
    method: Annotated[str, typer.Option("-m", "--method", help="get, put or delete.")],
    value: Annotated[
        str | None, typer.Option("-v", "--orderConf", help="For put: broker:queues;broker:queues.")
    ] = None,
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show or change the brokers and queues that an ordered topic keeps, whichever brokers are up."""
    from libramq.rpc import admin_calls

    if method not in ("get", "put", "delete"):
        raise ConfigError(f"the method {method!r} is none; use get, put or delete")
    if method == "put" and not value:
        raise ConfigError("put needs -v, as in broker-a:4;broker-b:4")
    with options.session(namesrv) as session:
        if method == "put":
            checked = check_order_conf(value or "")
            session.ask_each_name_server(admin_calls.put_value(_ORDER, topic, checked))
        elif method == "get":
            value = session.ask_name_server(admin_calls.get_value(_ORDER, topic))
        else:
            session.ask_each_name_server(admin_calls.delete_value(_ORDER, topic))
            value = None
    what = {"get": "get", "put": "update", "delete": "delete"}[method]
    text = f"{what} orderConf success. topic=[{topic}]" + (f", orderConf=[{value}]" if value else "")
    done(text, {"topic": topic, "orderConf": value}, json=json)


def check_order_conf(text: str) -> str:
    """Return an order configuration; ConfigError names the part that clients could not read."""
    for part in text.split(";"):
        broker, _, count = part.rpartition(":")
        if not broker or not (count.isascii() and count.isdigit()) or int(count) < 1:
            raise ConfigError(f"{part!r} in the order configuration is not BROKER:QUEUES")
    return text


def put_order_conf(session: "AdminSession", topic: str, brokers: list[str], queues: int) -> str:
    """Add brokers to the order configuration of a topic, each with a number of queues; return the whole."""
    from libramq.rpc import admin_calls

    try:
        before = session.ask_name_server(admin_calls.get_value(_ORDER, topic))
    except BrokerError:
        before = ""  # There is none yet.
    parts = [part for part in before.split(";") if part and part.rpartition(":")[0] not in brokers]
    value = ";".join([*parts, *(f"{broker}:{queues}" for broker in brokers)])
    session.ask_each_name_server(admin_calls.put_value(_ORDER, topic, value))
    return value


@app.command("topicClusterList", no_args_is_help=True)
def topic_cluster_list(
    topic: options.Topic, namesrv: options.Namesrv = None, json: options.Json = False
) -> None:
    """List the clusters that have a topic."""
    from libramq.cli import output

    with options.session(namesrv) as session:
        clusters = sorted({broker.cluster for broker in session.route(topic).broker_datas})
    if json:
        output.print_json(clusters)
    else:
        print("\n".join(clusters))


@app.command("allocateMQ", no_args_is_help=True)
def allocate_mq(
    topic: options.Topic,
    members: Annotated[str, typer.Option("-i", "--ipList", help="Members, separated by commas.")],
    namesrv: options.Namesrv = None,
    json: options.Json = False,
) -> None:
    """Show how the strategy averagely would divide a topic's queues among members."""
    from libramq.balance.averagely import averagely
    from libramq.client.routing.publish_info import subscribe_queues

    names = [name.strip() for name in members.split(",") if name.strip()]
    with options.session(namesrv) as session:
        queues = sorted(subscribe_queues(topic, session.route(topic)))
    shares: dict[str, Any] = {
        name: [f"{queue.broker_name}:{queue.queue_id}" for queue in averagely(name, queues, names)]
        for name in names
    }
    show(shares if json else {name: ", ".join(share) for name, share in shares.items()}, json=json)


def read_file(path: Path) -> bytes:
    """Return what a file holds; ConfigError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
