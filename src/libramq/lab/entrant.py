"""The entrant: a strategy in the experiment, with the party that computes it.

    AVG                         every client by itself, topic by topic, as RocketMQ's do
    balanced_sticky             a coordinator, for the whole group, with what members hold
        balanced_sticky@clients     the same rule as clients alone apply it: without knowledge of holdings
        AVG@coordinator             the same rule computed for all by a coordinator
    my_module:my_rule           a function or strategy of the user's own

Further input of a strategy (rooms, addresses, lists) comes from each history; a strategy is left out of
histories that lack its input.
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

#: Ours: the canaries are the clients on one of this many machines.
CHOSEN_EVERY: Final = 10


class Allocator(StrEnum):
    """The party that computes the shares."""

    CLIENTS = "clients"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A participant. strategy: None if it is made for each history."""

    name: str
    rule: str
    allocator: Allocator
    strategy: Strategy | None = None

    def strategy_for(self, history: History) -> Strategy | None:
        """Return the strategy with its input; None if the history lacks that."""
        if self.strategy is not None:
            return self.strategy
        if self.rule == "CONFIG":
            return _configured(history)
        terms = _terms(self.rule, history)
        return None if terms is None else strategy_named(self.rule, **terms)


#: All of libramq.balance; the last one is what our clients do when they allocate for themselves.
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
"""The baseline of comparisons: as even as possible with the fewest moves."""


def entrant(name: str) -> Entrant:
    """Return the entrant of that name; ConfigError has the error and the alternatives."""
    rule, at, where = name.partition("@")
    if at and where not in tuple(Allocator):
        raise ConfigError(f"strategies: {name}: behind @ stands {' or '.join(Allocator)}")
    made = _of_user(rule) if ":" in rule else _of_ours(rule)
    allocator = Allocator(where) if at else Allocator.COORDINATOR
    if not at and (made is None or isinstance(made, TopicStrategy)):
        allocator = Allocator.CLIENTS
    return Entrant(name=name, rule=rule, allocator=allocator, strategy=made)


def _of_ours(rule: str) -> Strategy | None:
    """Return a strategy without further input; None for one that is made for each history."""
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
    """Return the input that a strategy needs, by the name before the dash."""
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
    """Return CONFIG for a group: every client has its own list, made at the beginning by AVG."""
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
