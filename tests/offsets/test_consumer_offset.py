"""The table of committed offsets, in isolation."""

import pytest

from libramq.offsets.consumer_offset import ConsumerOffset
from libramq.offsets.journal import OffsetRecord, RecordKind

COMMIT, REMOVE, RESET, TAKEN = RecordKind


def test_a_query_returns_the_committed_offset():
    table = ConsumerOffset()
    assert table.query("g", "T", 0) is None
    assert table.commit("g", "T", 0, 7, 10) == OffsetRecord(COMMIT, "T@g", 0, 7)
    assert table.query("g", "T", 0) == 7
    assert (table.query("g", "T", 1), table.query("h", "T", 0)) == (None, None)
    assert table.commit("g", "T", 0, 7, 10) is None  # Nothing to journal.
    assert table.offsets("g", "T") == {0: 7}


@pytest.mark.parametrize(("offset", "kept"), [(-1, 0), (0, 0), (10, 10), (11, 10), (1 << 62, 10)])
def test_no_offset_is_negative_or_beyond_the_durable_end(offset: int, kept: int):
    table = ConsumerOffset()
    table.commit("g", "T", 0, offset, 10)
    assert table.query("g", "T", 0) == kept


def test_a_reset_outranks_commits_until_a_consumer_reads_from_it():
    table = ConsumerOffset()
    table.commit("g", "T", 0, 7, 10)
    assert table.reset("g", "T", 0, 3, 10) == OffsetRecord(RESET, "T@g", 0, 3)
    assert table.commit("g", "T", 0, 8, 10) is None
    assert (table.query("g", "T", 0), table.pending_reset("g", "T", 0)) == (3, 3)
    assert table.take_reset("g", "T", 0) == (3, OffsetRecord(TAKEN, "T@g", 0, 3))
    assert table.take_reset("g", "T", 0) is None
    assert table.commit("g", "T", 0, 4, 10) is not None
    assert table.query("g", "T", 0) == 4


def test_committed_offsets_are_indexed_by_group_and_topic():
    table = ConsumerOffset()
    for group, topic in (("g", "A"), ("g", "%RETRY%g"), ("h", "A")):
        table.commit(group, topic, 0, 1, 1)
    assert table.topics_of_group("g") == {"A", "%RETRY%g"}
    assert table.groups_of_topic("A") == {"g", "h"}
    assert table.remove_group("g") == [OffsetRecord(REMOVE, "A@g"), OffsetRecord(REMOVE, "%RETRY%g@g")]
    assert table.groups_of_topic("A") == {"h"}
    assert table.remove_topic("A") == [OffsetRecord(REMOVE, "A@h")]
    assert table.query("h", "A", 0) is None


def test_clamping_after_a_loss_ignores_unknown_queues():
    table = ConsumerOffset()
    for queue_id in range(3):
        table.commit("g", "T", queue_id, 7, 10)
    ends = {0: 5, 1: 9}
    assert table.clamp(lambda _topic, queue_id: ends.get(queue_id)) == [OffsetRecord(COMMIT, "T@g", 0, 5)]
    assert table.offsets("g", "T") == {0: 5, 1: 7, 2: 7}


def test_snapshots_never_change_and_share_unchanged_parts():
    """A thread encodes them meanwhile; copying 400,000 keys blocked the loop for 0.3 s."""
    table = ConsumerOffset()
    for topic in ("changed", "reset", "removed", "again", "same"):
        table.commit("g", topic, 0, 5, 10)
    before = table.tables()["offsetTable"]
    written = {key: dict(offsets) for key, offsets in before.items()}
    assert table.commit("g", "changed", 0, 5, 10) is None
    table.commit("g", "changed", 0, 6, 10)
    table.commit("g", "changed", 1, 1, 10)
    table.reset("g", "reset", 0, 2, 10)
    table.remove_topic("removed")
    table.remove_topic("again")
    table.commit("g", "again", 0, 1, 10)
    table.apply(OffsetRecord(COMMIT, "same@h", 0, 1))
    assert before == written
    after = table.tables()["offsetTable"]
    assert after == {
        "changed@g": {0: 6, 1: 1}, "reset@g": {0: 2}, "again@g": {0: 1}, "same@g": {0: 5}, "same@h": {0: 1},
    }  # fmt: skip
    assert after["same@g"] is before["same@g"]
    table.commit("g", "changed", 0, 7, 10)
    assert after["changed@g"] == {0: 6, 1: 1}
