"""The group table: how groups are created, and the limits on them."""

import json

import pytest

from libramq.catalog.group_table import GroupTable
from libramq.errors import BrokerError, ConfigError, ServiceNotAvailable, SubscriptionGroupNotExist
from libramq.formats.document import decode_body, encode_body
from libramq.formats.tables import SubscriptionGroupConfig, SubscriptionGroupWrapper
from libramq.message.names import SYSTEM_GROUPS


def config(name: str, **fields) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(group_name=name, **fields)


def test_every_broker_has_its_own_groups():
    assert {group.group_name for group in GroupTable()} == set(SYSTEM_GROUPS)


def test_a_group_is_created_by_its_first_use():
    table = GroupTable()
    assert table.get("G") is None
    assert table.find("G", 7).group_name == "G"
    assert table.get("G") is table.require("G", 8)
    assert (table.data_version.counter, table.data_version.timestamp) == (1, 7)


@pytest.mark.parametrize("name", ["", "../G", "x" * 121, "a b"])
def test_invalid_names_are_refused(name):
    table = GroupTable()
    assert table.find(name, 1) is None
    with pytest.raises(SubscriptionGroupNotExist):
        table.require(name, 1)
    with pytest.raises(ConfigError):
        table.put(config(name), 1)


def test_without_auto_creation_only_operators_create_groups():
    table = GroupTable(auto_create=False)
    with pytest.raises(SubscriptionGroupNotExist):
        table.require("G", 1)
    table.put(config("G", retry_max_times=2), 1)
    assert table.require("G", 2).retry_max_times == 2


def test_the_number_of_groups_is_limited():
    table = GroupTable(groups_max=len(SYSTEM_GROUPS) + 1)
    table.find("G", 1)
    assert table.find("H", 1) is None
    with pytest.raises(BrokerError, match="which is the limit"):
        table.put(config("H"), 1)
    table.put(config("G", consume_enable=False), 1)
    assert table.delete("G", 1)
    assert table.find("H", 1) is not None


def test_a_change_that_cannot_be_journalled_has_no_effect():
    def full(*_: object) -> None:
        raise OSError(28, "no space left")

    table = GroupTable(record=full)
    for change in (
        lambda: table.put(config("G"), 1),
        lambda: table.delete("TOOLS_CONSUMER", 1),
    ):
        with pytest.raises(ServiceNotAvailable, match="no space"):
            change()
    assert "G" not in table
    assert "TOOLS_CONSUMER" in table
    assert table.find("G", 1) is not None, "existing consumers continue"


def test_a_written_table_is_read_back():
    table = GroupTable()
    table.put(config("G", retry_queue_nums=2), 3)
    again = GroupTable(loaded=table.wrapper())
    assert {group.group_name: group for group in again} == {group.group_name: group for group in table}
    assert again.data_version == table.data_version


def test_attributes_of_groups_are_refused_and_those_that_a_file_has_are_kept():
    """5.3.3 has none (SubscriptionGroupAttributes.ALL is empty); a newer broker may have written some."""
    written = GroupTable()
    written.copy("G", config("G", attributes={"priority.factor": "3"}))
    table = GroupTable(loaded=written.wrapper())
    with pytest.raises(BrokerError, match=r"unsupported key: colour"):
        table.put(config("new", attributes={"+colour": "red"}), 1)
    assert "new" not in table
    table.put(config("G", retry_max_times=3), 1)
    table.put(config("G", retry_max_times=4, attributes={"priority.factor": "3"}), 1)
    changed = table.get("G")
    assert changed is not None
    assert (changed.retry_max_times, changed.attributes) == (4, {"priority.factor": "3"})


def test_settings_used_only_by_apaches_brokers_are_kept():
    """Their tables have retry policies and subscriptions; the next write used to lose both."""
    policy = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1000, "max": 9000, "multiplier": 3},
    }
    text = (
        b'{"subscriptionGroupTable":{"G":{"groupName":"G","groupRetryPolicy":%s,'
        b'"subscriptionDataSet":[{"expression":"*","topic":"T"}]}}}' % json.dumps(policy).encode()
    )
    table = GroupTable(loaded=decode_body(text, SubscriptionGroupWrapper))
    table.put(config("other"), 1)
    written = decode_body(encode_body(table.wrapper()), SubscriptionGroupWrapper).subscription_group_table
    assert written["G"].group_retry_policy == policy
    assert written["G"].subscription_data_set == [{"expression": "*", "topic": "T"}]
    assert b"groupRetryPolicy" not in encode_body(written["other"])
