"""`libra pipeline run ingest`, killed at random moments, writes every message to its table exactly once.

All formats at once; LIBRA_KILL_ROUNDS=30 takes some minutes: each round starts three Java machines.
"""

import json
import os
import random
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from libramq.message import Message
from libramq.spark.pipeline.ingest import Ingest, IngestConfig
from libramq.sync import Producer

from ...cli.commands import COMMAND, environment
from ...interop.cluster import SEND_TIMEOUT_MS
from ...interop.libra import LibraUp
from .test_ingest import FORMATS, config, ignore, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("LIBRA_KILL_ROUNDS", "1"))
MESSAGES_A_ROUND = 1_000
BATCH_MESSAGES = 200
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(ROUNDS * 120 + 600)]


def start(file: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "pipeline", "run", "ingest", "--config", str(file), "--master", "local[1]"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(None) | {"JAVA_TOOL_OPTIONS": QUICK},
        start_new_session=True,  # The driver and its Java machine end together.
    )


def written(given: IngestConfig, directory: Path) -> Path:
    """Write the configuration to a file and return its path."""
    names = ("topics", "table", "namesrv", "format", "batch_messages", "checkpoint")
    file = directory / f"{given.format}.toml"
    # A line of TOML is a name and, for strings, lists and numbers, JSON.
    lines = [f"{name} = {json.dumps(getattr(given, name))}" for name in names if getattr(given, name)]
    catalog = [f"catalog.{name} = {json.dumps(text)}" for name, text in given.catalog.items()]
    file.write_text("\n".join([*lines, *catalog]))
    return file


def kill(process: "subprocess.Popen[str]") -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=150)
    assert process.stderr is not None
    process.stderr.close()


def wait_batches(said: IO[str], count: int) -> None:
    """Wait until this many batches have been reported; the run may end earlier."""
    for line in said:
        count -= line.startswith("ingest: batch ")
        if count <= 0:
            return


def test_every_message_is_written_once_after_a_kill(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path, search_seed: int
):
    randomness = random.Random(search_seed)
    moment = threading.Event()  # Never set: waiting for it with a timeout is a random pause.
    given = {
        kind: config(up, topic, tmp_path / kind, format=kind, batch_messages=BATCH_MESSAGES)
        for kind in FORMATS
    }
    sent = 0
    for _ in range(ROUNDS):
        with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
            for number in range(sent, sent + MESSAGES_A_ROUND):
                producer.send_nowait(Message(topic, b"%d" % number))
            producer.flush()
        sent += MESSAGES_A_ROUND
        processes = [start(written(given[kind], tmp_path)) for kind in FORMATS]
        try:
            for process in processes:
                assert process.stderr is not None
                wait_batches(process.stderr, randomness.randrange(1, 4))
                moment.wait(randomness.random())
                kill(process)
        finally:
            for process in processes:
                if process.returncode is None:
                    kill(process)
    for kind in FORMATS:
        Ingest(given[kind]).run(spark, ignore)
        rows = table(tmp_path / kind, kind).select(["broker", "queueId", "offset", "msgId"]).to_pylist()
        assert len(rows) == sent
        assert len({(row["broker"], row["queueId"], row["offset"]) for row in rows}) == sent
        assert len({row["msgId"] for row in rows}) == sent
