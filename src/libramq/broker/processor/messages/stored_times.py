"""Store times of messages, as far as they are in memory; the rest is read by a thread."""

from collections.abc import Callable
from functools import partial
from typing import Final

from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import OffsetWrapper
from libramq.rpc.outcome import Outcome, WaitForDisk
from libramq.store.log.segments import Cold, ColdRead
from libramq.store.message_store import MessageStore

#: Ours: a message's time takes two reads, of its unit and of its record.
WARMINGS_MAX: Final = 4


class StoredTimes:
    """Store times of messages, as far as they are in memory; cold: reads that a thread makes for the rest.

    warmings: how many times a thread has read for it. After the last one the loop waits for the disk itself.
    """

    def __init__(self, store: MessageStore, warmings: int) -> None:
        self.cold: list[Cold] = []
        self._store = store
        self._may_wait = warmings >= WARMINGS_MAX

    def of(self, topic: str, queue_id: int, offset: int) -> int:
        """Return a message's store time; -1 if there is no message, 0 if it is not in memory."""
        if self._may_wait:
            return self._store.store_timestamp_ms(topic, queue_id, offset)
        try:
            with self._store.without_waiting():
                return self._store.store_timestamp_ms(topic, queue_id, offset)
        except ColdRead as cold:
            self.cold.append(cold.stretch)
            return 0

    def wait(self, again: Callable[[], Outcome]) -> WaitForDisk:
        """Return the outcome that has a thread read what is cold, and then decides again."""
        return WaitForDisk(read=partial(self._store.warm, tuple(self.cold)), again=again)


def consume_offsets(
    store: MessageStore,
    offsets: OffsetCommits,
    group: str,
    queue: MessageQueue,
    committed: int,
    times: StoredTimes,
) -> OffsetWrapper:
    """Return a group's progress in one queue, given its committed offset."""
    topic, queue_id = queue.topic, queue.queue_id
    pulled = offsets.pull_offsets.get(group, topic, queue_id)
    # Deleted messages do not count as lag: the group continues with the first that exists.
    offset = max(committed, store.min_offset(topic, queue_id))
    read_ms = times.of(topic, queue_id, offset - 1) if offset else 0
    return OffsetWrapper(
        broker_offset=store.max_offset(topic, queue_id),
        consumer_offset=offset,
        pull_offset=max(offset, pulled or 0),
        last_timestamp=max(0, read_ms),
    )
