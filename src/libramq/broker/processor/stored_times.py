"""The store times of messages for tools' answers, and with them a group's progress in a queue."""

from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.kernel.work import Work
from libramq.message.queue import MessageQueue
from libramq.pop.check_point import CheckPoint
from libramq.pop.in_flight import InFlight
from libramq.remoting.body.consumers import OffsetWrapper
from libramq.store.message_store import MessageStore

#: Check points by group, topic and queue.
Popped = dict[tuple[str, str, int], list[CheckPoint]]


def stored_ms(store: MessageStore, topic: str, queue_id: int, offset: int) -> Work[int]:
    """Return a message's store time; -1 if there is no message."""
    return store.reading(lambda: store.store_timestamp_ms(topic, queue_id, offset))


def popped_unfinished(in_flight: InFlight, group: str | None = None) -> Work[Popped]:
    """Return what a group, or each, has popped and not acknowledged."""
    popped: Popped = {}
    if group is None or in_flight.count_of(group):
        for each in list(in_flight):
            if group in (None, each.group):
                popped.setdefault((each.group, each.topic, each.queue_id), []).append(each)
            yield None
    return popped


def consume_offsets(
    store: MessageStore,
    offsets: OffsetCommits,
    group: str,
    queue: MessageQueue,
    committed: int | None,
    popped: Popped,
) -> Work[OffsetWrapper]:
    """Return a group's progress in one queue, given its committed offset, if it has one.

    A group that pops commits soon after its pops, so messages in flight are subtracted from that offset: they
    are pulled, and not consumed. Where nobody knows from where on a group reads, tools get the first message,
    as Apache's do, and that it is unknown.
    """
    topic, queue_id = queue.topic, queue.queue_id
    end, first = store.max_offset(topic, queue_id), store.min_offset(topic, queue_id)
    begin = offsets.read_from(group, topic, queue_id) if committed is None else committed
    pulled = offsets.pull_offsets.get(group, topic, queue_id)
    # Deleted messages do not count as lag: the group continues with the first that exists.
    offset = max(begin or 0, first)
    read_ms = (yield from stored_ms(store, topic, queue_id, offset - 1)) if offset else 0
    before = behind = 0
    for each in popped.get((group, topic, queue_id), ()):
        count = len(each.diffs) - each.done.bit_count()
        if each.start_offset < offset:
            before += count
        else:
            behind += count
        yield None
    return OffsetWrapper(
        broker_offset=end,
        consumer_offset=max(0, offset - before),
        pull_offset=max(offset + behind, pulled or 0),
        last_timestamp=max(0, read_ms),
        is_unknown=True if begin is None and end > first else None,
    )
