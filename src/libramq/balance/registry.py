"""The registry of strategies: the strategy of each name, RocketMQ's, Kafka's or ours, and how users add their
own.

    strategy_named("AVG")
    strategy_named("MACHINE_ROOM", rooms={"hangzhou"})
    strategy_named("MACHINE_ROOM_NEARBY-AVG", room_of_queue=…, room_of_client=…)
    strategy_named("balanced_sticky", by_capacity=True)

Names in capitals are RocketMQ's (and ON_MACHINES), those in lower case Kafka's and ours.
"""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, Final

from libramq.balance.balanced_sticky import balanced_sticky_of
from libramq.balance.kafka_rules import cooperative_sticky, kafka_range, round_robin, sticky
from libramq.balance.strategy import GroupStrategy, Strategy, TopicRule, TopicStrategy
from libramq.balance.topic_rules import (
    averagely,
    by_circle,
    by_config,
    consistent_hash_of,
    machine_room,
    machine_room_nearby,
    on_machines,
)
from libramq.errors import ConfigError

#: Makes a strategy from its rule's options, passed by keyword.
Maker = Callable[..., Strategy]

_MAKERS: Final[dict[str, Maker]] = {
    "AVG": lambda: TopicStrategy(averagely),
    "AVG_BY_CIRCLE": lambda: TopicStrategy(by_circle),
    "CONFIG": by_config,
    "CONSISTENT_HASH": consistent_hash_of,
    "MACHINE_ROOM": machine_room,
    "MACHINE_ROOM_NEARBY": machine_room_nearby,
    "ON_MACHINES": on_machines,
    "balanced_sticky": balanced_sticky_of,
    "cooperative-sticky": lambda: GroupStrategy(cooperative_sticky),
    "range": lambda: GroupStrategy(kafka_range),
    "roundrobin": lambda: GroupStrategy(round_robin),
    "sticky": lambda: GroupStrategy(sticky),
}
_REGISTERED: Final[dict[str, Strategy]] = {}


def register_strategy(name: str, strategy: TopicRule | TopicStrategy | GroupStrategy) -> None:
    """Register a strategy under a name: a topic rule as it is, a group rule as GroupStrategy(rule).

    Raises ConfigError if the name is taken.
    """
    made = strategy if isinstance(strategy, TopicStrategy | GroupStrategy) else TopicStrategy(strategy)
    if _maker(name) is not None or _REGISTERED.setdefault(name, made) != made:
        raise ConfigError(f"the strategy name {name} is taken; choose another")


def strategy_named(name: str, **options: Any) -> Strategy:
    """Return a strategy by name, with its options; ConfigError lists the known names."""
    maker = _maker(name)
    if maker is None and name in _REGISTERED:
        maker = partial(_registered, name)
    if maker is None:
        known = ", ".join(sorted({*_MAKERS, *_REGISTERED}))
        raise ConfigError(
            f"there is no strategy {name!r}; known are {known} (add yours with register_strategy)"
        )
    try:
        signature(maker).bind(**options)
    except TypeError as error:
        raise ConfigError(f"the strategy {name}: {error}") from None
    return maker(**options)


def _registered(name: str) -> Strategy:
    return _REGISTERED[name]


def _maker(name: str) -> Maker | None:
    """Return the maker of a built-in strategy; NAME-INNER applies another one (AllocateMachineRoomNearby)."""
    if (maker := _MAKERS.get(name)) is not None:
        return maker
    outer, dash, inner = name.partition("-")
    maker = _MAKERS.get(outer)
    if dash and maker is not None and "inner" in signature(maker).parameters:
        return partial(maker, inner=strategy_named(inner))
    return None
