"""Apache's Java push consumer in POP mode goes on at a slave of Apache's master, which is gone."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop import wire
from tests.interop.apache import SMALL_STORE, ApacheBroker
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S
from tests.interop.test_acting_master import NAME, UPDATE_NAMESRV_CONFIG, addresses, committed, end_of_queue
from tests.interop.test_acting_master_pop import has_group, set_mode
from tests.interop.test_pop import accepted, named, popper, wait_handled

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

COUNT, INVISIBLE_MS = 10, 10_000
ACTING = {"enableSlaveActingMaster": "true", "slaveReadEnable": "true"}


def knows_mode(store: Path, group: str) -> bool:
    """Return whether a slave has copied that a group pops."""
    file = store / "config" / "messageRequestMode.json"
    return file.exists() and group in file.read_text()


def test_a_java_consumer_pops_at_our_slave_what_apaches_master_had(tmp_path: Path) -> None:
    """Messages acknowledged there are not redelivered when the master is back."""
    with ExitStack() as stack:
        servers = LibraServers(tmp_path)
        stack.callback(servers.stop)
        changed = wire.ask(servers.namesrv, UPDATE_NAMESRV_CONFIG, body=b"supportActingMaster=true")
        assert changed.header["code"] == 0, changed.header
        settings = {**SMALL_STORE, **ACTING}
        master = ApacheBroker(tmp_path / "master", namesrv=servers.namesrv, name=NAME, settings=settings)
        stack.callback(master.process.kill)
        master.wait_ready()
        cluster = Cluster("apache", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("group")
        cluster.create_topic(topic, 1)
        set_mode(cluster, master.address, topic, group)
        log_file = {"mappedFileSizeCommitLog": SMALL_STORE["mappedFileSizeCommitLog"]}
        servers.start_slave("slave", NAME, **ACTING, **log_file)
        slave = f"127.0.0.1:{servers.ports['slave']}"
        for body in sorted(named("m", COUNT)):
            cluster.send(topic=topic, body=body)
        cluster.wait_until(
            lambda: (
                addresses(cluster, topic) == ({"0": master.address, "1": slave}, 6)
                and end_of_queue(slave, topic) == COUNT
                and wire.has_topic(slave, topic)
                and has_group(slave, group)
                and knows_mode(tmp_path / "slave" / "store", group)
            ),
            "everything at the slave",
            within_s=2 * PATIENCE_S,
        )
        master.process.kill()
        cluster.wait_until(
            lambda: addresses(cluster, topic) == ({"0": slave}, 4),
            "the slave in place of its master",
            within_s=PATIENCE_S,
        )
        # The last one, as the committed offset shows the acknowledgements of those before it only.
        held = f"m {COUNT - 1}"
        first = popper(cluster, topic, group, hold=held, invisible=INVISIBLE_MS)
        wait_handled(cluster, named("m", COUNT), first)
        cluster.wait_until(
            lambda: committed(slave, group, topic) == COUNT - 1,
            "the others' acknowledgements",
            within_s=PATIENCE_S,
        )
        first.kill()
        second = popper(cluster, topic, group, invisible=INVISIBLE_MS)
        wait_handled(cluster, {held}, second)
        cluster.wait_until(
            lambda: committed(slave, group, topic) == COUNT, "all done at the slave", within_s=PATIENCE_S
        )
        assert accepted(second) == {held: 1}
        # With one replica it would register, and have members pop there, before it has the slave's offsets.
        two = {**settings, "totalReplicas": 2, "brokerIP2": "127.0.0.1"}
        again = ApacheBroker(
            tmp_path / "master", namesrv=servers.namesrv, name=NAME, settings=two, port=master.port
        )
        stack.callback(again.process.kill)
        again.wait_ready()
        cluster.wait_until(
            lambda: committed(again.address, group, topic) == COUNT,
            "the committed offset at the master",
            within_s=2 * PATIENCE_S,
        )
        cluster.wait_until(
            lambda: addresses(cluster, topic) == ({"0": again.address, "1": slave}, 6),
            "the master's route",
            within_s=PATIENCE_S,
        )
        cluster.send(topic=topic, body="last")
        wait_handled(cluster, {"last"}, second)
        assert accepted(second).keys() == {held, "last"}
