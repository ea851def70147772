"""A thread computes a large group's assignment; meanwhile the group continues, and changes count."""

import pytest

from libramq.codes import ResponseCode
from libramq.groups import limits
from libramq.groups.coordinator import event as ev
from libramq.groups.coordinator.coordinated_group import ANSWERED_AT_ONCE
from libramq.groups.coordinator.effect import Answer, Assign, Settled
from libramq.groups.coordinator.state import State
from tests.groups.coordinator.coordinated import GROUP, Surroundings, queues_of

TOPICS = 40
WORK_MS = 300


def large_group(members: int = 50) -> Surroundings:
    """Return a group whose members each subscribe to five topics of their own choice."""
    group = Surroundings([queue for topic in range(TOPICS) for queue in queues_of(f"T{topic}", 4)])
    for number in range(members):
        group.add(f"c{number}", topics=tuple(f"T{(number + each) % TOPICS}" for each in range(5)))
    return group


def owners(group: Surroundings) -> dict:
    return {queue: held.member for queue, held in group.view.owners.items()}


def check_all_are_owned(group: Surroundings) -> None:
    assert group.view.is_settled
    assert len(owners(group)) == TOPICS * 4
    for consumer in group.consumers.values():
        assert all(queue.topic in consumer.topics for queue in consumer.held)


def test_a_large_group_is_assigned_by_a_thread_as_in_a_turn(monkeypatch: pytest.MonkeyPatch):
    large = large_group()
    large.run(100)
    assert len(large.take(Assign)) == 1
    check_all_are_owned(large)
    (settled,) = large.take(Settled)
    assert settled.minimum == len(settled.moved) == TOPICS * 4
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_AT_ONCE_MAX", 10_000)
    small = large_group()
    small.run(100)
    assert small.take(Assign) == []
    assert owners(small) == owners(large)


def test_members_are_answered_some_at_a_time():
    """A thousand answers, with the queues opened for them, were one turn of 0.2 s."""
    group = large_group(members=100)
    group.work_ms = WORK_MS
    group.run(WORK_MS // 2)
    for consumer in group.consumers.values():
        consumer.is_silent = True
    group.now_ms += WORK_MS
    group.take(Answer)
    group.make()
    answered = [len(group.take(Answer))]
    while group.coordinator.next_due_ms <= group.now_ms:
        group.do(group.coordinator.tick(group.now_ms))
        answered.append(len(group.take(Answer)))
    assert max(answered) <= ANSWERED_AT_ONCE
    assert sum(answered) == 100
    for consumer in group.consumers.values():
        consumer.is_silent = False
    group.run(100)
    check_all_are_owned(group)
    assert sum(len(consumer.held) for consumer in group.consumers.values()) == TOPICS * 4


def test_polls_are_served_while_a_thread_assigns():
    group = large_group()
    group.work_ms = WORK_MS
    group.run(WORK_MS // 2)
    assert group.coordinator._groups[GROUP].state is State.ASSIGNING
    assert not group.view.is_settled
    assert len(group.works) == 1
    assert owners(group) == {}
    assert all(consumer.polls for consumer in group.consumers.values())
    group.run(WORK_MS)
    check_all_are_owned(group)


def test_what_changes_meanwhile_is_assigned_next():
    """Members leave and join, a topic grows and another is deleted; no member gets a wrong queue."""
    group = large_group()
    group.run(100)
    group.work_ms = WORK_MS
    group.leave(group.consumers["c0"])
    group.run(WORK_MS // 2)
    group.leave(group.consumers["c1"])
    group.kill(group.consumers["c2"])
    group.add("new", topics=("T0", "T1"))
    group.tell("T5", queues_of("T5", 8))
    group.tell("T6", [])
    group.run(10 * WORK_MS)
    assert group.consumers["new"].held
    check_all_are_owned(group)
    assert len([queue for queue in owners(group) if queue.topic == "T5"]) == 8


def test_a_group_that_changes_all_the_time_is_assigned_all_the_same():
    group = large_group()
    group.work_ms = WORK_MS
    for number in range(20):
        group.add(f"late{number}", topics=("T0",))
        group.run(50)
    assert len(owners(group)) == TOPICS * 4


def test_a_result_that_nobody_awaits_is_ignored():
    group = large_group()
    group.work_ms = WORK_MS
    group.run(100)
    group.stock("java")
    group.run(WORK_MS)
    assert owners(group) == {}
    group.stock()
    group.run(10 * WORK_MS)
    check_all_are_owned(group)
    group.leave(group.consumers["c0"])
    group.run(100)
    assert group.works
    group.do(group.coordinator.removed(GROUP, may_return=False, now_ms=group.now_ms))
    group.run(WORK_MS)
    assert GROUP not in group.coordinator.names()


def test_where_the_work_fails_all_keep_what_they_have(caplog: pytest.LogCaptureFixture):
    group = large_group()
    group.run(100)
    before = owners(group)
    group.work_ms = WORK_MS
    gone = group.consumers["c0"].member
    group.leave(group.consumers["c0"])
    group.run(100)
    ((_, assign),) = group.works
    group.works.clear()
    failed = MemoryError("no more")
    group.happen(ev.Assigned(assign.work, failed))
    assert "queues could not be assigned" in caplog.text
    assert owners(group) == {queue: member for queue, member in before.items() if member != gone}
    group.work_ms = 0
    group.add("new", topics=("T0",))
    group.run(100)
    check_all_are_owned(group)


def test_an_operator_removes_a_member_while_a_thread_assigns():
    group = large_group()
    group.work_ms = WORK_MS
    group.run(100)
    assert group.remove("c7") == ResponseCode.SUCCESS
    group.consumers.pop("c7")
    group.run(10 * WORK_MS)
    check_all_are_owned(group)


def test_members_whose_sessions_were_extended_are_looked_at_in_time_however_many_they_are():
    """Timers of the old time fire; publications came to the last members after the new one (seed 2011092)."""
    group = Surroundings()
    for number in range(3 * ANSWERED_AT_ONCE):
        group.add(f"c{number}")
    group.run(100)
    group.restart()
    for consumer in group.consumers.values():
        consumer.is_silent = True
    group.now_ms += 5
    group.happen(ev.Stalled(2))
    group.now_ms = group.coordinator.next_due_ms
    while group.view.members:
        group.do(group.coordinator.tick(group.now_ms))
        assert group.coordinator.next_due_ms is None or group.coordinator.next_due_ms >= group.now_ms
        group.now_ms += 3
