"""Store times of messages, and with them a group's progress in a queue."""

from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.kernel.work import Work
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import OffsetWrapper
from libramq.store.message_store import MessageStore


def stored_ms(store: MessageStore, topic: str, queue_id: int, offset: int) -> Work[int]:
    """Return a message's store time; -1 if there is no message."""
    return store.reading(lambda: store.store_timestamp_ms(topic, queue_id, offset))


def consume_offsets(
    store: MessageStore,
    offsets: OffsetCommits,
    group: str,
    queue: MessageQueue,
    committed: int,
) -> Work[OffsetWrapper]:
    """Return a group's progress in one queue, given its committed offset."""
    topic, queue_id = queue.topic, queue.queue_id
    pulled = offsets.pull_offsets.get(group, topic, queue_id)
    # Deleted messages do not count as lag: the group continues with the first that exists.
    offset = max(committed, store.min_offset(topic, queue_id))
    read_ms = (yield from stored_ms(store, topic, queue_id, offset - 1)) if offset else 0
    return OffsetWrapper(
        broker_offset=store.max_offset(topic, queue_id),
        consumer_offset=offset,
        pull_offset=max(offset, pulled or 0),
        last_timestamp=max(0, read_ms),
    )
