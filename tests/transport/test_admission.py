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
