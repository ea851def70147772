"""INVOKE_BROKER_TO_RESET_OFFSET, CLONE_GROUP_OFFSET, QUERY_CONSUME_TIME_SPAN and similar requests: an
operator sets a group's offsets, or queries the progress of groups; a reset depends on the kind of group.

    coordinated group    its queues are closed at the fence, the offsets set, the queues granted again
    Kafka's members      refused by all brokers, as by Kafka: their clients would commit over it
    broadcasting         notified (RESET_CONSUMER_CLIENT_OFFSET): each member keeps its own offsets
    all others           pending: set, and protected from commits until a consumer reads from there; Java's
                         held pulls are answered with the new offset at once, other clients are notified

A member that delays its pulls because it has much to handle would learn of a pending reset late. So clients
are notified, except Java's: its push consumers would pause for 10 s, and its other consumers would do
nothing.

Members of a foreign group (Kafka's) would overwrite a tool's offsets by their commits. Only the group's
coordinator knows them, so any other broker queries it before changing anything (`ForeignMembers`).

Upstream: AdminBrokerProcessor.java, Broker2Client.resetOffset. Its broker clones nothing if no topic is
named, and deletes the offsets of `filterGroups` instead of leaving them out; here both do what their names
say.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.reading import Reading
from libramq.broker.processor.groups.consumer_offset import JAVA
from libramq.catalog.requirements import require_not_own
from libramq.clock import WallMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import BrokerError, ConsumerNotOnline, Journalling, LibraError, broker_error, counted
from libramq.fencing import MODE_EPOCHS
from libramq.formats.document import encode_body
from libramq.groups.cluster_view import ClusterView
from libramq.groups.consumer_group import Member
from libramq.groups.pending_notifications import OffsetsReset
from libramq.kernel.connection import Connection
from libramq.kernel.work import Work
from libramq.message import names
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body import administration as bodies
from libramq.remoting.body.consumers import ConsumerConnection, QueueRef, ResetOffsetBody
from libramq.rpc.admin_calls import consumer_connection
from libramq.rpc.outcome import HOLD, SUCCESS, Outcome, Reply, reply_rows
from libramq.rpc.question import Ask, Question
from libramq.rpc.request import Request, serves
from libramq.rpc.responder import decide

#: Long.MAX_VALUE: the compared group is ahead of a queue's slowest group.
AHEAD: Final = 2**63 - 1
#: ResetOffsetRequestHeader: all queues.
ALL_QUEUES = -1
#: MQClientAPIImpl.invokeBrokerToResetOffset: mqadmin sends this for a reset by time.
NO_OFFSET = -1
#: Broker2Client.resetOffset: the time that stands for the end.
THE_END = -1
#: Ours: a coordinator that takes longer to answer counts as absent, as in `peer_brokers.py`.
ANSWER_MS_MAX: Final = 1_000


class ForeignMembers:
    """Refuses to set offsets that foreign members would overwrite. answer: sends delayed replies."""

    def __init__(
        self,
        clients: ConsumerClients,
        view: ClusterView,
        ask: Ask,
        answer: Callable[[Request, Outcome], None],
    ) -> None:
        self._clients = clients
        self._view = view
        self._ask = ask
        self._answer = answer

    def unless_any(self, request: Request, group: str, then: Callable[[], Outcome]) -> Outcome:
        """Run `then`, unless a group has foreign members at any broker. Raises BrokerError."""
        foreign = self._clients.foreign.get(group)
        if foreign is not None:
            raise _refusal(group, len(foreign.members))
        coordinator, address = self._view.coordinator_of(group), self._view.coordinator_address(group)
        if address is None or coordinator == self._view.own_name or self._clients.group(group) is not None:
            return then()

        def found(members: ConsumerConnection | LibraError) -> Outcome:
            if isinstance(members, LibraError):
                if not isinstance(members, ConsumerNotOnline):
                    reason = f"the coordinator of group {group}, {coordinator}, does not answer: {members}"
                    raise broker_error(ResponseCode.SYSTEM_BUSY, reason)
            elif members.protocol is not None:
                raise _refusal(group, len(members.connection_set))
            return then()

        def answered(members: ConsumerConnection | LibraError) -> None:
            self._answer(request, decide(lambda: found(members), request))

        self._ask(Question(address, consumer_connection(group), answered, ANSWER_MS_MAX))
        return HOLD


def _refusal(group: str, count: int) -> BrokerError:
    return broker_error(
        ResponseCode.SYSTEM_ERROR,
        f"the group {group} has {counted(count, 'member')} of Kafka's protocol, which would go on where they"
        " are; stop them first",
    )


class OffsetAdministration:
    """The processor of operators' requests about offsets."""

    def __init__(
        self,
        *,
        files: BrokerFiles,
        offsets: OffsetCommits,
        clients: ConsumerClients,
        foreign: ForeignMembers,
        coordination: Coordination,
        reading: Reading,
    ) -> None:
        self._store, tables = files.store, files.tables
        self._topics, self._groups, self._fences = tables.topics, tables.groups, tables.fences
        self._offsets = offsets
        self._clients = clients
        self._foreign = foreign
        self._coordination = coordination
        self._reading = reading

    @serves(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset(self, request: Request) -> Outcome:
        """Set the offsets, or let members set them; the reply has them, queue by queue."""
        header: h.ResetOffsetHeader = request.header
        require_not_own(header.group)
        if header.offset == NO_OFFSET:
            header = msgspec.structs.replace(header, offset=None)
        self._queue_ids(header)  # Refuse an invalid request first.
        return self._foreign.unless_any(request, header.group, lambda: self._reset(header))

    def _reset(self, header: h.ResetOffsetHeader) -> Work[Outcome]:
        """Perform a reset; raises BrokerError if there is no such queue or group."""
        found: dict[int, int] = {}
        is_by_time = header.offset is None and header.timestamp != THE_END
        while is_by_time and (left := [each for each in self._queue_ids(header) if each not in found]):
            for queue_id in left:
                search = partial(self._store.offset_by_timestamp, header.topic, queue_id, header.timestamp)
                found[queue_id] = yield from self._store.reading(search)
                yield None
        queue_ids = self._queue_ids(header)
        offsets = {queue_id: self._target(header, queue_id, found) for queue_id in queue_ids}
        body = encode_body(
            ResetOffsetBody(
                offset_table={
                    MessageQueue(header.topic, self._clients.broker_name, queue_id): offset
                    for queue_id, offset in offsets.items()
                }
            )
        )
        if self._fences.mode(header.group) == MODE_EPOCHS:
            return self._set_under_epochs(header, offsets, body)
        group = self._clients.group(header.group)
        members = dict(group.members) if group is not None else {}
        if group is None or not group.is_broadcasting:
            for queue_id, offset in offsets.items():  # Pending until a consumer reads from them.
                self._offsets.reset(header.group, header.topic, queue_id, offset)
            self._offsets.write_resets()
            members = self._move_readers(header, offsets, members)
        moved = tuple(offsets.items())
        for peer, member in members.items():
            if member.notify is not None and peer.is_open:
                member.notify(OffsetsReset(peer, header.group, header.topic, moved))
                yield None
        return Reply(body=body)

    def _queue_ids(self, header: h.ResetOffsetHeader) -> list[int]:
        topic = self._topics.require(header.topic)
        if header.group not in self._groups:
            raise broker_error(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the group {header.group} does not exist here"
            )
        count = max(topic.read_queue_nums, topic.write_queue_nums)
        if header.queue_id == ALL_QUEUES:
            return list(range(count))
        if not 0 <= header.queue_id < count:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"topic {header.topic} has {counted(count, 'queue')}, no {header.queue_id}",
            )
        return [header.queue_id]

    def _target(self, header: h.ResetOffsetHeader, queue_id: int, found: dict[int, int]) -> int:
        """Return where the group continues: by time; without force, never beyond its current offset.

        An offset requested for one queue is used as it is (AdminBrokerProcessor.resetOffsetInner).
        """
        first = self._store.min_offset(header.topic, queue_id)
        end = self._store.max_offset(header.topic, queue_id)
        if header.offset is not None:
            target = header.offset
        elif header.timestamp == THE_END:
            target = end
        else:
            target = found[queue_id]
        target = max(first, min(target, end))
        if header.is_force or (header.offset is not None and header.queue_id != ALL_QUEUES):
            return target
        committed = self._offsets.query(header.group, header.topic, queue_id)
        return target if committed is None else min(target, committed)

    def _set_under_epochs(self, header: h.ResetOffsetHeader, offsets: dict[int, int], body: bytes) -> Outcome:
        """Close the fence first: otherwise a reader's commit could undo the reset."""
        with Journalling("fence"):
            for queue_id in offsets:
                self._fences.close(header.group, header.topic, queue_id)
        for queue_id, offset in offsets.items():
            # An older reset would override this one.
            self._offsets.take_reset(header.group, header.topic, queue_id)
            self._offsets.commit(header.group, header.topic, queue_id, offset)
        try:
            self._offsets.write_resets()
        finally:
            fenced = broker_error(ResponseCode.FENCED, f"the offsets of group {header.group} were reset")
            for queue_id in offsets:
                self._reading.refuse(
                    header.topic,
                    queue_id,
                    lambda pull: pull.group == header.group and pull.member is not None,
                    fenced,
                )
            self._coordination.offsets_reset(header.group, header.topic)
        return Reply(body=body)

    def _move_readers(
        self,
        header: h.ResetOffsetHeader,
        offsets: dict[int, int],
        members: Mapping[Connection, Member[Connection]],
    ) -> dict[Connection, Member[Connection]]:
        """Move Java's members by answering their held pulls; return the other members."""
        javas = {peer for peer, member in members.items() if member.language == JAVA}
        for queue_id in offsets:
            self._reading.reset(
                header.topic,
                queue_id,
                lambda pull: pull.group == header.group and pull.waiter.connection in javas,
            )
        return {peer: member for peer, member in members.items() if peer not in javas}

    @serves(RequestCode.CLONE_GROUP_OFFSET)
    def clone(self, request: Request) -> Outcome:
        """Set a group's offsets to those of another one, in one topic or in all that it has read.

        Refused while the group has members, which would commit over them; upstream's broker sets them in any
        case.
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
                # A pending reset would drop the new offset.
                self._offsets.take_reset(header.dest_group, topic, queue_id)
                self._offsets.commit(header.dest_group, topic, queue_id, offset)
                yield None
        with Journalling("offsets"):
            self._offsets.write()
        return SUCCESS

    @serves(RequestCode.QUERY_CORRECTION_OFFSET)
    def correction(self, request: Request) -> Work[Outcome]:
        """Return the smallest offset of all groups, by queue; AHEAD if the compared group's is lower."""
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
        """Return when the first, the last and the last consumed message of a topic's queues were stored."""
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
        stored = partial(self._store.stored_ms, topic, queue_id)
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
