"""Where a group's coordinator is: the seeds' vectors, Java's corner cases, and few moves."""

from collections import Counter

import pytest

from libramq.groups.cluster_view import PARTITIONS, coordinator_of, java_string_hash, partition_of

#: The seeds' vector; the known string of the least hash; two UTF-16 units: 31 × 0xD83D + 0xDE00.
HASHES = {
    "": 0,
    "a": 97,
    "test-group": 627841412,
    "polygenelubricants": -(2**31),
    "\U0001f600": 1772899,
}


@pytest.mark.parametrize(("text", "value"), HASHES.items(), ids=map(ascii, HASHES))
def test_the_hash_equals_javas(text, value):
    assert java_string_hash(text) == value


@pytest.mark.parametrize(
    ("group", "partition"),
    [("test-group", 12), ("orders", 31), ("order-created", 21), ("polygenelubricants", 0)],
)
def test_partitions_map_to_brokers(group, partition):
    assert partition_of(group) == partition


def test_partitions_are_spread_and_few_move():
    groups = [f"group-{n}" for n in range(2_000)]
    assert {partition_of(group) for group in groups} == set(range(PARTITIONS))
    three = {group: coordinator_of(group, ["a", "b", "c"]) for group in groups}
    assert min(Counter(three.values()).values()) > 200
    two = {group: coordinator_of(group, ["c", "a"]) for group in groups}
    assert all(two[group] == where for group, where in three.items() if where != "b")
    assert coordinator_of("orders", ["b", "a"]) == coordinator_of("orders", ["a", "b"])
    assert coordinator_of("orders", []) is None
