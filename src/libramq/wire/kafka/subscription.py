"""The metadata of consumers' strategies: the subscriptions and assignments exchanged by members of classic
groups.

    subscription    version (2) | topics | user data | owned partitions (from 1 on) | …
    assignment      version (2) | partitions | user data                 later versions append fields

Upstream: ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json.
"""

from libramq.errors import RemoteProtocolError
from libramq.wire.kafka.primitives import Reader

#: The protocol type of consumers.
CONSUMER: str = "consumer"
#: The first version of a subscription with the owned partitions.
_OWNED_FROM = 1


def subscribed_topics(metadata: bytes) -> frozenset[str]:
    """Return a subscription's topics; empty if it cannot be decoded."""
    reader = Reader(metadata)
    try:
        reader.int16()
        return frozenset([reader.text(reader.int16()) for _ in range(reader.count(reader.int32()))])
    except RemoteProtocolError:
        return frozenset()


def owned_partitions(metadata: bytes) -> list[tuple[str, int]]:
    """Return the partitions that a consumer keeps while it joins, as cooperative strategies do."""
    reader = Reader(metadata)
    try:
        if reader.int16() < _OWNED_FROM:
            return []
        for _ in range(reader.count(reader.int32())):
            reader.raw(reader.int16())
        reader.raw(max(reader.int32(), 0))
        return _partitions(reader)
    except RemoteProtocolError:
        return []


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]]:
    """Return the partitions of a member's share; empty if it cannot be decoded."""
    reader = Reader(assignment)
    try:
        reader.int16()
        return _partitions(reader)
    except RemoteProtocolError:
        return []


def _partitions(reader: Reader) -> list[tuple[str, int]]:
    found = []
    for _ in range(reader.count(reader.int32())):
        topic = reader.text(reader.int16())
        found += [(topic, reader.int32()) for _ in range(reader.count(reader.int32()))]
    return found
