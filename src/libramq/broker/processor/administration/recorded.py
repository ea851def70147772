"""The recorded replies: replies that wait until their change is in a journal on the disk.

Under ASYNC_FLUSH they do not wait.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Final

from libramq.catalog.journal_sync import JournalSync
from libramq.codes import ResponseCode
from libramq.rpc.outcome import HOLD, Compute, InSteps, Outcome, Reply
from libramq.rpc.request import Processor, Request
from libramq.rpc.requests import REQUESTS

_NOT_ON_DISK: Final = Reply(
    ResponseCode.SYSTEM_ERROR, "it is not on the disk, which is broken; restart the broker"
)


class RecordedReplies:
    """Makes the replies of processors wait. answer: performs the delayed outcomes."""

    def __init__(self, journals: JournalSync, answer: Callable[[Request, Outcome], None]) -> None:
        self._journals = journals
        self._answer = answer

    def waiting(self, processors: Mapping[int, Processor]) -> dict[int, Processor]:
        """Return the given processors whose replies wait, wrapped."""
        return {
            code: self._waiting(processor)
            for code, processor in processors.items()
            if REQUESTS[code].is_recorded
        }

    def _waiting(self, handle: Processor) -> Processor:
        return lambda request: self._recorded(request, handle(request))

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
