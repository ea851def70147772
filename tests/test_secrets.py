"""The search for tests' passwords finds one wherever a server might show it."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S
from tests.secrets import command_lines, files_with_secrets, is_of_families, secrets_in, watched


def test_a_password_in_the_log_is_noticed():
    watch = watched(logging.getLogger("libramq"))
    next(watch)
    logging.getLogger("libramq.broker").warning("a request was signed with %s", "alice-secret")
    with pytest.raises(AssertionError, match="alice-secret"):
        next(watch)


def test_a_password_in_a_file_is_noticed_and_a_topic_is_none(tmp_path: Path):
    (tmp_path / "broker.stderr").write_text("Topic:orders-secret is denied\nsigned with r00t\n")
    (tmp_path / "users.json").write_text("r00t")
    assert list(files_with_secrets(tmp_path, 0)) == [f"r00t in {tmp_path / 'broker.stderr'}"]
    assert secrets_in(b"the secret of a topic") == []


def test_a_password_in_the_title_of_a_server_is_noticed():
    code = "import sys; sys.stdin.read()"
    command = [sys.executable, "-c", code, "libramq", "broker", "alice-secret"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as server:
        try:
            Cluster.wait_until(
                lambda: any(b"alice-secret" in each for each in command_lines()),
                "it is seen",
                within_s=PATIENCE_S,
            )
        finally:
            server.communicate(timeout=PATIENCE_S)


def test_families_are_modules_that_there_are():
    here = Path(__file__).parent
    assert is_of_families(here / "auth" / "test_audit.py")
    assert not is_of_families(here / "store" / "test_flush.py")
