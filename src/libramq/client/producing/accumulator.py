"""The accumulator: messages wait a moment so that many of them travel in one request.

Messages without a fixed queue are collected by topic, and each batch of them takes the next queue; messages
for a given queue are collected by queue and stay in order.
Upstream: impl/producer/ProduceAccumulator.java.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from libramq.message.queue import MessageQueue

T = TypeVar("T")

#: Ours: a quarter of the broker's maxMessageSize (4 MiB), which bounds a batch as a whole.
BATCH_BYTES_MAX: Final = 1024 * 1024
#: Ours: the response to a batch holds an id of 32 characters for each message.
BATCH_COUNT_MAX: Final = 1000


class Waiting(NamedTuple, Generic[T]):
    """One encoded message, and its sender's callback data."""

    unique_id: str
    item: bytes
    token: T


@dataclass(slots=True)
class Batch(Generic[T]):
    """Messages that are sent together."""

    topic: str
    queue: MessageQueue | None
    messages: list[Waiting[T]] = field(default_factory=list)
    size: int = 0


class Accumulator(Generic[T]):
    """Collects encoded messages into batches."""

    def __init__(self, bytes_max: int = BATCH_BYTES_MAX, count_max: int = BATCH_COUNT_MAX) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._open: dict[str | MessageQueue, Batch[T]] = {}
        self._ready: deque[Batch[T]] = deque()

    def add(self, topic: str, queue: MessageQueue | None, message: Waiting[T]) -> bool:
        """Take a message; return whether a batch is full, so that waiting longer is of no use."""
        key: str | MessageQueue = topic if queue is None else queue
        batch = self._open.get(key)
        if batch is not None and (
            batch.size + len(message.item) > self._bytes_max or len(batch.messages) >= self._count_max
        ):
            self._ready.append(batch)
            batch = None
        if batch is None:
            batch = self._open[key] = Batch(topic, queue)
        batch.messages.append(message)
        batch.size += len(message.item)
        return bool(self._ready)

    def take(self, *, only_full: bool = False, held: Collection[str] = ()) -> Batch[T] | None:
        """Return the next batch, full ones first; those of one queue are in order. None if nothing waits.

        held: topics whose messages without a fixed queue wait on until their batch is full.
        """
        if not self._ready and not only_full:
            for key in [each for each in self._open if each not in held]:
                self._ready.append(self._open.pop(key))
        return self._ready.popleft() if self._ready else None

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits."""
        return not self._ready and not self._open


def split(
    messages: list[Waiting[T]], bytes_max: int = BATCH_BYTES_MAX, count_max: int = BATCH_COUNT_MAX
) -> Iterator[list[Waiting[T]]]:
    """Split messages into runs that fit into one request each."""
    run: list[Waiting[T]] = []
    size = 0
    for message in messages:
        if run and (size + len(message.item) > bytes_max or len(run) >= count_max):
            yield run
            run, size = [], 0
        run.append(message)
        size += len(message.item)
    if run:
        yield run
