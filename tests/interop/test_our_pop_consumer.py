"""Our push consumer over POP at both brokers, beside Java's POP consumers, and while processes are killed."""

import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from libramq import Reject, Retry
from libramq.client.consuming.handling.handler_result import HandlerResult
from libramq.message import Message, MessageExt
from libramq.sync import Producer, PushConsumer
from tests.client.test_pop_consumer import Skewed
from tests.interop.cluster import SEND_TIMEOUT_MS, Cluster
from tests.interop.libra import LibraServers
from tests.interop.members import Members
from tests.interop.process import PATIENCE_S, Program
from tests.interop.test_pop import INVISIBLE_MS_MAX, accepted, named, popper, pops
from tests.interop.test_rebalance import send

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]


class Popping:
    """Our member in this process. `decide` sets its handler's result for a call's messages."""

    def __init__(self, namesrv: str, group: str, topic: str, decide=None, **options) -> None:
        self.messages: list[MessageExt] = []
        self._lock = threading.Lock()
        self._decide = decide
        self.consumer = PushConsumer(
            group=group, namesrv=namesrv, pop=True, consume_from="earliest", route_refresh_ms=500, **options
        )
        self.consumer.subscribe(topic, "*", self._handle)

    def _handle(self, messages: list[MessageExt]) -> HandlerResult:
        with self._lock:
            self.messages += messages
        return self._decide(messages) if self._decide else None

    def counts(self) -> Counter[str]:
        with self._lock:
            return Counter(message.body.decode() for message in self.messages)


def wait(what, condition) -> None:
    Cluster.wait_until(condition, what, within_s=PATIENCE_S)


def fill(cluster: Cluster, topic: str, *bodies: str) -> None:
    with Producer(namesrv=cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for body in bodies:
            producer.send(Message(topic, body.encode()))


def all_handled(ours: Popping, java: Program, sent: set[str]) -> bool:
    return ours.counts().keys() | accepted(java).keys() >= sent


def test_ours_and_javas_members_share_a_group(cluster: Cluster) -> None:
    """Each message is handled by one of them, and both get some."""
    topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("group")
    pops(cluster, topic, group)
    java = popper(cluster, topic, group, invisible=INVISIBLE_MS_MAX)
    ours = Popping(cluster.namesrv, group, topic, invisible_ms=INVISIBLE_MS_MAX)
    with ours.consumer:
        sent: set[str] = set()
        while not (ours.counts() and accepted(java)):
            send(cluster, topic, f"shared {len(sent)}", 100)
            sent |= named(f"shared {len(sent)}", 100)
            wait("handled", partial(all_handled, ours, java, sent))
    if cluster.kind == "libra":
        assert set((ours.counts() + accepted(java)).values()) == {1}


@pytest.mark.parametrize("by_ms", [1_500, -60_000])
def test_a_member_whose_clock_is_set_otherwise_handles_each_message_once(
    cluster: Cluster, by_ms: int
) -> None:
    """To a pop with a time long before its own, Apache's broker answers POLLING_TIMEOUT, forever."""
    topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("group")
    pops(cluster, topic, group)
    ours = Popping(cluster.namesrv, group, topic, clock=Skewed(by_ms))
    with ours.consumer:
        for body in ("first", "second"):
            fill(cluster, topic, body)
            wait("handled", lambda body=body: body in ours.counts())
    assert ours.counts() == {"first": 1, "second": 1}
    assert {message.reconsume_times for message in ours.messages} == {0}


def test_failed_messages_are_redelivered_and_rejected_ones_are_dead_letters(cluster: Cluster) -> None:
    """The handler names the failed messages of a batch; the retry's delay is the broker's invisible time."""
    topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("group")
    pops(cluster, topic, group)

    def decide(messages: list[MessageExt]) -> HandlerResult:
        bad = [each for each in messages if each.body == b"bad"]
        again = [each for each in messages if each.body == b"again" and not each.reconsume_times]
        return [Reject(messages=bad), Retry(messages=again, after=1)]

    fill(cluster, topic, "good", "bad", "again")
    ours = Popping(cluster.namesrv, group, topic, decide, batch_size=32)
    dead = Popping(cluster.namesrv, cluster.fresh_name("reader"), f"%DLQ%{group}")
    with ours.consumer, dead.consumer:
        wait("handled again", lambda: ours.counts()["again"] == 2)
        wait("dead", lambda: dead.counts() == {"bad": 1})
    assert ours.counts() == {"good": 1, "bad": 1, "again": 2}
    assert [each.reconsume_times for each in ours.messages if each.body == b"again"] == [0, 1]


def test_a_message_fails_until_it_is_a_dead_letter(cluster: Cluster) -> None:
    """At Apache's broker the client counts; Java's drops the message, ours makes a dead letter of it."""
    topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("group")
    pops(cluster, topic, group)
    fill(cluster, topic, "bad")
    ours = Popping(cluster.namesrv, group, topic, lambda _: Retry(after=0.5), max_reconsume_times=2)
    dead = Popping(cluster.namesrv, cluster.fresh_name("reader"), f"%DLQ%{group}")
    with ours.consumer, dead.consumer:
        wait("dead", lambda: dead.counts() == {"bad": 1})
    assert [each.reconsume_times for each in ours.messages] == [0, 1, 2]


def test_our_killed_members_messages_are_handled_by_another(cluster: Cluster) -> None:
    """The killed member's handler was running, and had the member extend the invisible time."""
    topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("group")
    pops(cluster, topic, group)
    members = Members(cluster, topic, group=group, pop=True, invisible_ms=3_000, work_ms=600_000)
    try:
        member = members.start()
        fill(cluster, topic, "held")
        member.wait_event("message")
        other = Popping(cluster.namesrv, group, topic)
        with other.consumer:
            member.kill()
            wait("handled by the other", lambda: other.counts() == {"held": 1})
        assert other.messages[0].reconsume_times == 1
    finally:
        members.stop()


def test_a_killed_broker_loses_nothing(tmp_path: Path) -> None:
    """It is killed while members handle their messages; all are handled, acknowledged ones once."""
    servers = LibraServers(tmp_path, "broker-a", settings={"flushDiskType": "SYNC_FLUSH"})
    try:
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        cluster.create_topic("Popped", 4)
        bodies = {f"m {number}" for number in range(200)}
        fill(cluster, "Popped", *bodies)
        running, go_on = threading.Event(), threading.Event()

        def decide(_: object) -> None:
            running.set()
            go_on.wait()

        ours = Popping(servers.namesrv, "group", "Popped", decide, invisible_ms=5_000, threads=4)
        with ours.consumer:
            running.wait(PATIENCE_S)
            servers.kill("broker-a")
            go_on.set()
            servers.start("broker-a")
            wait("all handled", lambda: ours.counts().keys() == bodies)
            fill(cluster, "Popped", "last")
            wait("the last handled", lambda: "last" in ours.counts())
    finally:
        servers.stop()
