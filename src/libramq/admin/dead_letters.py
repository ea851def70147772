"""Dead letters: the messages that a group gave up, listed and counted; how fast, and to which topics, they
are sent again.

    handler fails for the last time ─► %DLQ%G ─► looked at ─► sent again to the topic they came from

They stay in `%DLQ%G` whatever becomes of them, until they are deleted by age. Whoever made them: brokers and
clients of LibraMQ, or Apache's. Blocking, for one thread.
Upstream: AbstractSendMessageProcessor.java (handleRetryAndDLQ).
"""

import heapq
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, Self

from libramq.client.queue_reader import QueueReader
from libramq.errors import ConfigError, RouteNotFound
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import Message, MessageExt
from libramq.message.queue import MessageQueue
from libramq.transport.access import environment_access
from libramq.transport.address import split_name_servers

READER_GROUP: Final = "LIBRA_DEAD_LETTERS"
#: What a message has from its way to the dead letters, besides the names that RocketMQ reserves.
_OF_ITS_WAY: Final = frozenset(
    {*p.RESERVED, p.NO_SUBSCRIBER_SINCE, p.KAFKA_PRODUCER, p.ERROR_TYPE, p.ERROR_TEXT}
)


class Sender(Protocol):
    """A blocking producer, as far as messages are sent again by it."""

    def send(self, message: Message) -> object:
        """Send a message, and return when it is stored; raises LibraError."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter of a group."""

    group: str
    message: MessageExt

    @property
    def message_id(self) -> str:
        """Return the id of the message that failed: its producer's, else the one that a broker gave it."""
        own = self.message.properties
        return own.get(p.UNIQ_KEY) or own.get(p.ORIGIN_MESSAGE_ID) or self.message.message_id

    @property
    def topic(self) -> str | None:
        """Return the topic that it came from; None if nothing says so, or if it is no topic to send to."""
        own = self.message.properties
        named = own.get(p.DLQ_ORIGIN_TOPIC) or own.get(p.RETRY_TOPIC) or ""
        topic = names.popped_topic(named, self.group)
        # A producer without a client library can name any: what brokers trust, or another group's topic.
        is_own = names.is_system_topic(topic) or topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
        return topic if names.is_valid_topic(topic) and not is_own else None

    @property
    def place(self) -> str:
        """Return where it is: what a message that is sent again from it names."""
        message = self.message
        topic = names.dlq_topic(self.group)
        return f"{topic}:{message.broker_name}:{message.queue_id}:{message.queue_offset}"

    @property
    def error(self) -> str | None:
        """Return what its handler raised, where clients and brokers of LibraMQ made it."""
        kind, text = (self.message.properties.get(name) for name in (p.ERROR_TYPE, p.ERROR_TEXT))
        return kind and (f"{kind}: {text}" if text else kind)

    def again(self, topic: str | None = None) -> Message:
        """Return it as a message to send again, to another topic than its own perhaps; raises ConfigError."""
        topic = topic or self.topic
        if topic is None:
            raise ConfigError(
                f"dead letter {self.message_id} does not say which topic it came from; name one"
            )
        message = self.message
        kept = {name: value for name, value in message.properties.items() if name not in _OF_ITS_WAY}
        kept[p.REPLAYED_FROM] = self.place
        return Message(
            topic,
            message.body,
            tags=message.tags,
            keys=tuple(message.keys),
            properties=kept,
            flag=message.flag,
        )


class DeadLetters:
    """The dead letters of a group at all brokers. Use it as `with`."""

    def __init__(self, namesrv: str, group: str) -> None:
        self._group = names.validate_group(group)
        self._topic = names.dlq_topic(group)
        access = environment_access()
        self._reader = QueueReader(split_name_servers(namesrv), group=READER_GROUP, access=access)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def count(self) -> int:
        """Return how many there are."""
        first, ends = self._bounds(0)
        return sum(end - first[queue] for queue, end in ends.items())

    def read(self, *, since_ms: int = 0, ids: Collection[str] = ()) -> Iterator[DeadLetter]:
        """Yield those there are now, the oldest first. since_ms: stored then or later; ids: only these."""
        first, ends = self._bounds(since_ms)
        runs = [self._reader.messages(queue, first[queue], end) for queue, end in ends.items()]
        for message in heapq.merge(*runs, key=_stored_ms):
            letter = DeadLetter(self._group, message)
            if message.store_timestamp_ms >= since_ms and (not ids or letter.message_id in ids):
                yield letter

    def newest(self, limit: int) -> list[DeadLetter]:
        """Return the newest ones, the oldest of them first."""
        first, ends = self._bounds(0)
        runs = [self._reader.messages(q, max(first[q], end - limit), end) for q, end in ends.items()]
        return [DeadLetter(self._group, message) for message in heapq.merge(*runs, key=_stored_ms)][-limit:]

    def _bounds(self, since_ms: int) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        try:
            queues = self._reader.queues(self._topic)
        except RouteNotFound:
            return {}, {}  # None of its messages has ever become one.
        ends = self._reader.max_offsets(queues)
        first = self._reader.min_offsets(queues)
        if since_ms:
            since = self._reader.offsets_at(dict.fromkeys(queues, since_ms))
            first = {queue: max(first[queue], since[queue]) for queue in queues}
        return first, ends


def replay(
    letters: Iterable[DeadLetter],
    sender: Sender,
    *,
    topic: str | None = None,
    rate: int,
    sent: Callable[[DeadLetter], None],
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Send dead letters again, at most `rate` a second, one after the other; sent: called after each.

    They go to the topics they came from, or all to `topic`: every group that reads it gets them. The first
    failure ends it, so what was sent is what came before.
    """
    began_s = monotonic()
    for number, letter in enumerate(letters):
        ahead_s = began_s + number / rate - monotonic()
        if ahead_s > 0:
            sleep(ahead_s)
        sender.send(letter.again(topic))
        sent(letter)


def _stored_ms(message: MessageExt) -> int:
    return message.store_timestamp_ms
