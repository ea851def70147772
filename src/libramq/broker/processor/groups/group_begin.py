"""GROUP_BEGIN: the offsets at which a group that is new to a topic begins here (the queues' ends, or a time),
committed before its first member starts.

Its offsets are committed before the answer, so what is sent after a member has started is not missed.
Ours; the contract is in docs/design/coordinated-groups.md.
"""

from functools import partial
from typing import Final

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.committing import Committing
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.codes import RequestCode
from libramq.kernel.connection import Connection
from libramq.kernel.work import Work
from libramq.remoting.headers import GroupBeginHeader
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Request, serves

#: Ours: queues of brokers that are away when a group begins are read from so long before: clocks differ.
LEEWAY_MS: Final = 60_000


class GroupBegin:
    """The processor of beginnings."""

    def __init__(
        self,
        files: BrokerFiles,
        committing: Committing,
        consumers: ConsumerClients,
    ) -> None:
        self._store, tables = files.store, files.tables
        self._topics, self._groups, self._fences = tables.topics, tables.groups, tables.fences
        self._beginnings = files.beginnings
        self._offsets = committing.offsets
        self._write = committing.write
        self._requirements = tables.requirements
        self._consumers = consumers
        #: Groups and topics whose offsets are being committed.
        self._under_way: set[tuple[str, str]] = set()

    @serves(RequestCode.GROUP_BEGIN)
    def handle(self, request: Request) -> Work[Outcome]:
        """Return from when the group reads queues without an offset; nothing if it is new to the topic."""
        header: GroupBeginHeader = request.header
        group, topic = header.consumer_group, header.topic
        self._topics.require(topic)
        while (group, topic) in self._under_way:
            yield None
        since_ms: int | None = self._since_ms(request.peer, group, topic)
        if since_ms is None and header.lb_begins:
            self._groups.require_not_taken(group)
            self._requirements.consuming_group(group, request.wall_ms)
            began_ms = int(request.wall_ms) - LEEWAY_MS
            since_ms = max(1, began_ms if header.timestamp is None else header.timestamp)
            self._beginnings.note(group, topic, since_ms)  # First: it may not come to the last queue.
            self._under_way.add((group, topic))
            try:
                yield from self._begin(header)
            finally:
                self._under_way.discard((group, topic))
        return Reply(ext={} if since_ms is None else {"lbSince": str(since_ms)})

    def _since_ms(self, peer: Connection, group: str, topic: str) -> int | None:
        """Return that time; 0: it is unknown; None: the group is new, and has no other members."""
        since_ms = self._beginnings.since_ms(group, topic)
        if since_ms is not None:
            return since_ms
        is_open = any(queue.topic == topic for queue in self._fences.openings(group))
        return 0 if is_open or self._has_others(peer, group, topic) else None

    def _has_others(self, peer: Connection, group: str, topic: str) -> bool:
        members = self._consumers.group(group)
        return members is not None and any(
            topic in member.subscriptions for member in members.members.values() if member.peer is not peer
        )

    def _begin(self, header: GroupBeginHeader) -> Work[None]:
        group, topic = header.consumer_group, header.topic
        for queue in self._topics.queues(topic):
            if header.timestamp is None:
                offset = self._store.max_offset(topic, queue.queue_id)
            else:
                search = partial(
                    self._store.offset_by_timestamp, topic, queue.queue_id, max(0, header.timestamp)
                )
                offset = yield from self._store.reading(search)
            if self._offsets.query(group, topic, queue.queue_id) is None:
                self._offsets.commit(group, topic, queue.queue_id, offset)
            yield None
        self._write()
