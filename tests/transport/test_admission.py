"""The limit of descriptors, in a separate process."""

import subprocess
import sys

import pytest

SAID = "from libramq.transport.admission import *; print(raise_limit(), for_connections())"


@pytest.mark.parametrize(
    ("soft", "hard", "limit", "connections"),
    [(100, 2000, 2000, 1616), (100, 400, 400, 262), (64, 64, 64, 52)],
)
def test_the_soft_limit_is_raised_and_files_keep_their_part(soft, hard, limit, connections):
    script = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    said = subprocess.check_output(["sh", "-c", script, "-", sys.executable, "-c", SAID], text=True)
    assert said.split() == [str(limit), str(connections)]


@pytest.mark.parametrize("limit", [16, 24, 47])
def test_no_server_starts_with_a_limit_that_leaves_no_connections(limit):
    """The server started and refused every client; with a limit of 16 it suggested checking a path."""
    libra = ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "-", sys.executable, "-m", "libramq.cli.main"]
    done = subprocess.run([*libra, "nameserver", "--port", "0"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"libra: this process may open {limit} files and connections, and a server needs at least 48; "
        "raise the limit (ulimit -n)\n"
    )
