"""Ctrl-C ends a Spark command within five seconds on a quiet machine, and leaves no process."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from libramq.cli.spark.runs import JavaProcess
from libramq.message import Message
from libramq.sync import Producer

from ...cli.commands import SECONDS_MAX, end, start, wait_gone
from ...interop.cluster import SEND_TIMEOUT_MS
from ...interop.libra import LibraUp
from ..conftest import INTERPRETED, QUICK

STOPPED = {"starting": "before it had begun", "running": r"after batch \d: 1 done"}


def java_process(pid: int) -> int | None:
    """Return the process in which a command starts Spark, not the `java -version` it may run first."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with suppress(FileNotFoundError):  # It has ended.
                if b"pyspark-shell" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


def test_an_interrupt_while_the_process_is_started_ends_it(monkeypatch: pytest.MonkeyPatch):
    """PySpark does not know the process yet. Without its parent the process used to run on, and a reader of
    its output waited forever.
    """
    from pyspark import SparkContext, java_gateway

    started = []

    def popen_interrupted(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(*arguments, **options)
        started.append(process)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(java_gateway, "Popen", popen_interrupted)
    monkeypatch.setattr(SparkContext, "_gateway", None)  # Another test's session may have one.
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # Silenced until the command ends, as logging is.
    before = signal.getsignal(signal.SIGINT)
    java = JavaProcess()
    try:
        with pytest.raises(KeyboardInterrupt), java.starting():
            java_gateway.Popen(["sleep", "600"])
        assert java.was_interrupted
        java.wait()
        assert started[0].returncode == -signal.SIGKILL
    finally:
        signal.signal(signal.SIGINT, before)
        logging.disable(logging.NOTSET)
        if sys.stderr.name == os.devnull:
            sys.stderr.close()
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to find processes")
@pytest.mark.parametrize("moment", ["starting", "running"])
def test_an_interrupt_ends_command_and_java(
    up: LibraUp, topic: str, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK["spark.driver.extraJavaOptions"])
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        producer.send(Message(topic, b"one"))
    (tmp_path / "ingest.toml").write_text(f"topics = ['{topic}']\ntable = 't'\nevery = '100ms'\n")
    settings = [word for name in INTERPRETED for word in ("--conf", f"{name}={INTERPRETED[name]}")]
    command = ["pipeline", "run", "ingest", "--config", "ingest.toml", "-n", up.namesrv]
    command += ["--master", "local[1]", *settings]
    process = start(command, cwd=tmp_path)
    try:
        while (java := java_process(process.pid)) is None:
            assert process.poll() is None
            time.sleep(0.01)  # Nothing announces its start.
        assert process.stderr is not None
        if moment == "running":
            while "batch 0" not in process.stderr.readline():
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS_MAX)
        assert (process.returncode, out) == (130, "")
        assert "Traceback" not in err, err
        assert "Exception" not in err, err
        assert re.search(f"^ingest: stopped {STOPPED[moment]}; run it again", err, re.MULTILINE), err
        wait_gone(java)
    finally:
        end(process)
