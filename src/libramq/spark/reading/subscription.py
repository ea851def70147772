"""The subscription: which queues a query reads, given by topics, by a topic pattern, or one by one."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from libramq.errors import ConfigError, InvalidName, RouteNotFound
from libramq.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic, validate_topic
from libramq.message.queue import MessageQueue
from libramq.spark.options import Options
from libramq.spark.reading.positions import queue_key, queues_by_broker

WAYS: Final = ("subscribe", "subscribePattern", "assign")


class Topics(Protocol):
    """The source of topics and their queues."""

    def topics(self) -> list[str]: ...
    def queues(self, topic: str) -> list[MessageQueue]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Exactly one of: topics, a regular expression that a whole topic must match, queues."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[MessageQueue, ...] = ()

    @classmethod
    def parse(cls, options: Options) -> "Subscription":
        """Parse the options; raises ConfigError."""
        way = options.exactly_one(WAYS, 'option("subscribe", "Flights,Orders")')
        text = options.text(way) or ""
        if way == "assign":
            return cls(assigned=queues_by_broker(text, option=way))
        if way == "subscribePattern":
            try:
                re.compile(text)
            except re.error as error:
                raise ConfigError(f"subscribePattern={text!r} is not a regular expression: {error}") from None
            return cls(pattern=text)
        try:
            topics = tuple(sorted({validate_topic(name.strip()) for name in text.split(",") if name.strip()}))
        except InvalidName as error:
            raise ConfigError(f"subscribe={text!r}: {error}") from None
        if not topics:
            raise ConfigError(f"subscribe={text!r} names no topic; give TOPIC, or several with commas")
        return cls(topics=topics)

    def wants(self, queue: MessageQueue) -> bool:
        """Return whether a queue belongs to the subscription."""
        if self.assigned:
            return queue in self.assigned
        return queue.topic in self.topics or self._matches(queue.topic)

    def queues(self, source: Topics) -> list[MessageQueue]:
        """Return the queues, sorted; RouteNotFound or ConfigError if a named one does not exist."""
        found = [queue for topic in self.topics for queue in source.queues(topic)]
        for topic in _topics_of(self.assigned):
            there = source.queues(topic)
            for queue in self.assigned:
                if queue.topic == topic and queue not in there:
                    known = ", ".join(map(queue_key, there))
                    raise ConfigError(
                        f"assign names {queue_key(queue)}, which does not exist; there are {known}"
                    )
        return sorted({*found, *self.assigned, *self._of_pattern(source)})

    def queues_there(self, source: Topics) -> list[MessageQueue]:
        """Return the queues that exist; skip missing ones without an error."""
        topics = sorted({*self.topics, *_topics_of(self.assigned)})
        there = filter(self.wants, _queues_of(topics, source))
        return sorted({*there, *self._of_pattern(source)})

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern={self.pattern}"
        if self.assigned:
            return f"assign={json.dumps([queue_key(queue) for queue in self.assigned])}"
        return f"subscribe={','.join(self.topics)}"

    def _of_pattern(self, source: Topics) -> Iterable[MessageQueue]:
        if self.pattern is None:
            return ()
        return _queues_of([topic for topic in source.topics() if self._matches(topic)], source)

    def _matches(self, topic: str) -> bool:
        """Return whether a topic matches the pattern; system, retry and dead-letter topics never do."""
        if self.pattern is None or is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return False
        return re.fullmatch(self.pattern, topic) is not None


def _topics_of(queues: Sequence[MessageQueue]) -> list[str]:
    return sorted({queue.topic for queue in queues})


def _queues_of(topics: Iterable[str], source: Topics) -> Iterator[MessageQueue]:
    for topic in topics:
        try:
            yield from source.queues(topic)
        except RouteNotFound:  # Deleted since the topics were listed, or its brokers are down.
            continue
