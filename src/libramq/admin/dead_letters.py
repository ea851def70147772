"""Dead letters: listing and counting the messages that a group gave up, and replaying them.

    handler fails for the last time ─► %DLQ%G ─► inspected ─► sent again to the original topic

Dead letters stay in `%DLQ%G` until they are deleted by age, replayed or not. Brokers and clients of LibraMQ
and Apache may have made them. Blocking, for one thread.
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
#: Properties added on the way to the dead letters, and those that RocketMQ reserves.
_OF_ITS_WAY: Final = frozenset(
    {*p.RESERVED, p.NO_SUBSCRIBER_SINCE, p.KAFKA_PRODUCER, p.ERROR_TYPE, p.ERROR_TEXT}
)


class Sender(Protocol):
    """The part of a blocking producer that a replay needs."""

    def send(self, message: Message) -> object:
        """Send a message and wait until it is stored; raises LibraError."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter of a group."""

    group: str
    message: MessageExt

    @property
    def message_id(self) -> str:
        """Return the id of the failed message: the producer's, or else the one that a broker assigned."""
        own = self.message.properties
        return own.get(p.UNIQ_KEY) or own.get(p.ORIGIN_MESSAGE_ID) or self.message.message_id

    @property
    def topic(self) -> str | None:
        """Return the original topic; None if it is unknown, or not a topic to which users may send."""
        own = self.message.properties
        named = own.get(p.DLQ_ORIGIN_TOPIC) or own.get(p.RETRY_TOPIC) or ""
        topic = names.popped_topic(named, self.group)
        # A producer may forge the property and name a topic that brokers trust, or another group's.
        is_own = names.is_system_topic(topic) or topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
        return topic if names.is_valid_topic(topic) and not is_own else None

    @property
    def place(self) -> str:
        """Return the letter's position, which a replayed message records."""
        message = self.message
        topic = names.dlq_topic(self.group)
        return f"{topic}:{message.broker_name}:{message.queue_id}:{message.queue_offset}"

    @property
    def error(self) -> str | None:
        """Return the handler's error, if clients and brokers of LibraMQ made the letter."""
        kind, text = (self.message.properties.get(name) for name in (p.ERROR_TYPE, p.ERROR_TEXT))
        return kind and (f"{kind}: {text}" if text else kind)

    def again(self, topic: str | None = None) -> Message:
        """Return a message to replay, by default to its original topic; ConfigError if that is unknown."""
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
        """Return the number of dead letters."""
        first, ends = self._bounds(0)
        return sum(end - first[queue] for queue, end in ends.items())

    def read(self, *, since_ms: int = 0, ids: Collection[str] = ()) -> Iterator[DeadLetter]:
        """Yield the current dead letters, oldest first. since_ms: earliest store time; ids: only these."""
        first, ends = self._bounds(since_ms)
        runs = [self._reader.messages(queue, first[queue], end) for queue, end in ends.items()]
        for message in heapq.merge(*runs, key=_stored_ms):
            letter = DeadLetter(self._group, message)
            if message.store_timestamp_ms >= since_ms and (not ids or letter.message_id in ids):
                yield letter

    def newest(self, limit: int) -> list[DeadLetter]:
        """Return the newest dead letters, oldest first."""
        first, ends = self._bounds(0)
        runs = [self._reader.messages(q, max(first[q], end - limit), end) for q, end in ends.items()]
        return [DeadLetter(self._group, message) for message in heapq.merge(*runs, key=_stored_ms)][-limit:]

    def _bounds(self, since_ms: int) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        try:
            queues = self._reader.queues(self._topic)
        except RouteNotFound:
            return {}, {}  # The group has never had a dead letter.
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
    """Send dead letters again, one after the other, at most `rate` a second; sent: called after each.

    They go to their original topics, or all to `topic`; every group that reads the topic gets them. The first
    failure stops the replay; all letters before it were sent.
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
