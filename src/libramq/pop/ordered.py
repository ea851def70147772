"""Pops in order: when a queue is blocked, which messages are popped again, who may repeat a pop (attempt id);
and the table of each queue's last pop.

There are no check points: the committed offset stays at the first unacknowledged message, and the queue is
blocked while a popped message is invisible. The consumer of the last pop may repeat it under the same
attempt id, if it did not get the reply.

Upstream: ConsumerOrderInfoManager.java, whose file config/consumerOrderInfo.json the table is.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from libramq.clock import MonotonicMs, Now
from libramq.codes import ResponseCode
from libramq.errors import Journalling, broker_error
from libramq.formats.document import Document
from libramq.pop.positions import QueueOfGroup

#: Ours: queues that groups pop in order; each takes some 500 bytes of memory, and 200 in the file.
ORDERED_MAX: Final = 200_000
_SEPARATOR: Final = "@"


class OrderEntry(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "pop_time_ms": "popTime",
        "invisible_ms": "i",
        "offsets": "o",
        "visible_ms": "ot",
        "counts": "oc",
        "last_ms": "l",
        "done": "cm",
        "attempt_id": "a",
    },
):
    """A queue's last pop as stored in the file. offsets: the first one, and the others' distances from it."""

    pop_time_ms: int
    invisible_ms: int | None = None
    offsets: list[int] = []
    visible_ms: dict[int, int] | None = None
    counts: dict[int, int] | None = None
    last_ms: int = 0
    done: int = 0
    attempt_id: str | None = None


class OrderedPop(msgspec.Struct, eq=False, kw_only=True):
    """A queue's last pop in order. due_ms: when each message becomes visible unless it is done by then.

    counts: how often messages were popped before.
    """

    pop_time_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    due_ms: list[MonotonicMs]
    counts: Mapping[int, int]
    attempt_id: str | None = None
    done: int = 0

    @property
    def is_done(self) -> bool:
        """Return whether all of its messages are acknowledged."""
        return self.done == (1 << len(self.offsets)) - 1

    @property
    def next_offset(self) -> int:
        """Return the offset of the first unacknowledged message, or the one after the last message."""
        for index, offset in enumerate(self.offsets):
            if not self.done >> index & 1:
                return offset
        return self.offsets[-1] + 1

    @property
    def free_ms(self) -> MonotonicMs:
        """Return when the queue becomes free, in the present state."""
        return max(
            (due for index, due in enumerate(self.due_ms) if not self.done >> index & 1),
            default=MonotonicMs(0),
        )

    def index_of(self, offset: int) -> int | None:
        """Return a message's index in the pop, or None."""
        return self.offsets.index(offset) if offset in self.offsets else None

    def failures(self, now_ms: MonotonicMs) -> list[int]:
        """Return how often messages in flight were popped before; those never popped before are left out."""
        found = []
        for offset, times in self.counts.items():
            index = self.index_of(offset)
            if index is not None and self.due_ms[index] > now_ms and not self.done >> index & 1:
                found.append(times)
        return found

    def entry(self, now: Now) -> OrderEntry:
        """Return the pop's entry in the file."""
        first = self.offsets[0]
        usual_ms = self.pop_time_ms + self.invisible_ms
        visible = {
            offset: int(now.wall_of(due))
            for offset, due in zip(self.offsets, self.due_ms, strict=True)
            if int(now.wall_of(due)) != usual_ms
        }
        return OrderEntry(
            pop_time_ms=self.pop_time_ms,
            invisible_ms=self.invisible_ms,
            offsets=[first, *(offset - first for offset in self.offsets[1:])],
            visible_ms=visible or None,
            counts=dict(self.counts) or None,
            last_ms=int(now.wall_ms),
            done=self.done,
            attempt_id=self.attempt_id,
        )


def ordered_pop_of(entry: OrderEntry, now: Now) -> OrderedPop | None:
    """Return the pop of a file's entry, or None if it has no messages."""
    if not entry.offsets:
        return None
    first = entry.offsets[0]
    offsets = (first, *(first + distance for distance in entry.offsets[1:]))
    invisible_ms = entry.invisible_ms or 0
    visible = entry.visible_ms or {}
    # Only the wall clock ran while the broker was down. Take it to be at least the recorded time: a clock set
    # back must not block the queue for longer.
    wall_ms = max(int(now.wall_ms), entry.last_ms or entry.pop_time_ms)
    due = []
    for offset in offsets:
        left_ms = visible.get(offset, entry.pop_time_ms + invisible_ms) - wall_ms
        due.append(now.monotonic_ms + max(0, left_ms))
    return OrderedPop(
        pop_time_ms=entry.pop_time_ms,
        invisible_ms=invisible_ms,
        offsets=offsets,
        due_ms=due,
        counts=entry.counts or {},
        attempt_id=entry.attempt_id,
        done=entry.done & ((1 << len(offsets)) - 1),
    )


def popped_again(
    before: OrderedPop | None,
    offsets: Sequence[int],
    *,
    pop_time_ms: int,
    now_ms: MonotonicMs,
    invisible_ms: int,
    attempt_id: str | None,
) -> OrderedPop:
    """Return the pop that follows another, counting the messages popped again."""
    counts: dict[int, int] = {}
    if before is not None:
        is_repeated = attempt_id is not None and attempt_id == before.attempt_id
        for offset in offsets:
            if offset in before.offsets:
                count = before.counts.get(offset, 0) + (not is_repeated)
                if count:
                    counts[offset] = count
    return OrderedPop(
        pop_time_ms=pop_time_ms,
        invisible_ms=invisible_ms,
        offsets=tuple(offsets),
        due_ms=[now_ms + invisible_ms] * len(offsets),
        counts=counts,
        attempt_id=attempt_id,
    )


class OrderFile(Document, frozen=True, kw_only=True):
    """The content of config/consumerOrderInfo.json: by "topic@group", then by queue."""

    table: dict[str, dict[int, OrderEntry]] = {}

    def entries(self) -> dict[str, OrderEntry]:
        """Return the entries by their names in the journal."""
        return {
            f"{key}{_SEPARATOR}{queue_id}": entry
            for key, queues in self.table.items()
            for queue_id, entry in queues.items()
        }


class OrderTable:
    """The last pops, as stored in the file. record: journals a change before it takes effect."""

    def __init__(self, *, now: Callable[[], Now], record: Callable[[str, OrderEntry | None], None]) -> None:
        self.pops: dict[QueueOfGroup, OrderedPop] = {}
        self._now = now
        self._record = record

    def put(self, queue: QueueOfGroup, pop: OrderedPop) -> None:
        """Record a queue's last pop; raises BrokerError if the disk refuses."""
        if len(self.pops) >= ORDERED_MAX and queue not in self.pops:
            raise broker_error(ResponseCode.SYSTEM_ERROR, f"{ORDERED_MAX} queues are popped in order already")
        self._write(queue, pop.entry(self._now()))
        self.pops[queue] = pop

    def remove(self, queue: QueueOfGroup) -> None:
        """Forget a queue's last pop."""
        if queue in self.pops:
            self._write(queue, None)
            del self.pops[queue]

    def _write(self, queue: QueueOfGroup, entry: OrderEntry | None) -> None:
        group, topic, queue_id = queue
        with Journalling("pop"):
            self._record(_SEPARATOR.join((topic, group, str(queue_id))), entry)

    def apply(self, name: str, entry: OrderEntry | None) -> None:
        """Apply a recorded change."""
        topic, group, queue_id = name.split(_SEPARATOR)
        pop = ordered_pop_of(entry, self._now()) if entry is not None else None
        if pop is None:
            self.pops.pop((group, topic, int(queue_id)), None)
        else:
            self.pops[group, topic, int(queue_id)] = pop

    def file(self) -> OrderFile:
        """Return the content of the file."""
        table: dict[str, dict[int, OrderEntry]] = {}
        now = self._now()
        for (group, topic, queue_id), pop in self.pops.items():
            table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = pop.entry(now)
        return OrderFile(table=table)
