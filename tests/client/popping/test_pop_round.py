"""Tests of the round of one receive: the brokers it pops from, and for how long."""

import pytest

from libramq.client.popping.popped import Place
from libramq.client.popping.simple_consumer import PopRound
from libramq.errors import ConnectFailed

ONE, TWO = Place("T", "a"), Place("T", "b")


def test_one_broker_holds_the_request_for_the_whole_time():
    """It is not popped again in that time."""
    pops = PopRound([ONE], now_ms=1_000, await_ms=15_000)
    assert pops.next(1_000) == (ONE, 15_000)
    assert pops.next(15_950) is None


def test_several_are_queried_at_once_and_then_for_a_second_each():
    """They are popped in turn until the time is up."""
    pops = PopRound([ONE, TWO], now_ms=0, await_ms=2_500)
    asked = [pops.next(now_ms) for now_ms in (0, 0, 0, 950, 1_900, 2_450)]
    assert asked == [(ONE, 0), (TWO, 0), (ONE, 1_000), (TWO, 1_000), (ONE, 600), None]


def test_without_waiting_each_is_queried_once():
    """This also holds for a single broker."""
    assert [PopRound([ONE], now_ms=0, await_ms=0).next(0)] == [(ONE, 0)]
    pops = PopRound([ONE, TWO], now_ms=0, await_ms=0)
    assert [pops.next(0) for _ in range(3)] == [(ONE, 0), (TWO, 0), None]


def test_a_place_that_fails_is_left_out():
    """The error is raised when all have failed."""
    pops = PopRound([ONE, TWO], now_ms=0, await_ms=10_000)
    pops.next(0)
    pops.failed(ONE, ConnectFailed("first"))
    assert pops.next(0) == (TWO, 0)
    assert pops.next(0) == (TWO, 10_000)
    pops.failed(TWO, ConnectFailed("second"))
    with pytest.raises(ConnectFailed, match="second"):
        pops.next(0)
