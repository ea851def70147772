"""The accumulator: collects messages of `send_nowait` into batches: how many bytes and messages of a topic,
or of a chosen queue, make a batch, and how their bodies are encoded together.

Messages without a fixed queue are collected by topic, and each batch of them takes the next queue; messages
for a given queue are collected by queue and stay in order.

    a body alone (bytes) ─┐
    Encoded ──────────────┴─► unique ids ─► encode_contents ─► the body of one request

Most messages are a topic and a body. They wait as that body, and get their unique ids and their encoding when
their batch is sent, all in one loop: this takes a third of the time of encoding each on arrival.
Upstream: impl/producer/ProduceAccumulator.java.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from libramq.message import properties as names
from libramq.message.batch import ITEM_BYTES_MIN, ITEM_HEAD, encode_batch_item
from libramq.message.ids import UNIQUE_ID_V6_CHARACTERS, MessageIds
from libramq.message.message import Message
from libramq.message.properties import properties_to_text
from libramq.message.queue import MessageQueue

#: Set in every message, as upstream: wait until it is stored as safely as the broker is configured.
WAIT_VALUE: Final = "true"
_BEFORE_ID: Final = names.UNIQ_KEY + names.NAME_VALUE_SEPARATOR
_BEHIND_ID: Final = names.PROPERTY_SEPARATOR + properties_to_text({names.WAIT: WAIT_VALUE})
_AROUND_ID_BYTES: Final = len(_BEFORE_ID) + len(_BEHIND_ID)
#: A character that is neither in ids nor in the text around them, whose length is a byte between 53 and 77.
_CUT: Final = "\x03"
#: The bytes that an item adds to a plain body, for a producer with an IPv6 address.
PLAIN_ITEM_BYTES: Final = ITEM_BYTES_MIN + _AROUND_ID_BYTES + UNIQUE_ID_V6_CHARACTERS


class Encoded(NamedTuple):
    """A message with properties, as an item of a batch (`message/batch.py`)."""

    unique_id: str
    item: bytes


#: A message: only its body, if it has nothing else but a topic.
Content = bytes | Encoded


def plain_body(message: Message) -> bytes | None:
    """Return the body of a message that has only a topic and a body of bytes; None for any other."""
    if (
        type(message) is Message
        and type(message.body) is bytes
        and type(message.topic) is str
        and message.tags is None
        and message.keys == ()
        and message.properties == {}
        and message.flag == message.delay_level == message.delay_ms == 0
        and message.deliver_at is None
    ):
        return message.body
    return None


def content_bytes(content: Content) -> int:
    """Return the size of a message in a batch; for a plain body, up to a few bytes too many."""
    return len(content) + PLAIN_ITEM_BYTES if isinstance(content, bytes) else len(content.item)


def unique_ids(contents: Sequence[Content], ids: MessageIds) -> list[str]:
    """Return the unique id of each message; bodies get the next ones."""
    drawn = ids.many(sum(type(content) is bytes for content in contents))
    if len(drawn) == len(contents):
        return drawn
    following = iter(drawn)
    return [next(following) if isinstance(content, bytes) else content.unique_id for content in contents]


def encode_contents(contents: Sequence[Content], ids: Sequence[str]) -> bytes:
    """Return the body of a batch. A message costs 0.2 µs if all are plain bodies, else 0.7 µs."""
    if set(map(type, contents)) == {bytes}:
        bodies = cast(Sequence[bytes], contents)
        return _encode_bodies(bodies, list(map(len, bodies)), ids)
    return b"".join(
        [
            encode_batch_item(0, content, f"{_BEFORE_ID}{unique_id}{_BEHIND_ID}".encode())
            if isinstance(content, bytes)
            else content.item
            for content, unique_id in zip(contents, ids, strict=True)
        ]
    )


def _encode_bodies(bodies: Sequence[bytes], body_bytes: Sequence[int], ids: Sequence[str]) -> bytes:
    """Return the items of plain bodies, with ids of one length."""
    text_bytes = _AROUND_ID_BYTES + len(ids[0])
    before = f"{chr(text_bytes >> 8)}{chr(text_bytes & 0xFF)}{_BEFORE_ID}"
    # All property texts are built as one, and cut between messages.
    texts = f"{before}{f'{_BEHIND_ID}{_CUT}{before}'.join(ids)}{_BEHIND_ID}".encode("latin-1")
    around = ITEM_BYTES_MIN + text_bytes
    heads = {size: ITEM_HEAD.pack(around + size, 0, 0, 0, size) for size in set(body_bytes)}
    pieces = [b""] * (3 * len(bodies))
    pieces[0::3] = [heads[size] for size in body_bytes]
    pieces[1::3] = bodies
    pieces[2::3] = texts.split(_CUT.encode())
    return b"".join(pieces)


T = TypeVar("T")

#: Ours: a quarter of the broker's maxMessageSize (4 MiB), which bounds a batch as a whole.
BATCH_BYTES_MAX: Final = 1024 * 1024
#: Ours: the response to a batch holds an id of 32 characters for each message.
BATCH_COUNT_MAX: Final = 1000


@dataclass(slots=True, eq=False)
class Batch(Generic[T]):
    """Messages that are sent together. tokens: passed back with each message's result.

    send: sends a message that must not join a batch, with a separate request. is_awaited: its sender waits
    for the answer, with a separate timeout. flushed_us: when a flush found it behind another one of its
    queue.
    """

    topic: str
    queue: MessageQueue | None
    contents: list[Content] = field(default_factory=list)
    tokens: list[T] = field(default_factory=list)
    size: int = 0
    send: Callable[[Any], None] | None = None
    is_awaited: bool = False
    flushed_us: int | None = None


class Accumulator(Generic[T]):
    """Collects encoded messages into batches.

    Batches that are ready leave in their order, except those of blocked queues. All are indexed by queue: a
    producer may choose among thousands.
    """

    def __init__(self, bytes_max: int = BATCH_BYTES_MAX, count_max: int = BATCH_COUNT_MAX) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._open: dict[str | MessageQueue, Batch[T]] = {}
        #: The keys of open batches that may leave, though they are not full.
        self._sendable: dict[str | MessageQueue, None] = {}
        #: Ordered, because a dict finds its first key slowly after many removals from the front.
        self._ready: OrderedDict[Batch[T], None] = OrderedDict()
        #: The ready batches by fixed queue, blocked or not.
        self._of_queue: dict[MessageQueue, dict[Batch[T], None]] = {}
        #: Blocked fixed queues, with the batches that were ready when each was blocked.
        self.blocked: dict[MessageQueue, list[Batch[T]]] = {}

    def add(self, topic: str, queue: MessageQueue | None, content: Content, size: int, token: T) -> bool:
        """Add a message of this size; return whether that has completed a batch."""
        key: str | MessageQueue = topic if queue is None else queue
        batch = self._open.get(key)
        if batch is None:
            self._begin(key, Batch(topic, queue), content, size, token)
            return False
        if batch.size + size > self._bytes_max or len(batch.tokens) >= self._count_max:
            self._make_ready(batch)
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
        if batch.queue is None or batch.queue not in self.blocked:
            self._sendable[key] = None

    def _end(self, key: str | MessageQueue) -> None:
        """Make an open batch ready, if there is one."""
        batch = self._open.pop(key, None)
        if batch is not None:
            self._sendable.pop(key, None)
            self._make_ready(batch)

    def _make_ready(self, batch: Batch[T]) -> None:
        if batch.queue is not None:
            self._of_queue.setdefault(batch.queue, {})[batch] = None
            if batch.queue in self.blocked:
                return
        self._ready[batch] = None

    def add_alone(self, batch: Batch[T]) -> None:
        """Add a message that travels alone to a fixed queue, behind all that wait for that queue."""
        assert batch.queue is not None, "others have nothing to wait for"
        self._end(batch.queue)
        self._make_ready(batch)

    def has(self, queue: MessageQueue) -> bool:
        """Return whether a fixed queue is blocked, or anything waits for it."""
        return queue in self.blocked or queue in self._open or queue in self._of_queue

    def discard(self, batch: Batch[T]) -> bool:
        """Remove a batch that is ready; return False if it has been taken."""
        of_queue = self._of_queue.get(batch.queue) if batch.queue is not None else self._ready
        if of_queue is None or batch not in of_queue:
            return False
        self._ready.pop(batch, None)
        if batch.queue is not None:
            del of_queue[batch]
            if not of_queue:
                del self._of_queue[batch.queue]
        return True

    def open_batch(self, topic: str, size: int) -> Batch[T] | None:
        """Return the open batch, for any queue of a topic, that has room for a message, if any."""
        batch = self._open.get(topic)
        if batch is None or batch.size + size > self._bytes_max or len(batch.tokens) >= self._count_max:
            return None
        return batch

    def take(self, *, only_full: bool = False, held: Collection[str] = ()) -> Batch[T] | None:
        """Return the next batch, full ones first; those of one queue are in order. None if none may leave.

        held: topics whose messages without a fixed queue wait until their batch is full.
        """
        if not self._ready and not only_full:
            for key in [each for each in self._sendable if each not in held]:
                self._end(key)
        if not self._ready:
            return None
        batch = next(iter(self._ready))
        self.discard(batch)
        return batch

    def block(self, queue: MessageQueue) -> None:
        """Keep all batches for a fixed queue, until it is freed."""
        self._sendable.pop(queue, None)
        self.blocked[queue] = list(self._of_queue.get(queue, ()))
        for batch in self.blocked[queue]:
            del self._ready[batch]

    def free(self, queue: MessageQueue) -> list[Batch[T]]:
        """Let the batches for a fixed queue leave again; return those that were ready when it was blocked."""
        if queue in self._open:
            self._sendable[queue] = None
        self._ready.update(self._of_queue.get(queue, {}))
        return self.blocked.pop(queue)

    def behind(self) -> Iterator[Batch[T]]:
        """Yield the batches, full or not, that wait for another one of their queue."""
        for queue in self.blocked:
            yield from self._of_queue.get(queue, ())
            if queue in self._open:
                yield self._open[queue]

    def remove(self, batches: Sequence[Batch[T]]) -> list[Batch[T]]:
        """Remove and return those batches that still wait."""
        return [batch for batch in batches if self.discard(batch)]

    @property
    def batch_count(self) -> int:
        """Return how many batches may leave, full or not."""
        return len(self._ready) + len(self._sendable)

    @property
    def is_empty(self) -> bool:
        """Return whether no batch may leave."""
        return not self._ready and not self._sendable


def split(
    contents: Sequence[Content], bytes_max: int = BATCH_BYTES_MAX, count_max: int = BATCH_COUNT_MAX
) -> Iterator[slice]:
    """Split messages into runs that fit into one request each; yield the slice of each."""
    start = size = 0
    for position, content in enumerate(contents):
        more = content_bytes(content)
        if position > start and (size + more > bytes_max or position - start >= count_max):
            yield slice(start, position)
            start, size = position, 0
        size += more
    if contents:
        yield slice(start, len(contents))
