"""Popping in order with Apache's client: a queue's messages go to one consumer at a time, at both brokers."""

from typing import Any

import pytest

from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Program

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

QUEUES = 2
#: Longer than a test takes even on a slow machine.
LONG_MS = 600_000
SHORT_MS = 1_000

Popped = list[dict[str, Any]]


class Popper:
    """One consumer: Apache's client pops when the test requests it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topic, self.group = cluster.fresh_name("Ordered"), cluster.fresh_name("group")
        cluster.create_topic(self.topic, QUEUES)
        cluster.admin("updateSubGroup", "-b", cluster.broker_address, "-g", self.group)
        place = {"broker": cluster.broker_address, "brokerName": cluster.broker_name}
        self.program: Program = cluster.shared("Pop", place)

    def send(self, queue_id: int, *bodies: str) -> None:
        for body in bodies:
            where = {"broker": self.cluster.broker_name, "queueId": queue_id}
            self.cluster.send(kind="queue", topic=self.topic, body=body, **where)

    def ask(self, **question: object) -> Any:
        event = self.program.ask("answer", {"group": self.group, "topic": self.topic, **question})
        assert "error" not in event, event
        return event["answer"]

    def pop(self, queue_id: int, *, count: int = 2, invisible_ms: int = LONG_MS, attempt: str = "") -> Popped:
        question = {
            "queueId": queue_id,
            "count": count,
            "invisible": invisible_ms,
            "attempt": attempt or None,
        }
        popped: Popped = self.ask(ask="pop", **question)
        return popped

    def wait_pop(self, queue_id: int, count: int, **how: Any) -> Popped:
        """Pop until messages arrive; there must be exactly this many."""
        popped: Popped = []

        def is_found() -> bool:
            popped[:] = self.pop(queue_id, count=count, **how)
            return bool(popped)

        self.cluster.wait_until(is_found, f"{count} messages of queue {queue_id}", within_s=PATIENCE_S)
        assert len(popped) == count, popped
        return popped

    def ack(self, message: dict[str, Any]) -> None:
        assert self.ask(ask="ack", handle=message["handle"]) == "OK"


def bodies(messages: Popped) -> list[str]:
    return [message["body"] for message in messages]


def test_a_queue_is_one_consumers_until_all_it_took_is_acknowledged(cluster: Cluster) -> None:
    popper = Popper(cluster)
    popper.send(0, "a", "b", "c")
    popper.send(1, "other queue")
    cluster.wait_stored(popper.topic, 4)
    first = popper.wait_pop(0, 2)
    assert [(each["body"], each["times"]) for each in first] == [("a", 0), ("b", 0)]
    assert popper.pop(0) == []
    assert bodies(popper.wait_pop(1, 1)) == ["other queue"]
    popper.ack(first[0])
    assert popper.pop(0) == []
    popper.ack(first[1])
    assert bodies(popper.wait_pop(0, 1)) == ["c"]


def test_messages_come_again_in_order_from_the_first_that_is_not_acknowledged(cluster: Cluster) -> None:
    popper = Popper(cluster)
    popper.send(0, "a", "b", "c")
    cluster.wait_stored(popper.topic, 3)
    first = popper.wait_pop(0, 3)
    popper.ack(first[0])
    for message in first[1:]:
        popper.ask(ask="change", handle=message["handle"], invisible=SHORT_MS)
    again = popper.wait_pop(0, 2)
    assert [(each["body"], each["times"]) for each in again] == [("b", 1), ("c", 1)]


def test_a_repeated_attempt_gets_the_same_messages(cluster: Cluster) -> None:
    popper = Popper(cluster)
    popper.send(0, "a", "b")
    cluster.wait_stored(popper.topic, 2)
    assert bodies(popper.wait_pop(0, 1, attempt="one")) == ["a"]
    assert popper.pop(0, attempt="two") == []
    assert bodies(popper.pop(0, count=1, attempt="one")) == ["a"]


def test_a_message_can_be_invisible_for_longer(cluster: Cluster) -> None:
    popper = Popper(cluster)
    popper.send(0, "a")
    cluster.wait_stored(popper.topic, 1)
    (message,) = popper.wait_pop(0, 1)
    changed = popper.ask(ask="change", handle=message["handle"], invisible=SHORT_MS)
    assert bodies(popper.wait_pop(0, 1)) == ["a"]
    assert changed != message["handle"]
