"""Long work: when one event affects many objects, the work is spread over several turns."""

from collections.abc import Callable, Iterator

import pytest
from tests.fakes import ManualClock, turns_of

from libramq.kernel.engine import Engine, Hooks
from libramq.kernel.parts import Kernel
from libramq.kernel.work import Callback, Each, Work


class Nobody:
    """A protocol without requests."""

    def receive(self, connection: object, requests: object, start: int) -> int:
        raise AssertionError("nobody asks for anything")


class Turns:
    """An engine whose turns have time for two steps."""

    def __init__(self) -> None:
        self.kernel = Kernel(ManualClock())
        self.kernel.workload.begin_turn = turns_of(2)
        self.engine = Engine(self.kernel, Nobody(), Hooks())

    def turn(self) -> None:
        """Run everything that is due now, and what follows from it."""
        self.engine.tick()
        self.engine.settle()


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_some_items_are_processed_in_the_same_turn_and_the_others_in_their_order(turns: Turns):
    done: list[int] = []
    each: Each[int] = Each(turns.kernel.work, done.append)
    each.add(range(3))
    turns.engine.settle()
    assert done == [0, 1]
    each.add([3, 2])
    turns.engine.settle()
    assert done == [0, 1], "others wait already"
    turns.turn()
    assert done == [0, 1, 2, 3]
    each.add([2])
    turns.engine.settle()
    turns.turn()
    assert done == [0, 1, 2, 3, 2]
    assert turns.engine.next_due_ms is None


def test_an_item_may_add_others_and_itself(turns: Turns):
    done: list[int] = []

    def act(item: int) -> None:
        done.append(item)
        if item:
            each.add([item - 1])

    each: Each[int] = Each(turns.kernel.work, act)
    each.add([4])
    turns.engine.settle()
    assert done == [4, 3]
    turns.turn()
    assert done == [4, 3, 2, 1]
    turns.turn()
    assert done == [4, 3, 2, 1, 0]


def test_a_failing_item_holds_up_none_of_the_others(turns: Turns):
    done: list[int] = []

    def act(item: int) -> None:
        if item == 0:
            raise ValueError("this one fails")
        done.append(item)

    each: Each[int] = Each(turns.kernel.work, act)
    each.add(range(3))
    with pytest.raises(ValueError, match="this one fails"):
        turns.engine.settle()
    turns.turn()
    assert done == [1, 2]


def test_works_take_turns_step_by_step(turns: Turns):
    done: list[str] = []

    def steps(name: str) -> Iterator[None]:
        for number in range(2):
            done.append(f"{name}{number}")
            yield

    turns.kernel.work(steps("a"))
    turns.kernel.work(steps("b"))
    turns.engine.settle()
    assert done == ["a0", "b0"]
    turns.turn()
    assert done == ["a0", "b0", "a1", "b1"]


def test_a_work_that_is_closed_takes_no_further_step(turns: Turns):
    done: list[object] = []

    def steps() -> Iterator[None]:
        for number in range(3):
            done.append(number)
            yield

    work = steps()
    turns.kernel.work(work)
    turns.engine.settle()
    work.close()
    turns.turn()
    assert done == [0, 1]
    assert turns.engine.next_due_ms is None


def test_a_work_goes_on_with_what_calls_back_and_with_an_error_that_it_brings(turns: Turns):
    done: list[object] = []
    answers: list[Callable[[object], None]] = []

    def steps() -> Work[None]:
        done.append((yield Callback(answers.append)))
        try:
            yield Callback(answers.append)
        except OSError as error:
            done.append(error)

    turns.kernel.work(steps())
    turns.engine.settle()
    answers.pop()("an answer")
    assert done == []
    turns.engine.settle()
    refused = OSError("no answer")
    answers.pop()(refused)
    turns.engine.settle()
    assert done == ["an answer", refused]
    assert turns.engine.next_due_ms is None


def test_work_is_notified_of_steps_that_could_not_begin(turns: Turns):
    """The work was dropped, and its caller waited for its end."""
    done: list[object] = []

    def fail(_: Callable[[object], None]) -> None:
        raise ValueError("it cannot be signed")

    def steps() -> Work[None]:
        for _ in range(2):
            try:
                yield Callback(fail)
            except ValueError as error:
                done.append(str(error))
        done.append("the end")

    turns.kernel.work(steps())
    turns.engine.settle()
    turns.turn()
    assert done == ["it cannot be signed", "it cannot be signed", "the end"]
    assert turns.engine.next_due_ms is None


@pytest.mark.parametrize("answer", ["an answer", OSError("no answer")])
def test_a_work_that_was_closed_while_it_waited_does_not_go_on(turns: Turns, answer: object):
    answers: list[Callable[[object], None]] = []

    def steps() -> Work[None]:
        yield Callback(answers.append)
        raise AssertionError("it was closed")

    work = steps()
    turns.kernel.work(work)
    turns.engine.settle()
    work.close()
    answers.pop()(answer)
    turns.engine.settle()
    assert turns.engine.next_due_ms is None
