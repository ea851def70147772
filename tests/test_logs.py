"""Logging: forgery-proof lines, `log_to_stderr`, and no handlers installed unasked."""

import json
import logging
import subprocess
import sys

import pytest

from libramq import ConfigError, log_to_stderr
from libramq.logs import get_logger


@pytest.mark.parametrize("name", ["x\nFORGED", "x\x1b[2J", "x\u202eFORGED", "x\x85y", "x\ty"])
def test_an_event_is_one_line_without_effects_for_any_values(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "libramq"):
        get_logger("libramq.of.a.test").info("value set", key=name, by="127.0.0.1:1")
    (line,) = caplog.messages
    assert line == f"value set key={name!r} by=127.0.0.1:1"
    assert line.isprintable()


@pytest.mark.parametrize("turn", [1, 2])
def test_logging_set_up_by_a_command_ends_with_its_test(turn: int) -> None:
    """Later tests used to find nothing at the root logger, and a closed file was written to."""
    logger = logging.getLogger("libramq")
    assert (logger.propagate, logger.handlers) == (True, []), turn
    log_to_stderr("info")
    assert (logger.propagate, len(logger.handlers), logger.level) == (False, 1, logging.INFO)


def test_lines_for_people_have_a_time_and_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr()
    log = get_logger("libramq.of.a.test")
    log.debug("not of the level")
    log.warning("broker lost", address="10.0.0.1:10911")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" WARNING broker lost address=10.0.0.1:10911")
    assert line[:4].isdecimal()


def test_lines_for_programs_are_json_with_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("WARNING", json=True)
    log_to_stderr("info", json=True)  # The new handler replaces the first: each line is written once.
    log = get_logger("libramq.of.a.test")
    log.info("value\nset", by=ValueError("why"), count=3, level="of a delay")
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("a handler failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "info", "logger": "libramq.of.a.test", "event": "value\nset",
        "by": "why", "count": 3, "level_": "of a delay",
    }  # fmt: skip
    assert second["traceback"].endswith("KeyError: 'x'")


def test_a_level_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no level 'warn' \(did you mean warning\?\)"):
        log_to_stderr("warn")


def test_the_library_installs_no_handler() -> None:
    """Only `log_to_stderr` does: a program's own handlers receive the records it configures."""
    program = (
        "import logging, libramq, libramq.sync\n"
        "from libramq.testing import Broker\n"
        "with Broker() as broker, libramq.sync.Producer(namesrv=broker.namesrv) as producer:\n"
        "    producer.send(libramq.Message('T', b'1'))\n"
        "loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]\n"
        "names = [each.name for each in loggers if each.handlers]\n"
        "print([name for name in names if name.startswith(('root', 'libramq'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
