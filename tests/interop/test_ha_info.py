"""NOTIFY_MIN_BROKER_ID_CHANGE and EXCHANGE_BROKER_HA_INFO between our servers and Apache's."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop import wire
from tests.interop.apache import SMALL_STORE, ApacheBroker, ApacheNameServer
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S
from tests.interop.test_acting_master import addresses, end_of_queue

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

NAME = "informed"
COUNT = 20
UPDATE_NAMESRV_CONFIG = 318
ACTING = {"enableSlaveActingMaster": "true", "slaveReadEnable": "true"}
#: With two replicas Apache's brokers register only once they have exchanged their HA addresses.
#: They know each other by the address from which a slave connects.
TWO = {**SMALL_STORE, **ACTING, "totalReplicas": 2, "inSyncReplicas": 1, "brokerIP2": "127.0.0.1"}
LOGGED = {"rocketmq.log.level": "info"}
OF_SLAVE = {"brokerRole": "SLAVE", "brokerId": 1}
#: A slave's log line.
APACHE_NOTIFIED = "min broker id changed"
OURS_NOTIFIED = "another lowest broker id"


def configure(namesrv: str) -> None:
    """Have a name server notify slaves, and put them in their master's place."""
    body = b"notifyMinBrokerIdChanged=true\nsupportActingMaster=true"
    changed = wire.ask(namesrv, UPDATE_NAMESRV_CONFIG, body=body)
    assert changed.header["code"] == 0, changed.header


def is_logged(directory: Path, text: str) -> bool:
    """Return whether a file of a broker's logs has a text."""
    return any(text in file.read_text(errors="replace") for file in directory.rglob("*.log"))


def start_apache(stack: ExitStack, home: Path, namesrv: str, **settings: object) -> ApacheBroker:
    broker = ApacheBroker(home, namesrv=namesrv, name=NAME, settings={**TWO, **settings}, properties=LOGGED)
    stack.callback(broker.process.kill)
    broker.process.wait_line("boot success", within_s=PATIENCE_S)
    return broker


def members(namesrv: str) -> dict[str, str]:
    """Return the addresses of the brokers of the name, by id."""
    found: dict[str, str] = wire.brokers_of(namesrv).get(NAME, {}).get("brokerAddrs", {})
    return found


def test_our_name_server_notifies_apaches_slave(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = LibraServers(tmp_path)
        stack.callback(servers.stop)
        configure(servers.namesrv)
        master = start_apache(stack, tmp_path / "master", servers.namesrv, totalReplicas=1)
        slave = start_apache(stack, tmp_path / "slave", servers.namesrv, totalReplicas=1, **OF_SLAVE)
        both = {"0": master.address, "1": slave.address}
        Cluster.wait_until(lambda: members(servers.namesrv) == both, "both", within_s=PATIENCE_S)
        master.process.kill()
        Cluster.wait_until(
            lambda: is_logged(tmp_path / "slave", APACHE_NOTIFIED),
            "the notification at Apache's slave",
            within_s=PATIENCE_S,
        )


def test_apaches_name_server_notifies_our_slave(tmp_path: Path) -> None:
    with ExitStack() as stack:
        name_server = ApacheNameServer(tmp_path / "namesrv")
        stack.callback(name_server.stop)
        name_server.wait_ready()
        configure(name_server.address)
        servers = LibraServers(tmp_path, settings=ACTING)
        stack.callback(servers.stop)
        at_apache = {"brokerName": NAME, "namesrvAddr": name_server.address}
        servers.namesrv = name_server.address
        servers.start("master", **at_apache)
        servers.start_slave("slave", NAME, **at_apache)
        both = {str(id_): f"127.0.0.1:{servers.ports[of]}" for id_, of in enumerate(("master", "slave"))}
        Cluster.wait_until(lambda: members(name_server.address) == both, "both", within_s=PATIENCE_S)
        servers.kill("master")
        log = servers.process("slave").error_log
        Cluster.wait_until(
            lambda: OURS_NOTIFIED in log.read_text(), "the notification at our slave", within_s=PATIENCE_S
        )


def test_apaches_master_of_two_replicas_returns_to_our_slave(tmp_path: Path) -> None:
    """It informs the slave of its HA address, waits until that copies it, and only then registers."""
    with ExitStack() as stack:
        servers = LibraServers(tmp_path, settings=ACTING)
        stack.callback(servers.stop)
        configure(servers.namesrv)
        master = start_apache(stack, tmp_path / "master", servers.namesrv)
        Cluster.wait_until(
            lambda: members(servers.namesrv) == {"0": master.address}, "the master", within_s=PATIENCE_S
        )
        cluster = Cluster("apache", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        servers.start_slave("slave", NAME)
        slave = f"127.0.0.1:{servers.ports['slave']}"
        both = {"0": master.address, "1": slave}
        Cluster.wait_until(lambda: members(servers.namesrv) == both, "both", within_s=PATIENCE_S)
        topic = cluster.fresh_name("Informed")
        cluster.create_topic(topic, 1)
        for number in range(COUNT):
            cluster.send(topic=topic, body=str(number))
        Cluster.wait_until(
            lambda: end_of_queue(slave, topic) == COUNT, "everything at the slave", within_s=PATIENCE_S
        )
        Cluster.wait_until(  # With Apache's topic of members, by which its master finds the slave.
            lambda: addresses(cluster, topic) == ({"0": master.address, "1": slave}, 6),
            "both in the route",
            within_s=PATIENCE_S,
        )
        master.process.kill()
        Cluster.wait_until(
            lambda: addresses(cluster, topic) == ({"0": slave}, 4), "the slave alone", within_s=PATIENCE_S
        )
        again = start_apache(stack, tmp_path / "master", servers.namesrv)  # At another address.
        Cluster.wait_until(
            lambda: members(servers.namesrv) == {"0": again.address, "1": slave},
            "the master back",
            within_s=PATIENCE_S,
        )
        assert is_logged(tmp_path / "master", "master preOnline complete")
        cluster.wait_until(
            lambda: addresses(cluster, topic) == ({"0": again.address, "1": slave}, 6),
            "the master's queues",
            within_s=PATIENCE_S,
        )
        cluster.stop_programs(keep_producers=False)  # The producer knows the former address.
        cluster.send(topic=topic, body="once more")
        Cluster.wait_until(
            lambda: end_of_queue(slave, topic) == COUNT + 1, "one more at the slave", within_s=PATIENCE_S
        )


def test_apaches_slave_of_two_replicas_copies_our_master(tmp_path: Path) -> None:
    """It asks the master for its HA address before it registers, if the name server names the members."""
    with ExitStack() as stack:
        servers = LibraServers(tmp_path, settings=ACTING)
        stack.callback(servers.stop)
        configure(servers.namesrv)
        servers.start("master", brokerName=NAME)
        master = f"127.0.0.1:{servers.ports['master']}"
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic = cluster.fresh_name("Informed")
        cluster.create_topic(topic, 1)
        for number in range(COUNT):
            cluster.send(topic=topic, body=str(number))
        slave = start_apache(stack, tmp_path / "slave", servers.namesrv, **OF_SLAVE)
        Cluster.wait_until(
            lambda: members(servers.namesrv) == {"0": master, "1": slave.address},
            "both",
            within_s=PATIENCE_S,
        )
        assert is_logged(tmp_path / "slave", "slave preOnline complete")
        Cluster.wait_until(
            lambda: end_of_queue(slave.address, topic) == COUNT, "everything", within_s=PATIENCE_S
        )
