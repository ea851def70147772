"""The processor wait, from the text of Linux's scheduler."""

import sys
from pathlib import Path

import pytest

from libramq.runtime.asyncio_seams import ProcessorWait


@pytest.mark.parametrize(
    ("text", "us"), [("778583000 249560999 9\n", 249_560), ("0 0 0\n", 0), ("", 0), ("1 x", 0)]
)
def test_the_second_number_is_the_wait(text: str, us: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "schedstat").write_text(text)
    monkeypatch.setattr("libramq.runtime.asyncio_seams._PATH", tmp_path / "schedstat")
    wait = ProcessorWait()
    assert wait.waited_us() == us
    wait.close()
    wait.close()


def test_where_nothing_is_counted_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("libramq.runtime.asyncio_seams._PATH", tmp_path / "none")
    wait = ProcessorWait()
    assert wait.waited_us() == 0
    wait.close()


@pytest.mark.skipif(sys.platform != "linux", reason="counted by Linux alone")
def test_the_system_counts_more_and_more():
    wait = ProcessorWait()
    before_us = wait.waited_us()
    assert wait.waited_us() >= before_us >= 0
    wait.close()
