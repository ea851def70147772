"""CLONE_GROUP_OFFSET, QUERY_CORRECTION_OFFSET, QUERY_CONSUME_TIME_SPAN and their kin: one group's offsets for
another, and how far groups are.

Upstream: AdminBrokerProcessor.java. It clones nothing where no topic is named, and deletes the offsets of
`filterGroups` where it should leave them out; here both do what their names say.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.processor.groups.foreign_groups import ForeignMembers
from libramq.broker.processor.stored_times import stored_ms
from libramq.catalog.requirements import require_not_own
from libramq.clock import WallMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error, counted
from libramq.formats.document import encode_body
from libramq.kernel.work import Work
from libramq.message import names
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body import administration as bodies
from libramq.remoting.body.consumers import QueueRef
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, reply_rows
from libramq.rpc.request import Request, serves

#: Long.MAX_VALUE: the compared group is ahead of a queue's slowest group.
AHEAD: Final = 2**63 - 1


class OffsetAdministration:
    """The processor of operators' requests about offsets."""

    def __init__(
        self,
        files: BrokerFiles,
        offsets: OffsetCommits,
        clients: ConsumerClients,
        foreign: ForeignMembers,
    ) -> None:
        self._foreign = foreign
        self._topics, self._store = files.tables.topics, files.store
        self._offsets = offsets
        self._clients = clients

    @serves(RequestCode.CLONE_GROUP_OFFSET)
    def clone(self, request: Request) -> Outcome:
        """Set a group's offsets to those of another one, in one topic or in all that it has read.

        Not while it has members, which would commit over them; upstream's broker sets them all the same.
        """
        header: h.CloneOffsetsHeader = request.header
        names.validate_group(header.dest_group)
        require_not_own(header.dest_group)
        live = self._clients.group(header.dest_group)
        if live is not None and live.members:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"the group {header.dest_group} has {counted(len(live.members), 'member')}, which would go on"
                " where they are; stop them first, or reset the offsets",
            )
        named = (header.topic or "").strip()
        topics = [named] if named else sorted(self._offsets.topics_of_group(header.src_group))
        source = self._clients.group(header.src_group)
        subscribed = source.subscriptions if source is not None and not header.offline else {}
        chosen = (topic for topic in topics if not subscribed or topic in subscribed)
        known = [topic for topic in chosen if topic in self._topics]
        return self._foreign.unless_any(request, header.dest_group, lambda: self._clone(header, known))

    def _clone(self, header: h.CloneOffsetsHeader, topics: Iterable[str]) -> Work[Outcome]:
        for topic in topics:
            for queue_id, offset in sorted(self._offsets.offsets(header.src_group, topic).items()):
                # A pending reset would drop it.
                self._offsets.take_reset(header.dest_group, topic, queue_id)
                self._offsets.commit(header.dest_group, topic, queue_id, offset)
                yield None
        try:
            self._offsets.write()
        except OSError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, f"the offsets cannot be journalled: {error}")
        return SUCCESS

    @serves(RequestCode.QUERY_CORRECTION_OFFSET)
    def correction(self, request: Request) -> Work[Outcome]:
        """Return the smallest offset of all groups, queue by queue; AHEAD where the compared one is lower."""
        header: h.CorrectionOffsetHeader = request.header
        left_out = set((header.filter_groups or "").split(","))
        smallest: dict[int, int] = {}
        for group in self._offsets.groups_of_topic(header.topic) - left_out:
            for queue_id, offset in self._offsets.offsets(group, header.topic).items():
                if offset >= self._store.min_offset(header.topic, queue_id):
                    smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
                yield None
        for queue_id, offset in self._offsets.offsets(header.compare_group, header.topic).items():
            if queue_id in smallest and smallest[queue_id] > offset:
                smallest[queue_id] = AHEAD
        return reply_rows(lambda: bodies.CorrectionOffsets(correction_offsets=smallest), len(smallest))

    @serves(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, request: Request) -> Outcome:
        """Return the subscription of a group's connected members to a topic, if there is one."""
        header: h.SubscriptionHeader = request.header
        group = self._clients.group(header.group)
        found = group.subscriptions.get(header.topic) if group is not None and header.topic else None
        body = bodies.SubscriptionReply(group=header.group, topic=header.topic, subscription_data=found)
        return Reply(body=encode_body(body))

    @serves(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def time_spans(self, request: Request) -> Work[Outcome]:
        """Return when the first, last and last consumed messages of a topic's queues were stored."""
        header: h.GroupAndTopicHeader = request.header
        config = self._topics.get(header.topic)
        if config is None:
            raise broker_error(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        spans = []
        for queue_id in range(config.write_queue_nums):
            spans.append((yield from self._time_span(header, queue_id, request.wall_ms)))
            yield None
        return reply_rows(lambda: bodies.ConsumeTimeSpans(consume_time_span_set=spans), len(spans))

    def _time_span(
        self, header: h.GroupAndTopicHeader, queue_id: int, wall_ms: WallMs
    ) -> Work[bodies.QueueTimeSpan]:
        group, topic = header.group, header.topic
        first, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        consumed = max(self._offsets.query(group, topic, queue_id) or 0, first)
        stored = partial(stored_ms, self._store, topic, queue_id)
        min_ms = consumed_ms = yield from stored(first)
        max_ms = yield from stored(end - 1)
        if consumed > first:
            consumed_ms = yield from stored(consumed - 1)
        delay_ms = max(0, int(wall_ms) - (yield from stored(consumed))) if consumed < end else 0
        return bodies.QueueTimeSpan(
            message_queue=QueueRef.of(MessageQueue(topic, self._clients.broker_name, queue_id)),
            min_time_stamp=min_ms,
            max_time_stamp=max_ms,
            consume_time_stamp=consumed_ms,
            delay_time=delay_ms,
        )
