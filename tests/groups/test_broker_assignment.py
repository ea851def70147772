"""Members that query the broker for their queues: who is notified when, and when a queue changes hands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.groups.broker_assignment import (
    LARGE_GROUP,
    LARGE_GROUP_PAUSE_MS,
    REST_MS,
    BrokerAssignment,
)
from libramq.message.queue import MessageQueue


def queues_of(topic: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, "b", number) for number in range(count)]


class Group:
    """A group whose members query when they are notified."""

    def __init__(self, **topics: int) -> None:
        self.assigned: dict[str, dict[str, list[MessageQueue]]] = {}
        self.assignment = BrokerAssignment(lambda: self.assigned)
        self.queues = {topic: queues_of(topic, count) for topic, count in topics.items()}
        self.members: dict[str, frozenset[str]] = {}
        self.version = 0
        self.now_ms = 1_000
        self.holds: dict[str, dict[str, list[MessageQueue]]] = {}
        self.again: dict[str, int] = {}

    def update(self) -> None:
        self.version += 1
        everything = [queue for lot in self.queues.values() for queue in lot]
        work = self.assignment.work(self.version, self.members, everything)
        for gone in self.assignment.take(work, work.compute(), self.members, now_ms=self.now_ms):
            del self.assigned[gone]

    def join(self, *client_ids: str) -> None:
        for client_id in client_ids:
            self.members[client_id] = frozenset(self.queues)
            self.holds[client_id] = {}
        self.update()

    def leave(self, client_id: str) -> None:
        del self.members[client_id], self.holds[client_id]
        self.update()

    def ask(self, *client_ids: str) -> None:
        """Let each member query all topics, as Java's client does in one round."""
        for client_id in client_ids:
            for topic in self.queues:
                answer = self.assignment.ask(client_id, topic, now_ms=self.now_ms)
                assert answer is not None
                self.holds[client_id][topic] = list(answer.queues)
                self.assigned.setdefault(client_id, {})[topic] = list(answer.queues)
                self.again |= answer.ask_again

    def load(self, client_id: str) -> int:
        return sum(map(len, self.holds[client_id].values()))

    def held(self) -> list[MessageQueue]:
        return sorted(
            queue for topics in self.holds.values() for queues in topics.values() for queue in queues
        )

    def all_queues(self) -> list[MessageQueue]:
        return sorted(queue for queues in self.queues.values() for queue in queues)


def test_the_first_member_is_assigned_everything():
    group = Group(T=4)
    group.join("alice")
    group.ask("alice")
    assert group.holds["alice"]["T"] == queues_of("T", 4)
    assert group.again == {}


def test_a_newcomer_gets_a_queue_after_its_owners_query_and_a_rest():
    """bob's first query returns nothing; alice's releases two queues; bob is notified after their rest."""
    group = Group(T=4)
    group.join("alice")
    group.ask("alice")
    group.join("bob")
    group.ask("bob")
    assert group.load("bob") == 0
    assert group.again == {}
    group.ask("alice")
    assert group.load("alice") == 2
    assert group.again == {"bob": REST_MS}
    group.now_ms += REST_MS - 1
    group.again.clear()
    group.ask("bob")
    assert group.load("bob") == 0
    assert group.again == {"bob": 1}
    group.now_ms += 1
    group.ask("bob")
    assert group.load("bob") == 2
    assert group.held() == group.all_queues()


def test_queues_that_stay_are_in_every_answer():
    group = Group(T=6)
    group.join("alice", "bob")
    group.ask("alice", "bob")
    before = group.holds["alice"]["T"]
    group.join("carol")
    group.ask("alice", "bob", "carol")
    assert set(group.holds["alice"]["T"]) < set(before)
    assert len(group.holds["alice"]["T"]) == 2


def test_queues_of_a_departed_member_are_reassigned_after_a_rest():
    group = Group(T=4)
    group.join("alice", "bob")
    group.ask("alice", "bob")
    kept = group.holds["alice"]["T"]
    group.leave("bob")
    group.ask("alice")
    assert (group.holds["alice"]["T"], group.again) == (kept, {"alice": REST_MS})
    group.now_ms += REST_MS
    group.ask("alice")
    assert group.held() == group.all_queues()


def test_loads_are_even_across_topics_and_not_within_each():
    """With ten topics of one queue each, AVG would assign all of them to the first member."""
    group = Group(**{f"T{number}": 1 for number in range(10)})
    group.join("alice", "bob")
    group.ask("alice", "bob")
    assert (group.load("alice"), group.load("bob")) == (5, 5)


def test_a_member_gets_queues_of_its_own_topics_only():
    group = Group(T=2, U=2)
    group.members["alice"] = frozenset({"T", "U"})
    group.members["bob"] = frozenset({"U"})
    group.holds = {"alice": {}, "bob": {}}
    group.update()
    group.ask("alice", "bob")
    assert group.holds["bob"] == {"T": [], "U": queues_of("U", 2)}


def test_an_unknown_member_gets_no_answer():
    group = Group(T=2)
    group.join("alice")
    assert group.assignment.ask("mallory", "T", now_ms=0) is None


def test_a_target_is_computed_for_new_members_and_for_new_queues():
    group = Group(T=2)
    group.join("alice")
    current = group.assignment.is_current
    assert current(group.version, {"T": queues_of("T", 2)}, now_ms=0)
    assert not current(group.version + 1, {"T": queues_of("T", 2)}, now_ms=0)
    assert not current(group.version, {"T": queues_of("T", 3)}, now_ms=0)


def test_a_large_group_is_assigned_at_intervals():
    group = Group(T=2)
    group.join(*(f"c{number}" for number in range(LARGE_GROUP + 1)))
    current = group.assignment.is_current
    now_ms = group.now_ms + LARGE_GROUP_PAUSE_MS
    assert group.assignment.fresh_until_ms == now_ms
    assert current(group.version + 1, {"T": queues_of("T", 2)}, now_ms=now_ms - 1)
    assert not current(group.version + 1, {"T": queues_of("T", 2)}, now_ms=now_ms)


def test_queues_assigned_by_another_rule_are_kept_at_first():
    """The group was in client mode: bob has all queues by AVG, and keeps his half."""
    group = Group(T=4)
    group.assignment.give("bob", "T", group.queues["T"], now_ms=0)
    group.assigned["bob"] = {"T": group.queues["T"]}
    group.join("alice", "bob")
    group.ask("alice", "bob")
    assert group.load("alice") == 0
    assert group.load("bob") == 2


@given(st.lists(st.tuples(st.sampled_from("jlaat"), st.integers(0, 3)), max_size=40), st.integers(1, 6))
def test_no_queue_has_two_members_and_every_queue_gets_one(steps, count):
    """Joins, leaves, queries and time come in any order, with up to four members and two topics."""
    group = Group(T=count, U=2)
    for step, number in steps:
        who = f"c{number}"
        if step == "j" and who not in group.members:
            group.join(who)
        elif step == "l" and who in group.members:
            group.leave(who)
        elif step == "a" and who in group.members:
            group.ask(who)
        elif step == "t":
            group.now_ms += 60
        held = group.held()
        assert len(held) == len(set(held)), held
    if not group.members:
        return
    for _ in range(3):
        group.ask(*group.members)
        group.now_ms += REST_MS
    assert group.held() == group.all_queues()
    loads = [group.load(who) for who in group.members]
    assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("again", [1, 3])
def test_frequent_queries_change_nothing(again):
    group = Group(T=5)
    group.join("alice", "bob")
    for _ in range(again):
        group.ask("alice", "bob")
    assert (group.load("alice"), group.load("bob")) == (3, 2)
