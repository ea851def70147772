"""The fetching: what a program that fetches messages itself asks of its consumer's core.

Upstream: DefaultLitePullConsumerImpl.java (assign, seek, commit).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.commits import Commits
from libramq.client.consuming.fetching.fetched_batch import FetchedBatch
from libramq.client.consuming.fetching.requested_commits import Ended, RequestedCommits
from libramq.client.consuming.membership.rebalancing import Rebalancing
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.owned_queue import OwnedQueue
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.ownership.state import POSITIONED, QueueState
from libramq.client.consuming.signals import Steps
from libramq.clock import MonotonicMs
from libramq.errors import LibraError, LocalProtocolError
from libramq.message.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Assign:
    """Read these queues, and no others."""

    queues: Sequence[MessageQueue]


@dataclass(frozen=True, slots=True)
class Seek:
    """Continue at other offsets."""

    offsets: Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit offsets. None: of every queue, as far as the program is done. ended: called with the outcome."""

    offsets: Mapping[MessageQueue, int] | None
    ended: Ended


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Have messages pulled for record batches from now on."""


FetchRequest = Assign | Seek | Commit | ReadRecords


class Fetching:
    """Handles the requests of the program."""

    def __init__(self, own: Ownership, commits: Commits, rebalancing: Rebalancing) -> None:
        self._own = own
        self._rebalancing = rebalancing
        self.commits = RequestedCommits(own, commits)

    def handle(self, request: FetchRequest, now_ms: MonotonicMs) -> Steps:
        """Handle a request; raises LocalProtocolError if it concerns a queue that is not ours."""
        match request:
            case Assign(queues):
                return self._rebalancing.assign(queues, now_ms)
            case Seek(offsets):
                steps: Steps = []
                for owned, offset in self._ours(offsets):
                    steps += self._own.handle(owned, ev.Sought(offset), now_ms)
                return steps
            case Commit(None, ended):
                self.commits.begin(self._finished(), ended)
                return []
            case Commit(offsets, ended):
                assert offsets is not None, "the case above"
                self.commits.begin(self._ours(offsets, leaving_too=True), ended)
                return []
            case ReadRecords():
                self._own.pulling.read_records()
                return []
            case _:
                assert_never(request)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the message that the program gets next; None while that is not settled."""
        ((owned, _),) = self._ours({queue: 0})
        if owned.cursor.sought_offset is not None:
            return owned.cursor.sought_offset
        if owned.state not in POSITIONED:
            return None
        waiting = [each.next_offset for each in owned.work.deliveries if isinstance(each, FetchedBatch)]
        return min((each for each in waiting if each is not None), default=owned.cursor.next_offset)

    def commit_answered(self, commit: fx.CommitOffset, outcome: LibraError | None) -> None:
        """Handle the result of a commit, before its queue does."""
        self.commits.answered(commit, outcome)

    def _finished(self) -> list[tuple[OwnedQueue, int]]:
        found = []
        for owned in self._own.table.each():
            offset = owned.work.finished_offset()
            if offset is not None and (owned.is_ours or owned.state in _BEING_RELEASED):
                found.append((owned, offset))
        return found

    def _ours(
        self, offsets: Mapping[MessageQueue, int], *, leaving_too: bool = False
    ) -> Iterable[tuple[OwnedQueue, int]]:
        found = []
        for queue, offset in offsets.items():
            owned = self._own.table.get(queue)
            if owned is None or not (owned.is_ours or (leaving_too and owned.state in _BEING_RELEASED)):
                raise LocalProtocolError(f"{queue} is not assigned to this consumer")
            found.append((owned, offset))
        return found


_BEING_RELEASED = (QueueState.DRAINING, QueueState.REVOKING)
