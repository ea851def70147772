"""INVOKE_BROKER_TO_RESET_OFFSET: an operator sets a group's offsets: how that differs for coordinated,
Kafka's, broadcasting and other groups.

    coordinated group    its queues are closed at the fence, the offsets set, the queues granted again
    Kafka's members      refused by all brokers, as by Kafka: their clients would commit over it
    broadcasting         notified (RESET_CONSUMER_CLIENT_OFFSET): each member keeps its own offsets
    all others           pending: set, and kept from commits until somebody reads from there; Java's held
                         pulls are answered with the new offset at once, other clients are notified as well

A member that holds back its pulls, since it has much to handle, would hear of a pending reset late; so
clients are notified, except Java's: its push consumers stand still for 10 s then, its others do nothing.
Upstream: AdminBrokerProcessor.resetOffsetInner, Broker2Client.resetOffset.
"""

from collections.abc import Mapping
from functools import partial

import msgspec

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.reading import Reading
from libramq.broker.processor.groups.consumer_offset import JAVA
from libramq.broker.processor.groups.foreign_groups import ForeignMembers
from libramq.catalog.requirements import require_not_own
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error, counted
from libramq.fencing import MODE_EPOCHS
from libramq.formats.document import encode_body
from libramq.groups.consumer_group import Member
from libramq.groups.pending_notifications import OffsetsReset
from libramq.kernel.connection import Connection
from libramq.kernel.work import Work
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ResetOffsetBody
from libramq.remoting.headers import ResetOffsetHeader
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Request, serves

#: ResetOffsetRequestHeader: all queues.
ALL_QUEUES = -1
#: MQClientAPIImpl.invokeBrokerToResetOffset: mqadmin sends this for a reset by time.
NO_OFFSET = -1
#: Broker2Client.resetOffset: the time that means the end.
THE_END = -1


class OffsetReset:
    """The processor of resets."""

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
    def handle(self, request: Request) -> Outcome:
        """Set the offsets, or have members set them; the reply has them, queue by queue."""
        header: ResetOffsetHeader = request.header
        require_not_own(header.group)
        if header.offset == NO_OFFSET:
            header = msgspec.structs.replace(header, offset=None)
        self._queue_ids(header)  # What is invalid is refused first.
        return self._foreign.unless_any(request, header.group, lambda: self._reset(header))

    def _reset(self, header: ResetOffsetHeader) -> Work[Outcome]:
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
            refusal = self._set_pending(header, offsets)
            if refusal is not None:
                return refusal
            members = self._move_readers(header, offsets, members)
        moved = tuple(offsets.items())
        for peer, member in members.items():
            if member.notify is not None and peer.is_open:
                member.notify(OffsetsReset(peer, header.group, header.topic, moved))
                yield None
        return Reply(body=body)

    def _queue_ids(self, header: ResetOffsetHeader) -> list[int]:
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

    def _target(self, header: ResetOffsetHeader, queue_id: int, found: dict[int, int]) -> int:
        """Return where the group continues: by time; without force, never beyond its current offset.

        A requested offset of one queue is used as it is (AdminBrokerProcessor.resetOffsetInner).
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

    def _set_under_epochs(self, header: ResetOffsetHeader, offsets: dict[int, int], body: bytes) -> Outcome:
        """Close the fence first: otherwise a reader's commit could undo the reset."""
        try:
            for queue_id in offsets:
                self._fences.close(header.group, header.topic, queue_id)
        except OSError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, f"the fence cannot be journalled: {error}")
        outcome = self._set(header, offsets, body)
        self._end_pulls(header, offsets)
        self._coordination.offsets_reset(header.group, header.topic)
        return outcome

    def _set_pending(self, header: ResetOffsetHeader, offsets: dict[int, int]) -> Reply | None:
        """Set the offsets until they are read from; return why they cannot be, if so."""
        for queue_id, offset in offsets.items():
            self._offsets.reset(header.group, header.topic, queue_id, offset)
        try:
            self._offsets.write_resets()
        except OSError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, f"the offsets cannot be journalled: {error}")
        return None

    def _move_readers(
        self,
        header: ResetOffsetHeader,
        offsets: dict[int, int],
        members: Mapping[Connection, Member[Connection]],
    ) -> dict[Connection, Member[Connection]]:
        """Have Java's members follow a reset by their held pulls; return the others."""
        javas = {peer for peer, member in members.items() if member.language == JAVA}
        for queue_id in offsets:
            self._reading.reset(
                header.topic,
                queue_id,
                lambda pull: pull.group == header.group and pull.waiter.connection in javas,
            )
        return {peer: member for peer, member in members.items() if peer not in javas}

    def _set(self, header: ResetOffsetHeader, offsets: dict[int, int], body: bytes) -> Outcome:
        for queue_id, offset in offsets.items():
            # An older one would override this.
            self._offsets.take_reset(header.group, header.topic, queue_id)
            self._offsets.commit(header.group, header.topic, queue_id, offset)
        try:
            self._offsets.write_resets()
        except OSError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, f"the offsets cannot be journalled: {error}")
        return Reply(body=body)

    def _end_pulls(self, header: ResetOffsetHeader, offsets: dict[int, int]) -> None:
        fenced = broker_error(ResponseCode.FENCED, f"the offsets of group {header.group} were reset")
        for queue_id in offsets:
            self._reading.refuse(
                header.topic,
                queue_id,
                lambda pull: pull.group == header.group and pull.member is not None,
                fenced,
            )
