"""TLS of our servers with the programs of others: Java's clients of three versions, mqadmin, Kafka's clients.

The servers require no client certificates unless a test says so. Clients verify the servers' certificates.
"""

import json
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from libramq.client import SendStatus
from libramq.message import Message
from libramq.sync import Admin, Producer
from tests.interop.apache import (
    CACHE,
    SMALL_JVM,
    SMALL_STORE,
    ApacheBroker,
    MqAdmin,
    start_program,
    wait_broker,
)
from tests.interop.cluster import SEND_TIMEOUT_MS, Cluster
from tests.interop.kafka_programs import KafkaClients
from tests.interop.libra import ENVIRONMENT, LIBRA, LibraServers
from tests.interop.ports import free_port
from tests.interop.process import PATIENCE_S, Program
from tests.interop.test_client_versions import fetch
from tests.transport.certificates import Certificates

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

MASTER, SLAVE = "secured", "slave"
MODES = ("permissive", "enforcing")
#: Apache's clients report the reason only within this time, which is the timeout of one attempt.
REFUSED_TIMEOUT_MS = 3_000
#: ResponseCode.
NO_PERMISSION = 16


class Servers:
    """A name server, a master with a slave, Kafka's port and metrics, in one of the modes.

    Everything that the servers say to each other is encrypted.
    """

    def __init__(
        self, home: Path, mode: str, *, own: Path | None = None, more: Mapping[str, object] | None = None
    ) -> None:
        """Start the servers. `own` is the certificate of the test's own connections; `more` adds options."""
        self.home = home
        self.mode = mode
        self.certificates = Certificates(home / "tls")
        settings: dict[str, object] = {
            **self.certificates.properties,
            "tls.server.mode": mode,
            "tls.enable": "true",
            "tls.client.trustCertPath": self.certificates.ca_file,
            **(more or {}),
        }
        self.kafka_port, self.metrics_port = free_port(), free_port()
        self.tls = self.certificates.tls(cert_file=None if own is None else str(own))
        self.libra = LibraServers(home, settings=settings, name_server=settings, tls=self.context)
        self.namesrv = self.libra.namesrv
        self.libra.start(
            MASTER,
            brokerRole="SYNC_MASTER",
            inSyncReplicas=2,
            slaveTimeout=20_000,
            kafkaListenPort=self.kafka_port,
            metricsExporterType="PROM",
            metricsPromExporterPort=self.metrics_port,
        )
        self.libra.start_slave(SLAVE, MASTER)
        self.create("Copied")
        with Producer(namesrv=self.namesrv, tls=self.tls, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
            Cluster.wait_until(
                lambda: producer.send(Message("Copied", b"x")).status is SendStatus.SEND_OK,
                "the slave copies",
                within_s=PATIENCE_S,
            )
        self.properties = {
            "tls.enable": "true",
            "tls.test.mode.enable": "false",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": self.certificates.ca_file,
        }

    @property
    def context(self) -> ssl.SSLContext:
        """Return a context of the test's own connections."""
        return self.tls.context()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.libra.ports[MASTER]}"

    def create(self, *topics: str) -> None:
        with Admin(namesrv=self.namesrv, tls=self.tls) as admin:
            for topic in topics:
                admin.create_topic(topic, queues=2)

    def stored(self, topic: str) -> int:
        with Admin(namesrv=self.namesrv, tls=self.tls) as admin:
            return sum(ends.max_offset for ends in admin.topic_stats(topic).values())


@pytest.fixture(scope="module", params=MODES)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    made = Servers(tmp_path_factory.mktemp(request.param), request.param)
    try:
        yield made
    finally:
        made.libra.stop()


def test_the_slave_has_every_sent_message(servers: Servers) -> None:
    """A send is acknowledged once the slave has copied it: SEND_OK says so."""
    with Producer(namesrv=servers.namesrv, tls=servers.tls, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        sent = [producer.send(Message("Copied", b"large" * 100_000)) for _ in range(10)]
    assert {each.status for each in sent} == {SendStatus.SEND_OK}


def test_javas_client_sends_and_consumes(servers: Servers) -> None:
    servers.create("FromJava")
    settings = {"namesrv": servers.namesrv, "timeout": SEND_TIMEOUT_MS, **servers.properties}
    with start_program("Produce", {"group": "P", **settings}, home=servers.home / "produce") as producer:
        producer.wait_event("started")
        consuming = {"group": "G", "topic": "FromJava", "from": "first", **settings}
        with start_program("Consume", consuming, home=servers.home / "consume") as consumer:
            for kind in ("sync", "async", "batch"):
                one = {"body": f"{kind} 1", "repeat": 1}
                question = {"kind": kind, "topic": "FromJava", **one, "messages": [one]}
                assert producer.ask("sent", question)["status"] == "SEND_OK"
            received = {each["body"].strip() for each in consumer.wait_count(3, "message")}
            assert received == {"sync 1", "async 1", "batch 1"}
            consumer.finish()
        producer.finish()


def test_a_plain_java_client_is_served_or_refused_by_the_mode(servers: Servers) -> None:
    servers.create("Plain")
    settings = {"namesrv": servers.namesrv, "timeout": REFUSED_TIMEOUT_MS, "group": "P"}
    with start_program("Produce", settings, home=servers.home / "plain") as producer:
        producer.wait_event("started")
        answer = producer.ask("sent", {"kind": "sync", "topic": "Plain", "body": "x"})
    assert (answer.get("status") == "SEND_OK") == (servers.mode == "permissive")
    assert servers.stored("Plain") == (servers.mode == "permissive")


@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
def test_javas_clients_of_other_versions(servers: Servers, version: str) -> None:
    """Every kind of consumer, and the producers."""
    fetch(version)
    prefix = f"V{version.replace('.', '_')}"
    servers.create(f"{prefix}_concurrent", f"{prefix}_orderly")
    files, home = CACHE / "clients" / version, servers.home / prefix
    properties = {
        "namesrv": servers.namesrv,
        "prefix": prefix,
        "user.home": home,
        "rocketmq.log.root": home / "logs",
        "rocketmq.client.logRoot": home / "logs",
        **servers.properties,
    }
    options = [f"-D{name}={value}" for name, value in properties.items()]
    command = ["java", *SMALL_JVM, *options, "-cp", f"{files}/classes:{files}/lib/*", "Features"]
    with Program(f"features-{version}", command, directory=home) as program:
        program.wait_event("started")
        lines = [f"send {prefix}_concurrent a", f"transaction {prefix}_concurrent b commit"]
        lines += [f"ordered {prefix}_orderly c", f"delay {prefix}_concurrent d"]
        for line in lines:
            program.tell(line)
        sent = program.wait_count(4, "sent")
        assert {each["status"] for each in sent} == {"SEND_OK"}
        program.wait_until(
            lambda: {each["body"] for each in program.of("message")} >= {"a", "b", "c", "d"} or None,
            "messages are missing",
            within_s=PATIENCE_S,
        )


def test_mqadmin_asks_over_tls(servers: Servers) -> None:
    admin = MqAdmin(servers.home / "mqadmin", servers.namesrv, properties=servers.properties)
    try:
        assert MASTER in admin("clusterList")
        assert "success" in admin("updateTopic", "-b", servers.address, "-t", "ByAdmin", "-r", "2", "-w", "2")
        assert "ByAdmin" in admin("topicList")
        assert "bootTimestamp" in admin("brokerStatus", "-b", servers.address)
    finally:
        admin.stop()


def test_kafkas_java_clients(servers: Servers) -> None:
    secured = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": servers.certificates.ca_file,
    }
    clients = KafkaClients(f"127.0.0.1:{servers.kafka_port}", home=servers.home / "kafka", common=secured)
    try:
        clients.create("FromKafka", 2)
        assert clients.produce("FromKafka", 0, "a", "b") == [0, 1]
        clients.subscribe(
            "one",
            "FromKafka",
            "g-kafka",
            **{name.replace(".", "_"): value for name, value in secured.items()},
        )
        assert {each["value"] for each in clients.wait_records(2)} == {"a", "b"}
        clients.finish()
    finally:
        clients.stop()


def test_librdkafka(servers: Servers) -> None:
    secured: dict[str, object] = {
        "bootstrap.servers": f"127.0.0.1:{servers.kafka_port}",
        "security.protocol": "ssl",
        "ssl.ca.location": str(servers.certificates.ca_file),
    }
    servers.create("FromC")
    producer = LibrdkafkaProducer(secured)
    for number in range(100):
        producer.produce("FromC", f"{number}".encode())
    assert producer.flush(PATIENCE_S) == 0
    consumer = LibrdkafkaConsumer(secured | {"group.id": "g-c", "auto.offset.reset": "earliest"})
    consumer.subscribe(["FromC"])
    received: set[bytes] = set()

    def has_all() -> bool:
        record = consumer.poll(1)
        if record is not None and record.error() is None:
            received.add(record.value())
        return len(received) == 100

    try:
        Cluster.wait_until(has_all, f"100 records, {len(received)} came", within_s=PATIENCE_S)
    finally:
        consumer.close()


def test_metrics_are_read_over_https(servers: Servers) -> None:
    url = f"https://127.0.0.1:{servers.metrics_port}/metrics"
    with urllib.request.urlopen(url, context=servers.context, timeout=PATIENCE_S) as answer:
        assert b"rocketmq_messages_in" in answer.read()


def test_commands_connect_with_the_authority(servers: Servers) -> None:
    access = servers.home / "access.properties"
    access.write_text(f"tls.enable=true\ntls.client.trustCertPath={servers.certificates.ca_file}\n")
    command = [*LIBRA, "admin", "clusterList", "-n", servers.namesrv]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**ENVIRONMENT, "LIBRA_ACCESS": str(access), "PATH": ""},
    )
    assert MASTER in done.stdout, done.stderr


def test_apaches_broker_registers_with_our_name_server(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    context = certificates.tls().context()
    settings = certificates.properties | {"tls.server.mode": "enforcing"}
    servers = LibraServers(tmp_path, name_server=settings, tls=context)
    properties = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": certificates.ca_file,
    }
    broker = ApacheBroker(
        tmp_path / "broker", namesrv=servers.namesrv, properties=properties, settings=SMALL_STORE
    )
    try:
        wait_broker(broker.process, servers.namesrv, tls=context)
    finally:
        broker.process.kill()
        servers.stop()


def pkcs8_key(own: Path) -> Path:
    """Return a file with a client's key in the only form that Java's client reads."""
    file = own.with_suffix(".key")
    private = load_pem_private_key(own.read_bytes(), None)
    file.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file


def test_a_certificate_names_the_user_of_javas_client(tmp_path: Path) -> None:
    """Requests are unsigned: a client whose certificate names a user may send, another one is refused."""
    certificates = Certificates(tmp_path / "tls")
    super_user, stranger = certificates.client("orders.example"), certificates.client("other.example")
    settings = {
        **certificates.properties,
        "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": certificates.ca_file,
        "tls.enable": "true",
        "tls.client.trustCertPath": certificates.ca_file,
        "tls.client.certPath": super_user,
    }
    users = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": "orders.example", "password": "unused"}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "brokers", "secretKey": "theirs"}),
    }
    servers = LibraServers(
        tmp_path,
        "guarded",
        settings=settings | users,
        name_server=settings,
        tls=certificates.tls(cert_file=str(super_user)).context(),
    )
    try:
        for own, status in ((super_user, "SEND_OK"), (stranger, "FAILED")):
            properties = {
                "namesrv": servers.namesrv,
                "timeout": SEND_TIMEOUT_MS,
                "tls.enable": "true",
                "tls.test.mode.enable": "false",
                "tls.client.authServer": "true",
                "tls.client.trustCertPath": certificates.ca_file,
                "tls.client.certPath": own,
                "tls.client.keyPath": pkcs8_key(own),
            }
            with start_program("Produce", properties, home=tmp_path / own.stem) as producer:
                producer.wait_event("started")
                sent = producer.ask("sent", {"kind": "sync", "topic": "Guarded", "body": "x"})
            assert sent["status"] == status, sent
        assert sent["code"] == NO_PERMISSION, sent
    finally:
        servers.stop()


def test_clients_show_certificates(tmp_path: Path) -> None:
    """Under `require`: the servers show theirs to each other, Java's and C's clients are refused without."""
    clients = Certificates(tmp_path / "clients")
    own = clients.client("orders.example")
    servers = Servers(
        tmp_path,
        "enforcing",
        own=own,
        more={
            "tls.server.need.client.auth": "require",
            "tls.server.trustCertPath": clients.ca_file,
            "tls.client.certPath": own,
        },
    )
    try:
        servers.create("Known")
        shown = {"tls.client.certPath": own, "tls.client.keyPath": pkcs8_key(own)}
        settings = {"namesrv": servers.namesrv, "timeout": SEND_TIMEOUT_MS, **servers.properties}
        with start_program("Produce", settings | shown, home=tmp_path / "known") as producer:
            producer.wait_event("started")
            question = {"kind": "sync", "topic": "Known", "body": "x"}
            assert producer.ask("sent", question)["status"] == "SEND_OK"
            producer.finish()
        with start_program(
            "Produce", settings | {"timeout": REFUSED_TIMEOUT_MS}, home=tmp_path / "unknown"
        ) as producer:
            producer.wait_event("started")
            assert producer.ask("sent", question).get("status") != "SEND_OK"
        assert servers.stored("Known") == 1

        secured: dict[str, str | int | float | bool] = {
            "bootstrap.servers": f"127.0.0.1:{servers.kafka_port}",
            "security.protocol": "ssl",
            "ssl.ca.location": str(servers.certificates.ca_file),
        }
        with_one = {"ssl.certificate.location": str(own), "ssl.key.location": str(own)}
        topics = AdminClient(secured | with_one | {"log_level": 0}).list_topics(timeout=PATIENCE_S).topics
        assert "Known" in topics
        with pytest.raises(KafkaException, match=r"transport failure|timed out"):
            AdminClient(secured | {"log_level": 0}).list_topics(timeout=REFUSED_TIMEOUT_MS / 1000)
    finally:
        servers.libra.stop()
