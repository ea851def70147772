"""The audit of Kafka's requests: every change, by name, and no request that changed nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions as GroupTopics
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from libramq.auth.users import Users
from libramq.formats.access import PolicyEntryInfo, PolicyInfo
from libramq.message.names import AUDIT_TOPIC
from libramq.wire.kafka.apis import topics
from libramq.wire.kafka.apis.groups import (
    DeleteGroupsRequest,
)
from libramq.wire.kafka.apis.offsets import (
    CommittedPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
)
from libramq.wire.kafka.schema import Topic
from tests.broker.brokers import Conversation
from tests.protocols.kafka.peers import KafkaEndpoint, KafkaPeer, record
from tests.protocols.kafka.test_sasl import TIMEOUT_S, Secured, allow

CHANGES = ("created", "changed", "deleted", "reset")


def permit_all(users: Users) -> None:
    entries = [
        PolicyEntryInfo(resource=resource, actions=["All"], decision="Allow")
        for resource in ("Topic:*", "Group:*")
    ]
    users.set_policies("User:alice", [PolicyInfo(entries=entries)])


def changes(messages: list[Any]) -> list[tuple[Any, ...]]:
    """Return the changes among the audit's messages: kind, user, request, names, and the incomplete parts."""
    events = [json.loads(each.body) for each in messages]
    return [
        (each["kind"], each["user"], each["request"], *each["resources"], *filter(None, [each["reason"]]))
        for each in events
        if each["kind"] in CHANGES
    ]


def result_of(futures: dict[Any, Any]) -> bool:
    """Wait for a request about one name; return whether it succeeded."""
    (future,) = futures.values()
    try:
        future.result(TIMEOUT_S)
    except KafkaException:
        return False
    return True


def test_librdkafkas_requests_are_recorded_with_their_outcome(tmp_path: Path) -> None:
    """A user allowed to change `Topic:*` could write events about topics that never existed."""
    secured = Secured(tmp_path)
    try:
        secured.change(permit_all)
        admin = AdminClient(secured.options())
        refused = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        settings = ConfigResource(ConfigResource.Type.TOPIC, "made", incremental_configs=[refused])
        made = NewTopic("made", 1, 1)
        outcomes = [
            result_of(admin.create_topics([NewTopic("dry", 1, 1)], validate_only=True)),
            result_of(admin.create_topics([made])),
            result_of(admin.create_topics([made])),
            result_of(admin.create_topics([NewTopic("three-copies", 1, 3)])),
            result_of(admin.delete_topics(["never"])),
            result_of(admin.create_partitions([NewPartitions("never", 3)])),
            result_of(admin.create_partitions([NewPartitions("made", 3)], validate_only=True)),
            result_of(admin.create_partitions([NewPartitions("made", 3)])),
            result_of(admin.incremental_alter_configs([settings])),
            result_of(admin.delete_consumer_groups(["never"])),
            result_of(admin.alter_consumer_group_offsets([GroupTopics("g", [TopicPartition("made", 0, 0)])])),
            result_of(admin.delete_consumer_groups(["g"])),
            result_of(admin.delete_topics(["made"])),
        ]
        assert outcomes == [
            True, True, False, False, False, False, True, True, False, False, True, True, True,
        ]  # fmt: skip
        found = changes(secured.messages(AUDIT_TOPIC))
    finally:
        secured.stop()
    assert found == [
        ("created", "alice", "CreateTopics", "Topic:made"),
        ("changed", "alice", "CreatePartitions", "Topic:made"),
        ("deleted", "alice", "DeleteGroups", "Group:g"),
        ("deleted", "alice", "DeleteTopics", "Topic:made"),
    ]


class TestRequests:
    """Single requests that each contain many names."""

    @pytest.fixture
    def peer(self, tmp_path: Path) -> Iterator[KafkaPeer]:
        talk = Conversation(tmp_path, authentication_enabled=True, authorization_enabled=True)
        allow(talk.broker.tables.users)
        permit_all(talk.broker.tables.users)
        peer = KafkaEndpoint(talk).peer()
        peer.principal = talk.broker.access.by_password(peer, "alice", "alice-secret")
        peer.create("mine", 2)
        yield peer
        talk.close()

    def recorded(self, peer: KafkaPeer) -> list[tuple[Any, ...]]:
        """Return the events recorded after the creation of the topic."""
        peer.talk.tick()
        first, *found = changes(peer.talk.messages(AUDIT_TOPIC))
        assert first == ("created", "alice", "CreateTopics", "Topic:mine")
        return found

    def test_one_event_for_each_name_that_was_changed(self, peer: KafkaPeer) -> None:
        names = ("one", "mine", "two", "no name")
        wanted = [topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        peer.ask(topics.CreateTopicsRequest(topics=tuple(wanted)))
        peer.ask(topics.DeleteTopicsRequest(topic_names=("never", "one"), timeout_ms=1))
        assert self.recorded(peer) == [
            ("created", "alice", "CreateTopics", "Topic:one"),
            ("created", "alice", "CreateTopics", "Topic:two"),
            ("deleted", "alice", "DeleteTopics", "Topic:one"),
        ]

    def test_requests_of_a_disconnected_client_are_recorded(self, peer: KafkaPeer) -> None:
        """A client that disconnects at once gets no response, but its topics are created all the same."""
        wanted = [
            topics.CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1)
            for number in range(300)
        ]
        compute, peer.compute = peer.compute, lambda: None  # type: ignore[method-assign]
        peer.give(peer.frame(topics.CreateTopicsRequest(topics=tuple(wanted)), 5))
        peer.end()
        compute()
        made = {name for name in peer.talk.broker.topics.names() if name.startswith("t")}
        assert {each[3] for each in self.recorded(peer)} == {f"Topic:{name}" for name in made}
        assert made

    def test_records_and_offsets(self, peer: KafkaPeer) -> None:
        for partition in (0, 1):
            assert peer.produce(record(), topic="mine", partition=partition).error_code == 0
        partitions = [topics.DeleteRecordsPartition(partition_index=each, offset=1) for each in (0, 1, 2)]
        never = Topic(name="never", partitions=tuple(partitions))
        mine = Topic(name="mine", partitions=tuple(partitions))
        peer.ask(topics.DeleteRecordsRequest(topics=(never, mine), timeout_ms=1))
        commit = CommittedPartition(partition_index=0, committed_offset=1)
        peer.ask(OffsetCommitRequest(group_id="g", topics=(Topic(name="mine", partitions=(commit,)),)))
        deleted = tuple(Topic(name=name, partitions=tuple(n for n in (0, 1))) for name in ("never", "mine"))
        peer.ask(OffsetDeleteRequest(group_id="never", topics=deleted))
        peer.ask(OffsetDeleteRequest(group_id="g", topics=deleted))
        peer.ask(DeleteGroupsRequest(groups_names=("never", "g")))
        assert self.recorded(peer) == [
            ("deleted", "alice", "DeleteRecords", "Topic:mine"),
            ("deleted", "alice", "OffsetDelete", "Group:g", "Topic:mine"),
            ("deleted", "alice", "DeleteGroups", "Group:g"),
        ]
