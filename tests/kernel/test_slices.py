"""Slices: what one event causes for many is not done in one turn."""

import pytest
from tests.fakes import ManualClock

from libramq.kernel.parts import Kernel
from libramq.kernel.slices import Slices


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(ManualClock())


def run(kernel: Kernel) -> None:
    """Run what is due now."""
    kernel.deadlines.run(kernel.clock.monotonic_ms())


def test_some_items_are_processed_at_once_and_the_others_in_their_order(kernel: Kernel):
    done: list[int] = []
    slices: Slices[int] = Slices(kernel, done.append, per_step=2)
    slices.add(range(3))
    assert (done, slices.is_busy) == ([0, 1], True)
    slices.add([3, 2])
    assert done == [0, 1], "others wait already"
    run(kernel)
    assert (done, slices.is_busy) == ([0, 1, 2, 3], False)
    slices.add([2])
    assert done == [0, 1, 2, 3, 2]


def test_an_item_may_add_others_and_itself(kernel: Kernel):
    done: list[int] = []

    def act(item: int) -> None:
        done.append(item)
        if item:
            slices.add([item - 1])

    slices: Slices[int] = Slices(kernel, act, per_step=2)
    slices.add([4])
    assert done == [4, 3]
    run(kernel)
    assert done == [4, 3, 2, 1]
    run(kernel)
    assert (done, slices.is_busy) == ([4, 3, 2, 1, 0], False)


def test_a_failing_item_holds_up_none_of_the_others(kernel: Kernel):
    done: list[int] = []

    def act(item: int) -> None:
        if item == 0:
            raise ValueError("this one fails")
        done.append(item)

    slices: Slices[int] = Slices(kernel, act, per_step=2)
    with pytest.raises(ValueError, match="this one fails"):
        slices.add(range(3))
    run(kernel)
    assert (done, slices.is_busy) == ([1, 2], False)
