"""Tests of the position to pull from: the whole table."""

import pytest

from libramq.client.consuming.ownership.offset_actions import OffsetQuery, StartAt, where_to_pull_from
from libramq.client.options import ConsumeFrom


@pytest.mark.parametrize("consume_from", ConsumeFrom)
@pytest.mark.parametrize("is_retry_topic", [False, True])
@pytest.mark.parametrize("committed", [0, 17])
def test_a_committed_offset_always_wins(consume_from, is_retry_topic, committed):
    """Zero is an offset, too."""
    decision = where_to_pull_from(consume_from, is_retry_topic=is_retry_topic, committed=committed)
    assert decision == StartAt(committed)


@pytest.mark.parametrize(
    ("consume_from", "is_retry_topic", "decision"),
    [
        (ConsumeFrom.LAST_OFFSET, False, OffsetQuery.MAXIMUM),
        (ConsumeFrom.LAST_OFFSET, True, StartAt(0)),
        (ConsumeFrom.FIRST_OFFSET, False, StartAt(0)),
        (ConsumeFrom.FIRST_OFFSET, True, StartAt(0)),
        (ConsumeFrom.TIMESTAMP, False, OffsetQuery.BY_TIME),
        (ConsumeFrom.TIMESTAMP, True, OffsetQuery.MAXIMUM),
    ],
)
def test_without_a_commit_the_groups_setting_decides(consume_from, is_retry_topic, decision):
    """The retry topic differs: LAST starts at its beginning, TIMESTAMP at its end."""
    assert where_to_pull_from(consume_from, is_retry_topic=is_retry_topic, committed=None) == decision
