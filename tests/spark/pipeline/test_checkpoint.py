"""A checkpoint belongs to one table."""

import os
from pathlib import Path

import pytest

from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue
from libramq.spark.pipeline.checkpoint import Checkpoint

BINDING = {"table": "/t", "format": "parquet"}


def test_a_checkpoint_is_bound_to_its_table_once(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path / "c")
    checkpoint.check(BINDING, table_has_rows=False)
    assert not checkpoint.directory.exists()
    checkpoint.bind(BINDING)
    checkpoint.check(BINDING, table_has_rows=True)
    checkpoint.bind({"table": "/other"})
    checkpoint.check(BINDING, table_has_rows=True)


def test_a_table_of_another_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"/t was not written with the checkpoint .*c: its messages would"):
        Checkpoint(tmp_path / "c").check(BINDING, table_has_rows=True)


def test_another_table_is_refused(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.bind(BINDING)
    with pytest.raises(ConfigError, match="of a table with format = 'parquet', not 'delta'"):
        checkpoint.check(BINDING | {"format": "delta"}, table_has_rows=False)


def test_columns_of_all_runs_are_kept(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.bind(BINDING)
    assert checkpoint.columns() == {}
    checkpoint.bind(BINDING, {"a": "int"})
    checkpoint.bind(BINDING, {"b": "string"})
    assert checkpoint.columns() == {"a": "int", "b": "string"}
    checkpoint.check(BINDING, table_has_rows=True)


def test_positions_are_those_of_the_last_finished_batch(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.positions() is None
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for batch in (9, 10, 11):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"T:broker-a:0": {batch * 100}}}')
    (tmp_path / "offsets" / ".11.crc").touch()
    assert checkpoint.positions() is None
    for batch in (9, 10):
        (tmp_path / "commits" / str(batch)).touch()
    assert checkpoint.positions() == {MessageQueue("T", "broker-a", 0): 1000}


def test_a_checkpoint_has_one_run_at_a_time(tmp_path: Path):
    with Checkpoint(tmp_path / "c").locked():
        who = rf"another run has the checkpoint .*c \(process {os.getpid()} on .*, since 20.*\); wait"
        with pytest.raises(ConfigError, match=who), Checkpoint(tmp_path / "c").locked():
            raise AssertionError("it has two")
    with Checkpoint(tmp_path / "c").locked():
        assert (tmp_path / "c" / "pipeline.lock").read_text().count("process") == 1
