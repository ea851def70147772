"""The cold lookups: requests that read old files wait for the disk on a thread, not on the loop.

Such a request changes nothing before it has read, so it is simply processed again when the thread is done.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from libramq.codes import RequestCode as R
from libramq.rpc.outcome import Outcome, WaitForDisk
from libramq.rpc.request import Processor, Request
from libramq.store.log.segments import ColdRead
from libramq.store.message_store import MessageStore

LOOKUPS: Final = (
    R.SEARCH_OFFSET_BY_TIMESTAMP,
    R.GET_EARLIEST_MSG_STORETIME,
    R.VIEW_MESSAGE_BY_ID,
    R.CONSUMER_SEND_MSG_BACK,
    R.END_TRANSACTION,
    R.QUERY_CONSUMER_OFFSET,
    R.QUERY_CONSUME_QUEUE,
    R.CONSUME_MESSAGE_DIRECTLY,
    R.OPEN_QUEUE,
    R.GET_BROKER_RUNTIME_INFO,
)
#: Ours: a search by time reads some 20 units and as many records. After that the loop waits.
WARMINGS_MAX: Final = 64


class ColdLookups:
    """Makes processors wait for the disk on a thread."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def waiting(self, processors: Mapping[int, Processor]) -> dict[int, Processor]:
        """Return the given processors that read old files, wrapped."""
        return {code: partial(self._handle, processors[code], 0) for code in LOOKUPS if code in processors}

    def _handle(self, processor: Processor, warmings: int, request: Request) -> Outcome:
        if warmings >= WARMINGS_MAX:
            return processor(request)
        try:
            with self._store.without_waiting():
                return processor(request)
        except ColdRead as cold:
            warm = partial(self._store.warm, (cold.stretch,))
            return WaitForDisk(read=warm, again=partial(self._handle, processor, warmings + 1, request))
