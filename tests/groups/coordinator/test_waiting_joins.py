"""Joins that wait for their assignment. Members of 0.1.0 are answered at once, and poll for it."""

import pytest

from libramq.codes import ResponseCode
from libramq.groups.coordinator import event as ev
from libramq.groups.coordinator.balance import COLLECT_MS, JOINS_MS_MAX
from tests.groups.coordinator.coordinated import Answer, Consumer, Started, Surroundings, queues_of


def joining(group: Surroundings, client_id: str = "alice", **fields) -> Consumer:
    """Return a consumer whose join waits."""
    consumer = group.add(client_id, waits=True, **fields)
    assert consumer.member is None
    assert group.take(Answer) == []
    return consumer


def assigned(group: Surroundings, ms: int = COLLECT_MS) -> Answer:
    """Return the only answer within a time in which no member acts."""
    (answer,) = assigned_to_all(group, ms)
    return answer


def assigned_to_all(group: Surroundings, ms: int) -> list[Answer]:
    """Return the answers within a time in which no member acts."""
    group.now_ms += ms
    group.do(group.coordinator.tick(group.now_ms))
    return group.take(Answer)


def test_a_join_is_answered_with_its_assignment():
    """Its client id is admitted once, and one answer has both the member id and the queues."""
    group = Surroundings()
    alice = joining(group)
    answer = assigned(group)
    assert (answer.code, answer.member) == (ResponseCode.SUCCESS, alice.member)
    assert answer.assignment is not None
    assert answer.assignment.queues == dict.fromkeys(queues_of("T", 8), 1)


def test_the_first_member_is_assigned_its_queues_at_once_where_no_other_is_known_to_follow():
    """A second member's join starts a collection, as each change of a group with members does."""
    group = Surroundings()
    group.add("alice", waits=True, is_alone=True)
    (answer,) = group.take(Answer)
    assert answer.assignment.queues == dict.fromkeys(queues_of("T", 8), 1)
    assert len(group.take(Started)) == 1
    joining(group, "bob")


@pytest.mark.parametrize(
    "fields", [{"is_alone": False}, {"is_alone": True, "held": {queues_of("T", 1)[0]: 0}}], ids=str
)
def test_the_first_member_waits_for_others_that_are_known_or_may_return(fields):
    """A member with queues has lost its group together with the others, which will return as well."""
    group = Surroundings()
    alice = Consumer("alice", "peer of alice", waits=True, **fields)
    group.consumers["alice"] = alice
    group.join(alice, claims=True)
    assert group.take(Answer) == []
    assert len(assigned(group).assignment.queues) == 8


def test_the_first_member_waits_for_a_topic_whose_queues_are_unknown():
    """Its join is answered; it polls, and is assigned the queues once they are reported."""
    group = Surroundings()
    alice = group.add("alice", topics=("Unknown",), waits=True, is_alone=True)
    (answer,) = group.take(Answer)
    assert answer.assignment.queues == {}
    group.tell("Unknown", queues_of("Unknown", 2))
    group.run(COLLECT_MS)
    assert list(alice.held) == queues_of("Unknown", 2)


def test_a_join_that_changes_nothing_does_not_wait():
    """A member that returns with its queues is answered at once."""
    group = Surroundings()
    alice = group.add("alice", waits=True)
    group.run(100)
    group.effects.clear()
    group.join(alice, claims=True)
    (answer,) = group.take(Answer)
    assert answer.assignment.queues == alice.held


def test_joins_that_follow_each_other_are_collected_and_answered_together():
    """Any join may be followed by another when a thousand members start together."""
    group = Surroundings()
    joining(group)
    for name in ("bob", "carol", "dave"):
        group.now_ms += COLLECT_MS - 1
        group.do(group.coordinator.tick(group.now_ms))
        joining(group, name)
    group.now_ms += COLLECT_MS
    group.do(group.coordinator.tick(group.now_ms))
    assert [len(answer.assignment.queues) for answer in group.take(Answer)] == [2, 2, 2, 2]
    assert len(group.take(Started)) == 1


def test_joins_are_not_collected_for_ever():
    """The first member is assigned queues after half a second, however many follow."""
    group = Surroundings()
    joining(group)
    for number in range(JOINS_MS_MAX // 10 - 1):
        group.now_ms += 10
        group.do(group.coordinator.tick(group.now_ms))
        joining(group, f"follower-{number}")
    answers = [*assigned_to_all(group, 10), *assigned_to_all(group, 0)]  # Some at once, the others later.
    assert sum(len(answer.assignment.queues) for answer in answers) == 8


def test_only_joins_put_the_collection_off():
    """The queues of a member that has left are free, and their messages wait."""
    group = Surroundings()
    alice = group.add("alice")
    group.run(1_000)
    group.take(Started)
    group.add("bob", waits=True)
    group.now_ms += COLLECT_MS - 1
    group.leave(alice)
    group.run(1)
    assert {each.epoch for each in group.take(Started)} == {2}


def test_a_join_does_not_wait_for_a_topic_that_nobody_reports():
    """The queues may take a second; meanwhile the member polls, which renews its session."""
    group = Surroundings()
    joining(group, topics=("Unknown",))
    answer = assigned(group)
    assert (answer.code, answer.assignment.queues) == (ResponseCode.SUCCESS, {})


def test_a_join_waits_for_the_fences_and_is_answered_when_they_have_answered():
    """It is the first join of a group that other brokers may have coordinated."""
    group = Surroundings()
    group.must_gather = True
    joining(group)
    group.do(group.coordinator.happened(ev.FencesReported(()), "G", now_ms=group.now_ms))
    (answer,) = group.take(Answer)
    assert list(answer.assignment.queues) == queues_of("T", 8)


def test_a_join_does_not_wait_long_for_fences_that_do_not_answer():
    """Their broker may be away; the member polls meanwhile."""
    group = Surroundings()
    group.must_gather = True
    joining(group)
    answer = assigned(group, JOINS_MS_MAX)
    assert (answer.code, answer.assignment.queues) == (ResponseCode.SUCCESS, {})


def test_a_join_is_answered_when_stock_members_come():
    """The joining member then allocates for itself."""
    group = Surroundings()
    joining(group)
    group.stock("java")
    (answer,) = group.take(Answer)
    assert answer.assignment.mode == "client"


def remove(group: Surroundings) -> None:
    group.remove("one")


def drop(group: Surroundings) -> None:
    group.do(group.coordinator.drop("G", "b:2", now_ms=group.now_ms))


def replace(group: Surroundings) -> None:
    group.add("alice again", instance="one")


@pytest.mark.parametrize(
    ("happening", "code"),
    [
        (remove, ResponseCode.UNKNOWN_MEMBER),
        (drop, ResponseCode.NOT_COORDINATOR),
        (replace, ResponseCode.FENCED),
    ],
)
def test_a_waiting_join_is_refused_when_its_member_is_gone(happening, code):
    """The member is removed, another broker coordinates the group, or a second process takes its name."""
    group = Surroundings()
    alice = joining(group, instance="one")
    happening(group)
    group.run(100)
    assert alice.refused == code


def test_a_waiting_join_is_refused_when_the_disk_is_full():
    """No answer is sent for an unrecorded change."""
    group = Surroundings()
    alice = joining(group)
    group.is_disk_full = True
    assert assigned(group).code == ResponseCode.SYSTEM_BUSY
    assert alice.refused == ResponseCode.SYSTEM_BUSY
