"""The cold lookups: requests that read old files wait for the disk on a thread, not on the loop.

Such a request changes nothing before it has read, so it is simply processed again when the thread is done.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from libramq.rpc.outcome import Outcome, WaitForDisk
from libramq.rpc.request import Processor, Request
from libramq.rpc.requests import REQUESTS
from libramq.store.log.segments import ColdRead
from libramq.store.message_store import MessageStore

#: Ours: a search by time reads some 20 units and as many records. After that the loop waits.
WARMINGS_MAX: Final = 64


class ColdLookups:
    """Makes processors wait for the disk on a thread."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def waiting(self, processors: Mapping[int, Processor]) -> dict[int, Processor]:
        """Return the given processors that read old files, wrapped."""
        return {
            code: partial(self._handle, processor, 0)
            for code, processor in processors.items()
            if REQUESTS[code].reads_cold
        }

    def _handle(self, processor: Processor, warmings: int, request: Request) -> Outcome:
        if warmings >= WARMINGS_MAX:
            return processor(request)
        try:
            with self._store.without_waiting():
                return processor(request)
        except ColdRead as cold:
            warm = partial(self._store.warm, (cold.stretch,))
            return WaitForDisk(read=warm, again=partial(self._handle, processor, warmings + 1, request))
