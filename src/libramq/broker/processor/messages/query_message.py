"""QUERY_MESSAGE: messages by key, for `mqadmin queryMsgByKey` and `queryMsgByUniqueKey`; how many are
answered.

The index is brought up to date first, then searched; both in stretches, each on a thread (`store.key_index`).
If a client gives up meanwhile, the records indexed so far stay.
Upstream: QueryMessageProcessor.java.
"""

from functools import partial
from typing import Final

from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread, Work
from libramq.remoting.headers import QueryMessageHeader
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Request, serves
from libramq.store.key_index import KeyIndex
from libramq.store.message_store import MessageStore

#: MessageStoreConfig.maxMsgsNumBatch, BrokerConfig.defaultQueryMaxNum.
MESSAGES_MAX: Final = 64
BY_UNIQUE_KEY_MAX: Final = 32
#: Ours: the largest reply; further messages are left out, the oldest first.
BODY_BYTES_MAX: Final = 8 * 1024 * 1024


class QueryMessage:
    """The processor of queries for messages by key."""

    def __init__(self, store: MessageStore, index: KeyIndex) -> None:
        self._store = store
        self._index = index

    @serves(RequestCode.QUERY_MESSAGE)
    def query(self, request: Request) -> Work[Outcome]:
        """Find messages of a topic by a key, the newest first."""
        header: QueryMessageHeader = request.header
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
