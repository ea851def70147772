"""The core's part in `assign`, `seek` and `commit`, the calls of programs that fetch messages themselves.

Upstream: DefaultLitePullConsumerImpl.java (assign, seek, commit).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.commits import SentCommit
from libramq.client.consuming.fetching.fetched_batch import FetchedBatch, HeldBatches
from libramq.client.consuming.handling.consumption import Consumption
from libramq.client.consuming.handling.handler_result import Ending
from libramq.client.consuming.membership.rebalancing import Rebalancing
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.pulling.pulling import Delivering
from libramq.client.consuming.queues.owned_queue import POSITIONED, Delivery, OwnedQueue, QueueState
from libramq.clock import MonotonicMs
from libramq.errors import CommitFailed, Fenced, InvalidState, LibraError, NotYetGranted
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue

_BEING_RELEASED = (QueueState.DRAINING, QueueState.REVOKING)
#: The states in which an offset may be committed: the position in the queue is known.
_COMMITTABLE = (*POSITIONED, *_BEING_RELEASED)

Ended = Callable[[LibraError | None], None]


class FetchConsumption(Consumption):
    """Turns finished batches into offsets."""

    def _handled(self, delivery: Delivery, ending: Ending, now_ms: MonotonicMs) -> None:
        """Handle a batch from which no more messages will be taken."""
        assert isinstance(delivery, FetchedBatch), "a program that fetches has no other deliveries"
        owned = delivery.owned
        if delivery in owned.work.deliveries and delivery.done:
            self._duplicates.handled(owned.queue, delivery.offset_at(delivery.done - 1))
            finished = owned.work.finished_offset()
            if self._table.is_current(owned):
                assert isinstance(owned.held, HeldBatches), "a program that fetches holds batches"
                owned.held.remove_batch(delivery.offset_at(0))
                assert finished is not None, "something of it is done"
                self._offsets.advance(owned.queue, finished)
        owned.work.deliveries.discard(delivery)
        self._go_on(delivery, now_ms)


class FetchDelivering(Delivering):
    """Passes on the messages of each pull as one batch, in the order of the queue.

    It does so at once; `FetchedBatch.take` checks whether messages may be taken.
    """

    def arrived(self, owned: OwnedQueue, messages: Sequence[MessageExt]) -> None:
        """Pass on the messages of a pull."""
        batch = FetchedBatch(owned, messages)
        owned.work.deliveries.add(batch)
        self._effects.add(fx.Deliver((batch,)))

    def deliver_next(self, owned: OwnedQueue) -> None:
        """Do nothing: all messages were passed on at arrival."""

    def not_begun(self, delivery: Delivery) -> None:
        """Do nothing: a batch that may not be taken yet stays in the buffer."""

    def resume(self, owned: OwnedQueue) -> None:
        """Retry the batches that could not be taken."""
        self._effects.add(fx.Deliver(()))


@dataclass(slots=True)
class _WantedOffset:
    owned: OwnedQueue
    offset: int
    is_requested: bool = False


@dataclass(slots=True, eq=False)
class _CommitRequest:
    wanted: dict[MessageQueue, _WantedOffset]
    ended: Ended
    error: LibraError | None = None


class RequestedCommits:
    """The program's pending requests to commit offsets.

    request ─► offsets ─► commits, one in flight a queue ─► acknowledged ─► ended
                                                         └► refused, or queue lost ─► ended with an error
    """

    def __init__(self, own: Ownership) -> None:
        self._own = own
        self.waiting: list[_CommitRequest] = []

    def begin(self, offsets: Iterable[tuple[OwnedQueue, int]], ended: Ended) -> None:
        """Add a request to commit offsets; `settle` sends them."""
        wanted = {owned.queue: _WantedOffset(owned, offset) for owned, offset in offsets}
        self.waiting.append(_CommitRequest(wanted, ended))

    def answered(self, commit: SentCommit, outcome: LibraError | None) -> None:
        """Note the result of a commit, before the queue may be removed.

        The queue's own transitions handle a refusal by a fence.
        """
        if commit.claim is not None and isinstance(outcome, Fenced | NotYetGranted):
            return
        for request in self.waiting:
            queue = commit.owned.queue
            wanted = request.wanted.get(queue)
            if wanted is None or wanted.owned is not commit.owned:
                continue
            if outcome is not None:
                request.error = outcome
            elif commit.offset in (wanted.offset, self._own.offsets.read(queue)):
                del request.wanted[queue]

    def settle(self) -> None:
        """Send the commits that may be sent, and end completed requests."""
        for request in list(self.waiting):
            for queue, wanted in list(request.wanted.items()):
                self._settle(request, queue, wanted)
            if request.error is not None or not request.wanted:
                self.waiting.remove(request)
                self._own.kernel.effects.add(fx.CommitsEnded(request.ended, request.error))

    def _settle(self, request: _CommitRequest, queue: MessageQueue, wanted: _WantedOffset) -> None:
        owned = wanted.owned
        if not self._own.table.is_current(owned):
            request.error = request.error or CommitFailed(
                f"the offset {wanted.offset} of {queue} was not committed: the queue is no longer assigned "
                "to this consumer, and its next owner may receive these messages again"
            )
            return
        if owned.state not in _COMMITTABLE:
            return
        if not wanted.is_requested:
            wanted.is_requested = True
            self._own.offsets.request(queue, wanted.offset)
        if not owned.commit_awaited:
            self._own.commits.commit([owned])
        acknowledged = self._own.offsets.acknowledged(queue)
        # The broker has this offset, or one requested later.
        if acknowledged is not None and acknowledged in (wanted.offset, self._own.offsets.read(queue)):
            del request.wanted[queue]


class Fetching:
    """Handles the requests of the program."""

    def __init__(self, own: Ownership, rebalancing: Rebalancing) -> None:
        self._own = own
        self._rebalancing = rebalancing
        self.commits = RequestedCommits(own)

    def assign(self, queues: Sequence[MessageQueue], now_ms: MonotonicMs) -> None:
        """Read these queues, and no others."""
        self._rebalancing.assign(queues, now_ms)

    def seek(self, offsets: Mapping[MessageQueue, int], now_ms: MonotonicMs) -> None:
        """Continue at other offsets; raises LocalProtocolError if a queue is not assigned."""
        for owned, offset in self._ours(offsets):
            self._own.handle(owned, ev.Sought(offset), now_ms)

    def commit(self, offsets: Mapping[MessageQueue, int] | None, ended: Ended) -> None:
        """Commit offsets; raises LocalProtocolError if a queue is not assigned.

        offsets: None for those of done messages, of every queue. ended: called with the outcome.
        """
        wanted = self._finished() if offsets is None else self._ours(offsets, leaving_too=True)
        self.commits.begin(wanted, ended)

    def read_records(self) -> None:
        """Pull messages as record batches from now on."""
        self._own.pulling.read_records()

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the program's next message; None while it is unknown."""
        ((owned, _),) = self._ours({queue: 0})
        if owned.cursor.sought_offset is not None:
            return owned.cursor.sought_offset
        if owned.state not in POSITIONED:
            return None
        waiting = [each.next_offset for each in owned.work.deliveries if isinstance(each, FetchedBatch)]
        return min((each for each in waiting if each is not None), default=owned.cursor.next_offset)

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
                raise InvalidState(f"{queue} is not assigned to this consumer")
            found.append((owned, offset))
        return found
