"""The former topics: what a slave must not serve to a member of a topic that was deleted and made again.

    member ─► master: OPEN_QUEUE      the answer names where in the log the topic begins (`lbTopicStart`)
    member ─► slave:  PULL_MESSAGE    names it; a message that lies before is one of the former topic

The log does not record deletions. Until the new topic's first message has come, a slave has the former one's
messages, under the offsets that the new ones will get. A member that read them would skip the new ones.
Ours.
"""

import msgspec

from libramq.store.log.segments import ColdRead
from libramq.store.message_store import MessageStore
from libramq.store.reading.read import NO_QUEUE, ReadResult, ReadStatus


def nothing_of_former_topic(
    store: MessageStore, topic: str, queue_id: int, offset: int, topic_start: int, *, may_wait: bool
) -> ReadResult | None:
    """Return the result of a read whose offset has a message of the former topic; None if it has not.

    Messages of a queue lie in the log in their order, so what follows one of the new topic is of that, too.
    With may_wait=False the result may be WOULD_WAIT.
    """
    try:
        if may_wait:
            units = store.queue_units(topic, queue_id, offset, 1)
        else:
            with store.without_waiting():
                units = store.queue_units(topic, queue_id, offset, 1)
    except ColdRead as cold:
        return msgspec.structs.replace(NO_QUEUE, status=ReadStatus.WOULD_WAIT, cold=(cold.stretch,))
    if not units or units[0][0] >= topic_start:
        return None
    return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, 0, offset)
