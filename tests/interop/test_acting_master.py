"""A pair with enableSlaveActingMaster at our name server: the slave acts while its master is gone."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop import wire
from tests.interop.apache import SMALL_STORE, TIMERS_FLUSHED, ApacheBroker
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S, Events

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

NAME = "acting"
COUNT = 20
UPDATE_NAMESRV_CONFIG = 318
GET_ALL_DELAY_OFFSET = 45
GET_TIMER_CHECK_POINT = 60
#: Long enough for both brokers to start and copy everything.
TIMER_MS = 30_000


def addresses(cluster: Cluster, topic: str) -> tuple[dict[str, str], int] | None:
    """Return the addresses of the broker in a route, and the permission of its queues."""
    route = cluster.route(topic)
    if route is None:
        return None
    return route["brokerDatas"][0]["brokerAddrs"], route["queueDatas"][0]["perm"]


def end_of_queue(address: str, topic: str, queue_id: int = 0) -> int:
    header = wire.ask(address, wire.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)}).header
    return int(header["extFields"]["offset"]) if header["code"] == 0 else 0


def committed(address: str, group: str, topic: str) -> int:
    """Return a group's offset; 0 if it has none, or if the broker does not listen yet."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    try:
        header = wire.ask(address, wire.QUERY_CONSUMER_OFFSET, fields).header
    except ConnectionRefusedError:
        return 0
    return int(header["extFields"]["offset"]) if header["code"] == 0 else 0


def test_a_java_consumer_locks_and_commits_at_the_acting_slave(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = LibraServers(tmp_path)
        stack.callback(servers.stop)
        changed = wire.ask(servers.namesrv, UPDATE_NAMESRV_CONFIG, body=b"supportActingMaster=true")
        assert changed.header["code"] == 0, changed.header
        settings = {**SMALL_STORE, "enableSlaveActingMaster": "true"}
        master = ApacheBroker(tmp_path / "master", namesrv=servers.namesrv, name=NAME, settings=settings)
        stack.callback(master.process.kill)
        master.wait_ready()
        of_slave = {**settings, "brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}
        slave = ApacheBroker(tmp_path / "slave", namesrv=servers.namesrv, name=NAME, settings=of_slave)
        stack.callback(slave.process.kill)
        cluster = Cluster("apache", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic, group = cluster.fresh_name("Acting"), cluster.fresh_name("group")
        cluster.create_topic(topic, 1)
        for number in range(COUNT):
            cluster.send(topic=topic, body=str(number))
        slave.process.wait_line("boot success", within_s=PATIENCE_S)
        both = {"0": master.address, "1": slave.address}
        cluster.wait_until(
            lambda: end_of_queue(slave.address, topic) == COUNT and addresses(cluster, topic) == (both, 6),
            "everything at the slave",
            within_s=2 * PATIENCE_S,
        )
        cluster.wait_until(  # A slave copies topics from its master once a minute.
            lambda: wire.has_topic(slave.address, topic),
            "the topic at the slave",
            within_s=2 * PATIENCE_S,
        )
        master.process.kill()
        consume_at_slave(cluster, slave.address, topic, group)


def consume_at_slave(cluster: Cluster, slave: str, topic: str, group: str) -> None:
    """Consume in order, with locks and commits at the slave alone."""
    cluster.wait_until(
        lambda: addresses(cluster, topic) == ({"0": slave}, 4),
        "the slave in place of its master",
        within_s=PATIENCE_S,
    )
    consumer = cluster.consumer(group, topic, orderly=True)
    consumer.wait_until(
        lambda: [int(each["body"]) for each in consumer.of("message")][:COUNT] == list(range(COUNT)),
        "all messages in order",
        within_s=PATIENCE_S,
    )
    cluster.wait_until(
        lambda: committed(slave, group, topic) == COUNT,
        "the committed offset at the slave",
        within_s=PATIENCE_S,
    )


def test_a_java_consumer_locks_and_commits_at_our_acting_slave(tmp_path: Path) -> None:
    """When the master is back, it has the offsets committed there."""
    with ExitStack() as stack:
        servers = LibraServers(tmp_path, settings={"enableSlaveActingMaster": "true"})
        stack.callback(servers.stop)
        changed = wire.ask(servers.namesrv, UPDATE_NAMESRV_CONFIG, body=b"supportActingMaster=true")
        assert changed.header["code"] == 0, changed.header
        servers.start("master", brokerName=NAME)
        servers.start_slave("slave", NAME, slaveReadEnable="true")
        master, slave = (f"127.0.0.1:{servers.ports[name]}" for name in ("master", "slave"))
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic, group = cluster.fresh_name("Acting"), cluster.fresh_name("group")
        cluster.create_topic(topic, 1)
        for number in range(COUNT):
            cluster.send(topic=topic, body=str(number))
        cluster.wait_until(
            lambda: (
                addresses(cluster, topic) == ({"0": master, "1": slave}, 6)
                and end_of_queue(slave, topic) == COUNT
                and wire.has_topic(slave, topic)
            ),
            "everything at the slave",
            within_s=2 * PATIENCE_S,
        )
        servers.kill("master")
        consume_at_slave(cluster, slave, topic, group)
        servers.start("master", brokerName=NAME)
        cluster.wait_until(
            lambda: committed(master, group, topic) == COUNT,
            "the committed offset at the master",
            within_s=2 * PATIENCE_S,
        )


def start_pair(
    stack: ExitStack, root: Path, kind: str, of_apache: Mapping[str, object] = SMALL_STORE
) -> tuple[LibraServers, str]:
    """Start our master and an acting slave, ours or Apache's with these settings; also return its address."""
    acting = {"enableSlaveActingMaster": "true", "slaveReadEnable": "true"}
    servers = LibraServers(root, settings=acting)
    stack.callback(servers.stop)
    changed = wire.ask(servers.namesrv, UPDATE_NAMESRV_CONFIG, body=b"supportActingMaster=true")
    assert changed.header["code"] == 0, changed.header
    servers.start("master", brokerName=NAME)
    if kind == "libra":
        servers.start_slave("slave", NAME, enableRemoteEscape="true")
        return servers, f"127.0.0.1:{servers.ports['slave']}"
    of_slave = {"brokerRole": "SLAVE", "brokerId": 1, "enableRemoteEscape": "true"}
    settings = {**of_apache, **acting, **of_slave}
    apache = ApacheBroker(root / "slave", namesrv=servers.namesrv, name=NAME, settings=settings)
    stack.callback(apache.process.kill)
    apache.process.wait_line("boot success", within_s=PATIENCE_S)
    return servers, apache.address


@pytest.mark.parametrize(("kind", "level"), [("libra", 4), ("apache", 5)])
def test_java_clients_get_from_another_master_what_was_delayed_at_a_lost_one(
    tmp_path: Path, kind: str, level: int
) -> None:
    """The slave, ours or Apache's, sends them there; our returning master continues after them."""
    with ExitStack() as stack:
        servers, slave = start_pair(stack, tmp_path, kind)
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic, group = cluster.fresh_name("Acting"), cluster.fresh_name("group")
        cluster.create_topic(topic, 1)
        for number in range(COUNT):
            cluster.send(topic=topic, body=str(number), delayLevel=level)
        servers.start("elsewhere")
        Cluster("libra", servers.namesrv, tmp_path).create_topic(topic, 2)
        consumer = cluster.consumer(group, topic)
        cluster.wait_until(
            lambda: end_of_queue(slave, "SCHEDULE_TOPIC_XXXX", level - 1) == COUNT,
            "everything at the slave",
            within_s=PATIENCE_S,
        )
        servers.kill("master")
        everything = [str(number) for number in range(COUNT)]
        consumer.wait_until(
            lambda: sorted(received(consumer), key=int) == everything,
            "every message",
            within_s=2 * PATIENCE_S,
        )
        servers.start("master", brokerName=NAME)
        master = f"127.0.0.1:{servers.ports['master']}"
        cluster.wait_until(
            lambda: f":{COUNT}" in delay_offsets(master),
            "the slave's offset of the level at the master",
            within_s=PATIENCE_S,
        )
        cluster.send(topic=topic, body="100", delayLevel=1)
        consumer.wait_until(lambda: "100" in received(consumer), "one more", within_s=PATIENCE_S)
        assert sorted(received(consumer), key=int) == [*everything, "100"]


@pytest.mark.parametrize("kind", ["libra", "apache"])
def test_java_clients_get_timer_messages_of_a_lost_master_from_another(tmp_path: Path, kind: str) -> None:
    """The slave sends them there, and our returning master leaves them out."""
    with ExitStack() as stack:
        servers, slave = start_pair(stack, tmp_path, kind, {**SMALL_STORE, **TIMERS_FLUSHED})
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic, group = cluster.fresh_name("Acting"), cluster.fresh_name("group")
        cluster.create_topic(topic, 1)
        deliver_ms = int(time.time() * 1000) + TIMER_MS
        for number in range(COUNT):
            cluster.send(topic=topic, body=str(number), deliverAt=deliver_ms)
        servers.start("elsewhere")
        Cluster("libra", servers.namesrv, tmp_path).create_topic(topic, 2)
        consumer = cluster.consumer(group, topic)
        cluster.wait_until(
            lambda: end_of_queue(slave, "rmq_sys_wheel_timer") == COUNT,
            "everything at the slave",
            within_s=PATIENCE_S,
        )
        servers.kill("master")
        assert received(consumer) == []
        everything = [str(number) for number in range(COUNT)]
        consumer.wait_until(
            lambda: set(received(consumer)) == set(everything),
            "every message",
            within_s=2 * PATIENCE_S,
        )
        # Apache's slave records once a second how far it has sent them.
        cluster.wait_until(
            lambda: timers_are_done(slave, deliver_ms), "the slave's timers", within_s=PATIENCE_S
        )
        # On a loaded machine a slave may send one again that was stored without an answer in time.
        came = sorted(received(consumer), key=int)
        servers.start("master", brokerName=NAME)
        master = f"127.0.0.1:{servers.ports['master']}"
        cluster.wait_until(
            lambda: timers_are_done(master, deliver_ms), "the master's timers", within_s=2 * PATIENCE_S
        )
        assert end_of_queue(master, topic) == 0
        assert sorted(received(consumer), key=int) == came


def timers_are_done(address: str, deliver_ms: int) -> bool:
    """Return whether a broker has collected all timer messages, and has none left up to a time."""
    try:
        checkpoint = wire.ask(address, GET_TIMER_CHECK_POINT).body
    except ConnectionRefusedError:
        return False
    read_ms, collected = int.from_bytes(checkpoint[:8]), int.from_bytes(checkpoint[24:32])
    return read_ms > deliver_ms and collected == COUNT


def delay_offsets(address: str) -> str:
    """Return the offsets of a broker's delay levels as JSON; nothing if it does not listen yet."""
    try:
        return wire.ask(address, GET_ALL_DELAY_OFFSET).body.decode()
    except ConnectionRefusedError:
        return ""


def received(consumer: Events) -> list[str]:
    return [event["body"] for event in consumer.of("message")]


def test_a_java_producer_ends_at_another_master_what_was_open_at_a_lost_one(tmp_path: Path) -> None:
    """Our slave passes the half message on; the returning master no longer checks it."""
    with ExitStack() as stack:
        acting = {"enableSlaveActingMaster": "true", "slaveReadEnable": "true"}
        checks = {"transactionTimeOut": 1_000, "transactionCheckInterval": 2_000}
        servers = LibraServers(tmp_path, settings={**acting, **checks})
        stack.callback(servers.stop)
        changed = wire.ask(servers.namesrv, UPDATE_NAMESRV_CONFIG, body=b"supportActingMaster=true")
        assert changed.header["code"] == 0, changed.header
        servers.start("master", brokerName=NAME, transactionCheckInterval=3_600_000)
        servers.start_slave("slave", NAME, enableRemoteEscape="true")
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic, group = cluster.fresh_name("Acting"), cluster.fresh_name("group")
        cluster.create_topic(topic, 1)
        producer = cluster.start("Transact", {"group": cluster.fresh_name("producers")})
        producer.wait_event("started")
        question = {"topic": topic, "body": "open", "local": "unknown", "check": "commit"}
        assert producer.ask("sent", question)["status"] == "SEND_OK"
        servers.start("elsewhere")
        Cluster("libra", servers.namesrv, tmp_path).create_topic(topic, 2)
        consumer = cluster.consumer(group, topic)
        slave = f"127.0.0.1:{servers.ports['slave']}"
        cluster.wait_until(
            lambda: end_of_queue(slave, "RMQ_SYS_TRANS_HALF_TOPIC") == 1 and wire.has_topic(slave, topic),
            "the half message at the slave",
            within_s=PATIENCE_S,
        )
        servers.kill("master")
        consumer.wait_until(lambda: received(consumer) == ["open"], "its commit", within_s=2 * PATIENCE_S)
        asked = len(producer.wait_count(1, "check"))
        servers.start("master", brokerName=NAME)
        cluster.send(topic=topic, body="last")
        consumer.wait_until(lambda: "last" in received(consumer), "one more", within_s=PATIENCE_S)
        master = f"127.0.0.1:{servers.ports['master']}"
        cluster.wait_until(
            lambda: committed(master, "CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC") == 1,
            "the slave's progress at the master",
            within_s=PATIENCE_S,
        )
        assert (received(consumer), len(producer.of("check"))) == (["open", "last"], asked)
