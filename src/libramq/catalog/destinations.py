"""The destination of a message that has waited: in which queue it is stored when it is due, or whether it is
dropped as its topic was deleted.

Its topic, or its queue, may be gone by the time it is due:

    the queue is gone, as the topic has fewer     another queue of the topic
    the topic was deleted since it was stored     none: it is dropped, also if the topic was made again
    the topic is not known                        the queue that it was sent to, of which nobody reads

Apache's broker stores it in the queue that it was sent to in all cases. Without a topic so does ours: a slave
may not know the topic yet when it becomes master. A deletion is known by its place in the log.
"""

from collections.abc import Callable, Mapping
from typing import Final

from libramq.catalog.topic_table import TopicTable
from libramq.logs import get_logger
from libramq.message import names

log = get_logger(__name__)

#: Ours: topics that are remembered as reported; after that many they are reported again.
REPORTED_MAX: Final = 1_000


class Destinations:
    """Finds the queues of messages that have waited.

    deleted_end: returns the offset in the log before which messages for a topic are for a deleted one.
    """

    def __init__(self, topics: TopicTable, deleted_end: Callable[[str], int] = lambda _: 0) -> None:
        self._topics = topics
        self.deleted_end = deleted_end
        self._reported: set[str] = set()
        #: How many messages for deleted topics were dropped since the start.
        self.dropped = 0

    def drop(self, counts: Mapping[str, int]) -> None:
        """Count and log messages for deleted topics, which nobody gets. counts: by topic."""
        for topic, count in counts.items():
            self.dropped += count
            log.warning(
                "messages that waited are for a topic that was deleted; dropped", topic=topic, count=count
            )

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
