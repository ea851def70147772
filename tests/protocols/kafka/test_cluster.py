"""Kafka's clients on three broker processes, some of which are killed."""

import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import NewPartitions

from libramq.client import ConsumeFrom
from libramq.message import MessageExt
from libramq.sync import PushConsumer
from tests.cli.commands import libra
from tests.interop.process import PATIENCE_S
from tests.protocols.kafka.clusters import NAMES, KafkaCluster, wait_until

A, B, C = NAMES


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Return the brokers shared by all tests; a test that kills a broker restarts it."""
    cluster = KafkaCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(tmp_path_factory.mktemp("single"), (A,))
    try:
        yield cluster
    finally:
        cluster.stop()


def leaders_of(cluster: KafkaCluster, topic: str, count: int, *names: str) -> dict[int, str | None]:
    """Return the leaders once a broker knows every partition and its broker."""
    leaders: dict[int, str | None] = {}

    def are_known() -> bool:
        leaders.update(cluster.leaders(topic, *names))
        return len(leaders) == count and None not in leaders.values()

    wait_until(are_known, f"{topic} has not {count} partitions with a leader each")
    return leaders


def produce(cluster: KafkaCluster, topic: str, partitions: range, *values: bytes) -> None:
    producer = cluster.producer()
    errors: list[Any] = []
    for partition in partitions:
        for value in values:
            producer.produce(
                topic, value, partition=partition, on_delivery=lambda error, _: error and errors.append(error)
            )
    assert producer.flush(PATIENCE_S) == 0
    assert not errors


def read(consumer: Consumer, count: int) -> list[tuple[int, int, bytes | None]]:
    """Return records as they arrive: partition, offset and value."""
    records: list[tuple[int, int, bytes | None]] = []

    def is_there() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            records.append((message.partition(), message.offset(), message.value()))
        return len(records) >= count

    wait_until(is_there, f"{count} records", pause_s=0)
    return records


def read_all(consumer: Consumer, wanted: set[tuple[int, int, bytes | None]]) -> None:
    """Read until all these records have arrived; members that rejoined read some twice."""
    left = set(wanted)

    def are_there() -> bool:
        left.difference_update(read(consumer, 1))
        return not left

    wait_until(are_there, f"{wanted}", pause_s=0)


def committed(consumer: Consumer, topic: str, count: int) -> list[int]:
    partitions = [TopicPartition(topic, each) for each in range(count)]
    return [each.offset for each in consumer.committed(partitions, timeout=PATIENCE_S)]


def test_a_topics_partitions_are_spread_over_all_brokers(cluster: KafkaCluster):
    cluster.create("spread", 6)
    leaders = leaders_of(cluster, "spread", 6)
    assert sorted(leaders.values(), key=str) == [A, A, B, B, C, C]
    # Metadata is eventually the same everywhere, as Kafka's is.
    wait_until(
        lambda: [cluster.leaders("spread", name) for name in NAMES] == [leaders] * 3,
        "brokers do not agree on the leaders",
    )
    admin = cluster.admin()
    admin.create_partitions([NewPartitions("spread", 9)])["spread"].result(PATIENCE_S)
    more = leaders_of(cluster, "spread", 9, B)
    assert {index: more[index] for index in leaders} == leaders, "partitions keep their queues"
    assert sorted(more.values(), key=str) == [A, A, A, B, B, B, C, C, C]


@pytest.mark.parametrize("coordinator", NAMES)
def test_a_group_reads_and_commits_at_every_broker(cluster: KafkaCluster, coordinator: str):
    topic = f"reads-{coordinator}"
    group = cluster.group_at(coordinator)
    cluster.create(topic, 6)
    produce(cluster, topic, range(6), b"a", b"b")
    consumer = cluster.consumer(group, **{"enable.auto.commit": False})
    consumer.subscribe([topic])
    assert len(set(read(consumer, 12))) == 12
    consumer.commit(asynchronous=False)
    consumer.close()
    again = cluster.consumer(group, **{"enable.auto.commit": False})
    assert committed(again, topic, 6) == [2] * 6
    produce(cluster, topic, range(6), b"c")
    again.subscribe([topic])
    assert sorted(read(again, 6)) == [(partition, 2, b"c") for partition in range(6)]
    again.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_coordinator_is_killed_and_its_members_go_on(cluster: KafkaCluster, protocol: str):
    """Members find the successor, which knows them: nothing is revoked or assigned, and commits continue."""
    changes: list[str] = []
    topic = f"kills-{protocol}"
    group = cluster.group_at(B, topic)
    cluster.create(topic, 6)
    leaders = leaders_of(cluster, topic, 6)
    produce(cluster, topic, range(6), b"a")
    settings = {"group.protocol": "consumer"} if protocol == "consumer" else {}
    consumer = cluster.consumer(group, **{"enable.auto.commit": False, **settings})
    consumer.subscribe(
        [topic],
        on_assign=lambda *_: changes.append("assigned"),
        on_revoke=lambda *_: changes.append("revoked"),
    )
    read(consumer, 6)
    consumer.commit(asynchronous=False)
    member_id = consumer.memberid()
    with cluster.killed(B):
        cluster.wait_brokers(2, A, C)
        left = {index for index, name in leaders.items() if name != B}
        assert cluster.leaders(topic, A) == {
            index: leaders[index] if index in left else None for index in leaders
        }
        producer = cluster.producer()
        for index in left:
            producer.produce(topic, b"b", partition=index)
        assert producer.flush(PATIENCE_S) == 0
        read_all(consumer, {(index, 1, b"b") for index in left})
        offsets = [TopicPartition(topic, each, 2) for each in sorted(left)]

        def has_committed() -> bool:
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException:  # Its member is joining the successor.
                consumer.poll(0.1)
                return False
            return True

        wait_until(has_committed, "a commit")
        assert committed(consumer, topic, 6) == [2 if index in left else 1 for index in range(6)]
        admin = cluster.admin(A, C)  # A client that is collected ends its requests.
        described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
        assert [each.member_id for each in described.members] == [member_id], "the successor knows it"
        assert changes == ["assigned"]
    produce(cluster, topic, range(6), b"c")
    read_all(consumer, {(index, 2 if index in left else 1, b"c") for index in range(6)})
    admin = cluster.admin(B)
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert described.coordinator.port == cluster.ports[B]
    assert [each.member_id for each in described.members] == [member_id], "the group was handed back"
    assert changes == ["assigned"]
    consumer.close()


def test_members_keep_their_partitions_while_their_broker_is_killed_and_restarted(single: KafkaCluster):
    """Members of KIP-848 groups continue: nothing is revoked or lost, and commits are accepted."""
    cluster = single
    events: list[str] = []
    consumers = []
    try:
        cluster.create("restart", 2)
        for _ in range(2):
            consumer = cluster.consumer(
                "restart", **{"group.protocol": "consumer", "enable.auto.commit": False}
            )
            consumer.subscribe(
                ["restart"],
                on_assign=lambda *_: events.append("assigned"),
                on_revoke=lambda *_: events.append("revoked"),
                on_lost=lambda *_: events.append("lost"),
            )
            consumers.append(consumer)

        def are_shared() -> bool:
            for each in consumers:
                each.poll(0.05)
            return all(len(each.assignment()) == 1 for each in consumers)

        wait_until(are_shared, "a partition each")
        before = len(events)
        for value in (b"a", b"b"):
            produce(cluster, "restart", range(2), value)
            for each in consumers:
                ((partition, offset, _),) = read(each, 1)
                offsets = [TopicPartition("restart", partition, offset + 1)]
                each.commit(offsets=offsets, asynchronous=False)
            if value == b"a":
                with cluster.killed(A):
                    pass
        assert events[before:] == []
        assert committed(consumers[0], "restart", 2) == [2, 2]
    finally:
        for each in consumers:
            each.close()


def test_the_broker_resolves_a_pattern_for_librdkafka(single: KafkaCluster):
    consumer = single.consumer("pattern", **{"group.protocol": "consumer"})
    try:
        for topic in ("fits-a", "other"):
            single.create(topic, 1)
            produce(single, topic, range(1), topic.encode())
        consumer.subscribe(["^fits-.*"])
        assert read(consumer, 1) == [(0, 0, b"fits-a")]
        single.create("fits-b", 1)
        produce(single, "fits-b", range(1), b"fits-b")
        assert read(consumer, 1) == [(0, 0, b"fits-b")]
    finally:
        consumer.close()


def test_queues_of_rocketmqs_topics_have_the_same_numbers_at_all_brokers(cluster: KafkaCluster):
    """A topic that RocketMQ's tools create at one broker, then at others, keeps its queue numbers."""
    cluster.tool("updateTopic", "-b", cluster.address(B), "-t", "numbers", "-r", "2", "-w", "2")
    wait_until(lambda: cluster.leaders("numbers") == {0: B, 1: B}, "the first queues")
    # The topic's numberer has seen them as well, so that it appends the others.
    wait_until(lambda: all(cluster.leaders("numbers", name) == {0: B, 1: B} for name in NAMES), "them all")
    for name in (A, C):
        cluster.tool("updateTopic", "-b", cluster.address(name), "-t", "numbers", "-r", "2", "-w", "2")
    wanted = {0: B, 1: B, 2: A, 3: A, 4: C, 5: C}
    wait_until(lambda: all(cluster.leaders("numbers", name) == wanted for name in NAMES), "the same numbers")


def test_rocketmqs_tools_see_and_reset_a_kafka_groups_offsets(cluster: KafkaCluster):
    group = cluster.group_at(A, "tools")
    cluster.create("tools", 3)
    produce(cluster, "tools", range(3), b"a", b"b")
    consumer = cluster.consumer(group, **{"enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("tools", each, 1) for each in range(3)], asynchronous=False)
    rows = json.loads(cluster.tool("consumerProgress", "-g", group, "--json"))
    assert sorted((each["broker"], each["consumerOffset"]) for each in rows["queues"]) == [
        (name, 1) for name in NAMES
    ]
    cluster.tool("resetOffsetByTime", "-g", group, "-t", "tools", "-s", "0")
    wait_until(lambda: committed(consumer, "tools", 3) == [0] * 3, "the offsets that were set")
    consumer.close()


def test_name_servers_list_no_topic_that_kafkas_tools_have_deleted(cluster: KafkaCluster):
    """Neither does the retry topic of a deleted group remain, by which RocketMQ's tools find groups."""
    group = cluster.group_at(B, "gone")
    cluster.create("gone", 3)
    produce(cluster, "gone", range(3), b"a")
    consumer = cluster.consumer(group)
    consumer.commit(offsets=[TopicPartition("gone", each, 1) for each in range(3)], asynchronous=False)
    consumer.close()

    def listed() -> set[str]:
        return {"gone", f"%RETRY%{group}"} & set(cluster.tool("topicList").split())

    wait_until(lambda: len(listed()) == 2, "the topic and the retry topic of the group")
    admin = cluster.admin()
    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    admin.delete_topics(["gone"])["gone"].result(PATIENCE_S)
    wait_until(lambda: not listed(), "neither")


def test_a_kafka_group_with_members_is_reset_at_no_broker(cluster: KafkaCluster):
    """Only the coordinator knows the members; other brokers reset their queues, and the command failed."""
    group, other = cluster.group_at(B, "live"), cluster.group_at(B, "other")
    cluster.create("live", 3)
    produce(cluster, "live", range(3), b"a", b"b")
    consumer, writer = cluster.consumer(group), cluster.consumer(other)
    writer.commit(offsets=[TopicPartition("live", each, 1) for each in range(3)], asynchronous=False)
    writer.close()
    consumer.subscribe(["live"])
    read(consumer, 6)
    consumer.commit(asynchronous=False)
    for command in (
        ("resetOffsetByTime", "-g", group, "-t", "live", "-s", "0"),
        ("skipAccumulatedMessage", "-g", group, "-t", "live"),
        ("cloneGroupOffset", "-s", other, "-d", group, "-t", "live"),
        *(
            ("resetOffsetByTime", "-g", group, "-t", "live", "-s", "0", "-b", cluster.address(name))
            for name in NAMES
        ),
    ):
        run = libra("admin", *command, "-n", cluster.servers.namesrv)
        assert (run.code, "1 member of Kafka's protocol" in run.err) == (2, True), (command, run)
        assert committed(consumer, "live", 3) == [2] * 3
    consumer.close()
    wait_until(
        lambda: libra("admin", "resetOffsetByTime", "-g", group, "-t", "live", "-s", "0", "-n",
                      cluster.servers.namesrv).code == 0,
        "the reset of a group without members", pause_s=0.2,
    )  # fmt: skip
    assert committed(cluster.consumer(group), "live", 3) == [0] * 3


def test_kafkas_tools_set_the_offsets_of_a_group_of_our_consumers_once_it_has_no_members(
    cluster: KafkaCluster,
):
    """The members left a fence on each broker, and only the coordinator receives the request."""
    cluster.create("fenced", 3)
    produce(cluster, "fenced", range(3), b"a", b"b")
    handled: list[MessageExt] = []
    ours = PushConsumer(group="ours", namesrv=cluster.servers.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    ours.subscribe("fenced", "*", handled.extend)
    admin = cluster.admin()
    wanted = ConsumerGroupTopicPartitions("ours", [TopicPartition("fenced", each, 1) for each in range(3)])

    def errors() -> list[Any]:
        altered = admin.alter_consumer_group_offsets([wanted])["ours"].result(PATIENCE_S)
        return [each.error and each.error.code() for each in altered.topic_partitions]

    ours.start()
    try:
        wait_until(lambda: time.sleep(0.05) is None and len(handled) >= 6, "six messages")
        assert errors() == [KafkaError.INCONSISTENT_GROUP_PROTOCOL] * 3
    finally:
        ours.stop()
    # Brokers notice at different times that the member is gone.
    wait_until(lambda: errors() == [None] * 3, "the offsets of a group without members")
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("ours")])["ours"]
    assert [each.offset for each in found.result(PATIENCE_S).topic_partitions] == [1, 1, 1]


def test_an_idempotent_producer_stores_nothing_twice_while_a_broker_is_killed(cluster: KafkaCluster):
    cluster.create("once", 3)
    leaders_of(cluster, "once", 3)
    options = {"enable.idempotence": True, "batch.num.messages": 20, "reconnect.backoff.max.ms": 200}
    producer = cluster.producer(**options)
    errors: list[Any] = []
    acknowledged: list[tuple[int, int]] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(error)
        else:
            acknowledged.append((message.partition(), message.offset()))

    for number in range(3_000):
        producer.produce("once", b"%d" % number, partition=number % 3, on_delivery=delivered)
    wait_until(lambda: producer.poll(0.1) >= 0 and len(acknowledged) >= 100, "some records", pause_s=0)
    with cluster.killed(B):
        producer.poll(0.1)
    assert producer.flush(PATIENCE_S) == 0
    assert not errors
    assert sorted(acknowledged) == [(index, offset) for index in range(3) for offset in range(1_000)]
    consumer = cluster.consumer(cluster.group_at(A, "once"))
    consumer.subscribe(["once"])
    values = [(partition, int(value or b"")) for partition, _, value in sorted(read(consumer, 3_000))]
    assert values == [(index, number) for index in range(3) for number in range(index, 3_000, 3)]
    consumer.close()


def test_no_topic_counts_as_deleted_that_a_broker_keeps_which_is_away(cluster: KafkaCluster):
    """This also holds if the queried broker has restarted since and has not heard from the other one."""
    cluster.create("kept", 3)
    assert set(leaders_of(cluster, "kept", 3, A).values()) == {A, B, C}
    with cluster.killed(B):
        cluster.kill(A)
        cluster.start(A)
        admin = cluster.admin(A)  # A client that is collected ends its requests.
        for _ in range(2):
            with pytest.raises(KafkaException) as refused:
                admin.delete_topics(["kept"])["kept"].result(PATIENCE_S)
            assert refused.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
    admin = cluster.admin(A)
    wait_until(lambda: "kept" in admin.list_topics(timeout=PATIENCE_S).topics, "B has it not")
    admin.delete_topics(["kept"])["kept"].result(PATIENCE_S)
    assert "kept" not in cluster.tool("topicList").split()


def test_a_topic_whose_deletion_an_absent_broker_missed_can_neither_vanish_nor_be_created(
    cluster: KafkaCluster,
):
    """A new topic of that name would get the old messages when the broker returns."""
    cluster.create("missed", 3)
    assert set(leaders_of(cluster, "missed", 3, *NAMES).values()) == {A, B, C}
    with cluster.killed(B):
        for name in (A, A, C):
            admin = cluster.admin(name)
            with pytest.raises(KafkaException) as refused:
                admin.delete_topics(["missed"])["missed"].result(PATIENCE_S)
            assert refused.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
        with pytest.raises(KafkaException) as refused:
            cluster.create("missed", 3)
        assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin = cluster.admin(A)
    admin.delete_topics(["missed"])["missed"].result(PATIENCE_S)
    cluster.create("missed", 2)
    assert len(leaders_of(cluster, "missed", 2, A)) == 2


def delete_offsets(port: int, group: str, topic: str, count: int) -> list[int]:
    """Return the error codes of an OffsetDelete (version 0), which confluent_kafka does not have."""
    name, of_topic = group.encode(), topic.encode()
    body = struct.pack(">hhiHH", 47, 0, 7, 0, len(name)) + name
    body += struct.pack(">iH", 1, len(of_topic)) + of_topic + struct.pack(f">i{count}i", count, *range(count))
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as peer, peer.makefile("rb") as answers:
        peer.sendall(struct.pack(">i", len(body)) + body)
        answer = answers.read(int.from_bytes(answers.read(4)))
    parts = struct.unpack(">" + "ih" * count, answer[-6 * count :])
    assert list(parts[::2]) == list(range(count))
    return list(parts[1::2])


def test_no_group_counts_as_deleted_whose_offsets_an_absent_broker_keeps(cluster: KafkaCluster):
    """A new group of its name would skip the records of that broker."""
    group = cluster.group_at(A, "absent")
    cluster.create("offsets", 3)
    leaders = leaders_of(cluster, "offsets", 3, A)
    produce(cluster, "offsets", range(3), b"a")
    consumer = cluster.consumer(group)
    consumer.commit(offsets=[TopicPartition("offsets", each, 1) for each in range(3)], asynchronous=False)
    admin = cluster.admin(A)
    with cluster.killed(B):
        wait_until(lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == 2, "B is gone")
        codes = delete_offsets(cluster.ports[A], group, "offsets", 3)
        assert codes == [
            KafkaError.COORDINATOR_NOT_AVAILABLE if leaders[each] == B else 0 for each in range(3)
        ]
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
        assert refused.value.args[0].code() == KafkaError.COORDINATOR_NOT_AVAILABLE
    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    partitions = [TopicPartition("offsets", each) for each in range(3)]
    found = consumer.committed(partitions, timeout=PATIENCE_S)
    assert [each.offset for each in found] == [OFFSET_INVALID] * 3
    consumer.close()
