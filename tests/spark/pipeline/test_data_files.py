"""A table's files lie in Hive-style directories; each task writes one file a partition."""

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from libramq.spark.pipeline import data_files
from libramq.spark.pipeline.data_files import as_texts, by_partition, directories_of, partition_of
from libramq.spark.pipeline.object_store import ObjectStore

VALUES = {"shop": "a/b =%41", "day": date(2026, 5, 1), "is_open": True, "none": None, "empty": ""}


def test_a_partition_is_found_in_the_directories_made_of_it(tmp_path: Path):
    texts = as_texts(VALUES)
    assert texts == {"shop": "a/b =%41", "day": "2026-05-01", "is_open": "true", "none": None, "empty": None}
    place = f"{directories_of(texts)}part-0.parquet"
    assert place.startswith("shop=a%2Fb%20%3D%2541/day=2026-05-01/is_open=true/none=__HIVE_DEFAULT")
    assert partition_of(place) == texts
    assert directories_of({"shop": "a/b", "day": "2026-05-01"}, escapes=False) == "day=2026-05-01/"
    for number, each in enumerate((place, "shop=b/day=2026-05-01/is_open=true/none=1/empty=1/part.parquet")):
        (tmp_path / each).parent.mkdir(parents=True)
        pq.write_table(pa.table({"offset": [number]}), tmp_path / each)
    found = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table().sort_by("offset")
    assert found["shop"].to_pylist() == ["a/b =%41", "b"]
    assert found["none"].to_pylist() == [None, 1]


def test_rows_come_by_partition_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch):
    tables = [pa.table({"shop": ["a", None, "b"], "offset": [n, n + 10, n + 20]}) for n in range(4)]
    (whole,) = by_partition(tables, ())
    assert whole[1].num_rows == 12
    found = {values["shop"]: rows["offset"].to_pylist() for values, rows in by_partition(tables, ["shop"])}
    assert found == {"a": [0, 1, 2, 3], None: [10, 11, 12, 13], "b": [20, 21, 22, 23]}
    monkeypatch.setattr(data_files, "BUFFER_BYTES", 1)
    assert [rows.num_rows for _, rows in by_partition(tables, ["shop"])] == [1] * 12


def test_a_store_is_that_of_the_file_before_the_environments(monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert ObjectStore.of({}) == ObjectStore()
    assert ObjectStore.of({}).delta_options() == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "there")
    assert ObjectStore.of({}) == ObjectStore("http://one", "there")
    given = ObjectStore.of({"endpoint": "https://two", "region": "here"})
    assert given.delta_options() == {"AWS_ENDPOINT_URL": "https://two", "AWS_REGION": "here"}
    found = given.iceberg_properties()
    assert (found["s3.endpoint"], found["s3.region"]) == ("https://two", "here")
    assert ObjectStore.of({}).delta_options()["AWS_ALLOW_HTTP"] == "true"
