"""The files of pipelines: every invalid key is reported in one sentence."""

from pathlib import Path

import pytest

from libramq.errors import ConfigError
from libramq.spark.pipeline.config import duration_ms, read_config
from libramq.spark.pipeline.ingest import Ingest, IngestConfig


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ingest.toml"


def test_the_command_line_outranks_the_file(file: Path):
    file.write_text('topics = ["A"]\ntable = "t"\nnamesrv = "a:1"\n')
    assert read_config(IngestConfig, file, namesrv="b:2").namesrv == "b:2"
    assert read_config(IngestConfig, file, namesrv=None).namesrv == "a:1"


def test_the_file_outranks_the_access_of_the_environment(file: Path):
    """Explicit client settings outrank it as well."""
    environment = {"access": {"accessKey": "operator", "secretKey": "s"}}
    file.write_text('topics = ["A"]\ntable = "t"\n')
    assert read_config(IngestConfig, file, defaults=environment).access == environment["access"]
    own = {"accessKey": "orders", "secretKey": "t"}
    file.write_text(file.read_text() + '[access]\naccessKey = "orders"\nsecretKey = "t"\n')
    assert read_config(IngestConfig, file, defaults=environment).access == own


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tpics = []", "no key tpics; did you mean topics?"),
        ("zzz = 1", "no key zzz; there are: topics, table, namesrv"),
        ("topics = ['A']", "needs table: give a TOML file"),
        ("topics = 'A'\ntable = 't'", "topics: Expected `array`, got `str`"),
        (
            "topics = ['A']\ntable = 't'\nformat = 'orc'",
            "format: Invalid enum value 'orc'; allowed are parquet, delta, iceberg",
        ),
        ("topics = ", "is not TOML"),
    ],
)
def test_mistakes_in_a_file_are_named(file: Path, text: str, said: str):
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(IngestConfig, file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named(file: Path):
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        read_config(IngestConfig, file)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"every": "soon"}, "every='soon': give a duration like 500ms"),
        ({"dedup_within": "1"}, None),
        ({"batch_messages": 0}, "batch_messages=0: give a whole number from 1 on"),
        ({"compact": True}, "compact is for Delta and Iceberg tables"),
        ({"table": "hdfs://name/t"}, "give a directory of Spark's workers too, or s3://BUCKET/PATH"),
        ({"table": "s3://bucket"}, "give a bucket and a path, like s3://warehouse/orders"),
        ({"table": "s3://bucket/t", "checkpoint": "s3://bucket/c"}, "on a disk of the driver's"),
        ({"table": "s3://bucket/t", "dedup": "key"}, "dedup has Spark read the table"),
        ({"table": "s3://bucket/t", "format": "iceberg", "catalog": {"uri": "x"}}, "in the warehouse of"),
        ({"storage": {"region": "r"}}, "is for tables in S3"),
        (
            {"table": "s3://bucket/t", "storage": {"end_point": "http://h"}},
            "has no end_point; did you mean endpoint",
        ),
        (
            {"table": "s3://bucket/t", "storage": {"secret": "x"}},
            r"there are endpoint and region \(credentials are AWS_ACCESS_KEY_ID",
        ),
        ({"table": "s3://bucket/t", "storage": {"endpoint": "h:1"}}, "endpoint='h:1': give a URL"),
        ({"format": "iceberg"}, "format = .iceberg. needs a table"),
        ({"catalog": {"uri": "http://rest"}}, "no other format takes one"),
    ],
)
def test_invalid_values_are_named(keys: dict[str, object], said: str | None):
    given = {"topics": ["A"], "table": "t", **keys}
    if said is None:
        Ingest(IngestConfig(**given))  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigError, match=said):
        Ingest(IngestConfig(**given))  # type: ignore[arg-type]


def test_durations_have_sparks_format():
    assert duration_ms("every", "15m") == 900_000
