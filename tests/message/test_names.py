"""Names of topics and groups."""

from libramq.message import names


def test_a_retry_topic_of_pop_is_no_groups():
    """%RETRY%G_T holds what group G popped of topic T; G_U is a group of its own, as there is no topic U."""
    topics = {"T", "%RETRY%G", "%RETRY%G_T", "%RETRY%G_U", "%RETRY%G+T"}
    assert names.groups_of(topics) == ["G", "G_U"]
