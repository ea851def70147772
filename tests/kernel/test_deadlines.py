"""Deadlines: due actions run in order and once, and nothing else causes a wakeup."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import turns_of

from libramq.kernel import deadlines as module
from libramq.kernel.deadlines import OVERDUE_AGAIN_MS, Deadlines, StaysDue


class Diary:
    """Deadlines, and a record of the actions that ran."""

    def __init__(self) -> None:
        self.queue = Deadlines()
        self.done: list[tuple[str, int]] = []

    def new(self, name: str):
        return self.queue.new(lambda now_ms: self.done.append((name, now_ms)))


def test_due_actions_run_in_the_order_of_their_times():
    diary = Diary()
    diary.new("late").at(300)
    diary.new("early").at(200)
    diary.new("later").at(301)
    assert diary.queue.next_due_ms == 200
    diary.queue.run(199)
    assert diary.done == []
    diary.queue.run(300)
    assert diary.done == [("early", 300), ("late", 300)]
    assert diary.queue.next_due_ms == 301


def test_a_deadline_can_be_moved_both_ways_and_cancelled():
    diary = Diary()
    moved, cancelled = diary.new("moved"), diary.new("cancelled")
    moved.at(100)
    moved.at(300)
    cancelled.at(50)
    cancelled.cancel()
    diary.queue.run(200)
    assert diary.done == []
    moved.by(400)
    assert moved.due_ms == 300
    moved.by(250)
    diary.queue.run(250)
    assert diary.done == [("moved", 250)]
    assert diary.queue.next_due_ms is None
    assert len(diary.queue) == 0


def in_turns(queue: Deadlines, milliseconds: int) -> None:
    """Let time pass as a performer does: run the deadlines whenever something is due."""
    for now_ms in range(milliseconds):
        for _ in range(3):
            if queue.next_due_ms is not None and queue.next_due_ms <= now_ms:
                queue.run(now_ms)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("ago_ms", [0, 5])
def test_a_deadline_that_is_always_due_again_rests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ago_ms: int, raises: bool
):
    """A deadline in the past would look like a stall, which extends all deadlines, and both would spin."""
    monkeypatch.setattr(module, "TURNS_MAX", 3)
    queue = Deadlines()
    calls: list[int] = []

    def again(now_ms: int) -> None:
        calls.append(now_ms)
        deadline.at(now_ms - ago_ms)
        if raises:
            raise ValueError("a bug")

    deadline = queue.new(again)
    deadline.at(100)
    in_turns(queue, 100 + 2 * OVERDUE_AGAIN_MS)
    turns = 1 if ago_ms else 3
    assert calls == [100] * turns + [100 + OVERDUE_AGAIN_MS] * turns
    errors = [type(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert errors == ([ValueError] * 2 * turns if raises else [StaysDue] * 2)
    deadline.by(50)
    assert queue.next_due_ms == 100 + 2 * OVERDUE_AGAIN_MS
    deadline.cancel()
    assert queue.next_due_ms is None


def test_a_deadline_that_reschedules_itself_for_now_waits_for_the_next_run():
    queue = Deadlines()
    calls: list[int] = []

    def again(now_ms: int) -> None:
        calls.append(now_ms)
        deadline.at(now_ms)

    deadline = queue.new(again)
    deadline.at(5)
    queue.run(5)
    assert calls == [5]
    assert queue.next_due_ms == 5


def test_many_due_actions_are_left_to_further_runs():
    """Otherwise thousands of actions due at one moment would delay requests."""
    begin_turn = turns_of(2)
    diary = Diary()
    for number in range(5):
        diary.new(str(number)).at(100)
    counts = []
    while diary.queue.next_due_ms is not None:
        diary.queue.run(101, begin_turn())
        counts.append(len(diary.done))
    assert counts == [2, 4, 5]
    assert [name for name, _ in diary.done] == list("01234")


def test_a_failing_action_holds_up_none_of_the_others():
    diary = Diary()

    def fail(_: int) -> None:
        raise ValueError("a bug")

    diary.queue.set(1, fail)
    diary.new("other").at(2)
    diary.queue.run(2)
    assert diary.done == [("other", 2)]


def test_entries_of_moved_deadlines_do_not_pile_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "STALE_MAX", 16)
    diary = Diary()
    deadline = diary.new("moved")
    for time_ms in range(10_000, 0, -1):
        deadline.at(time_ms)
    assert len(diary.queue._heap) < 32
    diary.queue.run(1)
    assert diary.done == [("moved", 1)]


@given(st.lists(st.tuples(st.sampled_from("abcx"), st.one_of(st.none(), st.integers(0, 20)))))
def test_the_queue_agrees_with_a_plain_table(steps):
    diary = Diary()
    named = {name: diary.new(name) for name in "abc"}
    model: dict[str, int] = {}
    now_ms = 0
    for name, value in steps:
        if name == "x":
            now_ms += value or 0
            expected = sorted(each for each, due_ms in model.items() if due_ms <= now_ms)
            diary.done.clear()
            diary.queue.run(now_ms)
            assert sorted(each for each, _ in diary.done) == expected
            model = {each: due_ms for each, due_ms in model.items() if due_ms > now_ms}
        elif value is None:
            named[name].cancel()
            model.pop(name, None)
        else:
            named[name].at(now_ms + value)
            model[name] = now_ms + value
        assert diary.queue.next_due_ms == min(model.values(), default=None)
        assert len(diary.queue) == len(model)
