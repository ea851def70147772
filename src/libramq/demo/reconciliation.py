"""The reconciliation of the demonstration: checks that all counts agree with the number of flights."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from libramq.demo.journal import Consumed


class Check(NamedTuple):
    """One check."""

    what: str
    expected: int
    found: int
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.expected == self.found


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The counts from all sources."""

    keys: Sequence[str]
    stored_count: int
    consumed: Consumed
    table_keys: Iterable[str]
    table: dict[str, Any]
    """The pipeline's report on its tables."""


def reconcile(account: Account) -> list[Check]:
    """Compare everything with the flights in the file."""
    count = len(account.keys)
    consumed, table = account.consumed, account.table
    in_table = list(account.table_keys)
    missing = len(set(account.keys).difference(in_table))
    strange = len(set(in_table).difference(account.keys))
    return [
        Check("flights stored by the broker", count, account.stored_count),
        Check(
            "flights consumed by the group",
            count,
            consumed.distinct,
            f"{consumed.total:,} deliveries, {consumed.duplicate_count:,} of them duplicates",
        ),
        Check("rows of table flights", count, len(in_table), "each flight once"),
        Check("different flights in it", count, len(set(in_table))),
        Check("different queue offsets in it", count, table["places"]),
        Check("flights missing from it", 0, missing),
        Check("rows that are no flight", 0, strange),
        Check(
            "flights counted in table delays",
            count,
            table["delay_flights"],
            f"{table['delay_rows']:,} rows, a carrier and a day each",
        ),
        Check("flights dropped as late", 0, table["late"]),
    ]
