"""QUERY_MESSAGE, VIEW_MESSAGE_BY_ID, GET_MAX_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP and similar requests:
messages by key, and how many are returned; one message by its offset in the log; the first and last offsets
of queues (-1 if a BatchCQ is empty).

For a key, the index is first brought up to date, then searched; both in stretches, each on a thread
(`store.key_index`). If a client gives up meanwhile, the records indexed so far remain.
Upstream: QueryMessageProcessor.java, AdminBrokerProcessor.java.
"""

from functools import partial
from typing import Final

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Action, Manage, topic
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Work
from libramq.message.record import peek_record
from libramq.remoting import headers as h
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Request, serves
from libramq.store.key_index import KeyIndex
from libramq.store.message_store import MessageStore
from libramq.store.queues.consume_queue import Boundary

#: MessageStoreConfig.maxMsgsNumBatch, BrokerConfig.defaultQueryMaxNum.
MESSAGES_MAX: Final = 64
BY_UNIQUE_KEY_MAX: Final = 32
#: Ours: the largest reply; if there are more messages, the oldest are left out.
BODY_BYTES_MAX: Final = 8 * 1024 * 1024


class QueryMessage:
    """The processor of queries for messages by key or offset, and about queues."""

    def __init__(self, store: MessageStore, index: KeyIndex, authorizer: Authorizer) -> None:
        self._store = store
        self._index = index
        self._authorizer = authorizer

    @serves(RequestCode.QUERY_MESSAGE)
    def query(self, request: Request) -> Work[Outcome]:
        """Find messages of a topic by a key, the newest first."""
        header: h.QueryMessageHeader = request.header
        if not header.key:
            raise broker_error(ResponseCode.INVALID_PARAMETER, "no key is given; name the one to look for")
        count_max = BY_UNIQUE_KEY_MAX if header.is_unique_key else min(max(header.max_num, 1), MESSAGES_MAX)
        until = self._store.visible_offset
        if not until:
            return self._found([])
        search = self._index.find(
            header.topic,
            header.key,
            count_max=count_max,
            bytes_max=BODY_BYTES_MAX,
            begin_ms=header.begin_timestamp,
            end_ms=header.end_timestamp,
            until=until,
        )

        advance, look = partial(self._index.advance, until), partial(next, search)
        while not (yield InThread(Thread.COMPUTE, advance)):
            continue
        found = None
        while found is None:
            found = yield InThread(Thread.COMPUTE, look)
        return self._found(found)

    def _found(self, records: list[bytes]) -> Outcome:
        ext = {
            "indexLastUpdateTimestamp": str(self._index.last_timestamp_ms),
            "indexLastUpdatePhyoffset": str(max(self._index.last_offset, 0)),
        }
        if not records:
            return Reply(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", ext
            )
        return Reply(ext=ext, body=b"".join(records))

    @serves(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, request: Request) -> Outcome:
        """Return the next message's offset; on request, also the log offset of the topic's last deletion."""
        header: h.MaxOffsetHeader = request.header
        offset = str(self._store.max_offset(header.topic, header.queue_id))
        if not header.lb_since:
            return Reply(ext={"offset": offset})
        return Reply(ext={"offset": offset, "lbSince": str(self._store.deletions.end_of(header.topic))})

    @serves(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, request: Request) -> Outcome:
        """Return the offset of the oldest message; -1 for an empty queue of batches."""
        header: h.QueueHeader = request.header
        store, queue = self._store, (header.topic, header.queue_id)
        is_void = store.is_in_batches(header.topic) and not store.max_offset(*queue)
        return Reply(ext={"offset": "-1" if is_void else str(store.min_offset(*queue))})

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def by_timestamp(self, request: Request) -> Outcome:
        """Return the offset of the message stored at a time, or next to it."""
        header: h.SearchOffsetHeader = request.header
        upper = (header.boundary_type or "").lower() == "upper"
        offset = self._store.offset_by_timestamp(
            header.topic, header.queue_id, header.timestamp, Boundary.UPPER if upper else Boundary.LOWER
        )
        return Reply(ext={"offset": str(offset)})

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_store_time(self, request: Request) -> Outcome:
        """Return when the oldest message was stored; -1 for an empty queue."""
        header: h.QueueHeader = request.header
        timestamp_ms = self._store.earliest_store_time(header.topic, header.queue_id)
        return Reply(ext={"timestamp": str(timestamp_ms)})

    @serves(RequestCode.VIEW_MESSAGE_BY_ID)
    def view_message(self, request: Request) -> Outcome:
        """Return one message by its physical offset, if a queue refers to it or a slave has the same."""
        header: h.ViewMessageHeader = request.header
        record = self._store.record_at(header.offset)
        if record is None and header.lb_sha256 is not None:
            record = self._store.logged_record(header.offset, header.lb_sha256)
        if record is None:
            return Reply(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset: {header.offset}")
        head = peek_record(record)
        assert head is not None, "a queue or a slave refers to a whole record there"
        viewed = Manage(request.principal, Action.GET, (topic(head.topic),))
        require_permission(self._authorizer, viewed)  # The topic in the request is only a claim.
        return Reply(body=record)
