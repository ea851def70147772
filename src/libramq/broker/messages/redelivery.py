"""Redelivery: where a message goes that a consumer could not handle.

It goes to the group's retry topic after a delay, or, after enough attempts, to the group's dead letters.
Upstream: AbstractSendMessageProcessor.java (consumerSendMsgBack, handleRetryAndDLQ).
"""

import random
from dataclasses import dataclass
from typing import Final

from libramq.catalog import GroupTable, TopicTable
from libramq.catalog.topic_table import DLQ_QUEUES
from libramq.clock import MonotonicMs, WallMs
from libramq.formats.tables import PERM_READ, PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from libramq.groups.queue_lock import QueueLocks
from libramq.message import names

#: The level of a first redelivery; each further one is a level higher: 10 s, 30 s, 1 min …
FIRST_DELAY_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class Target:
    """The message's target, and its delay level (0: at once)."""

    config: TopicConfig
    queue_id: int
    delay_level: int


class Redelivery:
    """The rules of redelivery, with the topics they create."""

    def __init__(
        self, topics: TopicTable, groups: GroupTable, locks: QueueLocks, randomness: random.Random
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._random = randomness

    def target(
        self,
        group: SubscriptionGroupConfig,
        *,
        reconsume_times: int,
        reconsume_times_max: int,
        delay_level: int,
        wall_ms: WallMs,
    ) -> Target:
        """Return the target after another failure; a level below 0 makes the message a dead letter."""
        if reconsume_times >= reconsume_times_max or delay_level < 0:
            return self.dead_letters(group.group_name, wall_ms)
        config = self._topics.for_retries(group, wall_ms)
        level = delay_level or FIRST_DELAY_LEVEL + reconsume_times
        return Target(config, self._random.randrange(config.write_queue_nums), level)

    def dead_letters(self, group: str, wall_ms: WallMs) -> Target:
        """Return the group's dead-letter queue as the target."""
        config = self._topics.for_group(names.dlq_topic(group), DLQ_QUEUES, PERM_READ | PERM_WRITE, wall_ms)
        return Target(config, 0, 0)

    def dead_letters_of_send(
        self, topic: str, times: int, times_max: int | None, *, wall_ms: WallMs, now_ms: MonotonicMs
    ) -> Target | None:
        """Return the dead-letter queue for a client's send to its group's retry topic; None: it goes there.

        It is a dead letter after too many attempts, and in orderly consumption. times_max: None: the group's.
        """
        name = names.retry_group(
            topic, is_group=self._groups.__contains__, is_topic=self._topics.__contains__
        )
        group = self._groups.require(name, wall_ms)
        orderly = self._locks.holds_any(group.group_name, now_ms=now_ms)
        if times > (group.retry_max_times if times_max is None else times_max) or orderly:
            return self.dead_letters(group.group_name, wall_ms)
        return None
