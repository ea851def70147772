"""The entrant: a strategy in the experiment, with its allocator.

    AVG                         every client by itself, topic by topic, as in RocketMQ
    balanced_sticky             a coordinator, for the whole group, knowing what members hold
    balanced_sticky@clients     the same rule applied by clients alone, without knowing what members hold
    AVG@coordinator             the same rule computed for all members by a coordinator
    my_module:my_rule           the user's own function or strategy

A strategy's further input (rooms, addresses, lists) comes from each history; histories that lack it leave the
strategy out.
"""

import sys
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from libramq.balance import (
    Assignment,
    Group,
    GroupStrategy,
    Strategy,
    TopicStrategy,
    averagely,
    strategy_named,
)
from libramq.balance.topic_rules import room_of
from libramq.errors import ConfigError
from libramq.lab.histories import History, address_of, zone_of

#: Ours: one machine in this many runs canaries.
CHOSEN_EVERY: Final = 10


class Allocator(StrEnum):
    """The party that computes the assignment."""

    CLIENTS = "clients"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A strategy and its allocator. strategy: None if it is created for each history."""

    name: str
    rule: str
    allocator: Allocator
    strategy: Strategy | None = None

    def strategy_for(self, history: History) -> Strategy | None:
        """Return the strategy with its input; None if the history lacks the input."""
        if self.strategy is not None:
            return self.strategy
        if self.rule == "CONFIG":
            return _configured(history)
        terms = _terms(self.rule, history)
        return None if terms is None else strategy_named(self.rule, **terms)


#: All strategies of libramq.balance; the last one is our clients' own when they allocate for themselves.
STRATEGIES: Final = (
    "AVG",
    "AVG_BY_CIRCLE",
    "CONSISTENT_HASH",
    "CONFIG",
    "MACHINE_ROOM",
    "MACHINE_ROOM_NEARBY-AVG",
    "ON_MACHINES-AVG",
    "range",
    "roundrobin",
    "sticky",
    "cooperative-sticky",
    "balanced_sticky",
    "balanced_sticky@clients",
)
BASELINE: Final = Entrant(
    name="balanced_sticky",
    rule="balanced_sticky",
    allocator=Allocator.COORDINATOR,
    strategy=strategy_named("balanced_sticky"),
)
"""The baseline of comparisons: the most even loads with the fewest moves."""


def entrant(name: str) -> Entrant:
    """Return the entrant with this name; ConfigError names the error and the alternatives."""
    rule, at, where = name.partition("@")
    if at and where not in tuple(Allocator):
        raise ConfigError(f"strategies: {name}: behind @ stands {' or '.join(Allocator)}")
    made = _of_user(rule) if ":" in rule else _of_ours(rule)
    allocator = Allocator(where) if at else Allocator.COORDINATOR
    if not at and (made is None or isinstance(made, TopicStrategy)):
        allocator = Allocator.CLIENTS
    return Entrant(name=name, rule=rule, allocator=allocator, strategy=made)


def _of_ours(rule: str) -> Strategy | None:
    """Return a strategy without further input; None for one that is created for each history."""
    if rule == "CONFIG" or _needs(rule) is not None:
        return None
    try:
        return strategy_named(rule)
    except ConfigError as error:
        raise ConfigError(f"strategies: {error}, or name one of yours as module:function") from None


def _of_user(rule: str) -> Strategy:
    module_name, _, attribute = rule.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module: Any = import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"strategies: {rule}: cannot import {module_name}: {error}") from None
    found = getattr(module, attribute, None)
    if isinstance(found, TopicStrategy | GroupStrategy):
        return found
    if not callable(found):
        raise ConfigError(
            f"strategies: {rule}: {module_name} has no {attribute} that is a function (client id, queues, "
            "client ids) or a GroupStrategy"
        )
    return TopicStrategy(found)


def _needs(rule: str) -> str | None:
    """Return the input that a strategy needs, given the part of its name before the dash."""
    outer = rule.partition("-")[0]
    return outer if outer in ("MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "ON_MACHINES") else None


def _terms(rule: str, history: History) -> dict[str, Any] | None:
    needs = _needs(rule)
    if needs == "ON_MACHINES":
        machines = list(dict.fromkeys(address_of(client_id) for client_id in history.members))
        return {"addresses": machines[: max(1, len(machines) // CHOSEN_EVERY)]}
    if not history.has_zones:
        return None
    if needs == "MACHINE_ROOM":
        rooms = {room_of(queue) for queues in history.queues.values() for queue in queues}
        return {"rooms": sorted(filter(None, rooms))}
    return {"room_of_queue": room_of, "room_of_client": zone_of}


def _configured(history: History) -> Strategy:
    """Return CONFIG for a group, with the lists that AVG gives every client at the beginning."""
    client_ids = sorted(history.members)
    lists = {
        client_id: {
            topic: averagely(client_id, queues, client_ids) for topic, queues in history.queues.items()
        }
        for client_id in client_ids
    }

    def rule(group: Group) -> Assignment:
        return {
            member.client_id: [
                queue
                for topic in group.queues
                if topic in member.topics
                for queue in lists.get(member.client_id, {}).get(topic, ())
            ]
            for member in group.members
        }

    return GroupStrategy(rule)
