"""Kafka's Java client and mqadmin at our broker that accepts only encrypted connections of users."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.apache import CACHE, HERE, SETUP_TIMEOUT_S, MqAdmin
from tests.interop.kafka_programs import KafkaClients
from tests.interop.libra import LibraServers
from tests.interop.ports import free_port
from tests.transport.certificates import Certificates

pytestmark = pytest.mark.interop

ROOT, ROOT_PASSWORD = "root", "r00t-of-all"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


class Servers:
    """A name server and a broker, and mqadmin over TLS as the first user."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.certificates = Certificates(home / "tls")
        tls = {
            **self.certificates.properties,
            "tls.enable": "true",
            "tls.client.trustCertPath": self.certificates.ca_file,
        }
        self.kafka_port = free_port()
        settings = {
            **tls,
            "tls.server.mode": "enforcing",
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": json.dumps({"username": ROOT, "password": ROOT_PASSWORD}),
            "innerClientAuthenticationCredentials": json.dumps(
                {"accessKey": "brokers", "secretKey": "theirs"}
            ),
            "kafkaListenPort": self.kafka_port,
        }
        self.libra = LibraServers(
            home,
            "a",
            settings=settings,
            name_server=tls | {"tls.server.mode": "enforcing"},
            tls=self.certificates.tls().context(),
        )
        (home / "conf").mkdir()
        (home / "conf" / "tools.yml").write_text(f"accessKey: {ROOT}\nsecretKey: {ROOT_PASSWORD}\n")
        client = {
            "rocketmq.home.dir": home,
            "tls.enable": "true",
            "tls.client.authServer": "true",
            "tls.test.mode.enable": "false",
            "tls.client.trustCertPath": self.certificates.ca_file,
        }
        self.client_properties = client
        self.admin = MqAdmin(home, self.libra.namesrv, properties=client)
        self.programs: list[KafkaClients] = []

    def at(self, subcommand: str, *options: str) -> str:
        return self.admin(subcommand, "-b", f"127.0.0.1:{self.libra.ports['a']}", *options)

    def user(self, name: str, *policies: tuple[str, str]) -> None:
        assert "success" in self.at("createUser", "-u", name, "-p", f"{name}-password")
        for resource, actions in policies:
            allowed = ("-s", f"User:{name}", "-r", resource, "-a", actions, "-d", "ALLOW")
            assert "success" in self.at("createAcl", *allowed)

    def options(self, name: str, password: str, mechanism: str) -> dict[str, str]:
        """Return the settings of a Java client."""
        module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.ca_file),
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule required "
            f'username="{name}" password="{password}";',
        }

    def client(self, options: dict[str, str], name: str) -> KafkaClients:
        made = KafkaClients(f"127.0.0.1:{self.kafka_port}", home=self.home / name, common=options)
        self.programs.append(made)
        return made

    def stop(self) -> None:
        for each in self.programs:
            each.stop()
        self.admin.stop()
        self.libra.stop()


@pytest.fixture(scope="module")
def servers(_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    made = Servers(tmp_path_factory.mktemp("kafka-secured"))
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_javas_kafka_client_signs_in_over_tls_and_does_what_policies_allow(
    servers: Servers, mechanism: str
) -> None:
    name = mechanism.lower()
    servers.user(
        name,
        (f"Topic:Mine-{name}", "Pub,Sub,Create,Get"),
        (f"Group:g-{name}", "Sub"),
        ("Cluster:DefaultCluster", "Get"),
    )
    options = servers.options(name, f"{name}-password", mechanism)
    clients = servers.client(options, name)
    clients.create(f"Mine-{name}", 1)
    assert clients.produce(f"Mine-{name}", 0, "a", "b") == [0, 1]
    settings = {key.replace(".", "_"): value for key, value in options.items()}
    clients.subscribe("one", f"Mine-{name}", f"g-{name}", **settings)
    assert {each["value"] for each in clients.wait_records(2)} == {"a", "b"}
    with pytest.raises(AssertionError, match="AuthorizationException"):
        clients.create(f"Other-{name}", 1)
    servers.at("updateUser", "-u", name, "-s", "disable")
    with pytest.raises(AssertionError, match=r"Authentication|Disconnect|Timeout"):
        clients.create(f"Mine-too-{name}", 1)


def test_mqadmin_of_the_newest_version_manages_users_over_tls(servers: Servers) -> None:
    """5.5.0, whose commands for users are those of 5.3.3."""
    command = [HERE / "servers" / "setup", "5.5.0"]  # It includes the tools.
    done = subprocess.run(command, capture_output=True, text=True, timeout=SETUP_TIMEOUT_S, check=False)
    assert not done.returncode, done.stdout + done.stderr
    jars = CACHE / "servers" / "5.5.0" / "lib"
    admin = MqAdmin(servers.home, servers.libra.namesrv, properties=servers.client_properties, jars=jars)
    at = ("-b", f"127.0.0.1:{servers.libra.ports['a']}")
    try:
        assert "success" in admin("createUser", *at, "-u", "nina", "-p", "nina-password")
        policy = ("-s", "User:nina", "-r", "Topic:n*,Group:g", "-a", "Pub,Sub", "-d", "ALLOW")
        assert "success" in admin("createAcl", *at, *policy)
        rows = [" ".join(line.split()) for line in admin("getAcl", *at, "-s", "User:nina").splitlines()]
        assert any(row.startswith("User:nina Custom Topic:n* [Pub, Sub]") for row in rows), rows
        assert "success" in admin("updateUser", *at, "-u", "nina", "-s", "disable")
        assert any("nina" in row and "disable" in row for row in admin("listUser", *at).splitlines())
        assert "success" in admin("updateTopic", *at, "-t", "ByNewest", "-r", "2", "-w", "2")
        assert "success" in admin("deleteAcl", *at, "-s", "User:nina")
        assert "success" in admin("deleteUser", *at, "-u", "nina")
        assert "nina" not in admin("listUser", *at)
    finally:
        admin.stop()


def test_a_wrong_password_is_named_as_such(servers: Servers) -> None:
    servers.user("mistyped", ("*", "All"))
    clients = servers.client(servers.options("mistyped", "guessed", "SCRAM-SHA-512"), "mistyped")
    with pytest.raises(AssertionError, match=r"SaslAuthenticationException.*wrong user or password"):
        clients.create("Nothing", 1)
