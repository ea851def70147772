"""Idempotent handlers skip a redelivered message, even after SIGKILL while messages are being handled."""

from collections import Counter
from pathlib import Path

import pytest

from tests.interop.cluster import Cluster
from tests.interop.members import Members, flow
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop

QUEUES = 4
# Messages claimed by the killed member return through the retry topic after 10 s; their leases have ended.


def test_after_a_kill_only_messages_in_a_handler_are_handled_twice(cluster: Cluster, tmp_path: Path) -> None:
    """Messages that were handled but not committed are redelivered and skipped; none is missing."""
    topic, group = cluster.fresh_name("Once"), cluster.fresh_name("group")
    cluster.create_topic(topic, QUEUES)
    members = Members(
        cluster, topic, group=group, dedupe=str(tmp_path / "handled.db"), work_ms=5, threads=4,
        persist_ms=60_000,
    )  # fmt: skip
    try:
        with flow(cluster, topic, QUEUES, 0.002) as sent:
            victim = members.start()
            victim.wait_count(200, "message")
            victim.kill()
            members.start()
            survivor = members.all[1]
            survivor.wait_count(100, "message")

        def handled() -> Counter[str]:
            return Counter(delivery["body"] for delivery in members.deliveries())

        cluster.wait_until(lambda: len(handled()) == sent[0], "not all handled", within_s=PATIENCE_S)
        delivered = Counter(
            body for member in members.all for event in member.of("delivered") for body in event["bodies"]
        )
        assert sum(delivered.values()) > sent[0], "nothing came twice: the test shows nothing"
        twice = [body for body, count in handled().items() if count > 1]
        assert len(twice) <= 4, f"as many as there were handlers at work, not {len(twice)}"
        assert set(handled().values()) <= {1, 2}
        survivor.finish()
    finally:
        members.stop()
