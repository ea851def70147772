"""Apache's Java pull consumer: querying and committing offsets, and pulls at both ends of a queue."""

from typing import Any

import pytest

from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop

FAR_FUTURE_MS = 4_102_444_800_000  # The year 2100.


@pytest.mark.parametrize("dialect", ["json", "rocketmq"])
def test_both_brokers_report_the_same_offsets_of_a_queue(cluster: Cluster, dialect: str) -> None:
    topic, group = cluster.fresh_name("Offsets"), cluster.fresh_name("group")
    cluster.create_topic(topic, 2)
    for i in range(5):
        cluster.send(dialect, kind="queue", queueId=1, topic=topic, body=str(i))
    program = cluster.start("Offsets", {"group": group}, dialect=dialect)
    program.wait_event("started")
    cluster.wait_stored(topic, 5)

    def ask(question: str, queue: int = 1, **more: object) -> Any:
        answer = program.ask(
            "answer",
            {"ask": question, "topic": topic, "broker": cluster.broker_name, "queueId": queue, **more},
        )
        assert "error" not in answer, answer
        return answer["answer"]

    assert ask("queues") == [{"broker": cluster.broker_name, "queueId": queue} for queue in range(2)]
    assert [ask("min"), ask("max")] == [0, 5]
    assert [ask("min", queue=0), ask("max", queue=0)] == [0, 0]
    earliest = ask("earliest")
    assert 0 < earliest < FAR_FUTURE_MS
    assert ask("search", timestamp=earliest) == 0
    assert ask("search", timestamp=FAR_FUTURE_MS) == 5
    assert ask("search", timestamp=FAR_FUTURE_MS, queue=0) == 0

    # The client's first heartbeat creates the group; until then its commits are refused.
    queue = {"topic": topic, "broker": cluster.broker_name, "queueId": 1}
    cluster.wait_until(
        lambda: "answer" in program.ask("answer", {"ask": "commit", "offset": 3, **queue}),
        "commit",
        within_s=PATIENCE_S,
    )
    assert ask("committed") == 3

    found = ask("pull", tags="*", offset=1, count=2)
    assert found == {"status": "FOUND", "next": 3, "min": 0, "max": 5, "bodies": ["1", "2"]}
    assert ask("pull", tags="*", offset=5, count=2)["status"] == "NO_NEW_MSG"
    beyond = ask("pull", tags="*", offset=1_000, count=2)
    assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", 5)
    unmatched = ask("pull", tags="NoSuchTag", offset=0, count=32)
    assert (unmatched["status"], unmatched["next"]) == ("NO_MATCHED_MSG", 5)
    program.finish()
