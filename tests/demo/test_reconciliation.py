"""The reconciliation fails when anything is missing, double, strange or late."""

from typing import Any

import pytest

from libramq.demo.member import Consumed
from libramq.demo.reconciliation import reconcile

GOOD: dict[str, Any] = {
    "keys": ["a", "b", "c"],
    "stored_count": 3,
    "consumed": Consumed(5, 3, {"first": 5}, [], []),
    "table_keys": ["c", "a", "b"],
    "table": {"places": 3, "delay_flights": 3, "delay_rows": 2, "late": 0},
}


def broken(**found: Any) -> set[str]:
    return {check.what for check in reconcile(**GOOD | found) if not check.holds}


def test_duplicates_of_the_group_are_allowed_and_reported():
    assert broken() == set()
    assert "5 deliveries, 2 of them duplicates" in {check.note for check in reconcile(**GOOD)}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"stored_count": 2}, {"flights stored by the broker"}),
        ({"consumed": Consumed(3, 2, {}, [], [])}, {"flights consumed by the group"}),
        (
            {"table_keys": ["a", "b"]},
            {"rows of table flights", "different flights in it", "flights missing from it"},
        ),
        ({"table_keys": ["a", "b", "c", "c"]}, {"rows of table flights"}),
        (
            {"table_keys": ["a", "b", "x"]},
            {"flights missing from it", "rows that are not a flight"},
        ),
        ({"table": {**GOOD["table"], "places": 2}}, {"different queue offsets in it"}),
        ({"table": {**GOOD["table"], "delay_flights": 2}}, {"flights counted in table delays"}),
        ({"table": {**GOOD["table"], "late": 1}}, {"flights dropped as late"}),
    ],
)
def test_discrepancies_are_named(change: dict[str, Any], wrong: set[str]):
    assert broken(**change) == wrong
