"""Where a group's coordinator is: a partition by the group's name, and a broker by partition.

    abs(hash(group)) % 50        Java's String.hashCode; a partition of __consumer_offsets, as in Kafka
    partition -> broker          rendezvous: the broker whose name hashes highest together with it

When a broker comes or goes, only its own partitions move. Everybody who knows the same brokers finds the
same place. Kafka: GroupMetadataManager.partitionFor, offsets.topic.num.partitions.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

#: offsets.topic.num.partitions.
PARTITIONS: Final = 50


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: signed 32 bits over UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for place in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[place : place + 2])) & 0xFFFF_FFFF
    return value - 2**32 if value >= 2**31 else value


def partition_of(group: str) -> int:
    """The partition of a group; the one hash that has no absolute value in Java counts as 0 (Utils.abs)."""
    value = java_string_hash(group)
    return 0 if value == -(2**31) else abs(value) % PARTITIONS


def coordinator_of(group: str, broker_names: Iterable[str]) -> str | None:
    """The broker, of these, where the group lives; None where there are none."""
    partition = partition_of(group)
    best = max(((_weight(partition, name), name) for name in broker_names), default=None)
    return best[1] if best is not None else None


def _weight(partition: int, broker_name: str) -> bytes:
    return blake2b(f"{partition} {broker_name}".encode(), digest_size=8).digest()
