"""The topic table: how topics are created, and the limits on them."""

import pytest

from libramq.catalog.topic_table import QUEUES_MAX, TopicRules, TopicsFile, TopicTable
from libramq.errors import BrokerError, ConfigError, ServiceNotAvailable, TopicNotExist
from libramq.formats.tables import DataVersion, TopicConfig


def config(name: str, queues: int = 4, perm: int = 6) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


@pytest.fixture
def table() -> TopicTable:
    return TopicTable(TopicRules())


def test_every_broker_has_its_own_topics(table):
    names = {topic.topic_name: (topic.write_queue_nums, topic.perm) for topic in table}
    assert names == {
        "SELF_TEST_TOPIC": (1, 6), "BenchmarkTest": (1024, 6), "DefaultCluster": (16, 7), "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6), "SCHEDULE_TOPIC_XXXX": (18, 6), "rmq_sys_wheel_timer": (1, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "LIBRA_REBALANCE_EVENTS": (1, 4), "TBW102": (8, 7),
    }  # fmt: skip
    assert "TBW102" not in TopicTable(TopicRules(auto_create_topic_enable=False))


def test_the_template_topic_is_dropped_without_auto_creation(table):
    table.put(config("T"), 1)
    loaded = TopicTable(TopicRules(auto_create_topic_enable=False), table.file())
    assert "T" in loaded
    assert "TBW102" not in loaded
    with pytest.raises(TopicNotExist):
        loaded.for_send("New", "TBW102", 4, 1)


def test_a_change_is_journalled_before_it_takes_effect_and_announced_after():
    log: list[object] = []
    table = TopicTable(TopicRules(), record=lambda *change: log.append((change, change[0] in table)))
    table.observe(log.append)
    table.put(config("T"), 77)
    assert log == [(("T", config("T"), DataVersion(timestamp=77, counter=1)), False), "T"]
    table.put(config("T"), 78)  # A name server may have forgotten it.
    assert log[2:] == [(("T", config("T"), DataVersion(timestamp=78, counter=2)), True), "T"]
    assert table.delete("T", 79)
    assert log[4:] == [(("T", None, DataVersion(timestamp=79, counter=3)), True), "T"]
    assert not table.delete("T", 80)
    assert table.data_version.counter == 3


def test_a_change_that_cannot_be_journalled_has_no_effect():
    def full(*_: object) -> None:
        raise OSError(28, "no space left")

    table = TopicTable(TopicRules(), record=full)
    for change in (
        lambda: table.put(config("T"), 1),
        lambda: table.for_send("T", "TBW102", 1, 1),
        lambda: table.delete("BenchmarkTest", 1),
    ):
        with pytest.raises(ServiceNotAvailable, match="no space"):
            change()
    assert "T" not in table
    assert "BenchmarkTest" in table
    assert table.data_version.counter == 0
    assert table.for_group("%RETRY%G", 1, 6, 1).topic_name in table, "existing consumers continue"


@pytest.mark.parametrize("queues", [0, -1, QUEUES_MAX + 1])
def test_invalid_queue_counts_are_refused(table, queues):
    with pytest.raises(BrokerError) as refused:
        table.put(config("T", queues), 1)
    assert refused.value.response_code == 29


@pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 128])
def test_invalid_names_are_refused(table, name):
    with pytest.raises(ConfigError):
        table.put(config(name), 1)
    with pytest.raises(ConfigError):
        table.for_send(name, "TBW102", 4, 1)


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (8, 8), (9, 8), (1 << 31, 8), (0, 1), (-7, 1)])
def test_a_topic_created_by_a_send_has_as_many_queues_as_its_template_allows(table, asked, made):
    topic = table.for_send("T", "TBW102", asked, 1)
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (made, made, 6)
    assert table.for_send("T", "NoSuch", 99, 2) is topic


def test_the_limit_on_topics_does_not_count_retry_topics():
    own = len(TopicTable(TopicRules()))
    table = TopicTable(TopicRules(topics_max=own + 1))
    table.for_send("T", "TBW102", 1, 1)
    for refused in (
        lambda: table.for_send("U", "TBW102", 1, 1),
        lambda: table.put(config("U"), 1),
        lambda: table.for_send("%RETRY%anything", "TBW102", 1, 1),
    ):
        with pytest.raises(BrokerError, match="which is the limit"):
            refused()
    table.put(config("T", 2), 2)
    assert table.for_group("%RETRY%G", 1, 6, 1).write_queue_nums == 1
    assert len(table) == own + 2


def test_retry_queues_are_limited(table):
    assert table.for_group("%RETRY%G", 10**9, 6, 1).write_queue_nums == QUEUES_MAX
    assert table.for_group("%RETRY%H", -4, 6, 1).write_queue_nums == 1


def test_a_written_table_is_read_back(table):
    table.put(config("T", 3, 4), 5)
    again = TopicTable(TopicRules(), table.file())
    assert {topic.topic_name: topic for topic in again} == {topic.topic_name: topic for topic in table}
    assert again.data_version == table.data_version
    assert isinstance(table.file(), TopicsFile)
