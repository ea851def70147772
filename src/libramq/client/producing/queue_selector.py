"""Queue selectors: a program's rule for the queue of a message; which chosen queues are refused (another
topic's, one for a message with a priority).

Upstream: SelectMessageQueueByHash.java, SelectMessageQueueByRandom.java.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

from libramq.client.options import instance_of
from libramq.errors import ConfigError, InvalidMessage
from libramq.message import properties as names
from libramq.message.message import Message
from libramq.message.queue import MessageQueue
from libramq.message.tags import java_hash

#: Called with the topic's queues in route order and the message; returns one of them.
QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]

A_QUEUE: Final = "a MessageQueue, as publish_queues() lists them"


def check_queue(name: str, queue: object, message: Message) -> MessageQueue:
    """Return the queue that the user chose.

    Raises ConfigError for anything but a queue, and for a message whose priority decides it, and
    InvalidMessage for one of another topic.
    """
    instance_of(name, queue, MessageQueue, A_QUEUE)
    assert isinstance(queue, MessageQueue), "just checked"
    if queue.topic != message.topic:
        raise InvalidMessage(f"{name} is of topic {queue.topic}, and the message is for {message.topic}")
    if message.properties and names.PRIORITY in message.properties:
        raise ConfigError(
            "a message with a priority is stored in the queue of its priority; send it to no chosen queue"
        )
    return queue


def selected(
    selector: QueueSelector, queues: Sequence[MessageQueue], message: Message
) -> MessageQueue | None:
    """Return the selector's choice; None for any queue. Raises as `check_queue` and the selector do."""
    queue = selector(queues, message)
    return None if queue is None else check_queue("what the selector returned", queue, message)


def by_hash(key: str | int) -> QueueSelector:
    """Select one queue per key, always the same: Java's hash of the key, modulo the number of queues.

    A number is hashed as Java's Integer if it fits in 32 bits, else as Long. Raises ConfigError for other
    keys.
    """
    instance_of("the key that decides the queue", key, (str, int), "a text or a whole number")
    code = abs(_hash_code(key))
    return lambda queues, message: queues[code % len(queues)]


def by_random(randomness: random.Random) -> QueueSelector:
    """Select any queue."""
    return lambda queues, message: queues[randomness.randrange(len(queues))]


def _hash_code(key: str | int) -> int:
    if isinstance(key, str):
        return java_hash(key)
    if -(1 << 31) <= key < 1 << 31:
        return key
    folded = (key ^ key >> 32) & 0xFFFF_FFFF
    return folded - (1 << 32) if folded >= 1 << 31 else folded
