"""Tests of the fault strategy: round robin, the broker that failed, and the back-off table."""

import random

import pytest

from libramq.client.producing.fault_strategy import (
    BACK_OFF_TABLE,
    ISOLATION_LATENCY_MS,
    BackOff,
    FaultStrategy,
)
from libramq.client.routing.publish_info import publish_info
from libramq.errors import ConfigError
from tests.client.consuming.examples import route

INFO = publish_info("T", route(2, brokers=("a", "b", "c")))


def choose(strategy, count=6, *, last=None, now_ms=0):
    return [strategy.select(INFO, last, now_ms) for _ in range(count)]


def test_round_robin_visits_every_queue_once_a_round():
    """It does so from any random start."""
    for seed in range(20):
        chosen = choose(FaultStrategy(random.Random(seed)), 12)
        assert sorted(chosen[:6]) == sorted(INFO.queues)
        assert chosen[:6] == chosen[6:]


def test_producers_start_at_different_queues():
    """Producers that start together do not all fill the same queue first."""
    assert len({FaultStrategy(random.Random(seed)).select(INFO, None, 0) for seed in range(50)}) == 6


def test_the_broker_that_failed_is_skipped():
    """Fault tolerance makes no difference to that."""
    for enabled in (False, True):
        strategy = FaultStrategy(random.Random(1), enabled=enabled)
        assert {queue.broker_name for queue in choose(strategy, 20, last="a")} == {"b", "c"}


def test_the_only_broker_is_used_again():
    """Where there is no other, the one that failed is used."""
    info = publish_info("T", route(2))
    strategy = FaultStrategy(random.Random(1))
    assert strategy.select(info, "a", 0).broker_name == "a"


@pytest.mark.parametrize(
    ("latency_ms", "pause_ms"),
    [
        (0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 2000), (1799, 2000), (1800, 5000), (2999, 5000),
        (3000, 6000), (5000, 10_000), (14_999, 10_000), (15_000, 30_000), (99_999, 30_000),
    ],
)  # fmt: skip
def test_the_table_is_upstreams(latency_ms, pause_ms):
    """The numbers are those of MQFaultStrategy, at their edges."""
    assert FaultStrategy(random.Random(1)).pause_ms(latency_ms) == pause_ms


def test_a_slow_broker_rests_for_its_time():
    """After a latency of 550 ms it is left out for two seconds."""
    strategy = FaultStrategy(random.Random(1), enabled=True)
    strategy.update("a", 600, reachable=True, now_ms=1000)
    assert {queue.broker_name for queue in choose(strategy, now_ms=2999)} == {"b", "c"}
    assert {queue.broker_name for queue in choose(strategy, now_ms=3000)} == {"a", "b", "c"}


def test_a_failed_broker_rests_ten_seconds():
    """Isolation counts as ten seconds of latency."""
    strategy = FaultStrategy(random.Random(1), enabled=True)
    strategy.update("a", ISOLATION_LATENCY_MS, reachable=True, now_ms=0)
    assert {queue.broker_name for queue in choose(strategy, now_ms=9_999)} == {"b", "c"}
    assert "a" in {queue.broker_name for queue in choose(strategy, now_ms=10_000)}


def test_a_later_result_can_only_prolong_the_rest():
    """A quick send does not end it."""
    strategy = FaultStrategy(random.Random(1), enabled=True)
    strategy.update("a", ISOLATION_LATENCY_MS, reachable=True, now_ms=0)
    strategy.update("a", 1, reachable=True, now_ms=1)
    assert "a" not in {queue.broker_name for queue in choose(strategy, now_ms=5_000)}


def test_when_all_brokers_rest_the_reachable_ones_are_used():
    """An error makes a broker unreachable; a slow one is better than that."""
    strategy = FaultStrategy(random.Random(1), enabled=True)
    for name in "abc":
        strategy.update(name, ISOLATION_LATENCY_MS, reachable=name == "b", now_ms=0)
    assert {queue.broker_name for queue in choose(strategy, now_ms=1)} == {"b"}
    strategy.update("b", ISOLATION_LATENCY_MS, reachable=False, now_ms=1)
    assert {queue.broker_name for queue in choose(strategy, now_ms=2)} == {"a", "b", "c"}


def test_a_disabled_strategy_keeps_no_failures():
    """This is RocketMQ's default."""
    strategy = FaultStrategy(random.Random(1))
    strategy.update("a", ISOLATION_LATENCY_MS, reachable=False, now_ms=0)
    assert "a" in {queue.broker_name for queue in choose(strategy)}


def test_the_table_can_be_replaced():
    """Here 550 ms cost three seconds and a second costs a minute; rows may be in any order."""
    strategy = FaultStrategy(random.Random(1), table=[BackOff(1000, 60_000), BackOff(550, 3_000)])
    assert [strategy.pause_ms(ms) for ms in (549, 550, 999, 1000)] == [0, 3_000, 3_000, 60_000]
    with pytest.raises(ConfigError):
        FaultStrategy(random.Random(1), table=[BackOff(-1, 0)])
    assert BACK_OFF_TABLE[0] == BackOff(50, 0)
