"""The reconciliation of the demonstration: checks that all counts agree with the number of flights."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from libramq.demo.member import Consumed


class Check(NamedTuple):
    """One check."""

    what: str
    expected: int
    found: int
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.expected == self.found


def reconcile(
    *,
    keys: Sequence[str],
    stored_count: int,
    consumed: Consumed,
    table_keys: Sequence[str],
    table: Mapping[str, Any],
) -> list[Check]:
    """Compare all counts with the flights in the file. table: the pipeline's report on its tables."""
    count = len(keys)
    return [
        Check("flights stored by the broker", count, stored_count),
        Check(
            "flights consumed by the group",
            count,
            consumed.distinct,
            f"{consumed.total:,} deliveries, {consumed.duplicate_count:,} of them duplicates",
        ),
        Check("rows of table flights", count, len(table_keys), "each flight once"),
        Check("different flights in it", count, len(set(table_keys))),
        Check("different queue offsets in it", count, table["places"]),
        Check("flights missing from it", 0, len({*keys}.difference(table_keys))),
        Check("rows that are not a flight", 0, len({*table_keys}.difference(keys))),
        Check(
            "flights counted in table delays",
            count,
            table["delay_flights"],
            f"{table['delay_rows']:,} rows, one per carrier and day",
        ),
        Check("flights dropped as late", 0, table["late"]),
    ]
