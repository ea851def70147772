"""Required topic and group settings: what each use of a queue requires, with upstream's codes."""

from collections.abc import Callable

import pytest

from libramq.catalog.group_table import GroupTable
from libramq.catalog.requirements import Requirements
from libramq.catalog.topic_table import TopicRules, TopicTable
from libramq.clock import WallMs
from libramq.codes import ResponseCode as C
from libramq.errors import BrokerError
from libramq.formats.tables import PERM_READ, PERM_WRITE, SubscriptionGroupConfig, TopicConfig

NOW = WallMs(0)


@pytest.fixture
def requirements() -> Requirements:
    topics, groups = TopicTable(TopicRules()), GroupTable(auto_create=False)
    for topic, perm in (("T", PERM_READ | PERM_WRITE), ("R", PERM_READ), ("W", PERM_WRITE)):
        topics.put(TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=3, perm=perm), NOW)
    groups.put(SubscriptionGroupConfig(group_name="G"), NOW)
    groups.put(SubscriptionGroupConfig(group_name="Off", consume_enable=False), NOW)
    return Requirements(topics, groups)


Use = Callable[[Requirements, str, int], object]
READ: Use = lambda it, topic, queue: it.queue_to_read(topic, queue, "10.0.0.1:5")  # noqa: E731
OPEN: Use = Requirements.queue_to_open
COMMIT: Use = Requirements.queue_to_commit
WRITE: Use = Requirements.queue_to_write


@pytest.mark.parametrize(
    ("use", "topic", "queue_id", "code"),
    [
        (READ, "T", 1, None), (READ, "R", 0, None), (READ, "T", 2, C.INVALID_PARAMETER),
        (READ, "T", -1, C.INVALID_PARAMETER), (READ, "W", 0, C.NO_PERMISSION),
        (READ, "N", 0, C.TOPIC_NOT_EXIST),
        (OPEN, "W", 1, None), (OPEN, "T", 2, C.INVALID_PARAMETER), (OPEN, "N", 0, C.TOPIC_NOT_EXIST),
        (COMMIT, "T", 2, None), (COMMIT, "T", 3, C.INVALID_PARAMETER), (COMMIT, "N", 0, C.TOPIC_NOT_EXIST),
        (WRITE, "T", 2, None), (WRITE, "W", 0, None), (WRITE, "T", 3, C.INVALID_PARAMETER),
        (WRITE, "R", 0, C.NO_PERMISSION), (WRITE, "N", 0, C.TOPIC_NOT_EXIST),
        (WRITE, "SCHEDULE_TOPIC_XXXX", 0, C.NO_PERMISSION),
    ],
)  # fmt: skip
def test_each_use_of_a_queue_has_its_requirements(
    requirements: Requirements, use: Use, topic: str, queue_id: int, code: C | None
):
    if code is None:
        use(requirements, topic, queue_id)
        return
    with pytest.raises(BrokerError) as refused:
        use(requirements, topic, queue_id)
    assert refused.value.response_code == code


def test_a_refused_pull_names_its_consumer(requirements: Requirements):
    with pytest.raises(BrokerError) as refused:
        READ(requirements, "T", 7)
    assert refused.value.remark == (
        "queueId[7] is illegal, topic:[T] topicConfig.readQueueNums:[2] consumer:[10.0.0.1:5]"
    )


def test_only_groups_with_permission_may_consume(requirements: Requirements):
    requirements.group("Off")
    assert requirements.consuming_group("G", NOW).group_name == "G"
    for use, group, code in (
        (requirements.group, "N", C.SUBSCRIPTION_GROUP_NOT_EXIST),
        (lambda name: requirements.consuming_group(name, NOW), "N", C.SUBSCRIPTION_GROUP_NOT_EXIST),
        (lambda name: requirements.consuming_group(name, NOW), "Off", C.NO_PERMISSION),
    ):
        with pytest.raises(BrokerError) as refused:
            use(group)
        assert refused.value.response_code == code
