"""Rebalance events: the format of the records in LIBRA_REBALANCE_EVENTS, their reasons, and their size limit.

started    why a rebalance began, and who caused it
moved      the queues that changed hands, and how long each was not read
settled    the totals: moves against the minimum, time to stable, worst pause, redelivered messages, loads
restarted  a static member is back: how long its queues were not read; nothing has moved
diagnosed  a problem of the group, in a sentence; recovered: it is over
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from libramq.clock import Now

T = TypeVar("T")

VERSION: Final = 1
#: From the design: the maximum size of an event; more moves go into further events.
EVENT_BYTES_MAX: Final = 256 * 1024
#: The list of members and their loads may each take this much of an event; member_count is always exact.
LIST_BYTES_MAX: Final = 64 * 1024
#: Ours: a started event names at most this many members, because it is written at every change.
MEMBERS_NAMED_MAX: Final = 200
#: Ours: a started event names at most this many causing members; a hundred may join at once.
CAUSERS_NAMED_MAX: Final = 5
#: The rest of an event: names and numbers.
REST_BYTES_MAX: Final = 4 * 1024


class Reason(StrEnum):
    """The cause of a rebalance."""

    MEMBER_JOINED = "member_joined"
    MEMBER_LEFT = "member_left"
    CONNECTION_CLOSED = "connection_closed"
    SESSION_EXPIRED = "session_expired"
    PROCESSING_TIMEOUT = "processing_timeout"
    SUBSCRIPTION_CHANGED = "subscription_changed"
    QUEUE_COUNT_CHANGED = "queue_count_changed"
    BROKER_CHANGED = "broker_changed"
    STRATEGY_CHANGED = "strategy_changed"
    MODE_CHANGED = "mode_changed"
    OPERATOR = "operator"


#: The reason of a restarted event, which does not begin a rebalance.
STATIC_MEMBER_RESTARTED: Final = "static_member_restarted"


class QueueMove(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """One queue that changed hands. Times are wall-clock milliseconds.

    stopped_ms: the old owner's last read; null if the queue had no owner. resumed_ms: the new owner's first
    read. double_owner_ms: how long the old owner read on after that. redelivered: an upper bound of the
    queue's redelivered messages. If unknown, it is 0, because LibraMQ 0.1.0 needs a number, and
    redelivered_known is False; otherwise redelivered_known is absent.
    """

    topic: str
    broker: str
    queue: int
    from_: str | None
    to: str
    stopped_ms: int | None
    resumed_ms: int
    redelivered: int
    double_owner_ms: int = 0
    redelivered_known: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def redelivered_bound(self) -> int | None:
        """Return an upper bound of the redelivered messages; None if unknown."""
        return None if self.redelivered_known is False else self.redelivered

    @property
    def pause_ms(self) -> int:
        """Return how long the queue was not read."""
        return 0 if self.stopped_ms is None else max(0, self.resumed_ms - self.stopped_ms)


class RebalanceEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event; fields of other kinds are absent. diagnosis: a diagnosis.Kind.

    redelivered_upper_bound: messages sent to former owners beyond the offsets at which new owners began; 0
    for queues that a coordinated member handed over with all handled messages committed. Absent from a
    settled event if the broker was restarted and does not know what it sent before. duplicates_reported: by
    clients that report them; stock clients do not. peak_catch_up_rate: the backlog messages that new owners
    read in the busiest second, until they had caught up or the rebalance had settled.
    """

    v: int
    group: str
    epoch: int
    seq: int
    at_ms: int
    kind: str
    reason: str | None = None
    who: str | None = None
    members: list[str] | None = None
    member_count: int | None = None
    moves: list[QueueMove] | None = None
    moved: int | None = None
    minimum: int | None = None
    time_to_stable_ms: int | None = None
    worst_pause_ms: int | None = None
    redelivered_upper_bound: int | None = None
    duplicates_reported: int | None = None
    peak_catch_up_rate: int | None = None
    unowned: int | None = None
    loads: dict[str, int] | None = None
    diagnosis: str | None = None
    text: str | None = None


class EventWriter:
    """Creates the events of one group, numbered without gaps. epoch: the group's."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._sequence = 0
        self.epoch = 0

    def started(self, reason: Reason, who: str | None, members: Collection[str], now: Now) -> RebalanceEvent:
        """Return the event of a change that began a rebalance or came during one."""
        return self.event("started", now, reason=reason, who=who, **_bounded(members))

    def settled(
        self,
        moves: Sequence[QueueMove],
        members: Collection[str],
        loads: Mapping[str, int],
        now: Now,
        **totals: object,
    ) -> list[RebalanceEvent]:
        """Return the last events of a rebalance: its moves and totals."""
        moved = [self.event("moved", now, moves=part) for part in split_moves(moves)]
        fields = {"moved": len(moves), "loads": bounded_loads(loads), **_bounded(members), **totals}
        return [*moved, self.event("settled", now, **fields)]

    def event(self, kind: str, now: Now, **fields: object) -> RebalanceEvent:
        """Return the next event."""
        self._sequence += 1
        return RebalanceEvent(
            v=VERSION,
            group=self._group,
            epoch=self.epoch,
            seq=self._sequence,
            at_ms=int(now.wall_ms),
            kind=kind,
            **fields,  # type: ignore[arg-type]
        )


def _bounded(members: Collection[str]) -> dict[str, object]:
    return {"members": bounded_members(sorted(members)), "member_count": len(members)}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RebalanceEvent).decode


def bounded_members(members: Sequence[str]) -> list[str]:
    """Return the members that an event names, as many as fit."""
    return list(_within(members[:MEMBERS_NAMED_MAX], LIST_BYTES_MAX, lambda member: len(_encode(member)) + 1))


def bounded_loads(loads: Mapping[str, int]) -> dict[str, int]:
    """Return the loads that an event names, the largest first, as many as fit."""
    ordered = sorted(loads.items(), key=lambda load: -load[1])
    return dict(_within(ordered, LIST_BYTES_MAX, lambda load: len(_encode(load[0])) + 22))


def split_moves(moves: Sequence[QueueMove]) -> Iterator[list[QueueMove]]:
    """Split moves into parts that each fit in one event."""
    part: list[QueueMove] = []
    part_bytes = 0
    for move in moves:
        size = len(_encode(move)) + 1
        if part and part_bytes + size > EVENT_BYTES_MAX - REST_BYTES_MAX:
            yield part
            part, part_bytes = [], 0
        part.append(move)
        part_bytes += size
    if part:
        yield part


def _within(items: Iterable[T], bytes_max: int, size: Callable[[T], int]) -> Iterator[T]:
    for item in items:
        bytes_max -= size(item)
        if bytes_max < 0:
            return
        yield item


def encode_event(event: RebalanceEvent) -> bytes:
    """Encode an event as JSON; the fields of version 1 are always present."""
    return _encode(event)


def decode_event(data: bytes) -> RebalanceEvent:
    """Read an event; raises msgspec.DecodeError for anything else."""
    return _decode(data)


def named(who: Sequence[str]) -> str | None:
    """Return the clients or topics that caused a rebalance as text, shortened if there are many."""
    if len(who) <= CAUSERS_NAMED_MAX:
        return ", ".join(who) or None
    return f"{', '.join(who[:CAUSERS_NAMED_MAX])} and {len(who) - CAUSERS_NAMED_MAX} more"
