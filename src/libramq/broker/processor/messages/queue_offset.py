"""GET_MAX_OFFSET, GET_MIN_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP, VIEW_MESSAGE_BY_ID and their kin: the first and
last offsets of queues, one message by its place.

Upstream: AdminBrokerProcessor.java.
"""

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Manage
from libramq.auth.resource import Action, topic
from libramq.codes import RequestCode, ResponseCode
from libramq.message.record import peek_record
from libramq.remoting.headers import (
    MaxOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    ViewMessageHeader,
)
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Request, serves
from libramq.store.message_store import MessageStore
from libramq.store.queues.timestamp_search import Boundary


class QueueOffsets:
    """The processor of queries about one queue, or one message."""

    def __init__(self, store: MessageStore, authorizer: Authorizer) -> None:
        self._store = store
        self._authorizer = authorizer

    @serves(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, request: Request) -> Outcome:
        """Return the offset that the next message gets; where wanted, also where in the log a topic of this
        name was deleted last.
        """
        header: MaxOffsetHeader = request.header
        offset = str(self._store.max_offset(header.topic, header.queue_id))
        if not header.lb_since:
            return Reply(ext={"offset": offset})
        return Reply(ext={"offset": offset, "lbSince": str(self._store.deletions.end_of(header.topic))})

    @serves(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, request: Request) -> Outcome:
        """Return the offset of the oldest message; of a queue of batches that has none, -1."""
        header: QueueHeader = request.header
        store, queue = self._store, (header.topic, header.queue_id)
        is_void = store.is_in_batches(header.topic) and not store.max_offset(*queue)
        return Reply(ext={"offset": "-1" if is_void else str(store.min_offset(*queue))})

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def by_timestamp(self, request: Request) -> Outcome:
        """Return the offset of the message stored at a time, or next to it."""
        header: SearchOffsetHeader = request.header
        upper = (header.boundary_type or "").lower() == "upper"
        offset = self._store.offset_by_timestamp(
            header.topic, header.queue_id, header.timestamp, Boundary.UPPER if upper else Boundary.LOWER
        )
        return Reply(ext={"offset": str(offset)})

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_store_time(self, request: Request) -> Outcome:
        """Return when the oldest message was stored; -1 for an empty queue."""
        header: QueueHeader = request.header
        timestamp_ms = self._store.earliest_store_time(header.topic, header.queue_id)
        return Reply(ext={"timestamp": str(timestamp_ms)})

    @serves(RequestCode.VIEW_MESSAGE_BY_ID)
    def view_message(self, request: Request) -> Outcome:
        """Return one message by its physical offset, if a queue refers to it or a slave has the same."""
        header: ViewMessageHeader = request.header
        record = self._store.record_at(header.offset)
        if record is None and header.lb_sha256 is not None:
            record = self._store.logged_record(header.offset, header.lb_sha256)
        if record is None:
            return Reply(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset: {header.offset}")
        head = peek_record(record)
        assert head is not None, "a queue or a slave refers to a whole record there"
        viewed = Manage(request.principal, Action.GET, (topic(head.topic),))
        require_permission(self._authorizer, viewed)  # The topic that the request names is a claim.
        return Reply(body=record)
