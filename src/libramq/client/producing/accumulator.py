"""The accumulator: messages wait a moment so that many of them travel in one request.

Messages without a fixed queue are collected by topic, and each batch of them takes the next queue; messages
for a given queue are collected by queue and stay in order.
Upstream: impl/producer/ProduceAccumulator.java.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from libramq.client.producing.batch_content import Content, content_bytes
from libramq.message.queue import MessageQueue

T = TypeVar("T")

#: Ours: a quarter of the broker's maxMessageSize (4 MiB), which bounds a batch as a whole.
BATCH_BYTES_MAX: Final = 1024 * 1024
#: Ours: the response to a batch holds an id of 32 characters for each message.
BATCH_COUNT_MAX: Final = 1000


@dataclass(slots=True, eq=False)
class Batch(Generic[T]):
    """Messages that are sent together. tokens: what each one's sender wants back with its result.

    send: sends what is not to be part of a batch, by a request of its own. is_awaited: its sender waits for
    the answer, and has its own time for it.
    """

    topic: str
    queue: MessageQueue | None
    contents: list[Content] = field(default_factory=list)
    tokens: list[T] = field(default_factory=list)
    size: int = 0
    send: Callable[[Any], None] | None = None
    is_awaited: bool = False


class Accumulator(Generic[T]):
    """Collects encoded messages into batches."""

    def __init__(self, bytes_max: int = BATCH_BYTES_MAX, count_max: int = BATCH_COUNT_MAX) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._open: dict[str | MessageQueue, Batch[T]] = {}
        self._ready: deque[Batch[T]] = deque()

    def add(self, topic: str, queue: MessageQueue | None, content: Content, size: int, token: T) -> bool:
        """Take a message of so many bytes; return whether a batch has become full by it."""
        key: str | MessageQueue = topic if queue is None else queue
        batch = self._open.get(key)
        if batch is None:
            self._begin(key, Batch(topic, queue), content, size, token)
            return False
        if batch.size + size > self._bytes_max or len(batch.tokens) >= self._count_max:
            self._ready.append(batch)
            self._begin(key, Batch(topic, queue), content, size, token)
            return True
        batch.contents.append(content)
        batch.tokens.append(token)
        batch.size += size
        return False

    def _begin(self, key: str | MessageQueue, batch: Batch[T], content: Content, size: int, token: T) -> None:
        batch.contents.append(content)
        batch.tokens.append(token)
        batch.size = size
        self._open[key] = batch

    def add_alone(self, batch: Batch[T]) -> None:
        """Take what travels alone to a fixed queue, behind what waits for that queue."""
        assert batch.queue is not None, "others have nothing to wait for"
        before = self._open.pop(batch.queue, None)
        self._ready += [batch] if before is None else [before, batch]

    def has(self, queue: MessageQueue) -> bool:
        """Return whether anything waits for a fixed queue."""
        return queue in self._open or any(batch.queue == queue for batch in self._ready)

    def discard(self, batch: Batch[T]) -> bool:
        """Remove a batch; return False if it has been taken."""
        try:
            self._ready.remove(batch)
        except ValueError:
            return False
        return True

    def open_batch(self, topic: str, size: int) -> Batch[T] | None:
        """Return the batch that a message of so many bytes joins, for any queue of its topic, if any."""
        batch = self._open.get(topic)
        if batch is None or batch.size + size > self._bytes_max or len(batch.tokens) >= self._count_max:
            return None
        return batch

    def take(
        self,
        *,
        only_full: bool = False,
        held: Collection[str] = (),
        blocked: Collection[MessageQueue] = (),
    ) -> Batch[T] | None:
        """Return the next batch, full ones first; those of one queue are in order. None if nothing may go.

        held: topics whose messages without a fixed queue wait on until their batch is full. blocked: fixed
        queues whose messages wait in any case.
        """
        batch = self._take_ready(blocked)
        if batch is None and not only_full:
            for key in [each for each in self._open if each not in held and each not in blocked]:
                self._ready.append(self._open.pop(key))
            batch = self._take_ready(blocked)
        return batch

    def _take_ready(self, blocked: Collection[MessageQueue]) -> Batch[T] | None:
        for position, batch in enumerate(self._ready):
            if batch.queue is None or batch.queue not in blocked:
                del self._ready[position]
                return batch
        return None

    def ready_for(self, queue: MessageQueue) -> list[Batch[T]]:
        """Return the batches for a fixed queue that leave as soon as it is not blocked."""
        return [batch for batch in self._ready if batch.queue == queue]

    def remove(self, batches: Sequence[Batch[T]]) -> list[Batch[T]]:
        """Remove those of these batches that still wait, and return them."""
        wanted = {id(batch) for batch in batches}
        removed = [batch for batch in self._ready if id(batch) in wanted]
        self._ready = deque(batch for batch in self._ready if id(batch) not in wanted)
        return removed

    @property
    def batch_count(self) -> int:
        """Return how many batches wait, full or not."""
        return len(self._ready) + len(self._open)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits."""
        return not self._ready and not self._open


def split(
    contents: Sequence[Content], bytes_max: int = BATCH_BYTES_MAX, count_max: int = BATCH_COUNT_MAX
) -> Iterator[slice]:
    """Split messages into runs that fit into one request each; return where each run lies."""
    start = size = 0
    for position, content in enumerate(contents):
        more = content_bytes(content)
        if position > start and (size + more > bytes_max or position - start >= count_max):
            yield slice(start, position)
            start, size = position, 0
        size += more
    if contents:
        yield slice(start, len(contents))
