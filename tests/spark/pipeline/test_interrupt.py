"""Ctrl-C in a Spark command: it ends within five seconds, without a traceback, and no process is left."""

import os
import signal
import time
from pathlib import Path

import pytest

from libramq.message import Message
from libramq.sync import Producer

from ...cli.commands import end, start
from ...interop.libra import LibraUp

#: Four times the five seconds that it may take here: for machines that are slower.
SECONDS_MAX = 20


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to find processes")
@pytest.mark.timeout(300)  # Spark takes ten times as long to start on a crowded machine.
@pytest.mark.parametrize("moment", ["starting", "running"])
def test_an_interrupt_ends_command_and_java(up: LibraUp, topic: str, tmp_path: Path, moment: str):
    with Producer(group="p", namesrv=up.namesrv) as producer:
        producer.send(Message(topic, b"one"))
    (tmp_path / "ingest.toml").write_text(f"topics = ['{topic}']\ntable = 't'\nevery = '100ms'\n")
    command = ["pipeline", "run", "ingest", "--config", "ingest.toml", "-n", up.namesrv]
    process = start(command, cwd=tmp_path)
    try:
        while not children(process.pid):
            assert process.poll() is None
            time.sleep(0.01)  # Nothing says that it starts.
        (java,) = children(process.pid)
        assert process.stderr is not None
        if moment == "running":
            while "batch 0" not in process.stderr.readline():
                assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert time.monotonic() - began < SECONDS_MAX
        assert (process.returncode, out) == (130, "")
        assert "Traceback" not in err, err
        assert "Exception" not in err, err
        with pytest.raises(ProcessLookupError):
            os.kill(java, 0)
    finally:
        end(process)
