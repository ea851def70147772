"""The growth of tables: a table that keeps dead entries is noticed wherever it is; none exists."""

import functools
import types
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from libramq.groups.coordinator.member import GroupMember
from libramq.groups.coordinator.membership import GroupMembership
from tests.testing import table_sizes as walk
from tests.testing.table_sizes import modules, table_sizes
from tests.testing.turnover import EVENT_MS, GROUPS, KAFKA_GROUPS, Change, Turnover, grown

FIVE_MINUTES_MS = 300_000
OF_THIS_MODULE = "tests.testing.test_growth"


class InSlots:
    __slots__ = ("__private", "table")

    def __init__(self) -> None:
        self.table = {1, 2, 3}
        self.__private = [1, 2]


class Named(NamedTuple):
    table: list[int]


class Struct(msgspec.Struct):
    table: list[int]


class Held:
    def __init__(self) -> None:
        self.nested = {"a": [1, 2], "b": [3]}
        self.last = deque([1, 2], maxlen=3)
        self.all = deque([1, 2])
        self.buffer = bytearray(5)
        self.others = [InSlots(), InSlots()]
        self.named, self.struct = Named([1, 2, 3, 4]), Struct([1])
        self.call = functools.partial(closure_over([1, 2, 3]), {"key": 1})
        self.method = Held2([1] * 7).read


class Held2:
    def __init__(self, table: list[int]) -> None:
        self.table = table

    def read(self) -> None:
        """Be a bound method."""


def closure_over(table: list[int]) -> Callable[[object], None]:
    def function(_: object) -> None:
        table.append(1)

    return function


@functools.cache
def cached(number: int) -> int:
    return number


@functools.lru_cache(2)
def cached_with_limit(number: int) -> int:
    return number


@pytest.fixture
def _ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "OURS", "tests.")


@pytest.mark.usefixtures("_ours")
def test_tables_are_found_wherever_they_are() -> None:
    """In attributes, slots, named tuples, structs, closures, partial functions and bound methods."""
    sizes = table_sizes(Held())
    prefix = "testing.test_growth."
    found = {name.replace(OF_THIS_MODULE, prefix.rstrip(".")): size for name, size in sizes.items()}
    assert {name.removeprefix(prefix): size for name, size in found.items() if size} == {
        "Held.nested": 2,
        "Held.nested[]": 3,
        "Held.all": 2,
        "Held.buffer": 5,
        "Held.others": 2,
        "InSlots": 2,
        "InSlots.table": 6,
        "InSlots._InSlots__private": 4,
        "Named.table": 4,
        "Struct": 1,
        "Struct.table": 1,
        "closure_over.<locals>.function.table": 3,
        "partial": 1,
        "Held2": 1,
        "Held2.table": 7,
    }


@pytest.mark.usefixtures("_ours")
def test_tables_of_modules_and_classes_are_found() -> None:
    """Caches without a limit count; those with a limit stay within it."""
    module = types.ModuleType("tests.some")
    kind = type("Kind", (), {"__module__": "tests.some", "table": {1: 1}})
    vars(module).update(table=[1, 2], Kind=kind, cached=cached, cached_with_limit=cached_with_limit)
    for number in range(3):
        cached(number)
        cached_with_limit(number)
    assert table_sizes(modules({"tests.some": module, "other": module})) == {
        "some.table": 2,
        "some.Kind.table": 1,
        "some.cached (cache)": 3,
    }


def leaks(turnover: Turnover, events: int) -> list[Change]:
    """Return the tables that have grown without a reason."""
    turnover.set_up()
    before = turnover.sizes()
    turnover.come_and_go(events)
    return [change for change in grown(before, turnover.sizes()) if change.reason is None]


def some_groups(*names: str) -> Turnover:
    return Turnover(1, brokers=1, groups=[plan for plan in GROUPS if plan.name in names], kafka_groups=())


def test_nothing_is_left_after_five_minutes_of_joins_and_leaves() -> None:
    """`bench/day_of_joins` covers all kinds of groups, for a day."""
    turnover = some_groups("Coordinated", "Stock")
    assert leaks(turnover, FIVE_MINUTES_MS // EVENT_MS) == []
    assert turnover.world.history.handled_count > 100


def test_nothing_is_left_by_members_of_kafka_groups() -> None:
    turnover = Turnover(1, brokers=1, groups=(), kafka_groups=KAFKA_GROUPS[:1])
    assert leaks(turnover, 12) == []


def test_a_brokers_new_table_that_keeps_dead_entries_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here each coordinated group remembers its former members in an otherwise unknown table."""
    remove = GroupMembership.remove

    def remember(self: GroupMembership[Any, Any], member: GroupMember[Any, Any]) -> None:
        remove(self, member)
        self.__dict__.setdefault("former", []).append(member.id)

    monkeypatch.setattr(GroupMembership, "remove", remember)
    found = leaks(some_groups("Coordinated"), 12)
    assert [(each.process, each.table, each.after - each.before) for each in found] == [
        ("broker-a", "groups.coordinator.membership.GroupMembership.former", 3)
    ]
