"""The message queue: one of the numbered queues of a topic at one broker group.

Upstream: common/message/MessageQueue.java. Its order there is topic, broker name, queue id; a NamedTuple
compares in the same order.
"""

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue of a topic at one broker name."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
