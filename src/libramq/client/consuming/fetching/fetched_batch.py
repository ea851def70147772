"""The fetched batch: the messages of one pull, which the program takes whole or in parts.

    messages   0 … done … taken … end
               finished  │       │
                         in hand │
                                 not taken yet: dropped if the queue moves

`taken` and `done` are written on the program's thread; the core, on the network thread, reads them. As with a
handler's delivery, `taken` is written before the queue's state is read, and the core does it in the opposite
order, so a queue is never released while the program takes messages of it unnoticed.
"""

from collections.abc import Sequence

from libramq.client.consuming.ownership.owned_queue import Delivery, OwnedQueue
from libramq.client.consuming.ownership.state import QueueState
from libramq.client.consuming.pulling.pulled_records import PulledRecords, queue_offset_at
from libramq.message.message import MessageExt


class FetchedBatch(Delivery):
    """Messages of one queue, in order."""

    __slots__ = ("_offsets", "done", "is_dropped", "taken")

    def __init__(self, owned: OwnedQueue, messages: Sequence[MessageExt]) -> None:
        super().__init__(owned, messages)
        #: As they were pulled: the program may change its messages. Records are decoded for it.
        self._offsets = None if isinstance(messages, PulledRecords) else [m.queue_offset for m in messages]
        self.taken = 0
        self.done = 0
        #: The program continues at another offset of the queue.
        self.is_dropped = False

    def offset_at(self, index: int) -> int:
        """Return the queue offset of one message."""
        return self._offsets[index] if self._offsets is not None else queue_offset_at(self.messages, index)

    def take(self, count_max: int) -> Sequence[MessageExt]:
        """Return the next messages, as they came; none while the queue is not read, or the lease is over."""
        owned, first = self.owned, self.taken
        self.started = True
        self.taken = min(first + count_max, len(self.messages))
        now_ms = owned.lease.monotonic_ms()
        if owned.state is not QueueState.READING or self.is_dropped or not owned.lease.holds_at(now_ms):
            self.taken = first
            return ()
        self.began_ms = now_ms
        return self.messages[first : self.taken]

    def take_next(self) -> MessageExt | None:
        """Note that the program is done with what it has taken, and return one more; None as for `take`.

        This is called for every message of an `async for`, and costs half of `finish` and `take(1)`.
        """
        first = self.done = self.taken
        if first == len(self.messages):
            return None
        owned = self.owned
        self.taken = first + 1
        now_ms = owned.lease.monotonic_ms()
        if owned.state is not QueueState.READING or self.is_dropped or not owned.lease.holds_at(now_ms):
            self.taken = first
            return None
        self.began_ms = now_ms
        return self.messages[first]

    def finish(self, *, is_done: bool = True) -> bool:
        """Note that the program is done with what it has taken; return whether nothing is left to take.

        not is_done: what it has in hand is not done, and is to be delivered again.
        """
        if is_done:
            self.done = self.taken
        else:
            self.taken = self.done
        return self.taken == len(self.messages) or self.is_void

    def finish_before(self, offset: int) -> None:
        """Note that the program is done with what it has taken before an offset of the queue."""
        while self.done < self.taken and self.offset_at(self.done) < offset:
            self.done += 1

    @property
    def is_void(self) -> bool:
        """Return whether what is not taken yet never will be: the queue is being given up, or is gone."""
        return self.is_dropped or not self.owned.is_ours

    @property
    def is_under_way(self) -> bool:
        """Return whether the program has messages of it in hand."""
        return self.taken > self.done

    @property
    def finished_offset(self) -> int | None:
        """Return the offset up to which the program has finished; None if it has finished none of these."""
        done = self.done
        return self.offset_at(done - 1) + 1 if done else None

    @property
    def next_offset(self) -> int | None:
        """Return the offset of the first message that is not taken; None if all are."""
        taken = self.taken
        return self.offset_at(taken) if taken < len(self.messages) else None

    def drop(self) -> None:
        """Have its messages ignored from now on."""
        self.is_dropped = True
