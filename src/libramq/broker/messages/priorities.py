"""The priority of a message (5.4): the queue of its topic in which it is stored.

Queue 0 is the lowest priority. Groups that pop a topic with `message.type=PRIORITY` get the messages of
higher queues first (`pop/taking.py`). The property counts in topics of every type, as at Apache's broker.
Upstream: SendMessageProcessor.sendMessage, TopicMessageType.parseFromMessageProperty of 5.5.0.
"""

from typing import Final

from libramq.broker.messages import stored_properties
from libramq.message import properties as p

#: Message.getPriority: NumberUtils.toInt; what Java's int cannot hold is no priority.
_PRIORITY_MAX: Final = 2**31 - 1
#: Message types exclude each other; these are recognised before a priority.
_OTHER_TYPES: Final = (p.DELAY, *p.TIMER_REQUESTS, p.SHARDING_KEY)


def prioritised(text: str, queue_id: int, queue_count: int) -> tuple[int, str]:
    """Return the queue of a message with these properties, and the properties: without a priority in vain."""
    value = stored_properties.find(text, p.PRIORITY)
    priority = p.whole_number(value) if value is not None else None
    if priority is None or priority > _PRIORITY_MAX:
        return queue_id, text
    is_half = (stored_properties.find(text, p.TRANSACTION_PREPARED) or "").lower() == "true"
    if is_half or any(stored_properties.find(text, name) is not None for name in _OTHER_TYPES):
        return queue_id, stored_properties.without(text, p.PRIORITY)
    return min(priority, queue_count - 1), text
