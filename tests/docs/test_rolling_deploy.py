"""`bench/rolling_deploy` counts what a deploy does to messages, and its picture is drawn of what it wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from docs.pictures import draw

from tests.cli.commands import SOURCE

BENCH = Path(__file__).resolve().parent.parent.parent / "bench" / "rolling_deploy"


def test_a_small_deploy_loses_nothing_and_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three members of LibraMQ's are replaced; the systems that others wrote need a JVM."""
    written = tmp_path / "rolling_deploy.json"
    schedule = ("--members", "3", "--queues", "6", "--every", "0.4", "--warm", "1", "--after", "0.5")
    result = subprocess.run(
        [sys.executable, BENCH, "--systems", "libramq", *schedule, "--rate", "200", "--json", written],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    measured = json.loads(written.read_text())
    deployed = measured["systems"]["libramq"]
    assert (deployed["lost"], deployed["twice"], deployed["failed"]) == (0, 0, 0)
    assert deployed["sent"] > 200
    # Before the deploy, during it, and after it.
    assert {-1, 0, 1} <= {second for second, _, _ in deployed["by_second"]}
    assert result.stdout.splitlines()[2].split()[:4] == ["libramq", f"{deployed['sent']:,}", "0", "0"]

    monkeypatch.setattr(draw, "HERE", tmp_path)
    draw.rolling_deploy(measured)
    picture = ElementTree.parse(tmp_path / "rolling_deploy.svg").getroot()
    bars = picture.findall("{http://www.w3.org/2000/svg}rect[@rx='3']")
    assert len(bars) == len(deployed["by_second"])
    assert "0 lost, 0 twice" in "".join(picture.itertext())


def test_an_unknown_system_is_named(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, BENCH, "--systems", "libramq,nats"],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "no such system: nats (there are libramq, rocketmq, kafka, kafka-consumer)" in result.stderr
