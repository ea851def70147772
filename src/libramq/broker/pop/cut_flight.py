"""The cut flight: what a slave's log says was popped, in the part that it is about to lose.

    log      … messages 5 to 9 … │ check point of 5 to 9 …      │ the cut
    offset   10, from the former master's table ─► 5

Without their check point nothing leads to messages before the committed offset: a slave that is promoted
after the cut, before it has copied the new master's offsets, would never deliver them.
"""

from collections.abc import Mapping
from typing import Final

from libramq.broker.messages.stored_records import undamaged
from libramq.errors import RemoteProtocolError
from libramq.message import names
from libramq.message import properties as p
from libramq.pop.entries import CheckPointEntry, decode_entry
from libramq.pop.positions import QueueOfGroup
from libramq.store.message_store import MessageStore
from libramq.store.reading.read import ReadStatus

#: Ours: messages of one read; a cut waits for the disk anyway.
READ_MAX: Final = 1024


def popped_behind(store: MessageStore, end: int, revive_topic: str) -> Mapping[QueueOfGroup, int]:
    """Return the first message of each group's queue of which a check point lies behind an end of the log."""
    first: dict[QueueOfGroup, int] = {}
    offset = store.first_offset_at(names.TIMER_TOPIC, 0, end)
    while offset < store.max_offset(names.TIMER_TOPIC, 0):
        result = store.read(names.TIMER_TOPIC, 0, offset, READ_MAX)
        if result.status is ReadStatus.FOUND:
            for message in undamaged(result.data):
                if message.properties.get(p.REAL_TOPIC) != revive_topic:
                    continue
                try:
                    entry = decode_entry(message.tags, message.body)
                except RemoteProtocolError:
                    continue
                if isinstance(entry, CheckPointEntry):
                    queue = (entry.group, entry.topic, entry.queue_id)
                    first[queue] = min(entry.start_offset, first.get(queue, entry.start_offset))
        elif result.next_offset <= offset:
            break
        offset = result.next_offset
    return first
