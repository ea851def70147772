"""A query whose driver is killed at random moments writes every message to its table exactly once.

LIBRA_KILL_ROUNDS=30 takes some minutes: each round starts a Java machine.
"""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libramq.message import Message
from libramq.sync import Admin, Producer

from ..interop.cluster import SEND_TIMEOUT_MS
from ..interop.libra import LibraUp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("LIBRA_KILL_ROUNDS", "1"))
MESSAGES_A_ROUND = 2_000
DRIVER_SECONDS = 300
ROUND_SECONDS = 20
ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(ROUNDS * 120 + 600)]


def driver(up: LibraUp, topic: str, directory: Path, mode: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.driver", up.namesrv, topic, str(directory), mode],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # The driver and its Java machine end together.
    )


def kill(process: "subprocess.Popen[str]") -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=150)
    assert process.stdout is not None
    process.stdout.close()


def test_every_message_is_read_once_after_a_kill_of_the_driver(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path, search_seed: int
):
    randomness = random.Random(search_seed)
    moment = threading.Event()  # Never set: waiting for it with a timeout is a random pause.
    sent = 0
    for _ in range(ROUNDS):
        with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
            for number in range(sent, sent + MESSAGES_A_ROUND):
                producer.send_nowait(Message(topic, b"%d" % number))
            producer.flush()
        sent += MESSAGES_A_ROUND
        process = driver(up, topic, tmp_path, "live")
        try:
            assert process.stdout is not None
            for _ in range(randomness.randrange(4)):
                assert process.stdout.readline().startswith("batch ")
            moment.wait(randomness.random())
        finally:
            kill(process)
    last = driver(up, topic, tmp_path, "rest")
    try:
        # Read what the killed runs left unread; it grows with every round.
        assert last.wait(timeout=DRIVER_SECONDS + ROUNDS * ROUND_SECONDS) == 0
    finally:
        kill(last) if last.poll() is None else last.stdout and last.stdout.close()
    table = spark.read.parquet(str(tmp_path / "table"))
    places = {(row.queueId, row.offset) for row in table.collect()}
    # The topic may hold more than this test sent: another test's messages of this name, and resent ones.
    with Admin(namesrv=up.namesrv) as admin:
        stored = sum(ends.max_offset for ends in admin.topic_stats(topic).values())
    assert stored >= sent
    assert table.count() == len(places) == stored
    assert sent <= table.select("msgId").distinct().count() <= stored
