"""Queue selectors: a producer's own rule for a message's queue.

Upstream: SelectMessageQueueByHash.java, SelectMessageQueueByRandom.java.
"""

import random
from collections.abc import Callable, Sequence

from libramq.message.message import Message
from libramq.message.queue import MessageQueue
from libramq.message.tags import java_hash

#: Called with the topic's queues in route order and the message; returns one of them.
QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


def by_hash(key: str | int) -> QueueSelector:
    """Select one queue per key, always the same: Java's hash of the key, modulo the number of queues.

    A number is hashed as Java's Integer if it fits in 32 bits, else as Long.
    """
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
