"""Names of topics and groups."""

import pytest

from libramq.message import names
from libramq.message.names import popped_topic, retry_group


@pytest.mark.parametrize(
    ("topic", "group"),
    [
        ("%RETRY%G", "G"),
        ("%RETRY%G+T", "G"),
        ("%RETRY%G_T", "G"),
        ("%RETRY%G_A_T", "G_A"),
        ("%RETRY%G_A_T_B", "G_A"),
        ("%RETRY%G_Unknown", "G_Unknown"),
        ("%RETRY%Unknown_T", "Unknown_T"),
        ("%RETRY%", ""),
    ],
)
def test_the_group_of_a_retry_topic_is_one_that_exists(topic: str, group: str):
    groups, topics = {"G", "G_A"}, {"T", "A_T", "T_B"}
    found = retry_group(topic, is_group=groups.__contains__, is_topic=topics.__contains__)
    assert found == group


def test_a_group_pops_a_topic_from_its_retry_topics_of_either_version():
    assert popped_topic("%RETRY%G_T", "G") == popped_topic("%RETRY%G+T", "G") == popped_topic("T", "G") == "T"
    assert popped_topic("%RETRY%G", "G") == "%RETRY%G"


def test_a_retry_topic_of_pop_is_no_groups():
    """%RETRY%G_T has messages that group G popped from topic T; G_U is a group itself, without a topic U."""
    topics = {"T", "%RETRY%G", "%RETRY%G_T", "%RETRY%G_U", "%RETRY%G+T"}
    assert names.groups_of(topics) == ["G", "G_U"]
    assert names.groups_of(topics, ["G"]) == ["G"], "topic U is gone; the messages G popped from it remain"
    assert names.groups_of(topics, ["G_U"]) == ["G", "G_U"]


def test_configured_groups_are_groups_but_for_those_of_brokers_and_tools():
    """A group that pops, or assigns its queues, has no retry topic."""
    configured = ["pops", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "LIBRA_TAIL"]
    assert names.groups_of({"T", "%RETRY%pops_T", "%RETRY%LIBRA_TAIL"}, configured) == ["pops"]
