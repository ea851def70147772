"""Pulls that wait: what wakes them, what ends them, and what that costs."""

import time
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.waits import HeldPull, HeldPulls, held_pulls

NAMES = count()


def pull(
    topic: str = "T", queue: int = 0, offset: int = 0, owner: object = "c", until_ms: int = 100
) -> HeldPull[int]:
    return HeldPull(topic, queue, offset, owner, until_ms, next(NAMES))


def test_a_pull_is_woken_by_a_message_at_or_after_its_offset_and_only_by_its_queue():
    held: HeldPulls[int] = HeldPulls()
    at_end, ahead, elsewhere = pull(offset=5), pull(offset=9), pull(queue=1, offset=5)
    for one in (at_end, ahead, elsewhere):
        held.hold(one)
    assert held.wake("T", 0, 5) == []
    assert held.wake("T", 0, 6) == [at_end]
    assert held.wake("T", 0, 6) == []
    assert held.wake("U", 1, 99) == []
    assert held.wake("T", 0, 10) == [ahead]
    assert held.wake("T", 1, 10) == [elsewhere]
    assert len(held) == 0


def test_pulls_of_a_queue_are_taken_out_by_what_they_ask():
    held: HeldPulls[int] = HeldPulls()
    pulls = [pull(), pull(offset=7), pull(queue=1)]
    for one in pulls:
        held.hold(one)
    assert held.take("T", 0, lambda request: request == pulls[1].request) == [pulls[1]]
    assert held.take("T", 0, lambda request: request == pulls[2].request) == []
    assert held.take("U", 0, lambda _: True) == []
    assert held.wake("T", 0, 9) == [pulls[0]]
    assert held.expire(999) == [pulls[2]]


def test_pulls_expire_in_the_order_of_their_deadlines_and_the_woken_do_not():
    held: HeldPulls[int] = HeldPulls()
    late, early, woken = pull(until_ms=300), pull(until_ms=200), pull(queue=1, until_ms=100)
    for one in (late, early, woken):
        held.hold(one)
    held.wake("T", 1, 1)
    assert held.expire(199) == []
    assert held.expire(300) == [early, late]
    assert len(held) == 0


def test_a_connection_that_ends_takes_its_pulls_along_and_no_others():
    held: HeldPulls[int] = HeldPulls()
    stays = pull(owner="other")
    for one in (pull(), stays, pull(queue=1)):
        held.hold(one)
    held.remove_owner("c")
    held.remove_owner("nobody")
    assert len(held) == 1
    assert held.wake("T", 0, 1) == [stays]
    assert held.expire(1_000) == []


def test_two_pulls_of_one_queue_by_one_owner_are_two():
    held: HeldPulls[int] = HeldPulls()
    first, second = pull(), pull()
    held.hold(first)
    held.hold(second)
    assert held.wake("T", 0, 1) == [first, second]


def test_nobody_holds_more_than_the_limits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(held_pulls, "HELD_PULLS_MAX", 5)
    monkeypatch.setattr(held_pulls, "HELD_PULLS_PER_OWNER_MAX", 3)
    held: HeldPulls[int] = HeldPulls()
    for _ in range(3):
        assert held.may_hold("c")
        held.hold(pull())
    assert not held.may_hold("c")
    assert held.may_hold("d")
    held.hold(pull(owner="d"))
    held.hold(pull(owner="d"))
    assert not held.may_hold("e")


def test_deadlines_of_woken_pulls_do_not_pile_up():
    held: HeldPulls[int] = HeldPulls()
    for _ in range(10_000):
        held.hold(pull(until_ms=10**9))
        held.wake("T", 0, 1)
    assert len(held._deadlines) < 3_000
    for owner in range(10_000):
        held.hold(pull(owner=owner, until_ms=10**9))
        held.remove_owner(owner)
    assert len(held._deadlines) < 3_000


def test_a_connection_that_ends_costs_what_it_holds_and_not_what_others_hold():
    """Ten thousand queues with ten thousand owners: all of them ending once took a minute."""
    held: HeldPulls[int] = HeldPulls()
    for number in range(10_000):
        held.hold(pull(queue=number, owner=number))
        held.hold(pull(topic="shared", owner=number))
    started = time.process_time()
    for number in range(10_000):
        held.remove_owner(number)
    assert len(held) == 0
    assert time.process_time() - started < 2


@given(
    st.lists(
        st.tuples(st.sampled_from("hwxo"), st.integers(0, 2), st.integers(0, 5), st.integers(0, 2)),
        max_size=80,
    )
)
def test_the_table_agrees_with_a_plain_list(steps):
    held: HeldPulls[int] = HeldPulls()
    model: list[HeldPull[int]] = []
    for step, queue, number, owner in steps:
        if step == "h":
            one = pull(queue=queue, offset=number, owner=owner, until_ms=number * 10)
            held.hold(one)
            model.append(one)
        elif step == "w":
            expected = [one for one in model if one.queue_id == queue and one.offset < number]
            assert held.wake("T", queue, number) == expected
            model = [one for one in model if one not in expected]
        elif step == "x":
            expected = [one for one in model if one.until_ms <= number * 10]
            assert sorted(held.expire(number * 10), key=lambda one: one.request) == expected
            model = [one for one in model if one not in expected]
        else:
            held.remove_owner(owner)
            model = [one for one in model if one.owner != owner]
        assert len(held) == len(model)
