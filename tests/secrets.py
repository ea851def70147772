"""Servers show no password of the tests: checked at every test of the modules that use passwords.

    the log of servers in this process      each line, at debug level
    command lines of servers                of servers that a test has started, when its body is over
    log files                               below the run's temporary directory, when a module is over
    metrics                                 of `tests/broker/test_users.py`'s broker, when it is closed

`tests/cli/test_no_secret_shown.py` also searches the answers, metrics and stored files of one cluster.
"""

import itertools
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.process import descendants

#: The passwords that these modules use, except ordinary words of the language.
MARKED: Final = re.compile(
    rb"[a-z]+-secret\b|\bwonder\b|r00t|p33rs|hush-|the-withdrawn-one|the-one-that-stays"
    rb"|only brokers know this|a-long-random-text|another-random-text|the-(?:first|second)-of-"
    rb"|the-next-(?:random-text|of-admin)"
)
#: A topic in a policy that looks like a password.
NAMES: Final = re.compile(rb"Topic:[a-z]+-secret")
#: The modules, by the prefix of their paths.
FAMILIES: Final = (
    "auth/", "nameserver/", "broker/test_users", "broker/test_audit", "broker/test_encryption",
    "replication/test_slave_proof", "rpc/test_access_table", "remoting/test_credentials",
    "protocols/kafka/test_sasl", "protocols/kafka/test_audit", "protocols/kafka/test_access_table",
    "cli/test_secure", "cli/test_no_secret_shown", "interop/test_users", "interop/test_tls",
    "interop/test_access", "interop/test_kafka_secured", "interop/test_secured_cluster",
)  # fmt: skip
#: The suffixes of files that contain servers' output.
LOGS: Final = (".log", ".stderr", ".stdout", ".refused", ".jsonl")
#: The commands whose processes are servers.
SERVERS: Final = (b"up", b"broker", b"nameserver")


def is_of_families(path: Path) -> bool:
    """Return whether a module is one that uses passwords."""
    return path.relative_to(Path(__file__).parent).as_posix().startswith(FAMILIES)


def secrets_in(text: bytes) -> list[str]:
    """Return the passwords in a text."""
    return sorted({found.decode() for found in MARKED.findall(NAMES.sub(b"", text))})


class LogOfServers(logging.Handler):
    """Records the passwords in log lines of this process."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Check a line as it is written, with its values and its error."""
        text = f"{record.getMessage()} {record.__dict__} {record.exc_info}"
        self.found += (f"{each} in {text}" for each in secrets_in(text.encode(errors="replace")))


def watched(logger: logging.Logger) -> Iterator[None]:
    """Watch this process's log during a test."""
    handler, level = LogOfServers(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert not handler.found, handler.found


def command_lines() -> Iterator[list[bytes]]:
    """Yield the command lines of the servers started by this process or by its children."""
    for pid in itertools.islice(descendants(os.getpid()), 1, None):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:  # The process has ended.
            continue
        if any(b"libra" in word for word in words[:4]) and not set(SERVERS).isdisjoint(words[:6]):
            yield words


def files_with_secrets(directory: Path, since_ns: int) -> Iterator[str]:
    """Yield the passwords' places in log files below a directory that were written since then."""
    for path in directory.rglob("*"):
        if path.name.endswith(LOGS) and path.is_file() and path.stat().st_mtime_ns >= since_ns:
            yield from (f"{each} in {path}" for each in secrets_in(path.read_bytes()))


def check_titles(item: pytest.Item) -> None:
    """Fail a test if one of its servers has a password in its command line."""
    found = [words for words in command_lines() if secrets_in(b"\0".join(words))]
    assert not found, f"{item.nodeid}: {found}"
