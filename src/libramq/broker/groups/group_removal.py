"""The removal of a group that no member uses, with everything that would outlive it at this broker."""

from libramq.broker.files.tables import Tables
from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.groups.topic_removal import TopicRemoval
from libramq.clock import Clock
from libramq.message.names import retry_topic


class GroupRemoval:
    """Deletes groups. topics: removes their retry topics, by which tools find groups."""

    def __init__(
        self,
        tables: Tables,
        offsets: OffsetCommits,
        coordination: Coordination,
        topics: TopicRemoval,
        clock: Clock,
    ) -> None:
        self._groups, self._topics = tables.groups, tables.topics
        self._offsets = offsets
        self._coordination = coordination
        self._topic_removal = topics
        self._clock = clock

    def remove(self, group: str) -> None:
        """Delete a group; its offsets are gone once they are journalled."""
        wall_ms = self._clock.wall_ms()
        self._groups.delete(group, wall_ms)
        self._offsets.remove_group(group)
        self._coordination.group_removed(group, may_return=self._groups.creates_on_use)
        if retry_topic(group) in self._topics:
            self._topic_removal.remove(retry_topic(group), wall_ms)
