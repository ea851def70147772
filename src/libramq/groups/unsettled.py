"""The unsettled rebalance: a broker's observations since one began: moves, pauses, redelivered messages, the
catch-up peak, and the fewest moves that lead to the same loads.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import UNSET

from libramq.clock import MonotonicMs, Now
from libramq.groups.rebalance_event import QueueMove
from libramq.message.queue import MessageQueue

#: From the design: the window of the catch-up peak.
CATCH_UP_WINDOW_MS: Final = 1_000


class CatchUpPeak:
    """Counts backlog messages read from newly assigned queues, in the current and in the busiest second.

    A backlog read at once puts load on the systems that handlers write to.
    """

    def __init__(self) -> None:
        self._window = 0
        self._count = 0
        self._peak = 0

    @property
    def peak_rate(self) -> int:
        """Return the highest rate so far, in messages per second."""
        return self._peak

    def read(self, count: int, *, now_ms: MonotonicMs) -> None:
        """Count messages delivered to an owner that had not caught up."""
        window = int(now_ms) // CATCH_UP_WINDOW_MS
        if window != self._window:
            self._window, self._count = window, 0
        self._count += max(0, count)
        self._peak = max(self._peak, self._count)


@dataclass(slots=True)
class Owner:
    """The puller of a queue: its last read, whether that still waits, and the end of the messages sent to it.

    next_offset: None until known. has_begun: it has pulled. sent_before: the end of the messages sent to
    former owners, which may have handled more than they committed; None if unknown. gone_ms: when its last
    connection ended; a static member may return.
    """

    client_id: str
    read_at_ms: MonotonicMs
    next_offset: int | None = None
    is_waiting: bool = True
    is_catching_up: bool = False
    has_begun: bool = True
    sent_before: int | None = 0
    gone_ms: MonotonicMs | None = None

    @property
    def stopped_ms(self) -> MonotonicMs:
        """Return the time of a departed owner's last read; a held pull counts until the connection ended."""
        return self.read_at_ms if self.gone_ms is None else max(self.read_at_ms, self.gone_ms)


@dataclass(slots=True)
class Restart:
    """A returned static member that does not read all of its queues yet.

    stopped_ms: when each unread queue was last read. redelivered: an upper bound; None if unknown.
    """

    name: str
    began_ms: MonotonicMs
    stopped_ms: dict[MessageQueue, MonotonicMs]
    pause_ms: int = 0
    redelivered: int | None = 0

    def include(self, unfinished: "Restart") -> None:
        """Include an unfinished restart, during which the member restarted again."""
        self.pause_ms, self.redelivered = unfinished.pause_ms, unfinished.redelivered
        self.stopped_ms |= {
            queue: at for queue, at in unfinished.stopped_ms.items() if queue in self.stopped_ms
        }

    def resumed(self, queue: MessageQueue, redelivered: int | None, now_ms: MonotonicMs) -> None:
        """Note that a queue is read again."""
        stopped_ms = self.stopped_ms.pop(queue, None)
        if stopped_ms is not None:
            self.pause_ms = max(self.pause_ms, now_ms - stopped_ms)
            self.redelivered = sum_bounds([self.redelivered, redelivered])


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A queue that changed hands: the old owner's last read, and the new owner's first.

    redelivered: an upper bound of the redelivered messages; None if unknown.
    """

    from_: str | None
    to: str
    stopped_ms: MonotonicMs | None
    resumed_ms: MonotonicMs
    redelivered: int | None

    def record(self, queue: MessageQueue, returned_ms: MonotonicMs | None, now: Now) -> QueueMove:
        """Return the move in the format of events; returned_ms: when the old owner read again, if it did."""
        return QueueMove(
            topic=queue.topic,
            broker=queue.broker_name,
            queue=queue.queue_id,
            from_=self.from_,
            to=self.to,
            stopped_ms=int(now.wall_of(self.stopped_ms)) if self.stopped_ms is not None else None,
            resumed_ms=int(now.wall_of(self.resumed_ms)),
            redelivered=self.redelivered or 0,
            redelivered_known=False if self.redelivered is None else UNSET,
            double_owner_ms=max(0, returned_ms - self.resumed_ms) if returned_ms is not None else 0,
        )


@dataclass(slots=True)
class Unsettled:
    """A rebalance under way.

    first_reads_ms: when each member first read a queue that it did not own. returned_ms: when the old owner
    read a queue again after the new one had begun. is_complete: the coordinator has granted all queues.
    holders: the client ids of the granted members, as far as known here, for members not seen since this
    process began. has_killed: a member ended, perhaps without committing all handled messages. uncommitted:
    queues that were lost, or released before all handled messages were committed. minimum: a coordinator's
    count across all brokers.
    """

    started_at_ms: MonotonicMs
    changed_at_ms: MonotonicMs
    owners_before: dict[MessageQueue, str]
    moves: dict[MessageQueue, Move] = field(default_factory=dict)
    first_reads_ms: dict[tuple[MessageQueue, str], MonotonicMs] = field(default_factory=dict)
    returned_ms: dict[MessageQueue, MonotonicMs] = field(default_factory=dict)
    catch_up: CatchUpPeak = field(default_factory=CatchUpPeak)
    duplicates: int = 0
    is_complete: bool = False
    holders: Mapping[MessageQueue, str] = field(default_factory=dict)
    uncommitted: set[MessageQueue] = field(default_factory=set)
    is_part: bool = False
    has_lost_members: bool = False
    has_killed: bool = False
    minimum: int | None = None

    def begin(self, now_ms: MonotonicMs, *, first_since_ms: MonotonicMs) -> None:
        """Count moves that preceded the report of the rebalance as part of it.

        Queues without a former owner that were taken before first_since_ms do not count as moved in it.
        """
        self.started_at_ms = now_ms
        for queue, move in list(self.moves.items()):
            if move.from_ is None and move.resumed_ms < first_since_ms:
                del self.moves[queue]
                self.owners_before[queue] = move.to

    def take(
        self,
        queue: MessageQueue,
        former: Owner | None,
        client_id: str,
        redelivered: int | None,
        now_ms: MonotonicMs,
    ) -> None:
        """Note that a queue has changed hands."""
        self.changed_at_ms = now_ms
        resumed_ms = self.first_reads_ms.setdefault((queue, client_id), now_ms)
        earlier = self.moves.get(queue)
        if earlier is not None:
            if earlier.from_ == client_id:
                self.returned_ms[queue] = now_ms
            bound = sum_bounds([redelivered, earlier.redelivered])
            self.moves[queue] = replace(earlier, to=client_id, resumed_ms=resumed_ms, redelivered=bound)
            return
        stopped_ms = None
        if former is not None:
            stopped_ms = former.read_at_ms
            if former.is_waiting:  # A held pull counts as a read until the start.
                stopped_ms = max(stopped_ms, self.started_at_ms)
        self.moves[queue] = Move(
            from_=former.client_id if former is not None else None,
            to=client_id,
            stopped_ms=stopped_ms,
            resumed_ms=resumed_ms,
            redelivered=redelivered,
        )

    def began(
        self, queue: MessageQueue, client_id: str, redelivered: int | None, now_ms: MonotonicMs
    ) -> None:
        """Note that a member reads from now on a queue that it has opened."""
        move = self.moves.get(queue)
        if move is None or move.to != client_id:
            return
        self.changed_at_ms = now_ms
        self.first_reads_ms[queue, client_id] = now_ms
        self.moves[queue] = replace(
            move, resumed_ms=now_ms, redelivered=sum_bounds([move.redelivered, redelivered])
        )

    def rename(self, old: str, new: str) -> None:
        """Note that a client has taken another's place, so that no queue has moved."""
        for queue, owner in self.owners_before.items():
            if owner == old:
                self.owners_before[queue] = new
        for queue, move in self.moves.items():
            self.moves[queue] = replace(
                move, from_=new if move.from_ == old else move.from_, to=new if move.to == old else move.to
            )

    def settled_moves(self, not_begun: Container[MessageQueue] = ()) -> dict[MessageQueue, Move]:
        """Return the final move of each queue.

        Offsets show only the messages sent to the former owner, and show nothing for queues that their new
        owner has not read yet. If the coordinator reported the releases, a queue handed over with everything
        committed has no redelivery.
        """
        moves = {}
        for queue, move in self.moves.items():
            if self.is_complete and queue not in self.uncommitted:
                moves[queue] = replace(move, redelivered=0)
            else:
                moves[queue] = replace(move, redelivered=None) if queue in not_begun else move
        return moves

    def least(self, before: Mapping[MessageQueue, str], loads: Mapping[str, int]) -> int | None:
        """Return the number of queues that had to move; None for a broker that sees only a part."""
        if self.is_part:
            return None
        return self.minimum if self.minimum is not None else minimum_moves(before, loads)


def repeated(sent: int | None, offset: int) -> int | None:
    """Return the number of redelivered messages if they were sent up to `sent` and are read from `offset`.

    None if `sent` is unknown.
    """
    return max(0, sent - offset) if sent is not None else None


def sum_bounds(bounds: Iterable[int | None]) -> int | None:
    """Return the sum of bounds; None if one of them is unknown."""
    total = 0
    for bound in bounds:
        if bound is None:
            return None
        total += bound
    return total


def minimum_moves(owners_before: Mapping[MessageQueue, str], loads: Mapping[str, int]) -> int:
    """Return the fewest queues that must change hands for members to have these loads, in any order.

    A broker sees only its own queues: for a group with queues at several brokers, loads that are even overall
    are uneven here, so the final loads of the members are the only fair measure.
    """
    before = Counter(owners_before.values())
    kept = sorted((before[member] for member in loads), reverse=True)
    wanted = sorted(loads.values(), reverse=True)
    return sum(wanted) - sum(map(min, kept, wanted))
