"""The location of a group's coordinator: a partition by the group's name, and a broker by partition.

    abs(hash(group)) % 50        Java's String.hashCode; a partition of __consumer_offsets, as in Kafka
    partition -> broker          rendezvous: the broker whose name hashes highest together with it

When a broker is added or removed, only its own partitions move. Everyone who knows the same brokers computes
the same broker. Kafka: GroupMetadataManager.partitionFor, offsets.topic.num.partitions.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

#: offsets.topic.num.partitions.
PARTITIONS: Final = 50


def java_string_hash(text: str) -> int:
    """Return Java's String.hashCode: signed 32 bits over UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for place in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[place : place + 2])) & 0xFFFF_FFFF
    return value - 2**32 if value >= 2**31 else value


def partition_of(group: str) -> int:
    """Return a group's partition; the one hash without an absolute value in Java counts as 0 (Utils.abs)."""
    value = java_string_hash(group)
    return 0 if value == -(2**31) else abs(value) % PARTITIONS


def coordinator_of(group: str, broker_names: Iterable[str]) -> str | None:
    """Return the broker, of these, that coordinates the group; None if there are none."""
    partition = partition_of(group)
    best = max(((_weight(partition, name), name) for name in broker_names), default=None)
    return best[1] if best is not None else None


def _weight(partition: int, broker_name: str) -> bytes:
    return blake2b(f"{partition} {broker_name}".encode(), digest_size=8).digest()
