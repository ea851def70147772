"""Reads a topic of batches with our consumers, the second of which begins where the first one stopped."""

from collections.abc import Mapping

from libramq import sync
from tests.interop.process import PATIENCE_S


def check_reads(namesrv: str, topic: str, group: str, expected: Mapping[tuple[int, int], str]) -> None:
    """Read all messages, by queue and offset, as objects and as columns; the first reader stops early."""
    assert _objects(namesrv, topic, group, count=3) | _objects(
        namesrv, topic, group, count=len(expected) - 3
    ) == dict(expected)
    assert _columns(namesrv, topic, f"{group}-columns", len(expected)) == dict(expected)


def _objects(namesrv: str, topic: str, group: str, count: int) -> dict[tuple[int, int], str]:
    found: dict[tuple[int, int], str] = {}
    consumer = sync.Consumer(group=group, namesrv=namesrv, consume_from="earliest")
    consumer.subscribe(topic)
    with consumer:
        while len(found) < count:
            taken = consumer.getmany(timeout_ms=int(PATIENCE_S * 1000), max_records=count - len(found))
            assert taken, f"{len(found)} of {count}"
            for queue, messages in taken.items():
                for message in messages:
                    place = queue.queue_id, message.queue_offset
                    assert place not in found
                    found[place] = message.body.decode()
                    assert message.properties["TAGS"] == found[place][0]
    return found


def _columns(namesrv: str, topic: str, group: str, count: int) -> dict[tuple[int, int], str]:
    found: dict[tuple[int, int], str] = {}
    consumer = sync.Consumer(group=group, namesrv=namesrv, consume_from="earliest")
    consumer.subscribe(topic)
    with consumer:
        for batch in consumer.batches(["queueId", "offset", "body", "tag"]):
            for queue_id, offset, body, tag in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            ):
                found[queue_id, offset] = body.decode()
                assert tag == body.decode()[0]
            if len(found) >= count:
                break
    return found
