"""The destination of a message that has waited: the queue of its topic in which consumers will find it.

Its topic, or its queue, may be gone by the time it is due:

    the queue is gone, as the topic has fewer     another queue of the topic
    the topic is gone                             the queue that it was sent to, of which nobody reads

Apache's broker stores it in the queue that it was sent to in both cases. Without a topic so does ours: one
that is created again has these messages, and so has one that a slave did not know yet when it became master.
"""

from typing import Final

from libramq.catalog.topic_table import TopicTable
from libramq.logs import get_logger
from libramq.message import names

log = get_logger(__name__)

#: Ours: topics that are remembered as reported; after that many they are reported again.
REPORTED_MAX: Final = 1_000


class Destinations:
    """Finds the queues of messages that have waited."""

    def __init__(self, topics: TopicTable) -> None:
        self._topics = topics
        self._reported: set[str] = set()

    def queue_for(self, topic: str, queue_id: int) -> int:
        """Return the queue for a message that was sent to a queue; log it if its topic is gone."""
        config = self._topics.get(topic)
        if config is None:
            self._report(topic)
            return queue_id
        self._reported.discard(topic)
        if queue_id < config.read_queue_nums:
            return queue_id
        return queue_id % max(1, min(config.read_queue_nums, config.write_queue_nums))

    def _report(self, topic: str) -> None:
        if topic in self._reported or names.is_system_topic(topic):
            return
        if len(self._reported) >= REPORTED_MAX:
            self._reported.clear()
        self._reported.add(topic)
        log.warning(
            "messages that waited are for a topic that is gone; they are read once it exists", topic=topic
        )
