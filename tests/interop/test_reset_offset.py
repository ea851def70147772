"""Resets of groups for our members and Java's, connected or gone, at Apache's broker and ours.

Those of groups that pop have the scenarios of Apache's OffsetResetForPopIT.
"""

from typing import Any

import pytest

from libramq.client import ConsumeFrom
from libramq.message.queue import MessageQueue
from libramq.sync import Admin, PushConsumer
from tests.interop import wire
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S
from tests.interop.test_ordered_pop import Popper, bodies
from tests.interop.test_our_client import Inbox
from tests.interop.test_pop import popper, pops

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

COUNT = 6
QUEUES = 2


def filled(cluster: Cluster) -> tuple[str, str]:
    """Return a new topic with messages, and a new group."""
    topic, group = cluster.fresh_name("Reset"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    for i in range(COUNT):
        cluster.send(topic=topic, body=str(i))
    cluster.wait_stored(topic, COUNT)
    cluster.begin_offsets(group, topic)
    return topic, group


def member(cluster: Cluster, group: str, topic: str, inbox: Inbox) -> PushConsumer:
    consumer = PushConsumer(
        group=group, namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, persist_ms=100
    )
    consumer.subscribe(topic, "*", inbox)
    return consumer


def is_behind(cluster: Cluster, group: str, topic: str, count: int) -> bool:
    try:
        printed = cluster.admin("consumerProgress", "-g", group)
    except AssertionError:  # Apache's broker does not know what the group reads before its first commit.
        return False
    rows = [line.split() for line in printed.splitlines()]
    of_topic = [row for row in rows if row[:1] == [topic]]
    return len(of_topic) == QUEUES and sum(int(row[3]) - int(row[4]) for row in of_topic) == count


def reset(cluster: Cluster, group: str, topic: str, timestamp: str = "0") -> list[tuple[str, int]]:
    """Reset a group with mqadmin; return the queues and offsets that it prints."""
    printed = cluster.admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", timestamp)
    rows = [line.split() for line in printed.splitlines()]
    return sorted((row[1], int(row[2])) for row in rows if row[:1] == [cluster.broker_name])


def test_mqadmin_resets_a_group_to_a_time(cluster: Cluster) -> None:
    """The times are before the first message and after the last one."""
    group, topic = cluster.fresh_name("group"), cluster.fresh_name("ByTime")
    cluster.create_topic(topic, 1)
    for number in range(3):
        cluster.send(topic=topic, body=str(number))
    consumer = cluster.consumer(group, topic, tags="*")
    consumer.wait_count(3, "message")
    consumer.finish()
    cluster.wait_committed(group, topic, 3)
    assert reset(cluster, group, topic) == [("0", 0)]
    assert reset(cluster, group, topic, "now") == [("0", 3)]


def test_mqadmin_moves_our_members(cluster: Cluster) -> None:
    """Our coordinator does it; at Apache's broker the clients themselves have to."""
    topic, group = filled(cluster)
    inbox = Inbox()
    with member(cluster, group, topic, inbox):
        inbox.wait_count(COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
        assert reset(cluster, group, topic) == [("0", 0), ("1", 0)]
        inbox.wait_count(2 * COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    assert len(inbox.messages) == 2 * COUNT
    assert len(inbox.bodies()) == COUNT


def test_mqadmin_resets_a_single_queue_of_our_members(cluster: Cluster) -> None:
    """With -b, -q and -o mqadmin commits and resets that queue; at Apache's broker pulls apply the reset."""
    topic, group = filled(cluster)
    inbox = Inbox()
    with member(cluster, group, topic, inbox):
        inbox.wait_count(COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
        single = ("-b", cluster.broker_address, "-q", "1", "-o", "1")
        printed = cluster.admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", *single)
        assert "reset consumer offset to 1" in printed
        inbox.wait_count(COUNT + COUNT // QUEUES - 1)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    assert len(inbox.messages) == COUNT + COUNT // QUEUES - 1


def test_our_admin_resets_a_single_queue_of_our_members(cluster: Cluster) -> None:
    """One request is enough; at Apache's broker pulls apply the reset. The other queue is not changed."""
    topic, group = filled(cluster)
    inbox = Inbox()
    with member(cluster, group, topic, inbox):
        inbox.wait_count(COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
        with Admin(namesrv=cluster.namesrv) as admin:
            assert admin.reset_queue(group, MessageQueue(topic, cluster.broker_name, 1), 1) == 1
        inbox.wait_count(COUNT + COUNT // QUEUES - 1)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    assert len(inbox.messages) == COUNT + COUNT // QUEUES - 1


def test_a_group_deleted_by_our_admin_starts_over(cluster: Cluster) -> None:
    topic, group = filled(cluster)
    inbox = Inbox()
    with member(cluster, group, topic, inbox):
        inbox.wait_count(COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    with Admin(namesrv=cluster.namesrv) as admin:
        assert admin.delete_group(group, offsets=True) == [cluster.broker_address]
        assert f"%RETRY%{group}" not in admin.topics()
    again = Inbox()
    with member(cluster, group, topic, again):
        again.wait_count(COUNT)


def test_mqadmin_moves_a_group_of_ours_without_members(cluster: Cluster) -> None:
    topic, group = filled(cluster)
    first = Inbox()
    with member(cluster, group, topic, first):
        first.wait_count(COUNT)
        cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    cluster.admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert is_behind(cluster, group, topic, COUNT)
    again = Inbox()
    with member(cluster, group, topic, again):
        again.wait_count(COUNT)


@pytest.mark.parametrize("program", ["Consume", "LitePull"])
def test_mqadmin_moves_javas_members(cluster: Cluster, program: str) -> None:
    """Its push consumer and its lite pull consumer, which ignores the broker's notice."""
    topic, group = filled(cluster)
    consumer = cluster.start(program, {"group": group, "topic": topic, "tags": "*"})
    consumer.wait_count(COUNT, "message")
    cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)
    assert reset(cluster, group, topic) == [("0", 0), ("1", 0)]
    consumer.wait_count(2 * COUNT, "message", within_s=3 * PATIENCE_S)
    cluster.wait_until(lambda: is_behind(cluster, group, topic, 0), "commits", within_s=PATIENCE_S)


def test_mqadmin_moves_javas_members_that_pop(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Popped"), cluster.fresh_name("group")
    pops(cluster, topic, group)
    for number in range(COUNT):
        cluster.send(topic=topic, body=str(number))
    member = popper(cluster, topic, group)
    member.wait_count(COUNT, "message")
    cluster.wait_committed(group, topic, COUNT)
    cluster.admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    member.wait_count(2 * COUNT, "message", within_s=2 * PATIENCE_S)
    assert {each["body"] for each in member.of("message")[COUNT:]} == {str(number) for number in range(COUNT)}


class Popping(Popper):
    """A consumer of a topic with ten messages in queue 0, and the operator who resets its group."""

    def __init__(self, cluster: Cluster, *, in_order: bool) -> None:
        super().__init__(cluster)
        self.in_order = in_order
        self.send(0, *map(str, range(10)))
        cluster.wait_stored(self.topic, 10)

    def ask(self, **question: object) -> Any:
        return super().ask(order=self.in_order, **question)

    def reset(self, offset: int) -> None:
        fields = {"group": self.group, "topic": self.topic, "queueId": "0", "offset": str(offset)}
        more = {"timestamp": "-1", "isForce": "true"}
        answer = wire.ask(self.cluster.broker_address, wire.INVOKE_BROKER_TO_RESET_OFFSET, fields | more)
        assert answer.header["code"] == 0, answer.header

    def run(self, resets: dict[int, list[int]], count: int) -> list[int]:
        """Pop and acknowledge one by one; reset after this many. Return the first `count` messages."""
        seen: list[int] = []
        while len(seen) < count:
            (message,) = self.wait_pop(0, 1)
            seen.append(int(message["body"]))
            self.ack(message)
            for offset in resets.get(len(seen), ()):
                self.reset(offset)
        assert self.pop(0) == []
        return seen


@pytest.mark.parametrize("in_order", [False, True], ids=["any order", "in order"])
def test_popped_messages_are_popped_again_after_a_reset(cluster: Cluster, in_order: bool) -> None:
    """The first pop is in flight all the while, and its acknowledgements come late."""
    popping = Popping(cluster, in_order=in_order)
    before = popping.wait_pop(0, 10)
    popping.reset(4)
    again = popping.wait_pop(0, 6)
    assert bodies(again) == [str(number) for number in range(4, 10)]
    for message in before:
        popping.ack(message)
    assert popping.pop(0) == []
    for message in again:
        popping.ack(message)
    popping.send(0, "last")
    assert bodies(popping.wait_pop(0, 1)) == ["last"]


@pytest.mark.parametrize("in_order", [False, True], ids=["any order", "in order"])
def test_a_reset_before_the_first_pop_skips_messages(cluster: Cluster, in_order: bool) -> None:
    popping = Popping(cluster, in_order=in_order)
    popping.reset(4)
    assert popping.run({}, 6) == list(range(4, 10))


@pytest.mark.parametrize("in_order", [False, True], ids=["any order", "in order"])
@pytest.mark.parametrize(
    ("after", "offsets"),
    [(5, [3]), (5, [3, 1]), (8, [5]), (1, [5]), (2, [5, 8])],
    ids=["back", "back twice", "back late", "forwards", "forwards twice"],
)
def test_a_group_is_reset_while_it_pops(
    cluster: Cluster, in_order: bool, after: int, offsets: list[int]
) -> None:
    popping = Popping(cluster, in_order=in_order)
    expected = [*range(after), *range(offsets[-1], 10)]
    assert popping.run({after: offsets}, len(expected)) == expected
