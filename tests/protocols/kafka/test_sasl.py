"""Kafka's real clients authenticate with every mechanism, with and without permission, while users change."""

import asyncio
import contextlib
import json
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from scramp import ScramClient

from libramq.auth.users import Users
from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.clock import SystemClock
from libramq.codes import RequestCode
from libramq.filesystem import LocalFileSystem
from libramq.formats.access import PolicyEntryInfo, PolicyInfo, UserInfo
from libramq.groups.classic.state import INITIAL_DELAY_MS
from libramq.kernel.connection import Principal
from libramq.logs import LINES_MAX
from libramq.message import MessageExt, decode_records
from libramq.message.names import AUDIT_TOPIC
from libramq.protocols.kafka.api17_sasl import REFUSAL_MS
from libramq.protocols.kafka.node import id_of
from libramq.protocols.kafka.server import KafkaServer
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials, sign
from libramq.remoting.frame import encode_frame
from libramq.transport.admission import Limit
from libramq.transport.server import ServerConnection
from libramq.transport.server_tls import encryption
from libramq.wire.kafka.apis.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from libramq.wire.kafka.apis.handshake import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from libramq.wire.kafka.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
)
from libramq.wire.kafka.apis.offsets import (
    CommittedPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.schema import Topic
from tests.broker.brokers import Conversation
from tests.interop.ports import free_broker_port
from tests.protocols.kafka.peers import KafkaEndpoint, KafkaPeer, record
from tests.protocols.kafka.test_groups import join_request
from tests.protocols.kafka.test_presence import GRACE_MS
from tests.transport.certificates import Certificates

TIMEOUT_S = 60
ALICE = {"sasl.username": "alice", "sasl.password": "alice-secret"}


class Secured:
    """A broker with users and a Kafka port, on its own thread."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self._config = BrokerConfig(
            store_path=str(directory),
            listen_port=free_broker_port(),
            authentication_enabled=True,
            authorization_enabled=True,
            **options,
        )
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(TIMEOUT_S)

    async def _serve(self) -> None:
        self._broker = BrokerServer(
            self._config,
            clock=SystemClock(),
            filesystem=LocalFileSystem(),
            encryption=encryption(self._config.tls),
        )
        await self._broker.start()
        allow(self._broker.broker.tables.users)
        server = KafkaServer(self._broker, self._config, LocalFileSystem(), port=0)
        try:
            await server.start()
            self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            self.address, self._kafka = server.address, server
            self._started.set()
            await self._stopping.wait()
        finally:
            await server.stop()
            await self._broker.stop()

    def change(self, work: Callable[[Users], None]) -> None:
        """Change users on the broker's loop."""
        users, is_done = self._broker.broker.tables.users, threading.Event()
        self._loop.call_soon_threadsafe(lambda: (self._broker.call(lambda: work(users)), is_done.set()))
        assert is_done.wait(TIMEOUT_S)

    def messages(self, topic: str) -> list[MessageExt]:
        """Return the messages of a topic's first queue, once pending writes are done."""
        broker, found, is_done = self._broker.broker, list[MessageExt](), threading.Event()

        def read() -> None:
            if broker.audit_log is not None:
                broker.audit_log.close()
            while len(found) < broker.store.max_offset(topic, 0):
                found.extend(decode_records(b"".join(broker.store.read(topic, 0, len(found), 32).data)))
            is_done.set()

        self._loop.call_soon_threadsafe(read)
        assert is_done.wait(TIMEOUT_S)
        return found

    @property
    def port(self) -> int:
        """Return the port of RocketMQ's clients."""
        return self._config.listen_port

    def refused(self, limit: Limit) -> int:
        """Return how many connections were refused or closed because of a limit."""
        return self._broker._census.refused[limit]

    def signed_in(self) -> set[ServerConnection]:
        """Return the number of authenticated connections."""
        servers = [*self._broker._servers, self._kafka._server]
        every = [each for server in servers if server is not None for each in list(server._connections)]
        return {each for each in every if each.is_authenticated}

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(TIMEOUT_S)

    def options(self, mechanism: str = "SCRAM-SHA-256", **more: Any) -> dict[str, Any]:
        """Return the options of a client."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "socket.timeout.ms": 5_000,
            **ALICE,
            **more,
        }


def allow(users: Users) -> None:
    """Create alice, who may write and read a topic as a group."""
    users.create(UserInfo(username="alice", password="alice-secret"))
    entries = [
        PolicyEntryInfo(resource=resource, actions=actions, decision="Allow")
        for resource, actions in (("Topic:mine", ["Pub", "Sub", "Create"]), ("Group:g", ["Sub"]))
    ]
    users.set_policies("User:alice", [PolicyInfo(entries=entries)])


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    yield made
    made.stop()


def produce(options: dict[str, Any], topic: str = "mine") -> KafkaError | None:
    """Produce a record; return the error."""
    errors: list[KafkaError | None] = []
    failed: list[KafkaError] = []
    producer = Producer({**options, "error_cb": failed.append, "message.timeout.ms": 8_000})
    producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
    while not errors and not any(each.code() == KafkaError._AUTHENTICATION for each in failed):
        producer.poll(0.1)
    return next((each for each in failed if each.code() == KafkaError._AUTHENTICATION), None) or errors[0]


def consume(options: dict[str, Any]) -> bytes:
    consumer = Consumer({**options, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["mine"])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.error() is None, message.error()
    consumer.commit(asynchronous=False)
    consumer.close()
    value = message.value()
    assert value is not None
    return value


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_librdkafka_signs_in_and_does_what_policies_allow(secured: Secured, mechanism: str):
    options = secured.options(mechanism)
    assert produce(options) is None
    assert consume(options) == b"value"
    error = produce(options, "other")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_aiokafka_signs_in(secured: Secured):
    async def scenario() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=secured.address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="alice",
            sasl_plain_password="alice-secret",
        )
        await producer.start()
        await producer.send_and_wait("mine", b"value")
        await producer.stop()

    asyncio.run(scenario())
    assert consume(secured.options()) == b"value"


@pytest.mark.parametrize(
    "wrong", [{"sasl.password": "guessed"}, {"sasl.username": "eve"}, {"sasl.mechanism": "PLAIN"}]
)
def test_who_cannot_prove_a_name_is_refused(secured: Secured, wrong: dict[str, str]):
    """PLAIN is not offered, since connections may be unencrypted."""
    error = produce(secured.options() | wrong)
    assert error is not None
    assert error.code() == KafkaError._AUTHENTICATION


def test_unauthenticated_clients_are_not_served(secured: Secured):
    admin = AdminClient({"bootstrap.servers": secured.address})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)


def test_a_disabled_user_is_disconnected_and_a_changed_password_counts(secured: Secured):
    options = secured.options()
    assert produce(options) is None
    producer = Producer({**options, "message.timeout.ms": 5_000})
    results: list[KafkaError | None] = []
    producer.produce("mine", b"one", on_delivery=lambda error, _: results.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    secured.change(lambda users: users.update(UserInfo(username="alice", user_status="disable")))
    producer.produce("mine", b"two", on_delivery=lambda error, _: results.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert results[0] is None
    assert results[1] is not None
    secured.change(lambda users: users.update(UserInfo(username="alice", user_status="enable")))
    secured.change(lambda users: users.update(UserInfo(username="alice", password="new")))
    error = produce(options)
    assert error is not None
    assert error.code() == KafkaError._AUTHENTICATION
    assert produce(options | {"sasl.password": "new"}) is None


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_each_of_two_passwords_signs_in_by_scram(secured: Secured, mechanism: str):
    """The server sends one salt and nonce; the proof of either password fits."""
    secured.change(lambda users: users.update(UserInfo(username="alice", second_password="new")))
    for password in ("alice-secret", "new"):
        assert produce(secured.options(mechanism) | {"sasl.password": password}) is None
    secured.change(lambda users: users.update(UserInfo(username="alice", withdraw="first")))
    assert produce(secured.options(mechanism) | {"sasl.password": "new"}) is None
    for password in ("alice-secret", "guessed"):
        error = produce(secured.options(mechanism) | {"sasl.password": password})
        assert error is not None
        assert error.code() == KafkaError._AUTHENTICATION


def test_a_password_that_scram_does_not_allow_keeps_the_other_one_valid(secured: Secured):
    """RocketMQ clients may use any password; RFC 4013 knows no emoji and forbids tabs."""
    secured.change(lambda users: users.update(UserInfo(username="alice", second_password="\U0001f511\t")))
    assert produce(secured.options()) is None
    secured.change(lambda users: users.update(UserInfo(username="alice", withdraw="first")))
    error = produce(secured.options())
    assert error is not None
    assert error.code() == KafkaError._AUTHENTICATION


def test_unauthenticated_clients_never_displace_authenticated_ones(tmp_path: Path):
    """One host took all connections of a broker. RocketMQ clients sign each request, and are kept as well."""
    secured = Secured(tmp_path, max_unauthenticated_connections=10)
    strangers: list[socket.socket] = []
    signed = sign(
        Command(code=RequestCode.GET_MAX_OFFSET, ext={"topic": "mine", "queueId": "0"}),
        Credentials("alice", "alice-secret"),
    )
    try:
        producer = Producer({**secured.options(), "message.timeout.ms": 8_000})
        producer.produce("mine", b"one")
        assert producer.flush(TIMEOUT_S) == 0
        with socket.create_connection(("127.0.0.1", secured.port), timeout=TIMEOUT_S) as client:
            client.sendall(encode_frame(signed))
            assert client.recv(1)
            kafka_port = int(secured.address.rpartition(":")[2])
            before = secured.signed_in()
            assert {each.address.rpartition(":")[0] for each in before} == {"127.0.0.1"}
            assert len(before) >= 2
            for number in range(100):
                port = secured.port if number % 2 else kafka_port
                strangers.append(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
            for each in strangers[:80]:
                each.settimeout(TIMEOUT_S)
                with contextlib.suppress(ConnectionError):
                    assert each.recv(1) == b""
            assert secured.refused(Limit.UNAUTHENTICATED) >= 80
            assert before <= secured.signed_in()
            assert all(each.is_open for each in before)
        producer.produce("mine", b"two")
        assert producer.flush(TIMEOUT_S) == 0
    finally:
        for each in strangers:
            each.close()
        secured.stop()


def test_a_dry_run_serves_unauthenticated_clients(tmp_path: Path):
    secured = Secured(tmp_path, authorization_dry_run=True)
    try:
        plain = {"bootstrap.servers": secured.address}
        assert produce(plain, "other") is None
        assert produce(secured.options(), "other") is None
    finally:
        secured.stop()


def test_plain_is_there_where_all_is_encrypted(tmp_path: Path):
    certificates = Certificates(tmp_path / "certificates")
    secured = Secured(tmp_path / "store", tls=certificates.options(server_mode="enforcing"))
    try:
        tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(certificates.ca_file)}
        secured.change(lambda users: users.update(UserInfo(username="alice", second_password="new")))
        for password in ("alice-secret", "new"):
            assert produce(secured.options("PLAIN", **tls) | {"sasl.password": password}) is None
        assert consume(secured.options("SCRAM-SHA-512", **tls)) == b"value"
        error = produce(secured.options("PLAIN", **tls) | {"sasl.password": "guessed"})
        assert error is not None
        assert error.code() == KafkaError._AUTHENTICATION
    finally:
        secured.stop()


@pytest.mark.parametrize("name", ["", "alice", "admin"])
def test_a_user_cannot_act_as_another(tmp_path: Path, name: str):
    """RFC 4616 lets a client name the user to act as; for SCRAM, scramp refuses such a request."""
    certificates = Certificates(tmp_path / "certificates")
    tls = certificates.options(server_mode="enforcing")
    talk = Conversation(tmp_path / "store", authentication_enabled=True, tls=tls)
    allow(talk.broker.tables.users)
    kafka = KafkaEndpoint(talk)
    peer = kafka.peer()
    assert peer.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    peer.tell(SaslAuthenticateRequest(auth_bytes=f"{name}\0alice\0alice-secret".encode()), 2)
    if name == "admin":
        assert refused(kafka, peer) == [ErrorCode.SASL_AUTHENTICATION_FAILED]
    else:
        assert peer.answers()[0].error_code == ErrorCode.NONE
    talk.close()


class TestPolicies:
    """Single requests of a user with policies."""

    @pytest.fixture
    def peer(self, tmp_path: Path) -> Iterator[KafkaPeer]:
        talk = Conversation(tmp_path, authentication_enabled=True, authorization_enabled=True)
        allow(talk.broker.tables.users)
        entries = [PolicyEntryInfo(resource="Topic:seen*", actions=["Get"], decision="Allow")]
        talk.broker.tables.users.set_policies("User:alice", [PolicyInfo(entries=entries)])
        peer = KafkaEndpoint(talk).peer()
        peer.principal = Principal("alice", "127.0.0.1")
        yield peer
        talk.close()

    def test_a_member_may_name_no_topic_that_it_may_not_read(self, peer: KafkaPeer):
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for topics, codes in ((("mine", "other"), [denied]), (("mine",), [])):  # The second fetch is held.
            beat = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=1_000,
                subscribed_topic_names=topics,
                topic_partitions=(),
            )
            peer.tell(beat, 1)
            assert [answer.error_code for answer in peer.answers() if answer.error_code] == codes

    def test_describing_a_group_requires_permission_on_its_topics(self, peer: KafkaPeer):
        talk, users = peer.talk, peer.talk.broker.tables.users
        users.create(UserInfo(username="bob", password="bob-secret"))
        entry = PolicyEntryInfo(resource="Group:g", actions=["Sub"], decision="Allow")
        users.set_policies("User:bob", [PolicyInfo(entries=[entry])])
        talk.create_topic("mine", queues=1)
        join = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=("mine",),
            topic_partitions=(),
        )
        peer.tell(join, 1)
        peer.tell(ConsumerGroupDescribeRequest(group_ids=("g",)), 1)
        (seen,) = peer.answers()[-1].groups
        assert [each.subscribed_topic_names for each in seen.members] == [("mine",)]
        peer.principal = Principal("bob", "127.0.0.1")
        (refused,) = peer.ask(ConsumerGroupDescribeRequest(group_ids=("g",)), 1).groups
        assert (refused.error_code, refused.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ())

    def test_looking_up_a_topic_creates_it_with_permission_to_send(self, peer: KafkaPeer):
        for name, code in (("seen", ErrorCode.TOPIC_AUTHORIZATION_FAILED), ("mine", 0)):
            asked = MetadataRequest(topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=True)
            (answer,) = peer.ask(asked, 9).topics
            assert answer.error_code in ((code, ErrorCode.LEADER_NOT_AVAILABLE) if not code else (code,))
        assert "seen" not in peer.talk.broker.tables.topics
        assert "mine" in peer.talk.broker.tables.topics

    def test_without_permission_a_topics_existence_stays_hidden(self, peer: KafkaPeer):
        peer.talk.create_topic("hidden", queues=1)
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for name, partition in (("hidden", 0), ("hidden", 7), ("absent", 0)):
            assert peer.produce(record(), topic=name, partition=partition).error_code == denied
            commit = OffsetCommitRequest(
                group_id="g",
                topics=(
                    Topic(
                        name=name,
                        partitions=(CommittedPartition(partition_index=partition, committed_offset=0),),
                    ),
                ),
            )
            assert peer.ask(commit).topics[0].partitions[0].error_code == denied

    def test_an_id_does_not_say_whether_a_topic_exists(self, peer: KafkaPeer):
        """Ids are hashes of names: anyone who guesses a name knows its id."""
        peer.talk.create_topic("hidden", queues=1)
        for name in ("hidden", "absent"):
            wanted = MetadataRequestTopic(name=None, topic_id=id_of(name))
            (answer,) = peer.ask(MetadataRequest(topics=(wanted,)), 12).topics
            assert (answer.name, answer.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)

    def test_other_brokers_are_not_asked_for_topics_that_one_may_not_look_up(self, peer: KafkaPeer):
        """The response time revealed which of these topics exist."""
        peer.talk.create_topic("hidden", queues=1)
        peer.talk.broker.cluster.nodes._requested = 1  # Another broker does not answer.
        for name in ("hidden", "absent"):
            wanted = MetadataRequest(topics=(MetadataRequestTopic(name=name),))
            (answer,) = peer.ask(wanted, 9).topics
            assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        peer.tell(MetadataRequest(topics=(MetadataRequestTopic(name="mine"),)), 9)
        assert peer.answers() == []

    def test_offsets_are_deleted_in_topics_that_one_may_read(self, peer: KafkaPeer):
        users, talk = peer.talk.broker.tables.users, peer.talk
        entries = [PolicyEntryInfo(resource="Group:g", actions=["Sub", "Delete"], decision="Allow")]
        users.set_policies("User:alice", [PolicyInfo(entries=entries)])
        for name in ("mine", "hidden"):
            talk.create_topic(name, queues=1)
        topics = [Topic(name=name, partitions=(0,)) for name in ("mine", "hidden", "absent")]
        talk.broker.groups.require("g", talk.clock.wall_ms())
        answer = peer.ask(OffsetDeleteRequest(group_id="g", topics=tuple(topics)))
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert answer.error_code == ErrorCode.NONE
        assert [each.partitions[0].error_code for each in answer.topics] == [0, denied, denied]


class TestRequests:
    """Single requests in the wrong order or of the wrong size."""

    @pytest.fixture
    def kafka(self, tmp_path: Path) -> Iterator[KafkaEndpoint]:
        talk = Conversation(tmp_path, authentication_enabled=True)
        allow(talk.broker.tables.users)
        yield KafkaEndpoint(talk)
        talk.close()

    def test_nothing_else_is_served_before(self, kafka: KafkaEndpoint):
        peer = kafka.peer()
        peer.give(peer.frame(MetadataRequest(topics=None), 1))
        assert not peer.is_open
        assert "has not signed in" in (peer.close_reason or "")

    def test_unauthenticated_requests_are_not_even_decoded(self, kafka: KafkaEndpoint):
        peer = kafka.peer()
        peer.give(peer.frame(MetadataRequest(topics=None), 1) + b"nonsense" * 100)
        assert "has not signed in" in (peer.close_reason or "")

    @pytest.mark.parametrize("user", ["alice", "bob", None])
    def test_only_the_same_user_s_client_keeps_a_member_that_lost_its_connection(
        self, kafka: KafkaEndpoint, user: str | None
    ):
        """Anybody who knew a client's name could keep dead members for their sessions by an ApiVersions."""
        access, users = kafka.talk.broker.access, kafka.talk.broker.tables.users
        users.create(UserInfo(username="bob", password="bob-secret"))
        first = kafka.peer()
        first.principal = access.by_password(first, "alice", "alice-secret")
        first.tell(join_request(), 3)
        kafka.talk.advance(2 * INITIAL_DELAY_MS)
        assert first.answers()[0].error_code == ErrorCode.NONE
        first.end()
        back = kafka.peer()
        back.ask(ApiVersionsRequest())
        if user is not None:
            sign_in(back, user)
        kafka.talk.advance(GRACE_MS)
        group = kafka.translator.classic_groups.groups.get("G")
        assert (group is not None) == (user == "alice")

    @pytest.mark.parametrize("min_bytes", [1, 1 << 20], ids=["for a message", "for many bytes"])
    def test_a_held_fetch_is_answered_when_users_change(self, kafka: KafkaEndpoint, min_bytes: int):
        peer, talk = kafka.peer(), kafka.talk
        talk.broker.tables.users.create(UserInfo(username="bob", password="bob-secret"))
        peer.principal = Principal("alice", "127.0.0.1")
        peer.create("mine")
        if min_bytes > 1:
            peer.produce(record(), topic="mine")
        peer.tell(peer.fetch_request(topic="mine", max_wait_ms=1 << 30, min_bytes=min_bytes))
        assert peer.answers() == []
        talk.broker.tables.users.update(UserInfo(username="alice", user_status="disable"))
        other = kafka.peer()
        other.principal = Principal("bob", "127.0.0.1")
        other.produce(record(), topic="mine")  # Before the held fetches get their turn.
        talk.tick()
        peer.compute()
        (answer,) = peer.answers()
        assert answer.responses[0].partitions[0].records == b""
        peer.give(peer.frame(peer.fetch_request(topic="mine"), 12))
        assert not peer.is_open

    def test_a_new_password_ends_sessions(self, kafka: KafkaEndpoint):
        users, access = kafka.talk.broker.tables.users, kafka.talk.broker.access
        peers = [kafka.peer(), kafka.peer()]
        for peer in peers:
            peer.principal = access.by_password(peer, "alice", "alice-secret")
            peer.create(f"of-{peer.number}")
        users.update(UserInfo(username="alice", password="alice-secret"))
        peers[0].fetch(topic=f"of-{peers[0].number}")
        users.update(UserInfo(username="alice", password="another"))
        for peer in peers:
            peer.give(peer.frame(peer.fetch_request(topic="any"), 12))
            assert "another password" in (peer.close_reason or "")

    def test_a_large_request_is_not_even_decoded(self, kafka: KafkaEndpoint):
        peer = kafka.peer()
        peer.give(peer.frame(SaslAuthenticateRequest(auth_bytes=b"x" * 20_000), 2))
        assert not peer.is_open
        assert "bytes before it has signed in" in (peer.close_reason or "")

    def test_messages_in_the_wrong_order(self, kafka: KafkaEndpoint):
        peer = kafka.peer()
        early = peer.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=x"), 2)
        assert early.error_code == ErrorCode.ILLEGAL_SASL_STATE
        other = peer.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert other.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert other.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
        assert peer.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1).error_code == 0
        first = peer.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=x"), 2)
        assert first.auth_bytes.startswith(b"r=x")
        peer.tell(SaslAuthenticateRequest(auth_bytes=b"c=biws,r=x,p=AAAA"), 2)
        handshake = SaslHandshakeRequest(mechanism="SCRAM-SHA-256")
        message = SaslAuthenticateRequest(auth_bytes=b"n")
        for request, version in ((handshake, 1), (message, 2)):
            peer.tell(request, version)
        assert refused(kafka, peer) == [
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            ErrorCode.ILLEGAL_SASL_STATE,
            ErrorCode.ILLEGAL_SASL_STATE,
        ]

    @pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
    def test_scram_does_not_tell_which_names_there_are(self, kafka: KafkaEndpoint, mechanism: str):
        """Neither the message nor the salt reveals a name: each has a different salt, the same every time."""
        kafka.talk.broker.tables.users.create(UserInfo(username="bob", password="bob-secret"))
        kafka.talk.broker.tables.users.update(UserInfo(username="bob", user_status="disable"))
        salts: dict[str, set[str]] = {}
        for name in ("alice", "bob", "eve", "trent", chr(0xFDFA) * 300) * 2:
            peer = kafka.peer()
            peer.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
            first = peer.ask(SaslAuthenticateRequest(auth_bytes=f"n,,n={name},r=abc".encode()), 2)
            nonce, salt, iterations = first.auth_bytes.decode().split(",")
            assert nonce.startswith("r=abc")
            assert (len(nonce), len(salt), iterations) == (69, 46, "i=4096")
            salts.setdefault(name, set()).add(salt)
            proof = b64encode(bytes(32 if mechanism.endswith("256") else 64)).decode()
            peer.tell(SaslAuthenticateRequest(auth_bytes=f"c=biws,{nonce},p={proof}".encode()), 2)
            assert refused(kafka, peer) == [ErrorCode.SASL_AUTHENTICATION_FAILED]
        assert all(len(each) == 1 for each in salts.values())
        assert len(set.union(*salts.values())) == len(salts)

    def test_scram_derives_no_key_before_a_client_has_sent_its_proof(self, kafka: KafkaEndpoint):
        """The derivation takes 3 ms, once for each user, and is skipped for unknown names."""
        peer, sasl = kafka.peer(), kafka.translator._sasl
        peer.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
        first = peer.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=abc"), 2)
        assert not sasl._keys
        nonce = first.auth_bytes.partition(b",")[0]
        proof = b64encode(bytes(32))
        peer.tell(SaslAuthenticateRequest(auth_bytes=b"c=biws," + nonce + b",p=" + proof), 2)
        assert sasl._keys
        assert refused(kafka, peer) == [ErrorCode.SASL_AUTHENTICATION_FAILED]

    @pytest.mark.parametrize(
        "message",
        [b"n,,n=alice,r=" + b"x" * 1024, b"n,,n=" + chr(0xFDFA).encode() * 400 + b",r=x"],
        ids=["a long nonce", "a long name"],
    )
    def test_scramp_sees_short_messages_only(self, kafka: KafkaEndpoint, message: bytes):
        peer = kafka.peer()
        peer.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
        peer.tell(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert refused(kafka, peer) == [ErrorCode.SASL_AUTHENTICATION_FAILED]

    @pytest.mark.parametrize("message", [b"\xff", b"", b"n,,", b"y,,n=alice,r=x", b"n,,n=alice", b"p" * 500])
    def test_invalid_scram_messages_are_refused(self, kafka: KafkaEndpoint, message: bytes):
        peer = kafka.peer()
        peer.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
        peer.tell(SaslAuthenticateRequest(auth_bytes=message), 2)
        if not peer.answers():
            assert refused(kafka, peer) == [ErrorCode.SASL_AUTHENTICATION_FAILED]

    def test_wrong_passwords_are_refused_later_and_logged_at_a_bounded_rate(
        self, kafka: KafkaEndpoint, caplog: pytest.LogCaptureFixture
    ):
        """Guessing passwords over many connections would take processor time from everybody else."""
        for _ in range(50):
            peer = kafka.peer()
            peer.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
            peer.tell(SaslAuthenticateRequest(auth_bytes=b"n"), 2)
            kafka.talk.advance(REFUSAL_MS - 1)
            assert peer.is_open
            assert peer.answers() == []
            kafka.talk.advance(1)
            assert not peer.is_open
        assert sum("could not sign in" in each.message for each in caplog.records) == LINES_MAX

    def test_sign_ins_changes_and_refusals_are_audited(self, kafka: KafkaEndpoint):
        talk, peer = kafka.talk, kafka.peer()
        peer.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
        first = peer.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=x"), 2).auth_bytes.decode()
        nonce = first.split(",")[0].encode()
        peer.tell(SaslAuthenticateRequest(auth_bytes=b"c=biws," + nonce + b",p=AAAA"), 2)
        other = kafka.peer()
        other.principal = talk.broker.access.by_password(other, "alice", "alice-secret")
        other.create("made")
        talk.advance(2_000)
        talk.tick()
        events = [json.loads(each.body) for each in talk.messages(AUDIT_TOPIC)]
        assert [(each["kind"], each["user"], each["request"]) for each in events] == [
            ("created", "alice", "CreateTopics"),
            ("refused", "alice", "SCRAM-SHA-256"),
        ]
        assert events[0]["resources"] == ["Topic:made"]


def sign_in(peer: KafkaPeer, user: str) -> None:
    client = ScramClient(["SCRAM-SHA-256"], user, f"{user}-secret")
    peer.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
    first = peer.ask(SaslAuthenticateRequest(auth_bytes=client.get_client_first().encode()), 2)
    client.set_server_first(first.auth_bytes.decode())
    assert peer.ask(SaslAuthenticateRequest(auth_bytes=client.get_client_final().encode()), 2).error_code == 0


def refused(kafka: KafkaEndpoint, peer: KafkaPeer) -> list[int]:
    """Return the errors that a client receives before its connection ends."""
    assert peer.is_open
    kafka.talk.advance(REFUSAL_MS)
    assert not peer.is_open
    return [each.error_code for each in peer.answers()]
