"""The table of committed offsets, by itself."""

import pytest

from libramq.offsets import ConsumerOffset
from libramq.offsets.journal import OffsetRecord, RecordKind

COMMIT, REMOVE, RESET, TAKEN = RecordKind


def test_a_commit_is_what_a_query_answers():
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


def test_a_reset_outranks_commits_until_a_pull_was_told():
    table = ConsumerOffset()
    table.commit("g", "T", 0, 7, 10)
    assert table.reset("g", "T", 0, 3, 10) == OffsetRecord(RESET, "T@g", 0, 3)
    assert table.commit("g", "T", 0, 8, 10) is None
    assert (table.query("g", "T", 0), table.has_reset("g", "T", 0)) == (3, True)
    assert table.take_reset("g", "T", 0) == (3, OffsetRecord(TAKEN, "T@g", 0, 3))
    assert table.take_reset("g", "T", 0) is None
    assert table.commit("g", "T", 0, 4, 10) is not None
    assert table.query("g", "T", 0) == 4


def test_who_reads_what():
    table = ConsumerOffset()
    for group, topic in (("g", "A"), ("g", "%RETRY%g"), ("h", "A")):
        table.commit(group, topic, 0, 1, 1)
    assert table.topics_of_group("g") == {"A", "%RETRY%g"}
    assert table.groups_of_topic("A") == {"g", "h"}
    assert table.remove_group("g") == [OffsetRecord(REMOVE, "A@g"), OffsetRecord(REMOVE, "%RETRY%g@g")]
    assert table.groups_of_topic("A") == {"h"}
    assert table.remove_topic("A") == [OffsetRecord(REMOVE, "A@h")]
    assert table.query("h", "A", 0) is None


def test_clamping_after_a_loss_leaves_unknown_queues_alone():
    table = ConsumerOffset()
    for queue_id in range(3):
        table.commit("g", "T", queue_id, 7, 10)
    ends = {0: 5, 1: 9}
    assert table.clamp(lambda _topic, queue_id: ends.get(queue_id)) == [OffsetRecord(COMMIT, "T@g", 0, 5)]
    assert table.offsets("g", "T") == {0: 5, 1: 7, 2: 7}
