"""Requests in general: versions, order, malformed bytes, authorisation."""

import ast
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from libramq.catalog.topic_table import QUEUES_MAX
from libramq.codes import RequestCode
from libramq.errors import ConnectFailed
from libramq.formats.tables import TopicConfig
from libramq.kernel.effect import Thread
from libramq.logs import LINES_MAX
from libramq.protocols.kafka import api03_metadata as metadata
from libramq.protocols.kafka.answers import WAITING_COST_MAX, WAITING_MAX
from libramq.protocols.kafka.api03_metadata import AT_ONCE_MAX
from libramq.protocols.kafka.translator import DECODED_AT_ONCE_BYTES_MAX
from libramq.remoting.body.kafka_cluster import PeerNode
from libramq.store.config import FlushDiskType
from libramq.wire.kafka.api import API_VERSIONS, APIS
from libramq.wire.kafka.apis.fetch import (
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from libramq.wire.kafka.apis.handshake import (
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from libramq.wire.kafka.apis.metadata import (
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from libramq.wire.kafka.apis.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribedResource,
    WantedSetting,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.primitives import Reader, encode_int16, encode_int32
from libramq.wire.kafka.schema import REMARK_CHARACTERS_MAX, Topic, decode, encode
from tests.auth.guards import Guard
from tests.broker.brokers import Conversation
from tests.broker.test_peers import Node
from tests.protocols.kafka.peers import NODE_ID, KafkaEndpoint, batch, record

OWN = str(NODE_ID)
CLIENT_ID = b"\0\x01x"


def raw(api_key: int, version: int, body: bytes = b"") -> bytes:
    return encode_int16(api_key) + encode_int16(version) + encode_int32(77) + CLIENT_ID + body


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_the_served_apis(endpoint: KafkaEndpoint, version: int):
    response = endpoint.peer().ask(ApiVersionsRequest(), version)
    listed = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    assert response.error_code == 0
    assert listed == {api.key: (api.listed_from, api.last) for api in APIS.values()}


def test_a_too_new_api_versions_is_answered_in_version_0(endpoint: KafkaEndpoint):
    """KIP-511: the client reads the highest version from that answer, and retries."""
    peer = endpoint.peer()
    peer.give(raw(API_VERSIONS, 99, b"\0 whatever this version has"))
    (frame,) = peer.frames
    reader = Reader(frame)
    assert reader.int32() == 77
    response: ApiVersionsResponse = decode(ApiVersionsResponse, 0, False, reader)
    reader.finish()
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(each.api_key, each.max_version) for each in response.api_keys] == [(API_VERSIONS, 4)]
    assert peer.is_open


@pytest.mark.parametrize(
    "frame",
    [raw(0, 2), raw(1, 13), raw(3, 14), raw(3, -1), raw(18, -1), raw(24, 0), raw(999, 0), raw(-1, 0)],
)
def test_an_unserved_request_ends_the_connection(endpoint: KafkaEndpoint, frame: bytes):
    peer = endpoint.peer()
    peer.give(frame, raw(API_VERSIONS, 0))
    assert peer.frames == []
    assert not peer.is_open
    assert "is not served" in (peer.close_reason or "")


def test_a_malformed_request_ends_its_connection_and_no_other(endpoint: KafkaEndpoint):
    first, other = endpoint.peer(), endpoint.peer()
    first.give(raw(3, 1, b"\x7f\xff\xff\xff"))
    assert not first.is_open
    assert (first.close_reason or "").startswith("a malformed Kafka request")
    assert other.ask(MetadataRequest()).topics


def test_bytes_behind_a_request_are_malformed(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.give(raw(API_VERSIONS, 0, b"x"))
    assert not peer.is_open


def test_answers_leave_in_the_order_of_requests(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.tell(peer.fetch_request(max_wait_ms=1_000))
    peer.tell(ApiVersionsRequest())
    assert peer.answers() == []
    endpoint.talk.advance(1_000)
    first, second = peer.answers()
    assert (type(first).__name__, type(second).__name__) == ("FetchResponse", "ApiVersionsResponse")


def test_waiting_requests_end_with_their_connection(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.tell(peer.fetch_request(max_wait_ms=1_000))
    peer.tell(ApiVersionsRequest())
    broker = endpoint.talk.broker
    assert len(broker.purgatory)
    peer.end()
    assert len(broker.purgatory) == 0
    assert not endpoint.translator._answers._waiting


def test_a_client_that_sends_requests_without_end_while_its_first_one_waits_is_disconnected(
    endpoint: KafkaEndpoint,
):
    peer = endpoint.peer()
    for _ in range(WAITING_MAX + 1):
        peer.tell(peer.fetch_request(max_wait_ms=1_000))
    assert not peer.is_open
    assert "wait for answers" in (peer.close_reason or "")


def test_requests_that_wait_take_a_bounded_memory(endpoint: KafkaEndpoint):
    """A thousand fetches of 19,000 partitions each took 5 GB on one connection."""
    endpoint.talk.create_topic("Many", queues=1_000)
    wanted = tuple(
        FetchPartition(partition=number % 1_000, fetch_offset=0, partition_max_bytes=1)
        for number in range(10_000)
    )
    request = FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=(Topic(name="Many", partitions=wanted),))
    peer = endpoint.peer()
    count = 0
    while peer.is_open:
        peer.tell(request, 11)
        count += 1
        assert count <= WAITING_COST_MAX // (10_000 * 400) + 1
    assert count > 5, "some may wait"
    peer.end()
    assert endpoint.talk.broker.purgatory.statistics().cost_bytes == 0


def test_metadata_hides_internal_topics(endpoint: KafkaEndpoint):
    endpoint.talk.create_topic("%RETRY%G", queues=1)
    response = endpoint.peer().ask(MetadataRequest())
    assert "T" in {topic.name for topic in response.topics}
    assert not [topic.name for topic in response.topics if topic.name.startswith(("%", "rmq_sys_", "TBW"))]
    assert [(each.host, each.port, each.node_id) for each in response.brokers] == [
        ("127.0.0.1", 9092, NODE_ID)
    ]


def test_many_topics_are_described_by_a_thread(endpoint: KafkaEndpoint):
    for number in range(AT_ONCE_MAX):
        endpoint.talk.broker.topics.put(TopicConfig(topic_name=f"T{number}"), endpoint.talk.clock.wall_ms())
    peer = endpoint.peer()
    peer._entrance.received(peer, [peer.frame(MetadataRequest(), 9)])
    assert [each[0] for each in endpoint.talk.threads.work] == [Thread.COMPUTE]
    peer.compute()
    (response,) = peer.answers()
    assert len(response.topics) > AT_ONCE_MAX


def wide_topics(endpoint: KafkaEndpoint, count: int) -> None:
    for number in range(count):
        config = TopicConfig(topic_name=f"Wide{number:02}", read_queue_nums=QUEUES_MAX)
        endpoint.talk.broker.topics.put(config, endpoint.talk.clock.wall_ms())


def test_a_topic_that_is_named_often_is_described_once(endpoint: KafkaEndpoint):
    """A 20 KB request that repeated one wide topic blocked the broker for minutes."""
    wide_topics(endpoint, 1)
    peer = endpoint.peer()
    peer._entrance.received(peer, [peer.frame(named(*["Wide00"] * 1_000), 5)])
    assert [each[0] for each in endpoint.talk.threads.work] == [Thread.COMPUTE], "it is wide"
    peer.compute()
    (response,) = peer.answers()
    assert [(each.name, len(each.partitions)) for each in response.topics] == [("Wide00", QUEUES_MAX)]


def test_an_answer_describes_a_bounded_number_of_partitions(endpoint: KafkaEndpoint, monkeypatch: Any):
    """The metadata of all topics of a broker with many wide ones took 6 GB."""
    assert metadata.PARTITIONS_MAX * 26 < 4 << 20, "bytes of an answer"
    monkeypatch.setattr(metadata, "PARTITIONS_MAX", QUEUES_MAX)
    wide_topics(endpoint, 2)
    topics = endpoint.peer().ask(named("Wide00", "Wide01", "T")).topics
    assert [each.error_code for each in topics] == [0, *[ErrorCode.UNKNOWN_SERVER_ERROR] * 2]
    assert [len(each.partitions) for each in topics] == [QUEUES_MAX, 0, 0]


def test_a_large_answer_takes_little_more_memory_than_its_bytes():
    partition = MetadataPartition(partition_index=1, leader_id=0, replica_nodes=(0,), isr_nodes=(0,))
    topic = MetadataTopic(name="T", partitions=(partition,) * 50_000)
    response = MetadataResponse(brokers=(), topics=(topic,))
    tracemalloc.start()
    try:
        data = encode(response, 9, True)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()


def test_a_large_request_is_decoded_by_a_thread_and_those_behind_it_wait(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    names = [f"NoTopic{number}" for number in range(2_000)]
    frames = [peer.frame(named(*names, creates=False), 5), peer.frame(ApiVersionsRequest(), 0)]
    assert len(frames[0]) > DECODED_AT_ONCE_BYTES_MAX
    peer._entrance.received(peer, frames)
    assert [each[0] for each in endpoint.talk.threads.work] == [Thread.COMPUTE]
    assert peer.frames == []
    peer.compute()
    large, small = peer.answers()
    assert (len(large.topics), type(small).__name__) == (2_000, "ApiVersionsResponse")


def test_a_large_malformed_request_ends_its_connection(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    peer.give(raw(3, 1, b"\x7f" * DECODED_AT_ONCE_BYTES_MAX))
    assert (peer.close_reason or "").startswith("a malformed Kafka request")
    assert peer.frames == []


def test_settings_are_those_of_this_broker_and_answered_once(endpoint: KafkaEndpoint):
    resources = [DescribedResource(resource_type=4, resource_name=name) for name in (OWN, OWN, "", "1")]
    results = endpoint.peer().ask(DescribeConfigsRequest(resources=tuple(resources)), 3).results
    assert [(each.resource_name, each.error_code) for each in results] == [
        (OWN, 0),
        ("", 0),
        ("1", ErrorCode.INVALID_REQUEST),
    ]


def named(*names: str, creates: bool = True) -> MetadataRequest:
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    return MetadataRequest(topics=topics, allow_auto_topic_creation=creates)


def test_metadata_creates_a_topic_where_the_client_allows_it(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    (missing,) = peer.ask(named("New", creates=False)).topics
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (created,) = peer.ask(named("New")).topics
    assert (created.error_code, len(created.partitions)) == (0, 4)
    assert "New" in endpoint.talk.broker.topics


def test_metadata_creates_nothing_where_the_broker_forbids_it(tmp_path: Path):
    talk = Conversation(tmp_path, auto_create_topic_enable=False)
    (missing,) = KafkaEndpoint(talk).peer().ask(named("New")).topics
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    talk.close()


@pytest.mark.parametrize("version", [0, 1])
def test_metadata_of_no_topics_is_all_in_version_0_only(endpoint: KafkaEndpoint, version: int):
    response = endpoint.peer().ask(MetadataRequest(topics=()), version)
    assert bool(response.topics) is (version == 0)


def test_invalid_names_are_refused(endpoint: KafkaEndpoint, caplog: pytest.LogCaptureFixture):
    """aiokafka retries ten times a second and reports the failure after 40 s: the broker logs it."""
    peer = endpoint.peer()
    for _ in range(50):
        (topic,) = peer.ask(named("a.b")).topics
        assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    warned = [line for line in caplog.messages if "topic=a.b" in line]
    assert len(warned) == LINES_MAX
    assert "RocketMQ's names have no dots" in warned[0]


def created(peer: Any, name: str = "New", **fields: Any) -> Any:
    defaults = {"num_partitions": 3, "replication_factor": 1}
    topic = CreatableTopic(name=name, **(defaults | fields))
    (result,) = peer.ask(CreateTopicsRequest(topics=(topic,))).topics
    return result


def test_a_topic_is_created_and_deleted(endpoint: KafkaEndpoint):
    peer = endpoint.peer()
    assert created(peer).num_partitions == 3
    assert created(peer).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert peer.produce(record(), topic="New").error_code == 0
    (gone,) = peer.ask(DeleteTopicsRequest(topic_names=("New",))).responses
    assert gone.error_code == 0
    assert "New" not in endpoint.talk.broker.topics
    (gone,) = peer.ask(DeleteTopicsRequest(topic_names=("New",))).responses
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert created(peer).error_code == 0
    assert peer.produce(record(), topic="New").base_offset == 0


def test_a_topic_that_another_broker_does_not_create_is_answered_with_the_error(tmp_path: Path):
    """The topic is gone by the time the broker is to create its queues."""
    node = Node(tmp_path).meet("broker-b")
    peer = KafkaEndpoint(node).peer()
    topic = CreatableTopic(name="New", num_partitions=2, replication_factor=1)
    peer.tell(CreateTopicsRequest(topics=(topic,)))
    (question,) = node.take(RequestCode.PEER_NODE)
    node.answer(question, PeerNode(version=1, host="10.0.0.2", port=9092, topics={}))
    (question,) = node.take(RequestCode.PEER_TOPIC)
    assert peer.answers() == []
    node.answer(question, ConnectFailed("it is away"))
    (answer,) = peer.answers()
    (result,) = answer.topics
    assert (result.error_code, result.error_message) == (ErrorCode.REQUEST_TIMED_OUT, "it is away")
    node.close()


def test_a_topic_that_is_only_validated_is_not_created(endpoint: KafkaEndpoint):
    topic = CreatableTopic(name="New", num_partitions=-1, replication_factor=-1)
    (result,) = endpoint.peer().ask(CreateTopicsRequest(topics=(topic,), validate_only=True)).topics
    assert (result.error_code, result.num_partitions) == (0, 4)
    assert "New" not in endpoint.talk.broker.topics


def test_errors_that_name_something_long_are_answered(endpoint: KafkaEndpoint):
    """Older versions limit strings to 32,767 bytes, and names in requests may be as long: remarks are cut."""
    peer, long = endpoint.peer(), "x" * 32_767
    setting = WantedSetting(name=long[:32_000], value=long)
    topic = CreatableTopic(name="New", num_partitions=1, replication_factor=1, configs=(setting,))
    (refused,) = peer.ask(CreateTopicsRequest(topics=(topic,)), 4).topics
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert len(refused.error_message) == REMARK_CHARACTERS_MAX
    resource = DescribedResource(resource_type=2, resource_name=long)
    (described,) = peer.ask(DescribeConfigsRequest(resources=(resource,)), 3).results
    assert described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    produced = peer.ask(peer.produce_request(batch(record()), topic=long), 8).responses[0].partitions[0]
    assert produced.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("a.b", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("rmq_sys_x", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("%RETRY%x", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("New", {"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ("New", {"num_partitions": 1_000_000}, ErrorCode.INVALID_PARTITIONS),
        ("New", {"replication_factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (
            "New",
            {"configs": (WantedSetting(name="cleanup.policy", value="compact"),)},
            ErrorCode.INVALID_CONFIG,
        ),
        ("New", {"configs": (WantedSetting(name="retention.ms", value="5"),)}, ErrorCode.INVALID_CONFIG),
        ("New", {"configs": (WantedSetting(name="cleanup.policy", value="delete"),)}, 0),
    ],
)
def test_a_topic_is_refused_by_its_code(
    endpoint: KafkaEndpoint, name: str, fields: dict[str, Any], code: int
):
    assert created(endpoint.peer(), name, **fields).error_code == code


@pytest.mark.parametrize(
    ("kind", "name", "setting"), [(2, "T", ("cleanup.policy", "delete")), (4, OWN, ("num.partitions", "4"))]
)
def test_settings_are_described(endpoint: KafkaEndpoint, kind: int, name: str, setting: tuple[str, str]):
    wanted = DescribedResource(resource_type=kind, resource_name=name)
    (result,) = endpoint.peer().ask(DescribeConfigsRequest(resources=(wanted,))).results
    assert setting in {(each.name, each.value) for each in result.configs}


def requests(peer: Any) -> dict[str, tuple[Any, str]]:
    """Return requests, each with the resource that it accesses."""
    offsets = Topic(name="T", partitions=(ListOffsetsPartition(partition_index=0, timestamp=-1),))
    topic = CreatableTopic(name="New", num_partitions=1, replication_factor=1)
    of_topic = DescribedResource(resource_type=2, resource_name="T")
    return {
        "produce": (peer.produce_request(batch(record())), "Topic:T"),
        "fetch": (peer.fetch_request(), "Topic:T"),
        "list offsets": (ListOffsetsRequest(topics=(offsets,)), "Topic:T"),
        "metadata": (named("T"), "Topic:T"),
        "create": (CreateTopicsRequest(topics=(topic,)), "Topic:New"),
        "delete": (DeleteTopicsRequest(topic_names=("T",)), "Topic:T"),
        "describe": (DescribeConfigsRequest(resources=(of_topic,)), "Topic:T"),
    }


@pytest.mark.parametrize(
    "name", ["produce", "fetch", "list offsets", "metadata", "create", "delete", "describe"]
)
def test_every_request_is_authorised(tmp_path: Path, name: str):
    guard = Guard()
    talk = Conversation(tmp_path, authorizer=guard)
    talk.create_topic("T", queues=2)
    peer = KafkaEndpoint(talk).peer()
    request, resource = requests(peer)[name]
    guard.denied = {resource}
    assert str(int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)) in error_codes(peer.ask(request))
    assert not talk.messages("T")
    assert "T" in talk.broker.topics
    guard.denied = set()
    assert error_codes(peer.ask(request)) == {"0"}
    talk.close()


def error_codes(message: Any) -> set[str]:
    """Return the error codes in a response of any shape; 0 only if it has no others."""
    found: set[str] = set()
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if name == "error_code":
            found.add(str(int(value)))
        elif isinstance(value, tuple):
            found |= {
                code for each in value if hasattr(each, "__struct_fields__") for code in error_codes(each)
            }
    return found if found <= {"0"} else found - {"0"}


def test_a_topic_that_may_not_be_seen_is_not_listed(tmp_path: Path):
    talk = Conversation(tmp_path, authorizer=Guard({"Topic:Secret"}))
    talk.create_topic("Open")
    talk.broker.topics.put(TopicConfig(topic_name="Secret"), talk.clock.wall_ms())
    listed = {topic.name for topic in KafkaEndpoint(talk).peer().ask(MetadataRequest()).topics}
    assert "Open" in listed
    assert "Secret" not in listed
    talk.close()


def test_a_produce_is_answered_once_it_is_durable(tmp_path: Path):
    talk = Conversation(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    talk.create_topic("T")
    peer = KafkaEndpoint(talk).peer()
    peer.tell(peer.produce_request(batch(record())))
    assert peer.answers() == []
    talk.flush()
    (response,) = peer.answers()
    assert response.responses[0].partitions[0].base_offset == 0
    talk.close()


def test_modules_are_numbered_by_the_keys_of_their_apis():
    """A single `ls` finds any API; each one is named in the module that serves it."""
    keys: dict[str, list[int]] = {}
    named = {}
    for path in Path(metadata.__file__).parent.glob("[a-z]*.py"):
        for name, key in re.findall(
            r"([A-Z]\w+) \((\d+)\)", ast.get_docstring(ast.parse(path.read_text())) or ""
        ):
            named[int(key)] = name
            keys.setdefault(path.stem, []).append(int(key))
            assert re.search(rf"@serves\((wire\.)?{name}Request\)", path.read_text())
    assert named == {key: api.request.__name__.removesuffix("Request") for key, api in APIS.items()}
    numbers = {stem: f"api{min(found):02}" for stem, found in keys.items() if stem != "translator"}
    assert numbers == {stem: stem.partition("_")[0] for stem in numbers}
