"""`ingest` writes tables of all formats in S3, each message once, whenever its driver is killed."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import polars
import pytest

from libramq.errors import ConfigError
from libramq.message import Message
from libramq.spark.pipeline import iceberg_table
from libramq.spark.pipeline.batches import Batch
from libramq.spark.pipeline.iceberg_table import IcebergTable
from libramq.spark.pipeline.ingest import Ingest, IngestConfig
from libramq.spark.pipeline.object_store import StoredDirectory
from libramq.sync import Admin, Producer
from tests.docs.test_documents import run as run_documents
from tests.interop.cluster import SEND_TIMEOUT_MS
from tests.interop.libra import ENVIRONMENT, LibraUp, running
from tests.interop.object_store import ACCESS_KEY, SECRET_KEY, Gate, SeaweedFS, set_up_seaweedfs
from tests.interop.process import PATIENCE_S
from tests.spark.pipeline.test_iceberg_table import Rows

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parent.parent.parent
TOPIC = "Sales"
MESSAGES, BATCH_MESSAGES = 300, 120
SHOPS = ("Harbour", "a/b %41", "Ærø")
#: The request that ends the second batch of each table, as its client sends it.
PARQUET_COMMIT = "PUT .*/parquet/batch(=|%3D)1/_SUCCESS"
DELTA_COMMIT = r"PUT .*/delta/_delta_log/0+2\.json"
ICEBERG_COMMIT = '"libramq-batch": ?"1"'


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    set_up_seaweedfs()
    started = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture
def _credentials(store: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[LibraUp]:
    with running(tmp_path / "up") as started:
        with Admin(namesrv=started.namesrv) as admin:
            admin.create_topic(TOPIC, queues=2)
        with Producer(namesrv=started.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
            for number in range(MESSAGES):
                body = b'{"shop": "%s", "cents": %d}' % (SHOPS[number % len(SHOPS)].encode(), number)
                producer.send_nowait(Message(TOPIC, body))
            producer.flush()
        yield started


def configs(up: LibraUp, s3: str, catalog: dict[str, str]) -> list[dict[str, Any]]:
    shared: dict[str, Any] = {
        "topics": [TOPIC],
        "namesrv": up.namesrv,
        "body": "json",
        "columns": {"shop": "string", "cents": "int"},
        "partitioned_by": ["shop", "date"],
        "batch_messages": BATCH_MESSAGES,
        "storage": {"endpoint": s3},
    }
    return [
        {**shared, "format": "iceberg", "table": "shop.iceberg", "catalog": catalog},
        {**shared, "format": "parquet", "table": "s3://lake/parquet"},
        {**shared, "format": "delta", "table": "s3://lake/delta"},
    ]


def start(given: list[dict[str, Any]], store: SeaweedFS, directory: Path) -> "subprocess.Popen[bytes]":
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.interop.object_store_driver", repr(given)],
            cwd=directory,
            env={**os.environ, **ENVIRONMENT, **store.environment, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # The driver and its Java machine end together.
        )


def start_next(driver: "subprocess.Popen[bytes]") -> None:
    assert driver.stdin is not None
    driver.stdin.write(b"\n")
    driver.stdin.flush()


def kill(driver: "subprocess.Popen[bytes]") -> None:
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=PATIENCE_S)


def rows(store: SeaweedFS, kind: str) -> polars.DataFrame:
    """Read a table with another engine."""
    options = {"aws_endpoint_url": store.s3_url, "aws_allow_http": "true"}
    if kind == "iceberg":
        table = store.opened_catalog().load_table("shop.iceberg")
        found = polars.scan_iceberg(table, storage_options=options).collect()
        assert isinstance(found, polars.DataFrame)
        return found
    if kind == "delta":
        table = deltalake.DeltaTable("s3://lake/delta", storage_options=options)
        found = polars.from_arrow(table.to_pyarrow_table())  # Polars reads directories, not the log.
        assert isinstance(found, polars.DataFrame)
        return found
    return polars.read_parquet(
        "s3://lake/parquet/**/*.parquet", storage_options=options, hive_partitioning=True
    )


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")
@pytest.mark.usefixtures("_credentials")
def test_every_message_is_once_in_each_table_after_kills_before_and_after_a_commit(
    store: SeaweedFS, up: LibraUp, tmp_path: Path
):
    """The first driver is killed before its second commit, the next before it receives the response."""
    with Gate(store.s3_port) as s3, Gate(store.catalog_port) as catalog:
        given = configs(up, s3.url, store.catalog(catalog.url))
        for answers in (False, True):
            s3.hold(PARQUET_COMMIT, DELTA_COMMIT, answers=answers)
            catalog.hold(ICEBERG_COMMIT, answers=answers)
            driver = start(given, store, tmp_path)
            try:
                for gate, commit in (catalog, ICEBERG_COMMIT), (s3, PARQUET_COMMIT), (s3, DELTA_COMMIT):
                    start_next(driver)
                    gate.wait_held(commit, within_s=PATIENCE_S)
            except AssertionError as error:
                raise AssertionError((tmp_path / "log").read_text()[-3000:]) from error
            finally:
                kill(driver)
            assert len(rows(store, "delta")) == BATCH_MESSAGES * (1 + answers)
            assert len(rows(store, "iceberg")) == BATCH_MESSAGES * (1 + answers)
        s3.hold()
        catalog.hold()
        driver = start(given, store, tmp_path)
        for _ in given:
            start_next(driver)
        try:
            assert driver.wait(len(given) * PATIENCE_S) == 0, (tmp_path / "log").read_text()
        finally:
            kill(driver)
    for kind in ("parquet", "delta", "iceberg"):
        found = rows(store, kind)
        assert sorted(found["cents"].to_list()) == list(range(MESSAGES)), kind
        assert Counter(found["shop"].to_list()) == dict.fromkeys(SHOPS, MESSAGES // len(SHOPS)), kind
        assert len({*found.select("broker", "queueId", "offset").iter_rows()}) == MESSAGES
    for file in tmp_path.rglob("*"):
        if file.is_file() and "up" not in file.relative_to(tmp_path).parts:
            assert SECRET_KEY.encode() not in file.read_bytes(), file


@pytest.mark.usefixtures("_credentials")
def test_a_batch_that_another_run_has_added_meanwhile_is_not_added_again(store: SeaweedFS):
    """A REST catalog refuses the commit that comes second."""
    credential = store.environment["PYICEBERG_CATALOG__DEFAULT__CREDENTIAL"]
    catalog = {**store.catalog(), "credential": credential, "s3.endpoint": store.s3_url}

    def write(rows: Rows, query: str = "q") -> int:
        table = IcebergTable("shop.raced", catalog, partitioned_by=["date"])
        return table.write_once(rows, Batch(query, 0))  # type: ignore[arg-type]

    assert write(Rows(lambda: write(Rows()))) == 0
    assert write(Rows(lambda: write(Rows(), "another")), "a third") == 2
    table = store.opened_catalog().load_table("shop.raced")
    assert table.scan().to_arrow().num_rows == 6


@pytest.mark.usefixtures("_credentials")
def test_a_new_directory_has_one_owner(store: SeaweedFS):
    """One of two first runs owns it; the second leaves no mark, so the first is not refused on its return."""
    directory = StoredDirectory.of("s3://lake/claimed", {"endpoint": store.s3_url})
    assert directory.claim("one") is None
    assert directory.claim("other") == "s3://lake/claimed/_libramq/one"
    assert directory.claim("one") is None
    assert not directory.has_any()


@pytest.mark.usefixtures("_credentials")
def test_a_catalog_that_stops_answering_is_given_up(store: SeaweedFS, monkeypatch: pytest.MonkeyPatch):
    """Otherwise an endless pipeline would wait forever."""
    monkeypatch.setattr(iceberg_table, "CATALOG_SECONDS", 0.5)
    with Gate(store.catalog_port) as gate:
        known = {"credential": f"{ACCESS_KEY}:{SECRET_KEY}"}  # pyiceberg has read its environment before.
        table = IcebergTable("shop.silent", {**store.catalog(gate.url), **known})
        assert not table.has_rows()
        gate.hold("GET .*/tables/silent")
        with pytest.raises(ConfigError, match=r"the catalog default cannot be opened: .*[Tt]imed out"):
            table.has_rows()


@pytest.mark.usefixtures("_credentials")
def test_wrong_keys_of_a_store_are_named_where_the_catalog_is_elsewhere(
    store: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    catalog = {
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": "s3://lake/warehouse",
        "s3.endpoint": store.s3_url,
    }
    IcebergTable("shop.t", catalog, partitioned_by=["date"]).write_once(Rows(), Batch("q", 0))  # type: ignore[arg-type]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(ConfigError, match=r"its files cannot be read: .*ACCESS_DENIED.*; give endpoint"):
        IcebergTable("shop.t", catalog).has_rows()


@pytest.mark.usefixtures("_credentials")
def test_mistakes_are_named_before_spark_starts(
    store: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    for kind in ("parquet", "delta"):
        given: dict[str, Any] = {"topics": ["A"], "table": "s3://lake/t", "format": kind}
        pipeline = Ingest(IngestConfig(**given, storage={"endpoint": store.s3_url}))
        with pytest.raises(ConfigError, match=r"the object store http.*; give endpoint and region in \[st"):
            pipeline.plan()
    sql = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://lake/warehouse"}
    given = {"topics": ["A"], "table": "shop.new", "format": "iceberg", "catalog": sql}
    pipeline = Ingest(IngestConfig(**given, storage={"endpoint": store.s3_url}))
    refused = r"the warehouse s3://lake/warehouse of the new table shop.new cannot be reached: "
    with pytest.raises(ConfigError, match=refused + ".*ACCESS_DENIED.*; give endpoint and region in"):
        pipeline.plan()
    for place in ("a%20b", "a#b", "a?b"):
        with pytest.raises(
            ConfigError, match=r"readers would look elsewhere, as . has a meaning in URLs; give"
        ):
            Ingest(IngestConfig(topics=["A"], table=f"s3://lake/{place}"))
    rest = {**store.catalog(), "credential": f"{ACCESS_KEY}:another"}
    pipeline = Ingest(IngestConfig(topics=["A"], table="shop.t", format="iceberg", catalog=rest))
    with pytest.raises(ConfigError, match=r"the catalog default cannot be opened: .*; give pyiceberg's"):
        pipeline.plan()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_credentials")
def test_the_page_about_logs_prints_what_it_shows(
    store: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its readers have this environment; Polars and DuckDB query the table."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.s3_url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__S3__ENDPOINT", store.s3_url)
    run_documents(["docs/logs-to-iceberg.md"], tmp_path, is_private=False)
