"""Pulls that wait: what wakes them, what ends them, and what that costs."""

import time
from collections import deque
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.kernel.connection import ANONYMOUS
from libramq.kernel.deadlines import Deadlines
from libramq.kernel.purgatory import Purgatory
from libramq.waits import held_pulls
from libramq.waits.held_pulls import HeldPull, HeldPulls

NAMES = count()


@dataclass(frozen=True)
class Owner:
    """A connection; two of the same name are one."""

    name: object
    principal = ANONYMOUS
    address = "127.0.0.1:50000"


class Held(HeldPulls[int]):
    """Held pulls with the purgatory and the deadlines that they live in."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.purgatory = Purgatory(self.deadlines, lambda steps: deque(steps, 0).clear())
        self.expired: list[HeldPull[int]] = []
        super().__init__(self.purgatory)

    def add(
        self, topic: str = "T", queue: int = 0, offset: int = 0, owner: object = "c", until_ms: int = 100
    ) -> HeldPull[int]:
        one = HeldPull(Owner(owner), topic, queue, offset, until_ms, next(NAMES))  # type: ignore[arg-type]
        self.hold(one, self.expired.append)
        return one

    def wake(self, topic: str, queue: int, end: int) -> list[HeldPull[int]]:
        return self.take_out(self.matching(topic, queue, end))

    def expire(self, now_ms: int) -> list[HeldPull[int]]:
        self.expired.clear()
        self.deadlines.run(now_ms)
        return self.expired.copy()

    def ended(self, owner: object) -> None:
        self.purgatory.connection_ended(Owner(owner))  # type: ignore[arg-type]


def test_a_pull_is_woken_by_a_message_at_or_after_its_offset_and_only_by_its_queue():
    held = Held()
    at_end, ahead, elsewhere = held.add(offset=5), held.add(offset=9), held.add(queue=1, offset=5)
    assert held.wake("T", 0, 5) == []
    assert held.wake("T", 0, 6) == [at_end]
    assert held.wake("T", 0, 6) == []
    assert held.wake("U", 1, 99) == []
    assert held.wake("T", 0, 10) == [ahead]
    assert held.wake("T", 1, 10) == [elsewhere]
    assert len(held) == len(held.purgatory) == 0


def test_pulls_of_a_queue_are_taken_out_by_their_filter():
    held = Held()
    pulls = [held.add(), held.add(offset=7), held.add(queue=1)]
    assert held.take("T", 0, lambda request: request == pulls[1].request) == [pulls[1]]
    assert held.take("T", 0, lambda request: request == pulls[2].request) == []
    assert held.take("U", 0, lambda _: True) == []
    assert held.wake("T", 0, 9) == [pulls[0]]
    assert held.expire(999) == [pulls[2]]


def test_pulls_expire_in_the_order_of_their_deadlines_and_the_woken_do_not():
    held = Held()
    late, early = held.add(until_ms=300), held.add(until_ms=200)
    held.add(queue=1, until_ms=100)
    held.wake("T", 1, 1)
    assert held.expire(199) == []
    assert held.expire(300) == [early, late]
    assert len(held) == 0


def test_an_ended_connection_removes_its_own_pulls_only():
    held = Held()
    held.add()
    stays = held.add(owner="other")
    held.add(queue=1)
    held.ended("c")
    held.ended("nobody")
    assert len(held) == 1
    assert held.wake("T", 0, 1) == [stays]
    assert held.expire(1_000) == []


def test_one_connection_may_hold_two_pulls_of_one_queue():
    held = Held()
    first, second = held.add(), held.add()
    assert held.wake("T", 0, 1) == [first, second]


def test_held_pulls_of_a_queue_are_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(held_pulls, "HELD_PER_QUEUE_MAX", 5)
    monkeypatch.setattr(held_pulls, "HELD_PER_QUEUE_AND_CONNECTION_MAX", 3)
    held = Held()
    for _ in range(3):
        assert held.may_hold(Owner("c"), "T", 0)
        held.add()
    assert not held.may_hold(Owner("c"), "T", 0)
    assert held.may_hold(Owner("c"), "T", 1)
    assert held.may_hold(Owner("d"), "T", 0)
    held.add(owner="d")
    held.add(owner="d")
    assert not held.may_hold(Owner("e"), "T", 0)
    held.ended("c")
    assert held.may_hold(Owner("c"), "T", 0)


def test_ending_a_connection_costs_only_its_own_pulls():
    """With ten thousand queues and ten thousand owners, closing all connections once took a minute."""
    held = Held()
    for number in range(10_000):
        held.add(queue=number, owner=number)
        held.add(topic="shared", owner=number)
    started = time.process_time()
    for number in range(10_000):
        held.ended(number)
    assert len(held) == 0
    assert time.process_time() - started < 10  # A tenth of a second, where nothing else uses the machine.


@given(
    st.lists(
        st.tuples(st.sampled_from("hwxo"), st.integers(0, 2), st.integers(0, 5), st.integers(0, 2)),
        max_size=80,
    )
)
def test_the_table_agrees_with_a_plain_list(steps):
    held = Held()
    model: list[HeldPull[int]] = []
    now_ms = 0
    for step, queue, number, owner in steps:
        if step == "h":
            model.append(held.add(queue=queue, offset=number, owner=owner, until_ms=now_ms + number * 10))
        elif step == "w":
            expected = [one for one in model if one.queue_id == queue and one.offset < number]
            assert held.wake("T", queue, number) == expected
            model = [one for one in model if one not in expected]
        elif step == "x":
            now_ms += number * 10
            expected = [one for one in model if one.until_ms <= now_ms]
            assert sorted(held.expire(now_ms), key=lambda one: one.request) == expected
            model = [one for one in model if one not in expected]
        else:
            held.ended(owner)
            model = [one for one in model if one.connection != Owner(owner)]
        assert len(held) == len(model) == len(held.purgatory)
