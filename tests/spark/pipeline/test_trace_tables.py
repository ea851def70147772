"""Tests of the numbers derived from traces, with handmade records."""

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from libramq.message.trace import Pub, SubAfter, SubBefore, TraceRecord, encode_trace
from libramq.spark.pipeline.deliveries import CLOCKS_APART_MS, client_of, deliveries
from libramq.spark.pipeline.lag_report import SAMPLES
from libramq.spark.pipeline.rebalance_page import rebalance_page
from libramq.spark.pipeline.trace_tables import (
    AFTER_MS,
    CALM_MS,
    CAUSED_MS,
    DUPLICATES,
    TABLES,
    period_rows,
    periods,
    trace_tables,
)
from libramq.spark.schema import ddl

from .test_rebalance_report import Balanced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MAY = int(datetime(2026, 5, 1, tzinfo=UTC).timestamp() * 1000)
TEN = MAY + 10 * 3_600_000
ALICE, BOB = "0A0000010001000000AA", "0A0000020002000000BB"  # Address, process and class loader.
ALICE_IS, BOB_IS = "10.0.0.1@1", "10.0.0.2@2"
REBALANCE_MS = TEN + 120_000
STABLE_MS = 2_000


def message_id(number: int, born_ms: int) -> str:
    return f"0A0000090009000000CC{born_ms - MAY:08X}{number:04X}"


class Traced:
    """A record of the traces clients would have written; each call handles one message."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []
        self._calls = 0

    def handled(
        self,
        number: int,
        client: str,
        at_ms: int,
        *,
        group: str = "G",
        born_ms: int = TEN,
        retry: int = 0,
        succeeded: bool | None = True,
    ) -> str:
        self._calls += 1
        call = f"{client}{at_ms - MAY:08X}{self._calls & 0xFFFF:04X}"
        one = message_id(number, born_ms)
        self.records.append(SubBefore(at_ms, "R", group, call, one, retry, None))
        if succeeded is not None:
            self.records.append(SubAfter(call, one, 5, succeeded, None, 0, at_ms + 5, group))
        return one


def rebalance(
    at_ms: int = REBALANCE_MS, *, group: str = "G", stable_ms: int | None = STABLE_MS
) -> dict[str, Any]:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return {"group": group, "at": at, "reason": "session_expired", "time_to_stable_ms": stable_ms}


class Made:
    def __init__(self, tables: dict[str, Any], remarks: list[str], duplicates: Path) -> None:
        self.remarks = remarks
        self.tables = {name: table.to_pylist() for name, table in tables.items()}
        for name, table in tables.items():
            assert table.column_names == list(TABLES[name])
        found = pq.read_table(duplicates)
        assert found.column_names == list(DUPLICATES)
        self.duplicates = sorted(found.to_pylist(), key=lambda row: (row["at"], row["msgId"]))


def make(
    spark: "SparkSession",
    directory: Path,
    bodies: list[bytes],
    rebalances: tuple[dict[str, Any], ...] = (),
    samples: list[tuple[Any, ...]] | None = None,
    *,
    broadcasting: tuple[str, ...] = (),
) -> Made:
    rows = spark.createDataFrame([(bytearray(body),) for body in bodies], "body binary")
    sampled = None
    if samples is not None:
        sampled = spark.createDataFrame(samples, ddl(SAMPLES))
    found = deliveries(rows, broadcasting=broadcasting, zone=UTC)
    path = directory / "duplicates"
    return Made(*trace_tables(found, period_rows(spark, periods(rebalances)), sampled, duplicates=path), path)


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def stored(ms: int) -> datetime:
    """Return what readers other than Spark find in the tables that Spark wrote."""
    return at(ms).replace(tzinfo=None)


@pytest.fixture(scope="module")
def made(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Ten messages for alice, who leaves. Four of them are redelivered to bob, and one fails.

    Group sampled has samples of two queues, every 5 s: its lag is 10, rises to 100, and is 10 after 15 s.
    """
    told = Traced()
    for number in range(10):
        told.handled(number, ALICE, REBALANCE_MS - 30_000 + number, born_ms=REBALANCE_MS - 30_050)
    for number in range(10, 20):  # Late, because no consumer read.
        told.handled(number, BOB, REBALANCE_MS + 4_000 + number, born_ms=REBALANCE_MS - 4_000)
    for number in range(6, 10):
        told.handled(number, BOB, REBALANCE_MS + 3_000 + number, born_ms=REBALANCE_MS - 30_050)
    told.handled(20, BOB, REBALANCE_MS + 20_000, born_ms=REBALANCE_MS + 19_990)  # As above.
    told.handled(21, BOB, REBALANCE_MS + 21_000, succeeded=False, born_ms=REBALANCE_MS + 20_990)
    told.handled(21, BOB, REBALANCE_MS + 31_000, retry=1, born_ms=REBALANCE_MS + 20_990)
    told.handled(0, BOB, REBALANCE_MS + STABLE_MS + CAUSED_MS + 1, born_ms=REBALANCE_MS - 30_050)
    told.handled(1, BOB, REBALANCE_MS, group="other", succeeded=None, born_ms=REBALANCE_MS - 30_050)
    ids = ",".join(message_id(number, REBALANCE_MS - 4_000) for number in range(10, 20))
    told.records.append(
        Pub(REBALANCE_MS - 4_500, "R", "P", "Orders", ids, None, None, "h", 5, 1, 0, "o", True)
    )
    told.handled(1, ALICE, TEN, group="sampled")
    samples = [
        ("sampled", "T", "a", queue, at(REBALANCE_MS - 5_000 + 5_000 * number), 1_000 + lag, 1_000)
        for number, lag in enumerate((5, 20, 50, 30, 5, 0))
        for queue in (0, 1)
    ]
    whole = encode_trace(told.records)
    bodies = [whole, whole, b"\xff\x01\x02Pub\x01no number\x02", b""]  # A body may be stored twice.
    rebalances = tuple(rebalance(group=group) for group in ("G", "sampled", "silent"))
    return make(spark, tmp_path_factory.mktemp("traces"), bodies, rebalances, [*samples, *samples[:4]])


@pytest.fixture(scope="module")
def calm(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Traces without rebalance events and without samples."""
    told = Traced()
    told.handled(1, ALICE, TEN + 1_000)
    told.handled(1, BOB, TEN + 2_000)
    for client in (ALICE, BOB):
        told.handled(1, client, TEN, group="everyone")
    told.handled(1, ALICE, TEN, group="zones", born_ms=TEN + CLOCKS_APART_MS)  # Clocks differ.
    told.handled(2, ALICE, TEN, group="zones", born_ms=TEN + 8 * 3_600_000)
    bodies = [encode_trace(told.records)]
    return make(spark, tmp_path_factory.mktemp("calm"), bodies, broadcasting=("everyone",))


def test_a_redelivery_is_attributed_to_its_rebalance(made: Made):
    first, *_ = made.duplicates
    assert first == {
        "group": "G", "topic": None, "msgId": message_id(6, REBALANCE_MS - 30_050),
        "at": stored(REBALANCE_MS + 3_006), "client": BOB_IS, "succeeded": True, "retry_times": 0,
        "before_at": stored(REBALANCE_MS - 30_000 + 6), "before_client": ALICE_IS, "before_succeeded": True,
        "cause": "rebalance", "rebalance_at": stored(REBALANCE_MS), "reason": "session_expired",
    }  # fmt: skip


def test_redeliveries_are_counted_by_cause(made: Made):
    assert [(row["cause"], row["rebalance_at"] is None) for row in made.duplicates] == [
        *[("rebalance", False)] * 4, ("retry", True), ("unknown", True),
    ]  # fmt: skip


def test_deliveries_are_summed_up_by_hour(made: Made):
    mine, other, _ = made.tables["deliveries"]
    assert other["group"] == "other"
    assert (other["deliveries"], other["failed"], other["duplicates"]) == (1, 0, 0)
    assert mine["hour"] == at(TEN)
    assert (mine["deliveries"], mine["messages"], mine["clients"], mine["failed"]) == (28, 22, 2, 1)
    assert [mine[name] for name in ("duplicates", "by_rebalance", "by_retry", "unknown")] == [6, 4, 1, 1]
    assert mine["succeeded_twice"] == 5  # A message that failed earlier succeeded once.
    # 22 messages: alice's after 50 ms and more, the late ones 8.5 s after Pub's time.
    assert (mine["delay_p50_ms"], mine["delay_max_ms"]) == (58, 8_519)


def test_the_effects_of_a_rebalance_are_listed(made: Made):
    row, _, silent = made.tables["effects"]
    assert (row["group"], row["reason"], row["at"]) == ("G", "session_expired", at(REBALANCE_MS))
    assert (row["duplicates"], row["succeeded_twice"]) == (4, 4)
    assert (row["before_p50_ms"], row["before_max_ms"]) == (54, 59)
    assert (row["after_p50_ms"], row["after_max_ms"]) == (8_513, 8_519)
    assert row["back_to_normal_ms"] == 4_019  # The last late message began then; 10 ms at 20 s are usual.
    assert row["lag_peak"] is None
    assert silent["group"] == "silent"
    assert (silent["duplicates"], silent["after_max_ms"]) == (None, None)


def test_deliveries_and_duplicates_are_counted_by_client(made: Made):
    found = {
        (row["group"], row["client"]): (row["deliveries"], row["duplicates"])
        for row in made.tables["clients"]
    }
    assert found == {
        ("G", ALICE_IS): (10, 0), ("G", BOB_IS): (18, 6), ("other", BOB_IS): (1, 0),
        ("sampled", ALICE_IS): (1, 0),
    }  # fmt: skip


def test_unreadable_traces_are_counted_and_skipped(made: Made):
    assert made.remarks == ["trace records that could not be read: 2"]


def test_without_events_duplicates_have_no_rebalance(calm: Made):
    assert [(row["group"], row["cause"]) for row in calm.duplicates] == [("G", "unknown")]
    assert calm.tables["effects"] == []
    page = rebalance_page(calm.tables, TEN, ["no broker <records> rebalances"])
    read = Balanced()
    read.feed(page)
    assert read.open == []
    assert "Missing: no broker <records> rebalances." in read.text
    assert "1messages redelivered" in read.text


def test_groups_that_broadcast_are_left_out(calm: Made):
    assert [row["group"] for row in calm.tables["deliveries"]] == ["G", "zones"]


def test_an_id_with_a_foreign_clock_gives_a_remark_instead_of_a_delay(calm: Made):
    _, row = calm.tables["deliveries"]
    assert (row["deliveries"], row["delay_max_ms"]) == (2, 0)
    assert calm.remarks == ["messages handled before they were made: 1; give producers_zone"]


def test_lag_around_a_rebalance_is_shown(made: Made):
    _, row, silent = made.tables["effects"]
    assert (row["lag_before"], row["lag_peak"], row["lag_back_ms"]) == (10, 100, 15_000)
    assert row["duplicates"] == 0
    assert silent["lag_peak"] is None


def test_the_periods_of_a_group_do_not_overlap():
    apart = [10_000, 20_000, 500_000, 1_500_000]
    found = periods(
        [rebalance(TEN + ms) for ms in reversed(apart)] + [rebalance(TEN, group="other", stable_ms=None)]
    )
    mine = [period for period in found if period.group == "G"]
    assert [period.rebalance_ms - TEN for period in mine] == apart
    for period, following in pairwise(mine):
        assert period.until_ms <= following.from_ms
        assert period.rebalance_ms <= following.calm_from_ms
        assert period.caused_until_ms <= period.until_ms
    assert mine[-1].calm_from_ms == mine[-1].rebalance_ms - CALM_MS
    assert mine[-1].caused_until_ms == mine[-1].rebalance_ms + STABLE_MS + CAUSED_MS
    assert mine[-1].until_ms == mine[-1].rebalance_ms + STABLE_MS + AFTER_MS
    assert found[-1].caused_until_ms - found[-1].rebalance_ms > CAUSED_MS  # The time it settled is unknown.


def test_the_client_of_a_message_is_found_by_its_unique_id():
    assert client_of(f"{ALICE}000000000001") == ALICE_IS
    assert client_of("no unique id") is None
