"""The waits of requests for the disk, by their rows in `rpc/requests.py`.

reads_cold     old files are read on a thread, not on the loop. Such a request changes nothing before it has
               read, so it is simply processed again when the thread is done.
is_recorded    the reply waits until the change is in a journal on the disk; not under ASYNC_FLUSH
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Final

from libramq.catalog.journal_sync import JournalSync
from libramq.codes import ResponseCode
from libramq.rpc.outcome import HOLD, Compute, InSteps, Outcome, Reply, WaitForDisk
from libramq.rpc.request import Processor, Request
from libramq.rpc.requests import REQUESTS
from libramq.store.log.segments import ColdRead
from libramq.store.message_store import MessageStore

#: Ours: a search by time reads some 20 units and as many records. After that the loop waits.
WARMINGS_MAX: Final = 64
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
        """Put the waits around the processors of requests that need them."""
        for code, processor in processors.items():
            if REQUESTS[code].reads_cold:
                processors[code] = partial(self._read, processor, 0)
            elif REQUESTS[code].is_recorded:
                processors[code] = partial(self._record, processor)

    def _read(self, processor: Processor, warmings: int, request: Request) -> Outcome:
        if warmings >= WARMINGS_MAX:
            return processor(request)
        try:
            with self._store.without_waiting():
                return processor(request)
        except ColdRead as cold:
            warm = partial(self._store.warm, (cold.stretch,))
            return WaitForDisk(read=warm, again=partial(self._read, processor, warmings + 1, request))

    def _record(self, processor: Processor, request: Request) -> Outcome:
        return self._recorded(request, processor(request))

    def _recorded(self, request: Request, outcome: Outcome) -> Outcome:
        """Return the outcome to perform now; a later decision waits from then on."""
        if isinstance(outcome, Compute):
            then = outcome.then
            return replace(outcome, then=lambda result: self._recorded(request, then(result)))
        if isinstance(outcome, InSteps):
            return InSteps(self._in_steps(request, outcome.steps))
        if self._journals.is_synced:
            return outcome

        def synced(is_synced: bool) -> None:
            self._answer(request, outcome if is_synced else _NOT_ON_DISK)

        self._journals.when_synced(synced)
        return HOLD

    def _in_steps(
        self, request: Request, steps: Generator[None, None, Outcome]
    ) -> Generator[None, None, Outcome]:
        return self._recorded(request, (yield from steps))
