"""Requests that wait for the disk: one that reads old files runs again once a thread has read them; one that
changes a table is answered when its journal is on the disk.

    reads_cold     old files are read on a thread, not on the loop. Such a request changes nothing before it
                   has read, so it is simply processed again when the thread is done.
    is_recorded    the reply waits until the change is in a journal on the disk; not under ASYNC_FLUSH
"""

from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import Final

from libramq.catalog.journal_sync import JournalSync
from libramq.codes import ResponseCode
from libramq.kernel.work import Work
from libramq.rpc.outcome import HOLD, Outcome, Reply
from libramq.rpc.request import Processor, Request
from libramq.rpc.request_table import REQUESTS
from libramq.store.log.segments import ColdRead
from libramq.store.message_store import MessageStore

_NOT_ON_DISK: Final = Reply(
    ResponseCode.SYSTEM_ERROR, "it is not on the disk, which is broken; restart the broker"
)


class DiskWaits:
    """Makes requests wait. answer: performs the delayed outcomes."""

    def __init__(
        self, store: MessageStore, journals: JournalSync, answer: Callable[[Request, Outcome], None]
    ) -> None:
        self._store = store
        self._journals = journals
        self._answer = answer

    def serve(self, processors: dict[int, Processor]) -> None:
        """Wrap the processors of requests that wait for the disk."""
        for code, processor in processors.items():
            if REQUESTS[code].reads_cold:
                processors[code] = partial(self._read, processor)
            elif REQUESTS[code].is_recorded:
                processors[code] = partial(self._record, processor)

    def _read(self, processor: Processor, request: Request) -> Outcome:
        try:
            with self._store.without_waiting():
                return processor(request)
        except ColdRead:
            return self._store.reading(partial(processor, request))

    def _record(self, processor: Processor, request: Request) -> Outcome:
        return self._recorded(request, processor(request))

    def _recorded(self, request: Request, outcome: Outcome) -> Outcome:
        """Return the outcome to perform now; a later decision waits from then on."""
        if isinstance(outcome, GeneratorType):
            return self._when_decided(request, outcome)
        if self._journals.is_synced:
            return outcome

        def synced(is_synced: bool) -> None:
            self._answer(request, outcome if is_synced else _NOT_ON_DISK)

        self._journals.when_synced(synced)
        return HOLD

    def _when_decided(self, request: Request, work: Work[Outcome]) -> Work[Outcome]:
        return self._recorded(request, (yield from work))
