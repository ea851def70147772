"""Apache's clients and mqadmin, and our own, at our brokers with users and policies."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from libramq.client import ConsumeFrom, Credentials
from libramq.errors import NoPermission
from libramq.message import Message
from libramq.sync import Producer, PushConsumer
from tests.interop.apache import CACHE, HERE, SETUP_TIMEOUT_S, SMALL_JVM, MqAdmin
from tests.interop.cluster import Cluster
from tests.interop.libra import ENVIRONMENT, LIBRA, SOURCES, LibraServers
from tests.interop.process import PATIENCE_S, Program
from tests.interop.test_access import Inbox
from tests.interop.test_client_versions import fetch

pytestmark = pytest.mark.interop

ROOT = Credentials("root", "r00t-secret")
FIRST = {"username": ROOT.access_key, "password": ROOT.secret_key}
BROKERS = {"accessKey": "brokers", "secretKey": "their-secret"}


class Secured:
    """Our name server, a master and its slave, with users; and mqadmin that signs as the first of them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.servers = LibraServers(
            home,
            "a",
            settings={
                "authenticationEnabled": "true",
                "authorizationEnabled": "true",
                "initAuthenticationUser": json.dumps(
                    {"username": ROOT.access_key, "password": ROOT.secret_key}
                ),
                "innerClientAuthenticationCredentials": json.dumps(BROKERS),
                "transactionTimeOut": 1_000,
                "transactionCheckInterval": 1_000,
            },
        )
        self.namesrv = self.servers.namesrv
        self.servers.start_slave("b", of="a")
        (home / "conf").mkdir()
        (home / "conf" / "tools.yml").write_text(
            f"accessKey: {ROOT.access_key}\nsecretKey: {ROOT.secret_key}\n"
        )
        self.admin = MqAdmin(home, self.namesrv, properties={"rocketmq.home.dir": home})
        self.programs: list[Program] = []

    def address(self, broker: str) -> str:
        return f"127.0.0.1:{self.servers.ports[broker]}"

    def at(self, broker: str, subcommand: str, *options: str) -> str:
        return self.admin(subcommand, "-b", self.address(broker), *options)

    def user(self, name: str, password: str, *policies: tuple[str, str]) -> None:
        """Make a user with mqadmin, who may do these actions on these resources."""
        assert "success" in self.at("a", "createUser", "-u", name, "-p", password)
        for resources, actions in policies:
            self.allow(name, resources, actions)

    def allow(self, name: str, resources: str, actions: str, decision: str = "ALLOW") -> None:
        policy = ("-s", f"User:{name}", "-r", resources, "-a", actions, "-d", decision)
        assert "success" in self.at("a", "createAcl", *policy)

    def topic(self, name: str) -> str:
        self.at("a", "updateTopic", "-t", name, "-r", "2", "-w", "2")
        return name

    def client(self, version: str, name: str, credentials: Credentials | None) -> Program:
        """Start a given version of Apache's client."""
        files = CACHE / "clients" / version
        properties = {"namesrv": self.namesrv, "name": name, "user.home": self.home}
        properties |= {"rocketmq.log.root": self.home / "logs", "rocketmq.client.logRoot": self.home / "logs"}
        if credentials is not None:
            properties |= {"accessKey": credentials.access_key, "secretKey": credentials.secret_key}
        options = [f"-D{key}={value}" for key, value in properties.items()]
        command = ["java", *SMALL_JVM, *options, "-cp", f"{files}/classes:{files}/lib/*", "Signed"]
        program = Program(name, command, directory=self.home / name)
        self.programs.append(program)
        program.wait_event("started")
        return program

    def stop(self) -> None:
        for program in self.programs:
            program.kill()
        self.admin.stop()
        self.servers.stop()
        for log in self.home.rglob("lib*.stderr"):
            self.find_no_secret(log)
        for name in ("a", "b"):
            self.find_no_secret(self.home / name / f"{name}.stderr")

    def find_no_secret(self, log: Path) -> None:
        """Assert that a server has not written any password of this file's tests."""
        found = re.findall(r"[\w-]+-secret|rita-\w+", log.read_text())
        assert not found, f"{log}: {found}"


@pytest.fixture(scope="module")
def secured(_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("users"))
    try:
        yield made
    finally:
        made.stop()


def tag(version: str) -> str:
    """Return a version in a form that names may contain."""
    return version.replace(".", "_")


def sent(program: Program, line: str) -> str:
    """Have a client send; return the status, or the broker's refusal."""
    program.tell(line)
    return str(program.wait_event("sent", body=line.split()[-1])["status"])


def test_mqadmin_manages_users_and_policies(secured: Secured) -> None:
    """Each command finds what the others have changed; no command shows a password."""
    secured.user("ada", "ada-secret")
    for printed in (secured.at("a", "getUser", "-u", "ada"), secured.at("a", "listUser", "-f", "ad")):
        rows = [line.split() for line in printed.splitlines()]
        assert ["ada", "null", "Normal", "enable"] in rows
    assert "ada-secret" not in secured.at("a", "listUser")
    secured.at("a", "updateUser", "-u", "ada", "-s", "disable")
    assert "disable" in secured.at("a", "getUser", "-u", "ada")
    sources = ("-i", "127.0.0.0/8,10.1.2.3")
    policy = ("-s", "User:ada", "-r", "Topic:a*,Group:g", "-a", "Pub,Sub", "-d", "ALLOW", *sources)
    assert "success" in secured.at("a", "createAcl", *policy)
    for printed in (secured.at("a", "getAcl", "-s", "User:ada"), secured.at("a", "listAcl", "-s", "ada")):
        rows = [" ".join(line.split()) for line in printed.splitlines()]
        assert "User:ada Custom Topic:a* [Pub, Sub] [127.0.0.0/8, 10.1.2.3] Allow" in rows
        assert any("Group:g" in row for row in rows)
    assert "success" in secured.at(
        "a", "updateAcl", "-s", "User:ada", "-r", "Group:g", "-a", "All", "-d", "DENY"
    )
    assert "[All]" in secured.at("a", "getAcl", "-s", "User:ada")
    assert "success" in secured.at("a", "deleteAcl", "-s", "User:ada", "-r", "Topic:a*")
    assert "Topic:a*" not in secured.at("a", "getAcl", "-s", "User:ada")
    assert "success" in secured.at("a", "deleteAcl", "-s", "User:ada")
    assert "success" in secured.at("a", "deleteUser", "-u", "ada")
    assert "ada" not in secured.at("a", "listUser")


def test_two_passwords_beside_tools_that_know_of_one(secured: Secured) -> None:
    """Both sign, at the slave too; Apache's tool shows the user, and setting a password replaces both."""
    topic = secured.topic("rotated")
    secured.user("rita", "rita-first", (f"Topic:{topic}", "Pub"))
    access = secured.home / "root.properties"
    access.write_text(f"accessKey={ROOT.access_key}\nsecretKey={ROOT.secret_key}\n")
    access.chmod(0o600)

    def change(*options: str) -> str:
        command = [*LIBRA, "admin", "updateUser", "-b", secured.address("a"), "-u", "rita", *options]
        environment = {**ENVIRONMENT, "LIBRA_ACCESS": str(access)}
        done = subprocess.run(
            command,
            input="rita-second\n",
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def may_send(password: str) -> bool:
        credentials = Credentials("rita", password)
        with Producer(namesrv=secured.namesrv, group=f"p-{password}", credentials=credentials) as producer:
            try:
                producer.send(Message(topic, b"x"))
            except NoPermission:
                return False
            return True

    change("--second", "-")
    assert [may_send(each) for each in ("rita-first", "rita-second")] == [True, True]
    shown = secured.at("a", "getUser", "-u", "rita") + secured.at("a", "listUser")
    assert ["rita", "null", "Normal", "enable"] in [line.split() for line in shown.splitlines()]
    assert "rita-" not in shown
    change("--withdraw", "first")
    assert [may_send(each) for each in ("rita-first", "rita-second")] == [False, True]
    change("--second", "rita-third")
    secured.at("a", "updateUser", "-u", "rita", "-p", "rita-fourth")
    assert [may_send(f"rita-{each}") for each in ("second", "third", "fourth")] == [False, False, True]


@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
class TestJavaClients:
    def test_a_user_does_what_policies_allow_and_changes_count_at_once(
        self, secured: Secured, version: str
    ) -> None:
        fetch(version)
        name = f"carl-{tag(version)}"
        mine, other, group = (
            secured.topic(f"mine-{tag(version)}"),
            secured.topic(f"other-{tag(version)}"),
            f"g-{tag(version)}",
        )
        secured.user(name, "carl-secret", (f"Topic:{mine}", "Pub,Sub"), (f"Group:{group}", "Sub"))
        client = secured.client(version, name, Credentials(name, "carl-secret"))
        assert sent(client, f"send {mine} one") == "SEND_OK"
        assert sent(client, f"batch {mine} two") == "SEND_OK"
        client.tell(f"consume {group} {mine}")
        for body in ("one", "two", "second"):
            client.wait_event("message", group=group, body=body)
        refusal = (
            f"16 User:{name} has no permission to access Topic:{other} from 127.0.0.1, no matched policies."
        )
        assert sent(client, f"send {other} three").startswith(refusal)
        assert sent(client, f"batch {other} four").startswith(refusal)
        secured.allow(name, f"Topic:{other}", "Pub")
        assert sent(client, f"send {other} five") == "SEND_OK"
        secured.allow(name, f"Topic:{mine}", "Pub,Sub", "DENY")
        assert "the decision is deny." in sent(client, f"send {mine} six")
        secured.at("a", "updateUser", "-u", name, "-s", "disable")
        assert sent(client, f"send {other} seven").startswith(f"16 User:{name} is disabled.")
        secured.at("a", "updateUser", "-u", name, "-s", "enable")
        assert sent(client, f"send {other} eight") == "SEND_OK"
        secured.at("a", "updateUser", "-u", name, "-p", "changed")
        assert sent(client, f"send {other} nine").startswith("16 check signature failed.")
        client.finish()

    def test_a_transaction_is_checked_at_a_producer_that_may_send(
        self, secured: Secured, version: str
    ) -> None:
        fetch(version)
        name, topic, group = (
            f"tina-{tag(version)}",
            secured.topic(f"deals-{tag(version)}"),
            f"g-deals-{tag(version)}",
        )
        secured.user(name, "tina-secret", (f"Topic:{topic}", "Pub,Sub"), (f"Group:{group}", "Sub"))
        client = secured.client(version, name, Credentials(name, "tina-secret"))
        assert sent(client, f"transaction {topic} deal") == "SEND_OK"
        client.tell(f"consume {group} {topic}")
        client.wait_event("message", group=group, body="deal")
        client.finish()

    def test_who_cannot_prove_a_name_is_refused(self, secured: Secured, version: str) -> None:
        fetch(version)
        topic = secured.topic(f"closed-{tag(version)}")
        secured.user(f"dora-{tag(version)}", "dora-secret", (f"Topic:{topic}", "All"))
        for who, credentials, told in (
            ("nobody", None, "16 username cannot be null."),
            ("unknown", Credentials("eve", "x"), "16 User:eve is not found."),
            ("mistyped", Credentials(f"dora-{tag(version)}", "Dora-secret"), "16 check signature failed."),
        ):
            client = secured.client(version, f"{who}-{tag(version)}", credentials)
            assert sent(client, f"send {topic} x").startswith(told)
            client.kill()


def test_our_client_does_what_policies_allow(secured: Secured) -> None:
    mine, other = secured.topic("ours"), secured.topic("not-ours")
    secured.user("lena", "lena-secret", (f"Topic:{mine}", "Pub,Sub"), ("Group:lenas", "Sub"))
    access = {"namesrv": secured.namesrv, "credentials": Credentials("lena", "lena-secret")}
    inbox = Inbox()
    member = PushConsumer(group="lenas", consume_from=ConsumeFrom.FIRST_OFFSET, **access)
    member.subscribe(mine, "*", inbox)
    with Producer(**access) as producer, member:
        producer.send(Message(mine, b"one"))
        producer.send_batch([Message(mine, b"two"), Message(mine, b"three")])
        inbox.wait_count(3)
        with pytest.raises(NoPermission, match="no permission to access Topic:not-ours"):
            producer.send(Message(other, b"x"))
        secured.at("a", "updateUser", "-u", "lena", "-s", "disable")
        with pytest.raises(NoPermission, match="User:lena is disabled"):
            producer.send(Message(mine, b"four"))
    for credentials, told in ((None, "username cannot be null"), (Credentials("lena", "x"), "disabled")):
        with (
            Producer(namesrv=secured.namesrv, credentials=credentials) as producer,
            pytest.raises(NoPermission, match=told),
        ):
            producer.send(Message(mine, b"x"))


def test_our_commands_manage_users_and_read_passwords_from_their_input(
    secured: Secured, tmp_path: Path
) -> None:
    file = tmp_path / "access"
    file.write_text(f"accessKey={ROOT.access_key}\nsecretKey={ROOT.secret_key}\n")

    def libra(*arguments: str, typed: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "libramq.cli.main", "admin", *arguments, "-n", secured.namesrv],
            capture_output=True, text=True, input=typed, timeout=PATIENCE_S, check=False,
            env={**os.environ, "PYTHONPATH": str(SOURCES), "LIBRA_ACCESS": str(file)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    here = ("-b", secured.address("a"))
    assert "success" in libra("createUser", "-u", "mia", *here, typed="mia-secret\n")
    assert "success" in libra(
        "createAcl", "-s", "User:mia", "-r", "Topic:ours2", "-a", "Pub", "-d", "Allow", *here
    )
    assert "Topic:ours2" in secured.at("a", "getAcl", "-s", "User:mia"), "mqadmin sees the same"
    secured.topic("ours2")
    with Producer(namesrv=secured.namesrv, credentials=Credentials("mia", "mia-secret")) as producer:
        producer.send(Message("ours2", b"x"))
    listed = libra("listUser", "-c", "DefaultCluster")
    assert "mia" in listed
    assert "secret" not in listed
    assert "Topic:ours2" in libra("listAcl", "-c", "DefaultCluster", "-s", "mia")
    assert "success" in libra("deleteAcl", "-s", "User:mia", *here)
    assert "success" in libra("deleteUser", "-u", "mia", *here)


def test_a_slave_has_its_masters_users(secured: Secured) -> None:
    secured.user("nora", "nora-secret", ("Topic:x", "Pub"))

    def waits(found: Callable[[], bool], what: str) -> None:
        Cluster.wait_until(found, what, within_s=PATIENCE_S)

    waits(lambda: "nora" in secured.at("b", "listUser"), "nora at the slave")
    waits(lambda: "Topic:x" in secured.at("b", "listAcl"), "her policies at the slave")
    assert "success" in secured.admin("deleteUser", "-c", "DefaultCluster", "-u", "nora"), (
        "at master and slave"
    )
    waits(lambda: "nora" not in secured.at("b", "listUser"), "no nora at the slave")


@pytest.fixture(scope="module")
def _go_client() -> None:
    """Compile the program with Apache's Go client."""
    done = subprocess.run(
        [HERE / "go" / "setup"], capture_output=True, text=True, timeout=SETUP_TIMEOUT_S, check=False
    )
    assert not done.returncode, done.stdout + done.stderr


def go_client(secured: Secured, prefix: str, name: str, credentials: Credentials | None) -> Program:
    """Start Apache's Go client, which has credentials, and no TLS."""
    env = {"HOME": str(secured.home / name)}
    if credentials is not None:
        env |= {"ACCESS_KEY": credentials.access_key, "SECRET_KEY": credentials.secret_key}
    program = Program(
        name, [str(CACHE / "go" / "client"), secured.namesrv, prefix], directory=secured.home / name, env=env
    )
    secured.programs.append(program)
    program.wait_event("started")
    return program


@pytest.mark.usefixtures("_go_client")
def test_apaches_go_client_does_what_policies_allow(secured: Secured) -> None:
    """Allowed, denied, with a wrong secret, unsigned, and after the permission was withdrawn."""
    prefix = "Go"
    for kind in ("concurrent", "orderly", "tagged", "filtered", "broadcast", "denied"):
        secured.topic(f"{prefix}_{kind}")
    gopher, guesser = Credentials("gopher", "gopher-secret"), Credentials("gopher", "guessed-secret")
    secured.user("gopher", gopher.secret_key, (f"Topic:{prefix}*", "Pub,Sub"), (f"Group:{prefix}*", "Sub"))
    secured.allow("gopher", f"Topic:{prefix}_denied", "Pub", "DENY")
    allowed = go_client(secured, prefix, "go-allowed", gopher)
    assert sent(allowed, "send concurrent one") == "SEND_OK"
    assert sent(allowed, "transaction concurrent commit two") == "SEND_OK"
    assert sent(allowed, "ordered orderly three") == "SEND_OK"
    for kind, body in (("concurrent", "one"), ("concurrent", "two"), ("orderly", "three")):
        allowed.wait_event("message", kind=kind, body=body)
    refusals = {
        "denied": (allowed, "send denied four"),
        "wrong": (go_client(secured, prefix, "go-wrong", guesser), "send concurrent five"),
        "unsigned": (go_client(secured, prefix, "go-unsigned", None), "send concurrent six"),
    }
    for name, (program, line) in refusals.items():
        program.tell(line)
        event = program.wait_event("sent", body=line.split()[-1])
        assert event["status"] == "failed", (name, event)
        assert program.of("message") == [] or program is allowed, name
    secured.at("a", "updateUser", "-u", "gopher", "-s", "disable")
    allowed.tell("send concurrent seven")
    assert allowed.wait_event("sent", body="seven")["status"] == "failed"
    bodies = {each["body"] for each in allowed.of("message")}
    assert bodies == {"one", "two", "three"}
