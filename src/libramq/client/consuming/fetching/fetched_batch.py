"""The fetched batch: the messages of one pull, which the program takes whole or in parts.

    messages   0 … done … taken … end
               finished  │       │
                         in hand │
                                 not taken yet: dropped if the queue moves

`taken` and `done` are written on the program's thread; the core, on the network thread, reads them. As with a
handler's delivery, `taken` is written before the queue's state is read, and the core works in the opposite
order, so it never releases a queue without noticing that the program is taking messages.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Generic, Self, TypeVar

from libramq.client.consuming.pulling.pulled_records import PulledRecords, queue_offset_at
from libramq.client.consuming.queues.owned_queue import Delivery, HeldMessages, OwnedQueue, QueueState
from libramq.client.options import check_function
from libramq.message.message import MessageExt

Value = TypeVar("Value")


class DecodedMessages(Generic[Value]):
    """An asynchronous iterator of messages with their decoded bodies, which continues after an error.

    A deserializer is any function of the body's bytes: json.loads, msgspec.json.Decoder(Order).decode. It
    runs in the program's call that takes the message; the call raises its error, with a note that names the
    message.
    """

    def __init__(self, messages: AsyncIterator[MessageExt], deserializer: Callable[[bytes], Value]) -> None:
        check_function("the deserializer", deserializer)
        self._messages = messages
        self._deserializer = deserializer

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> tuple[MessageExt, Value]:
        """Return the next message with its value; raises what the deserializer raises."""
        message = await anext(self._messages)
        return message, message.decoded_by(self._deserializer)


class BlockingDecodedMessages(Generic[Value]):
    """An iterator of messages with their decoded bodies, which continues after an error."""

    def __init__(self, messages: Iterator[MessageExt], deserializer: Callable[[bytes], Value]) -> None:
        check_function("the deserializer", deserializer)
        self._messages = messages
        self._deserializer = deserializer

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> tuple[MessageExt, Value]:
        """Return the next message with its value; raises what the deserializer raises."""
        message = next(self._messages)
        return message, message.decoded_by(self._deserializer)


class HeldBatches(HeldMessages):
    """Batches by their first offset. The cost of a batch does not depend on its number of messages."""

    __slots__ = ("_batches", "_count")

    def __init__(self) -> None:
        super().__init__()
        self._batches: dict[int, tuple[int, int, int]] = {}  # Last offset, number of messages, bytes.
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the first and the last message's offset; zeros if there is none."""
        if not self._batches:
            return 0, 0
        return min(self._batches), max(last for last, _, _ in self._batches.values())

    @property
    def span(self) -> int:
        """Return the distance from the first message's offset to the last one's."""
        first, last = self.bounds
        return last - first

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Add the messages of a pull; it replaces a pull that begins with the same message."""
        first, last = queue_offset_at(messages, 0), queue_offset_at(messages, -1)
        self.remove_batch(first)
        size = messages.size if isinstance(messages, PulledRecords) else sum([len(m.body) for m in messages])
        self._batches[first] = last, len(messages), size
        self._count += len(messages)
        self.size += size
        self._highest = max(self._highest, last)

    def remove(self, messages: Sequence[MessageExt]) -> int | None:
        """Remove a whole batch; return the offset to commit."""
        self.remove_batch(queue_offset_at(messages, 0))
        return self.commit_offset

    def remove_batch(self, first: int) -> None:
        """Remove the batch that begins with an offset."""
        _, count, size = self._batches.pop(first, (0, 0, 0))
        self._count -= count
        self.size -= size

    @property
    def commit_offset(self) -> int | None:
        """Return the first offset of the batches; one past the highest if there is none left."""
        if self._batches:
            return min(self._batches)
        return self._highest + 1 if self._highest >= 0 else None


class FetchedBatch(Delivery):
    """Messages of one queue, in order."""

    __slots__ = ("_offsets", "done", "is_dropped", "taken")

    def __init__(self, owned: OwnedQueue, messages: Sequence[MessageExt]) -> None:
        super().__init__(owned, messages)
        #: The offsets as pulled: the program may change its messages, except records, which it gets decoded.
        self._offsets = None if isinstance(messages, PulledRecords) else [m.queue_offset for m in messages]
        self.taken = 0
        self.done = 0
        #: Whether the program continues at another offset of the queue.
        self.is_dropped = False

    def offset_at(self, index: int) -> int:
        """Return the queue offset of one message."""
        return self._offsets[index] if self._offsets is not None else queue_offset_at(self.messages, index)

    def take(self, count_max: int) -> Sequence[MessageExt]:
        """Return the next messages in order; none while the queue is not read, or the lease is over."""
        owned, first = self.owned, self.taken
        self.started = True
        self.taken = min(first + count_max, len(self.messages))
        now_ms = owned.lease.monotonic_ms()
        if owned.state is not QueueState.READING or self.is_dropped or now_ms >= owned.lease.until_ms:
            self.taken = first
            return ()
        self.began_ms = now_ms
        return self.messages[first : self.taken]

    def take_next(self) -> MessageExt | None:
        """Mark all taken messages as done, and return one more; None where `take` returns none.

        This is called for every message of an `async for`, and costs half of `finish` and `take(1)`.
        """
        first = self.done = self.taken
        if first == len(self.messages):
            return None
        owned = self.owned
        self.taken = first + 1
        now_ms = owned.lease.monotonic_ms()
        if owned.state is not QueueState.READING or self.is_dropped or now_ms >= owned.lease.until_ms:
            self.taken = first
            return None
        self.began_ms = now_ms
        return self.messages[first]

    def finish(self, *, is_done: bool = True) -> bool:
        """Mark taken messages as done; return whether nothing is left to take.

        not is_done: messages in progress are not done, and will be delivered again.
        """
        if is_done:
            self.done = self.taken
        else:
            self.taken = self.done
        return self.taken == len(self.messages) or self.is_void

    def finish_before(self, offset: int) -> None:
        """Mark taken messages before an offset of the queue as done."""
        while self.done < self.taken and self.offset_at(self.done) < offset:
            self.done += 1

    @property
    def is_void(self) -> bool:
        """Return whether the rest is void: the program continues elsewhere, or the queue is not ours."""
        return self.is_dropped or not self.owned.is_ours

    @property
    def is_under_way(self) -> bool:
        """Return whether messages of the batch are in progress."""
        return self.taken > self.done

    is_call = False

    @property
    def in_hand_count(self) -> int:
        """Return how many messages are in progress."""
        return self.taken - self.done

    @property
    def done_count(self) -> int:
        """Return how many messages the program has finished."""
        return self.done

    handled_count = done_count

    @property
    def finished_offset(self) -> int | None:
        """Return the offset after the last finished message; None if none is finished."""
        done = self.done
        return self.offset_at(done - 1) + 1 if done else None

    @property
    def next_offset(self) -> int | None:
        """Return the offset of the first message not taken yet; None if all are taken."""
        taken = self.taken
        return self.offset_at(taken) if taken < len(self.messages) else None

    def drop(self) -> None:
        """Ignore the remaining messages."""
        self.is_dropped = True
