"""`libra pipeline run`: an error is one line and exit code 2; a dry run prints its plan."""

import asyncio
from pathlib import Path

import pytest

from libramq.message import Message
from libramq.nameserver import NameServer
from libramq.sync import Producer

from ...cli.commands import libra, one_line
from ...interop.cluster import SEND_TIMEOUT_MS
from ...interop.libra import LibraUp
from ...interop.ports import free_port

NOBODY = "127.0.0.1:1"


def file(directory: Path, text: str) -> str:
    path = directory / "pipeline.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ingst", "", "no pipeline ingst; did you mean ingest?"),
        ("nothing", "", "no pipeline nothing; there are: ingest"),
        ("ingest", "tabel = 't'", "no key tabel; did you mean table?"),
        ("ingest", "topics = ['A']\ntable = 't'", f"no name server answered: cannot connect to {NOBODY}"),
        ("lag_report", "", f"cannot connect to {NOBODY}"),
        ("lag_report", "samples = 0", "samples=0: give a whole number from 1 on"),
        ("rebalance_report", "producers_zone = 'Mars'", "producers_zone='Mars': give a zone's name, as"),
        ("rebalance_report", "lag_report = 'none'", "lag_report='none' has no samples: give a lag_report's"),
        ("rebalance_report", "since = 'ever'", "since='ever': give a duration like 500ms"),
        ("ingest", "topics = ['A b']\ntable = 't'", "subscribe='A b'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, name: str, text: str, said: str):
    given = file(tmp_path, text)
    assert said in one_line(libra("pipeline", "run", name, "--config", given, "-n", NOBODY, cwd=tmp_path))


def test_an_unknown_topic_is_named(up: LibraUp, tmp_path: Path):
    given = file(tmp_path, "topics = ['Nowhere']\ntable = 't'")
    done = libra("pipeline", "run", "ingest", "--config", given, "-n", up.namesrv, cwd=tmp_path)
    assert f"name server {up.namesrv} knows no topic Nowhere; create it" in one_line(done)


def test_a_dry_run_prints_the_plan(up: LibraUp, topic: str, tmp_path: Path):
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        producer.send(Message(topic, b"one"))
    given = file(tmp_path, f"topics = ['{topic}']\ntable = 't'")
    done = libra("pipeline", "run", "ingest", "--config", given, "-n", up.namesrv, "--dry-run", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "1 messages of 4 queues would be read into" in done.out
    assert f"t: {tmp_path / 't'} (parquet, partitioned by batch, date)" in done.out
    assert "nothing was changed" in done.out
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.toml"]


def test_spark_is_not_started_where_nothing_is_to_be_read(up: LibraUp, topic: str, tmp_path: Path):
    given = file(tmp_path, f"topics = ['{topic}']\ntable = 't'")
    done = libra("pipeline", "run", "ingest", "--config", given, "-n", up.namesrv, cwd=tmp_path)
    assert (done.code, done.out) == (0, f"no message of {topic} is new; Spark was not started\n")
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.toml"]


async def test_brokers_without_rebalance_events_are_reported():
    """Apache's brokers record none, and no client writes traces either."""
    port = free_port()
    server = NameServer("127.0.0.1", port)
    await server.start()
    try:
        command = ("pipeline", "run", "rebalance_report", "-n", f"127.0.0.1:{port}")
        said = one_line(await asyncio.to_thread(libra, *command))
    finally:
        await server.stop()
    assert said == (
        "no broker records rebalances in LIBRA_REBALANCE_EVENTS, only LibraMQ's do, and no client traces to "
        "RMQ_SYS_TRACE_TOPIC; of any broker libra pipeline run lag_report tells the lag of each group, topic "
        "and queue over time"
    )


def test_an_unknown_group_is_named(up: LibraUp, tmp_path: Path):
    given = file(tmp_path, "groups = ['Nobody']")
    done = libra("pipeline", "run", "lag_report", "--config", given, "-n", up.namesrv, cwd=tmp_path)
    assert "no broker knows group Nobody; there are: " in one_line(done)
