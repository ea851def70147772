"""An Iceberg table that holds each batch once. Commits batches, compacts files and removes orphans.

    LOCATION/data/date=2026-05-01/libramq-….parquet     written by Spark's tasks, with Iceberg's field ids
    table property libramq-batch.QUERY = N              committed with the snapshot that adds batch N
    snapshot summary libramq-query, libramq-batch       the same, for people

The property outlives the snapshot: expiring snapshots and other programs' commits leave it in place. Tasks
return a row for each file, and the driver commits the files through the library `pyiceberg`, in any of its
catalogs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from libramq.errors import ConfigError, needs_extra
from libramq.spark.pipeline.data_files import by_partition, column_names, files_of_tasks, rows_in
from libramq.spark.pipeline.object_store import REMEDY, SCHEME
from libramq.spark.pipeline.table_columns import gained_columns

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyspark.sql import DataFrame, SparkSession

    from libramq.spark.pipeline.batches import Batch

#: Ours: attempts to commit when other writers keep winning the race.
COMMITS_MAX: Final = 10
#: Ours: read timeout of a REST catalog, which may be writing a long list of snapshots.
CATALOG_SECONDS: Final = 60
#: Ours: `compact` merges files smaller than this.
SMALL_BYTES: Final = 32 << 20
#: Ours: `compact` merges files up to this total size.
MERGED_BYTES: Final = 128 << 20
#: Ours: younger unreferenced files may belong to a run that is about to commit them; as in DeltaTable.
ORPHANS_AGE: Final = timedelta(days=7)
_BATCH: Final = "libramq-batch"
_QUERY: Final = "libramq-query"
_OWNER: Final = "libramq-owner"
_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
#: Prefixes of pyiceberg's file store properties; the others belong to a catalog and include its credential.
_STORES: Final = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "client.", "py-io-impl", "warehouse")
_SNAPSHOT_AGE: Final = "history.expire.max-snapshot-age-ms"
ARROW_TYPES: Final[Mapping[str, pa.DataType]] = MappingProxyType(
    {
        "string": pa.string(), "binary": pa.binary(), "boolean": pa.bool_(), "int": pa.int32(),
        "bigint": pa.int64(), "float": pa.float32(), "double": pa.float64(), "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
)  # fmt: skip
#: For tables created here: a batch every ten seconds makes 8,640 snapshots a day, and each commit writes the
#: list of them. Later changes by other programs take precedence.
PROPERTIES: Final = {
    _SNAPSHOT_AGE: str(24 * 3_600_000),
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}


class IcebergTable:
    """One table. name: with its namespace, like "shop.orders". partitioned_by: one or more columns.

    catalog: pyiceberg's properties, such as `uri` and `warehouse`, and the catalog's `name` ("default" if
    absent). A warehouse without a scheme is a directory.
    """

    def __init__(
        self, name: str, catalog: Mapping[str, str], *, partitioned_by: str | Sequence[str] = ()
    ) -> None:
        with needs_extra("an Iceberg table", "iceberg"):
            import pyiceberg.catalog  # noqa: F401
        namespace = name.rpartition(".")[0]
        if not namespace or not all(map(str.strip, name.split("."))) or "/" in name:
            raise ConfigError(f"table={name!r}: give a namespace and a name, like shop.orders")
        self.name, self._namespace = name, namespace
        for place in (name, catalog.get("warehouse", "")):
            if marks := set(place) & set("#?"):  # pyiceberg would truncate all file names there.
                raise ConfigError(
                    f"{place!r}: {min(marks)} has a meaning in URLs; give the table and the warehouse "
                    "names without it"
                )
        self._catalog_name = catalog.get("name", "default")
        self._properties = {key: value for key, value in catalog.items() if key != "name"}
        warehouse = self._properties.get("warehouse", "")
        if warehouse and "://" not in warehouse and not self._properties.get("uri", "").startswith("http"):
            self._properties["warehouse"] = f"file://{Path(warehouse).absolute()}"
        self._partitioned_by = tuple(column_names(partitioned_by))

    def has_rows(self, owner: str = "") -> bool:
        """Return whether the table exists, ignoring one that `owner` created but has not written to."""
        table = self._open()
        if table is None:
            return False
        return not owner or table.properties.get(_OWNER) != owner or table.current_snapshot() is not None

    def check(self, columns: Mapping[str, str]) -> None:
        """Raise ConfigError if columns (with Spark types) do not fit, or the warehouse is unusable.

        Nested types are checked when rows are written: only a Spark session can parse them.
        """
        table = self._open()
        if table is None:
            self._check_warehouse()
            return
        known = {name: ARROW_TYPES[kind] for name, kind in columns.items() if kind in ARROW_TYPES}
        self._check(table, pa.schema(known))

    def create(self, schema: pa.Schema, owner: str) -> None:
        """Create the table for one writer; ConfigError if another has created it meanwhile."""
        table = self._made(schema, {_OWNER: owner})
        if table.properties.get(_OWNER) != owner:
            raise ConfigError(
                f"another run has made the table {self.name} just now; give its checkpoint, or another table"
            )

    def has_batch(self, batch: "Batch") -> bool:
        """Return whether a batch is in the table."""
        table = self._open()
        return table is not None and _has(table, batch)

    def write_once(self, rows: "DataFrame", batch: "Batch") -> int:
        """Add a batch and return its number of rows; 0 if the table already has it.

        Spark's tasks write the files. The driver commits them on top of the version it read; the catalog
        refuses the commit if anything has been committed since.
        """
        from pyiceberg.exceptions import CommitFailedException
        from pyspark.sql.pandas.types import to_arrow_schema

        if self.has_batch(batch):
            return 0
        table = self._prepared(to_arrow_schema(rows.schema, timezone="UTC"))
        files = files_of_tasks(rows, FileWriter.of(table, self._partitioned_by).write)
        for attempt in range(1, COMMITS_MAX + 1):
            if _has(table, batch):
                # The earlier commit may be our own, if a proxy sent it twice.
                ours = {file.file_path for file in files}
                if not ours.isdisjoint(_referenced(table)):
                    break
                _delete(table, files)
                return 0
            # Only in this copy: a commit that lost a race must check `_has` before it is tried again.
            table.metadata.properties.update(_NO_RETRIES)
            properties = {_QUERY: batch.query, _BATCH: str(batch.number)}
            try:
                with table.transaction() as transaction:
                    transaction.set_properties({f"{_BATCH}.{batch.query}": str(batch.number)})
                    update = transaction.update_snapshot(snapshot_properties=properties)
                    is_merging = table.properties.get("commit.manifest-merge.enabled") == "true"
                    with update.merge_append() if is_merging else update.fast_append() as append:
                        for file in files:
                            append.append_data_file(file)
                break
            except CommitFailedException:
                if attempt == COMMITS_MAX:
                    raise
                table = self._catalog.load_table(self.name)
        return sum(file.record_count for file in files)

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None":
        """Return the rows of some days of a table partitioned by date; None if there are none.

        Spark reads the files, so it needs access to the warehouse.
        """
        table = self._open()
        if table is None:
            return None
        days = f"date >= '{first.isoformat()}' and date <= '{last.isoformat()}'"
        files = [task.file.file_path for task in table.scan(row_filter=days).plan_files()]
        return rows_in(spark, files)

    def compact(self) -> int:
        """Merge small files; return how many were replaced. A merge that loses a race is tried next time.

        Expires snapshots older than the table's property history.expire.max-snapshot-age-ms, and deletes data
        files written here that no snapshot has referred to for a week.
        """
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        table = self._open()
        if table is None:
            return 0
        count = 0
        try:
            for files in _small_files(table):
                _merge(table, files, self._partitioned_by)
                count += len(files)
                table = self._catalog.load_table(self.name)
            _expire_snapshots(table)
        except (CommitFailedException, ValidationException):
            return count
        _delete_orphans(self._catalog.load_table(self.name))
        return count

    def _check_warehouse(self) -> None:
        """Raise ConfigError for an unusable warehouse; only SQL catalogs need one to be configured."""
        warehouse, uri = self._properties.get("warehouse", ""), self._properties.get("uri", "")
        if not warehouse and uri.startswith(("sqlite", "postgresql")):
            raise ConfigError(
                f"[catalog] has no warehouse for the new table {self.name}; give a directory or a URL"
            )
        if Path(warehouse.removeprefix("file://")).is_file():
            raise ConfigError(f"the warehouse {warehouse} in [catalog] is a file; give a directory")
        if warehouse.startswith(SCHEME) and not uri.startswith("http"):
            self._check_store(warehouse)

    def _check_store(self, warehouse: str) -> None:
        """Raise ConfigError if the object store cannot be queried for the new table's first file."""
        from pyiceberg.io import load_file_io

        place = f"{warehouse.rstrip('/')}/{self.name.replace('.', '/')}/metadata/v0.metadata.json"
        try:
            load_file_io(self._properties, place).new_input(place).exists()
        except OSError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"the warehouse {warehouse} of the new table {self.name} cannot be reached: {reason}; "
                f"{REMEDY}"
            ) from None

    def _prepared(self, schema: pa.Schema) -> "Table":
        """Return the table with all columns of the schema, creating or extending it as needed."""
        table = self._made(schema)
        new = self._check(table, _optional(schema))
        if new:
            with table.update_schema() as update:
                update.union_by_name(pa.schema(new))
            table = self._catalog.load_table(self.name)
        return table

    def _made(self, schema: pa.Schema, properties: Mapping[str, str] = MappingProxyType({})) -> "Table":
        """Return the existing table, or create it with these columns and properties."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        catalog, table = self._catalog, self._open()
        if table is None:
            catalog.create_namespace_if_not_exists(self._namespace)
            try:
                with (
                    catalog.create_table_transaction(
                        self.name, _optional(schema), properties={**PROPERTIES, **properties}
                    ) as transaction,
                    transaction.update_spec() as spec,
                ):
                    for column in self._partitioned_by:
                        spec.add_identity(column)
            except TableAlreadyExistsError:  # Another run has just created it.
                pass
            table = catalog.load_table(self.name)
        return table

    def _check(self, table: "Table", schema: pa.Schema) -> list[pa.Field]:
        """Return new columns and columns with new fields; ConfigError if other columns differ."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        names = [table.schema().find_column_name(field.source_id) for field in table.spec().fields]
        is_identity = all(str(field.transform) == "identity" for field in table.spec().fields)
        if names != list(self._partitioned_by) or not is_identity:
            raise ConfigError(
                f"the table {self.name} is partitioned by {', '.join(map(str, names)) or 'nothing'}, "
                f"not by the values of {', '.join(self._partitioned_by) or 'nothing'}; give another table"
            )
        known = schema_to_pyarrow(table.schema(), include_field_ids=False)
        return gained_columns(self.name, known, schema, promotes=True)

    @cached_property
    def _catalog(self) -> "Catalog":
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NotInstalledError

        try:
            with self._errors_named():
                catalog = load_catalog(self._catalog_name, **self._properties)
        except (ValueError, NotInstalledError, ImportError) as error:
            raise self._not_opened(error) from None
        except Exception as error:  # An error of SQLAlchemy, which may not be installed.
            if not type(error).__module__.startswith("sqlalchemy"):
                raise
            raise self._not_opened(error) from None
        _limit_waiting(catalog)
        return catalog

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        """Raise ConfigError if the catalog or its store refuses a request or does not answer."""
        from pyiceberg.exceptions import RESTError
        from requests.exceptions import RequestException

        try:
            yield
        except (RESTError, RequestException) as error:
            raise self._not_opened(error) from None
        except OSError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"the table {self.name} is in the catalog {self._catalog_name}; its files cannot be read: "
                f"{reason}; {REMEDY}"
            ) from None

    def _not_opened(self, error: Exception) -> ConfigError:
        reason = str(error).partition("\n")[0]
        return ConfigError(
            f"the catalog {self._catalog_name} cannot be opened: {reason}; give pyiceberg's properties in "
            '[catalog], such as uri = "sqlite:////srv/catalog.db" and warehouse = "/srv/warehouse"'
        )

    def _open(self) -> "Table | None":
        from pyiceberg.exceptions import NoSuchTableError

        uri = self._properties.get("uri", "")
        if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
            return None  # Opening it would create the file; a dry run must not.
        try:
            with self._errors_named():
                return self._catalog.load_table(self.name)
        except NoSuchTableError:
            return None


@dataclass(frozen=True)
class FileWriter:
    """Writes rows as data files of a table; a plain value that can be sent to workers."""

    metadata: Any
    io: Any
    locations: Any
    partitioned_by: tuple[str, ...]

    @classmethod
    def of(cls, table: "Table", partitioned_by: tuple[str, ...]) -> "FileWriter":
        """Return the writer for a table's current schema."""
        from pyiceberg.io import load_file_io

        nothing: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
        # Workers need neither the history nor access to the catalog.
        slim = table.metadata.model_copy(update=nothing)
        store = {name: value for name, value in table.io.properties.items() if name.startswith(_STORES)}
        return cls(slim, load_file_io(store, table.location()), table.location_provider(), partitioned_by)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator["DataFile"]:
        """Write files with a bounded number of rows in memory; yield each file's entry for the commit."""
        tables = (self._as_table(batch) for batch in batches if batch.num_rows)
        for values, rows in by_partition(tables, self.partitioned_by):
            parts = (f"{quote(name, safe='')}={_in_path(value)}/" for name, value in values.items())
            yield self._write_file(rows, "".join(parts))

    def _as_table(self, batch: pa.RecordBatch) -> pa.Table:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        schema = schema_to_pyarrow(self.metadata.schema())
        columns = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def _write_file(self, rows: pa.Table, directory: str, *, bounds: bool = True) -> "DataFile":
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        location = self.locations.new_data_location(f"{directory}{_prefix(self.metadata)}{uuid4()}.parquet")
        codec = self.metadata.properties.get("write.parquet.compression-codec", "zstd")
        compression = "none" if codec == "uncompressed" else codec
        with self.io.new_output(location).create() as file:
            pq.write_table(
                rows, file, compression=compression, store_decimal_as_integer=True, write_statistics=bounds
            )
        try:
            return parquet_file_to_data_file(self.io, self.metadata, location)
        except OverflowError:  # Bounds are read as Python datetimes, which end with the year 9999.
            self.io.delete(location)
            if not bounds:
                raise
            return self._write_file(rows, directory, bounds=False)


def _optional(schema: pa.Schema) -> pa.Schema:
    """Return the schema with every column nullable."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _limit_waiting(catalog: "Catalog") -> None:
    """Set a timeout for a REST catalog's requests; pyiceberg would wait forever."""
    from requests import Session
    from requests.adapters import HTTPAdapter

    class Limited(HTTPAdapter):  # type: ignore[misc]
        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            return super().send(request, *arguments, **{**options, "timeout": CATALOG_SECONDS})

    session = getattr(catalog, "_session", None)
    if isinstance(session, Session):
        for scheme in ("http://", "https://"):
            session.mount(scheme, Limited())


def _prefix(metadata: Any) -> str:
    """Return the prefix of our file names; several tables may share a directory."""
    return f"libramq-{metadata.table_uuid}-"


def _in_path(value: object) -> str:
    return "null" if value is None else quote(str(value), safe="")


def _has(table: "Table", batch: "Batch") -> bool:
    """Check the property and the snapshots, because another program may have replaced the properties."""
    numbers = [table.properties.get(f"{_BATCH}.{batch.query}", "-1")]
    for snapshot in table.snapshots():
        found = snapshot.summary.additional_properties if snapshot.summary else {}
        if found.get(_QUERY) == batch.query:
            numbers.append(found.get(_BATCH, "-1"))
    return max(map(int, numbers)) >= batch.number


def _delete(table: "Table", files: Iterable["DataFile"]) -> None:
    for file in files:
        table.io.delete(file.file_path)


def _small_files(table: "Table") -> Iterator[list["FileScanTask"]]:
    """Yield groups of two or more small files of one partition, skipping files with deleted rows."""
    from pyiceberg.utils.bin_packing import PackingIterator

    small = [
        task
        for task in table.scan().plan_files()
        if not task.delete_files
        and task.file.file_size_in_bytes < SMALL_BYTES
        and task.file.spec_id == table.spec().spec_id
    ]

    def partition(task: "FileScanTask") -> str:
        return repr(task.file.partition)

    for _, files in groupby(sorted(small, key=partition), partition):
        packed = PackingIterator(files, MERGED_BYTES, 1, lambda task: task.file.file_size_in_bytes)
        yield from (each for each in packed if len(each) > 1)


def _merge(table: "Table", tasks: list["FileScanTask"], partitioned_by: tuple[str, ...]) -> None:
    """Replace files with one that has all their rows, unless anything is committed meanwhile."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    files = list(FileWriter.of(table, partitioned_by).write(scan.to_record_batches(tasks)))
    table.metadata.properties.update(_NO_RETRIES)  # A retry could restore rows deleted meanwhile.
    try:
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            for task in tasks:
                overwrite.delete_data_file(task.file)
            for file in files:
                overwrite.append_data_file(file)
    except (CommitFailedException, ValidationException):
        _delete(table, files)
        raise


def _expire_snapshots(table: "Table") -> None:
    age_ms = int(table.properties.get(_SNAPSHOT_AGE, 5 * 24 * 3_600_000))  # Iceberg's default.
    oldest = datetime.now(UTC) - timedelta(milliseconds=age_ms)
    is_protected = {reference.snapshot_id for reference in table.refs().values()}
    old = [
        snapshot.snapshot_id
        for snapshot in table.snapshots()
        if snapshot.timestamp_ms < oldest.timestamp() * 1000 and snapshot.snapshot_id not in is_protected
    ]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def _delete_orphans(table: "Table") -> None:
    """Delete our files that no snapshot refers to, left by killed runs and expired snapshots."""
    from pyarrow.fs import FileSelector
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(table.io, PyArrowFileIO):
        return
    scheme, host, path = PyArrowFileIO.parse_location(table.location_provider().data_path)
    files = table.io.fs_by_scheme(scheme, host)
    latest, prefix = datetime.now(UTC) - ORPHANS_AGE, _prefix(table.metadata)
    old = [
        found.path
        for found in files.get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
        if found.is_file and found.base_name.startswith(prefix) and found.mtime < latest
    ]
    if old:
        known = {PyArrowFileIO.parse_location(name)[2] for name in _referenced(table)}
        for name in set(old) - known:
            files.delete_file(name)


def _referenced(table: "Table") -> Iterator[str]:
    seen = set[str]()
    for snapshot in table.snapshots():
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
