"""LibraMQ 0.1.0 reads this tree's rebalance events, also those with an unknown number of redeliveries."""

import json
import subprocess
import sys
from pathlib import Path

from libramq.groups.rebalance_event import QueueMove, RebalanceEvent, encode_event
from tests.compat import release

READ = """
import json, sys
from libramq.groups.rebalance_event import decode_event
for line in sys.stdin.buffer:
    event = decode_event(line)
    moves = [move.redelivered for move in event.moves or ()]
    print(json.dumps([event.kind, event.redelivered_upper_bound, moves]))
"""


def test_the_old_release_reads_events_with_an_unknown_bound(old: Path):
    move = QueueMove(
        topic="T", broker="b", queue=1, from_=None, to="alice", stopped_ms=None, resumed_ms=5,
        redelivered=0, redelivered_known=False,
    )  # fmt: skip
    moved = RebalanceEvent(v=1, group="G", epoch=1, seq=1, at_ms=1, kind="moved", moves=[move])
    settled = RebalanceEvent(v=1, group="G", epoch=1, seq=2, at_ms=2, kind="settled", moved=1)
    done = subprocess.run(
        [sys.executable, "-c", READ],
        input=b"".join(encode_event(event) + b"\n" for event in (moved, settled)),
        env=release.environment(old),
        capture_output=True,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        ["moved", None, [0]], ["settled", None, []],
    ]  # fmt: skip
