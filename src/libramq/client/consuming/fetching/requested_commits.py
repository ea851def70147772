"""The requested commits: offsets that the program wants committed, and who waits for them.

request ─► offsets ─► commits, one under way a queue ─► acknowledged ─► ended
                                                     └► refused, or the queue is lost ─► ended with an error
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.commits import Commits
from libramq.client.consuming.ownership.owned_queue import OwnedQueue
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.ownership.state import POSITIONED, QueueState
from libramq.client.consuming.signals import Steps
from libramq.errors import CommitFailed, Fenced, LibraError, NotYetGranted
from libramq.message.queue import MessageQueue

#: The states in which an offset may be committed: where the queue is read from is settled.
_COMMITTABLE = (*POSITIONED, QueueState.DRAINING, QueueState.REVOKING)

Ended = Callable[[LibraError | None], None]


@dataclass(slots=True)
class _Wanted:
    generation: int
    offset: int
    is_requested: bool = False


@dataclass(slots=True, eq=False)
class _Request:
    wanted: dict[MessageQueue, _Wanted]
    ended: Ended
    error: LibraError | None = None


class RequestedCommits:
    """The requests that wait."""

    def __init__(self, own: Ownership, commits: Commits) -> None:
        self._own = own
        self._commits = commits
        self.waiting: list[_Request] = []

    def begin(self, offsets: Iterable[tuple[OwnedQueue, int]], ended: Ended) -> None:
        """Want offsets committed; `settle` sends them."""
        wanted = {owned.queue: _Wanted(owned.generation, offset) for owned, offset in offsets}
        self.waiting.append(_Request(wanted, ended))

    def answered(self, commit: fx.CommitOffset, outcome: LibraError | None) -> None:
        """Note the result of a commit, with which its queue may go.

        What the refusal of a fence means is decided with the queue.
        """
        if commit.claim is not None and isinstance(outcome, Fenced | NotYetGranted):
            return
        for request in self.waiting:
            wanted = request.wanted.get(commit.queue)
            if wanted is None or wanted.generation != commit.generation:
                continue
            if outcome is not None:
                request.error = outcome
            elif commit.offset in (wanted.offset, self._own.offsets.read(commit.queue)):
                del request.wanted[commit.queue]

    def settle(self) -> Steps:
        """Send what may be sent, and end the requests of which nothing is left."""
        steps: Steps = []
        for request in list(self.waiting):
            for queue, wanted in list(request.wanted.items()):
                steps += self._settle(request, queue, wanted)
            if request.error is not None or not request.wanted:
                self.waiting.remove(request)
                steps.append(fx.CommitsEnded(request.ended, request.error))
        return steps

    def _settle(self, request: _Request, queue: MessageQueue, wanted: _Wanted) -> Steps:
        owned = self._own.table.same(queue, wanted.generation)
        if owned is None:
            request.error = request.error or CommitFailed(
                f"the offset {wanted.offset} of {queue} was not committed: the queue is no longer assigned "
                "to this consumer, and its next owner may receive these messages again"
            )
            return []
        if owned.state not in _COMMITTABLE:
            return []
        if not wanted.is_requested:
            wanted.is_requested = True
            self._own.offsets.request(queue, wanted.offset)
        steps = [] if owned.commit_awaited else self._commits.commit([owned])
        if self._is_acknowledged(queue, wanted):
            del request.wanted[queue]
        return steps

    def _is_acknowledged(self, queue: MessageQueue, wanted: _Wanted) -> bool:
        """Return whether the broker has this offset, or one that was wanted later."""
        acknowledged = self._own.offsets.acknowledged(queue)
        return acknowledged is not None and acknowledged in (wanted.offset, self._own.offsets.read(queue))
