"""An object store (S3) instead of a disk: its paths, credentials and errors.

    s3://BUCKET/PATH/TABLE/date=2026-05-01/part-….parquet         written by Python tasks, with pyarrow

Credentials come from the environment of driver and workers (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), a
profile or the machine's role. LibraMQ writes them to no file, plan or message. Spark's own writers are not
used, because they need Hadoop's jars for S3.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from libramq.errors import ConfigError, nearest_name
from libramq.spark.pipeline.data_files import (
    DataFile,
    as_texts,
    by_partition,
    directories_of,
    files_of_tasks,
)
from libramq.spark.pipeline.plan import with_cause

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem
    from pyspark.sql import DataFrame

SCHEME: Final = "s3://"
#: Characters in a path that some libraries interpret as in URLs, and others take literally.
MARKS: Final = "%#?"
OPTIONS: Final = ("endpoint", "region")
#: Subdirectory of a table with a mark for each checkpoint whose first run has begun. Readers skip names that
#: begin with an underscore.
MARKS_OF_RUNS: Final = "_libramq"
#: AWS's variables for the endpoint, the more specific one first.
ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
REGION: Final = "us-east-1"  # The default of AWS's clients.
REMEDY: Final = (
    "give endpoint and region in [storage], and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
    "environment"
)
#: Idle timeout of a request, as in delta-rs; Arrow's 3 s are too short for a busy store.
REQUEST_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """The location of an S3 store; a plain value that can be sent to workers.

    None: AWS's default, or the environment's.
    """

    endpoint: str | None = None
    region: str | None = None

    @classmethod
    def of(cls, storage: Mapping[str, str]) -> "ObjectStore":
        """Return the store of a configuration; ConfigError for an unknown option."""
        for name in storage:
            if name not in OPTIONS:
                near = nearest_name(name, OPTIONS)
                hint = f"did you mean {near}?" if near else f"there are {' and '.join(OPTIONS)}"
                raise ConfigError(
                    f"[storage] has no {name}; {hint} (credentials are AWS_ACCESS_KEY_ID and "
                    "AWS_SECRET_ACCESS_KEY in the environment)"
                )
        endpoint = storage.get("endpoint")
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"[storage] endpoint={endpoint!r}: give a URL, like https://s3.example.org")
        endpoint = endpoint or _environment(ENDPOINT_VARIABLES)
        region = storage.get("region") or _environment(REGION_VARIABLES)
        # Self-hosted stores usually have no regions, and libraries would ask Amazon for one.
        return cls(endpoint, region or (None if endpoint is None else REGION))

    def file_system(self) -> "S3FileSystem":
        """Return a pyarrow file system for this store."""
        from pyarrow.fs import S3FileSystem

        # Delayed open: a small object is one request and appears whole.
        return S3FileSystem(
            endpoint_override=self.endpoint,
            region=self.region,
            request_timeout=REQUEST_SECONDS,
            allow_delayed_open=True,
        )

    def delta_options(self) -> dict[str, str]:
        """Return delta-rs's options; its commits are conditional writes."""
        options = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": self.region}
        if (self.endpoint or "").startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
        return {name: value for name, value in options.items() if value is not None}

    def iceberg_properties(self) -> dict[str, str]:
        """Return pyiceberg's properties."""
        properties = {
            "s3.endpoint": self.endpoint,
            "s3.region": self.region,
            "s3.request-timeout": str(REQUEST_SECONDS),
        }
        return {name: value for name, value in properties.items() if value is not None}

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Raise ConfigError if the store refuses a request before anything is read."""
        try:
            yield
        except OSError as error:
            reason = with_cause(str(error)).strip().partition("\n")[0]
            raise ConfigError(f"the object store {self.endpoint or 'S3'}: {reason}; {REMEDY}") from None


@dataclass(frozen=True, slots=True)
class StoredDirectory:
    """A directory in a store. path: BUCKET/PATH, as in pyarrow."""

    store: ObjectStore
    path: str

    @classmethod
    def of(cls, url: str, storage: Mapping[str, str]) -> "StoredDirectory":
        """Return the directory of a URL s3://BUCKET/PATH."""
        path = url.removeprefix(SCHEME).strip("/")
        if "/" not in path:
            raise ConfigError(f"table={url!r}: give a bucket and a path, like s3://warehouse/orders")
        if marks := set(path) & set(MARKS):
            raise ConfigError(
                f"table={url!r}: readers would look elsewhere, as {min(marks)} has a meaning in URLs; "
                "give another path"
            )
        return cls(ObjectStore.of(storage), path)

    @property
    def url(self) -> str:
        """Return the directory's URL."""
        return SCHEME + self.path

    def beside(self, name: str) -> "StoredDirectory":
        """Return a sibling directory."""
        return StoredDirectory(self.store, f"{self.path.rpartition('/')[0]}/{name}")

    def below(self, name: str) -> "StoredDirectory":
        """Return a subdirectory."""
        return StoredDirectory(self.store, f"{self.path}/{name}")

    def has_any(self) -> bool:
        """Return whether the directory has any object besides marks of runs."""
        from pyarrow.fs import FileSelector

        found = self.store.file_system().get_file_info(FileSelector(self.path, allow_not_found=True))
        return any(each.base_name != MARKS_OF_RUNS for each in found)

    def has(self, name: str) -> bool:
        """Return whether the directory has this object."""
        return bool(self.store.file_system().get_file_info(f"{self.path}/{name}").is_file)

    def claim(self, owner: str) -> str | None:
        """Write an owner's mark; if another owner has one, remove ours and return the URL of the other.

        If two owners begin at once, at least one of them sees the other's mark, perhaps both: a store lists
        every completed write, but pyarrow has no conditional writes.
        """
        from pyarrow.fs import FileSelector

        marks, files = self.below(MARKS_OF_RUNS), self.store.file_system()
        marks.put(owner)
        found = files.get_file_info(FileSelector(marks.path, allow_not_found=True))
        others = [f"{SCHEME}{mark.path}" for mark in found if mark.is_file and mark.base_name != owner]
        if not others:
            return None
        files.delete_file(f"{marks.path}/{owner}")
        return min(others)

    def put(self, name: str) -> None:
        """Write an empty object."""
        with self.store.file_system().open_output_stream(f"{self.path}/{name}"):
            pass

    def delete(self) -> None:
        """Delete the directory and its objects, if any."""
        if self.has_any():
            self.store.file_system().delete_dir(self.path)

    def copy(self, source: "StoredDirectory", places: Iterable[str]) -> None:
        """Copy objects from another directory inside the store."""
        files = self.store.file_system()
        for place in places:
            files.copy_file(f"{source.path}/{place}", f"{self.path}/{place}")

    def write(
        self, rows: "DataFrame", partitioned_by: Sequence[str], *, escapes: bool = True
    ) -> list[DataFile]:
        """Have Spark's tasks write rows; return the files of the tasks that succeeded.

        escapes: as in `directories_of`.
        """
        names = tuple(partitioned_by)

        def write(batches: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
            files = self.store.file_system()
            tables = (pa.Table.from_batches([batch]) for batch in batches)
            for values, part in by_partition(tables, names):
                partition, footers = as_texts(values), list[Any]()
                place = f"{directories_of(partition, escapes=escapes)}part-{uuid4()}.parquet"
                with files.open_output_stream(f"{self.path}/{place}") as stream:
                    pq.write_table(part.drop_columns(list(names)), stream, metadata_collector=footers)
                    size = stream.tell()
                yield DataFile.of(place, size, partition, footers[0])

        return files_of_tasks(rows, write)


def stored_directory(path: Path | str, storage: Mapping[str, str]) -> StoredDirectory | None:
    """Return the object store directory of a table's path; None if the table is on a disk."""
    if isinstance(path, str) and path.startswith(SCHEME):
        return StoredDirectory.of(path, storage)
    return None


def _environment(names: Iterable[str]) -> str | None:
    return next(filter(None, map(os.environ.get, names)), None)
