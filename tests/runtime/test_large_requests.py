"""Large requests: only some fit at a time, and all connections share the room fairly."""

import pytest
from tests.fakes import FakePeer

from libramq.kernel.work import UnderWay
from libramq.runtime.busy import HUGE_LANE_BYTES, USUAL_BYTES_MAX, USUAL_LANE_BYTES, LargeRequests

HALF = HUGE_LANE_BYTES // 2


def reserve(size_bytes: int, peer: FakePeer | None = None) -> UnderWay:
    work = UnderWay(iter(()), peer or FakePeer())
    work.size_bytes = size_bytes
    return work


@pytest.fixture
def large() -> LargeRequests:
    return LargeRequests()


def test_requests_that_fit_begin_at_once_and_the_others_in_order(large):
    first, second, third, fourth = (reserve(HALF) for _ in range(4))
    assert [large.take(each) for each in (first, second, third, fourth)] == [True, True, False, False]
    assert large.free(first) == [third]
    assert large._usual.taken_bytes + large._huge.taken_bytes == 2 * HALF
    assert large.free(second) == [fourth]
    assert large.free(third) == []
    assert large.free(fourth) == []
    assert large._usual.taken_bytes + large._huge.taken_bytes == 0


def test_one_that_exceeds_all_room_begins_when_it_is_alone(large):
    huge, other = reserve(10 * HUGE_LANE_BYTES), reserve(HALF)
    assert large.take(other)
    assert not large.take(huge)
    assert not large.take(reserve(HALF)), "no request overtakes it"
    assert large.free(other) == [huge]


def test_a_connection_with_many_waiting_has_one_of_them_begun_at_a_time(large):
    greedy, modest = FakePeer(), FakePeer()
    running = reserve(HUGE_LANE_BYTES)
    assert large.take(running)
    many = [reserve(HUGE_LANE_BYTES, greedy) for _ in range(3)]
    last = reserve(HUGE_LANE_BYTES, modest)
    assert not any(large.take(each) for each in (*many, last))
    order = []
    while (admitted := large.free(running)) != []:
        (running,) = admitted
        order.append(running)
    assert order == [many[0], last, many[1], many[2]]


def test_usual_requests_do_not_wait_for_huge_ones(large):
    assert large.take(reserve(10 * HUGE_LANE_BYTES))
    usual = [reserve(USUAL_BYTES_MAX) for _ in range(USUAL_LANE_BYTES // USUAL_BYTES_MAX + 1)]
    assert [large.take(each) for each in usual] == [True] * (len(usual) - 1) + [False]
