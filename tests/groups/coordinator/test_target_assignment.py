"""Tests of target assignments."""

import pytest

from libramq.groups.coordinator import target_assignment as module
from libramq.groups.coordinator.state import MemberProfile
from libramq.groups.coordinator.target_assignment import BALANCED_STICKY, target_assignment
from libramq.message.queue import MessageQueue

QUEUES = [MessageQueue(topic, "broker-a", number) for topic in ("A", "B", "%RETRY%g") for number in range(3)]


def profile(member: str, *topics: str) -> MemberProfile:
    return MemberProfile(
        member=member,
        client_id=f"client-{member}",
        subscriptions=dict.fromkeys(topics, "*"),
        session_ms=9_000,
    )


@pytest.mark.parametrize("topics", [("A", "B"), ("A", "%RETRY%g"), ("B",), ("C",)])
def test_the_only_member_gets_every_queue_of_its_topics(topics, monkeypatch):
    """The strategy is not called, since there is nothing to balance; the result is the same."""
    only = [profile("m", *topics)]
    by_strategy = target_assignment("g", _Copy(BALANCED_STICKY), only, QUEUES, lambda _: QUEUES[:1])
    monkeypatch.setattr(module, "Group", None)
    assert target_assignment("g", BALANCED_STICKY, only, QUEUES, lambda _: QUEUES[:1]) == by_strategy
    assert by_strategy == {queue: "m" for queue in QUEUES if queue.topic in topics}


class _Copy:
    """A strategy with the same rule but another identity, so that it is called."""

    def __init__(self, strategy):
        self.assign = strategy.assign
