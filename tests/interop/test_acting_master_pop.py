"""Apache's Java push consumer in POP mode, while our acting slave redelivers what its master had popped."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from libramq.broker.files.delay_schedule import DelayAnswer
from libramq.formats.document import decode_body
from libramq.pop.passed_on import PassedOn
from tests.interop import wire
from tests.interop.apache import SMALL_STORE, ApacheBroker, wait_broker
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S
from tests.interop.test_acting_master import GET_ALL_DELAY_OFFSET, NAME, end_of_queue, start_pair
from tests.interop.test_pop import accepted, named, popper, wait_handled

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

JOURNAL, COUNT = "rmq_sys_wheel_timer", 10
#: Long enough for a member to take messages and be killed with its master, even on a slow machine.
INVISIBLE_MS = 40_000
GET_SUBSCRIPTIONGROUP_CONFIG = 352


def passed_on(address: str) -> PassedOn:
    """Return a broker's POP state; unknown if it does not listen yet."""
    try:
        body = wire.ask(address, GET_ALL_DELAY_OFFSET).body
    except ConnectionRefusedError:
        return PassedOn()
    return decode_body(body, DelayAnswer).passed_on or PassedOn()


def set_mode(cluster: Cluster, address: str, topic: str, group: str) -> None:
    cluster.admin("updateSubGroup", "-b", address, "-g", group)
    done = cluster.admin("setConsumeMode", "-b", address, "-t", topic, "-g", group, "-m", "POP", "-q", "-1")
    assert "success" in done, done


def start_elsewhere(stack: ExitStack, servers: LibraServers, root: Path, kind: str) -> str:
    """Start another master of the cluster, ours or Apache's; return its address."""
    if kind == "libra":
        servers.start("elsewhere")
        return f"127.0.0.1:{servers.ports['elsewhere']}"
    broker = ApacheBroker(root / "elsewhere", namesrv=servers.namesrv, name="elsewhere", settings=SMALL_STORE)
    stack.callback(broker.process.kill)
    wait_broker(broker.process, servers.namesrv, 2)
    return broker.address


def has_group(address: str, group: str) -> bool:
    return wire.ask(address, GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group}).header["code"] == 0


@pytest.mark.parametrize("kind", ["libra", "apache"])
def test_a_lost_masters_popped_messages_are_redelivered_once_by_another(tmp_path: Path, kind: str) -> None:
    with ExitStack() as stack:
        servers, slave = start_pair(stack, tmp_path, "libra")
        master = f"127.0.0.1:{servers.ports['master']}"
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("group")
        cluster.create_topic(topic, 1)
        set_mode(cluster, master, topic, group)
        elsewhere = start_elsewhere(stack, servers, tmp_path, kind)
        cluster.wait_until(lambda: has_group(slave, group), "the group at the slave", within_s=PATIENCE_S)
        first = popper(cluster, topic, group, hold="m 3,m 7", invisible=INVISIBLE_MS)
        for body in sorted(named("m", COUNT)):
            cluster.send(topic=topic, body=body)
        wait_handled(cluster, named("m", COUNT), first)
        cluster.wait_until(
            lambda: (
                passed_on(slave).place >= 0
                and end_of_queue(slave, JOURNAL) == end_of_queue(master, JOURNAL)
                and wire.has_topic(slave, topic)
            ),
            "the journal at the slave",
            within_s=PATIENCE_S,
        )
        Cluster("libra", servers.namesrv, tmp_path).create_topic(topic, 2)
        set_mode(cluster, elsewhere, topic, group)
        first.kill()
        servers.kill("master")
        second = popper(cluster, topic, group)
        wait_handled(cluster, {"m 3", "m 7"}, second)
        assert {each["reconsumeTimes"] for each in second.of("message")} == {1}
        retry = f"%RETRY%{group}_{topic}"
        assert end_of_queue(elsewhere, retry) == 2
        servers.start("master", brokerName=NAME)
        cluster.wait_until(
            lambda: 0 <= passed_on(master).place == end_of_queue(master, JOURNAL),
            "nothing in flight at the master",
            within_s=PATIENCE_S,
        )
        cluster.send(topic=topic, body="last")
        wait_handled(cluster, {"last"}, second)
        assert accepted(second) == {"m 3": 1, "m 7": 1, "last": 1}
        assert end_of_queue(master, retry) == 0
