"""A Delta table has each batch once, whoever writes at the same time."""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from libramq.spark.pipeline.ingest.delta_table import DeltaTable


class Rows:
    """A batch of Spark's. meanwhile: what another run does while the driver collects the rows."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None, **columns: list[Any]) -> None:
        self._columns = columns or {"offset": [1, 2]}
        self._meanwhile = meanwhile

    def toArrow(self) -> pa.Table:
        self._meanwhile()
        count = len(next(iter(self._columns.values())))
        return pa.table({**self._columns, "date": [date(2026, 5, 1)] * count})


def rows_in(path: Path) -> int:
    return deltalake.DeltaTable(str(path)).to_pyarrow_table().num_rows


def write(path: Path, rows: Rows, batch: int) -> int:
    return DeltaTable(path, query_id="q").write(rows, batch)  # type: ignore[arg-type]


def test_a_batch_that_another_run_has_added_meanwhile_is_not_added_again(tmp_path: Path):
    """An overlapping cron wrote a whole batch twice, and both runs reported success."""
    path = tmp_path / "t"
    for batch in (0, 1):
        assert write(path, Rows(lambda: write(path, Rows(), batch)), batch) == 0  # noqa: B023
        assert rows_in(path) == 2 * (batch + 1)
        assert DeltaTable(path, query_id="q").has_batch(batch)


@pytest.mark.parametrize(("other", "count"), [("q", 4), ("someone else", 6)])
def test_a_commit_that_lost_a_race_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, count: int
):
    """The other commit comes after this run has looked, and before it commits."""
    path = tmp_path / "t"
    write(path, Rows(), 0)
    really, others = deltalake.write_deltalake, [other]

    def raced(*arguments: Any, **options: Any) -> None:
        if others:
            DeltaTable(path, query_id=others.pop()).write(Rows(), 1)  # type: ignore[arg-type]
        really(*arguments, **options)

    monkeypatch.setattr(deltalake, "write_deltalake", raced)
    assert write(path, Rows(), 1) == count - 4
    assert rows_in(path) == count


def test_a_table_gains_columns(tmp_path: Path):
    write(tmp_path / "t", Rows(), 0)
    write(tmp_path / "t", Rows(offset=[3], corrupt=[b"x"]), 1)
    assert rows_in(tmp_path / "t") == 3
