"""The removal of topics and groups: everything at this broker that is deleted with them (queues, offsets,
held pulls, retry topics).
"""

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.groups.pull import Pull
from libramq.catalog.config_table import refused_without_room
from libramq.clock import WallMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.kernel.parts import Kernel
from libramq.kernel.work import Each
from libramq.message import names
from libramq.waits.held_pulls import HeldPull, HeldPulls


class Removal:
    """Deletes topics, with their queues, offsets, held pulls and messages to be popped; and groups."""

    def __init__(
        self,
        files: BrokerFiles,
        offsets: OffsetCommits,
        coordination: Coordination,
        held: HeldPulls[Pull],
        kernel: Kernel,
    ) -> None:
        self._topics, self._groups, self._store = files.tables.topics, files.tables.groups, files.store
        self._clock = kernel.clock
        self._offsets = offsets
        self._coordination = coordination
        self._held = held
        self._ending = Each(kernel.work, self._end_pull)

    def remove_group(self, group: str) -> None:
        """Delete a group that no member uses; its offsets are gone once the removal is journalled.

        Its retry topic, by which tools find groups, is deleted with it.
        """
        wall_ms = self._clock.wall_ms()
        # First: if a full disk refuses the rest, there is still a group to be deleted again.
        if names.retry_topic(group) in self._topics:
            self.remove_topic(names.retry_topic(group), wall_ms)
        self._groups.delete(group, wall_ms)
        self._offsets.remove_group(group)
        self._coordination.group_removed(group, may_return=self._groups.creates_on_use)

    def remove_topic(self, topic: str, wall_ms: WallMs) -> None:
        """Delete a topic that is not the broker's own; on a full disk it stays, and BrokerError is raised."""
        for each in (*self._pop_retry_topics(topic), topic):  # The topic last, likewise.
            config = self._topics.get(each)
            self._topics.delete(each, wall_ms)
            try:
                with refused_without_room(each):
                    self._store.delete_topic(each, may_be_awaited=config is not None)
            except BrokerError:
                if config is not None:  # Else nobody could delete its queues, and a new topic would get them.
                    self._topics.put_back(each, config, wall_ms)
                raise
            self._offsets.remove_topic(each)
            # Otherwise they would wait until a new topic of that name reaches their offsets.
            self._ending.add(self._held.of_topic(each))
            self._coordination.topic_removed(each)

    def _pop_retry_topics(self, topic: str) -> list[str]:
        """Return POP's retry topics of a topic."""
        named = (
            names.pop_retry_topic(topic, group, is_new=is_new)
            for group in sorted(self._offsets.groups_of_topic(topic))
            for is_new in (False, True)
        )
        return [name for name in named if name in self._topics]

    def _end_pull(self, held: HeldPull[Pull]) -> None:
        if held.is_parked:
            self._held.take_out([held])
            gone = broker_error(ResponseCode.TOPIC_NOT_EXIST, f"topic[{held.topic}] was deleted")
            held.request.waiter.refuse(gone)
