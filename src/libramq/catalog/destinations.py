"""The destination of a delayed message: the queue in which it is stored when it is due, unless it is dropped
because its topic was deleted.

By the time a message is due, its topic or queue may be gone:

    the topic has fewer queues now                another queue of the topic
    the topic was deleted since it was stored     none: dropped, even if the topic was created again
    the topic is unknown                          its original queue, which is not read

Apache's broker always uses the original queue. Ours does so for an unknown topic, because a slave may not
know the topic yet when it becomes master. A deletion is known by its position in the log.
"""

from collections.abc import Callable, Mapping
from typing import Final

from libramq.catalog.topic_table import TopicTable
from libramq.logs import get_logger
from libramq.message import names

log = get_logger(__name__)

#: Ours: topics remembered as reported; after this many the memory is cleared.
REPORTED_MAX: Final = 1_000


class Destinations:
    """Finds the queues of delayed messages.

    deleted_end: returns the log offset of a topic's last deletion; earlier messages were for the deleted one.
    """

    def __init__(self, topics: TopicTable, deleted_end: Callable[[str], int] = lambda _: 0) -> None:
        self._topics = topics
        self.deleted_end = deleted_end
        self._reported: set[str] = set()
        #: Messages for deleted topics that were dropped since the start.
        self.dropped = 0

    def drop(self, counts: Mapping[str, int]) -> None:
        """Count and log dropped messages for deleted topics. counts: by topic."""
        for topic, count in counts.items():
            self.dropped += count
            log.warning("delayed messages for a deleted topic were dropped", topic=topic, count=count)

    def queue_for(self, topic: str, queue_id: int) -> int:
        """Return the queue for a message that was sent to this queue; log it if the topic is gone."""
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
        log.warning("delayed messages are for an unknown topic; they can be read once it exists", topic=topic)
