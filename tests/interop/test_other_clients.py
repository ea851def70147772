"""Apache's Go client and rocketmq-spring's starter, at Apache's broker and at ours: all that both have."""

import subprocess
from pathlib import Path

import pytest

from tests.interop.apache import CACHE, HERE, SETUP_TIMEOUT_S, SMALL_JVM
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Program

pytestmark = pytest.mark.interop

QUEUES = 2
COUNT = 6
KINDS = ("concurrent", "orderly", "tagged", "filtered", "broadcast")
NUMBERS = [str(number) for number in range(COUNT)]


@pytest.fixture(scope="module", params=["go", "spring"])
def client(request: pytest.FixtureRequest) -> str:
    """A client; its program has been compiled."""
    chosen: str = request.param
    done = subprocess.run(
        [HERE / chosen / "setup"], capture_output=True, text=True, timeout=SETUP_TIMEOUT_S, check=False
    )
    assert not done.returncode, done.stdout + done.stderr
    return chosen


def command(client: str, cluster: Cluster, prefix: str, home: Path) -> list[str]:
    files = CACHE / client
    if client == "go":
        return [str(files / "client"), cluster.namesrv, prefix]
    properties = {
        "user.home": home,
        "rocketmq.client.logRoot": home / "logs",
        "rocketmq.name-server": cluster.namesrv,
        "rocketmq.producer.group": f"{prefix}_producers",
        "logging.level.root": "warn",
        "prefix": prefix,
    }
    options = [f"-D{name}={value}" for name, value in properties.items()]
    return ["java", *SMALL_JVM, *options, "-cp", f"{files}/classes:{files}/lib/*", "interop.SpringClient"]


def bodies(program: Program, kind: str) -> list[str]:
    return [each["body"] for each in program.of("message", kind=kind)]


def wait_for(program: Program, kind: str, *wanted: str) -> None:
    program.wait_until(
        lambda: set(bodies(program, kind)) >= set(wanted), f"not all of {wanted}", within_s=PATIENCE_S
    )


def send_all(program: Program, client: str) -> None:
    # The broker checks transactions that the producer leaves open: that takes longest, so it is first.
    lines = ["transaction concurrent unknown asked"]
    lines += [f"{how} concurrent {how}" for how in ("send", "async", "oneway", "delay")]
    lines += ["send concurrent again", "batch concurrent x,y,z"]
    lines += [f"transaction concurrent {how} {how}" for how in ("commit", "rollback")]
    lines += [f"ordered orderly {number}" for number in NUMBERS]
    lines += [f"tagged tagged {tag} {tag}" for tag in ("a", "b", "c")]
    lines += [f"numbered filtered {number} {number}" for number in NUMBERS]
    lines += [f"send broadcast {number}" for number in NUMBERS]
    lines += ["timer concurrent timer"] if client == "spring" else []
    for line in lines:
        program.tell(line)
    sent = program.wait_count(len(lines), "sent")
    assert {each["status"] for each in sent} == {"SEND_OK"}, sent


def test_another_client_finds_its_features(cluster: Cluster, client: str) -> None:
    prefix = cluster.fresh_name(client.title())
    home = cluster.home / prefix
    for kind in KINDS:
        cluster.create_topic(f"{prefix}_{kind}", QUEUES)
    # Go's client keeps the offsets of broadcasting consumers below HOME, Java's below user.home.
    env = {"HOME": str(home)}
    with Program(client, command(client, cluster, prefix, home), directory=home, env=env) as program:
        program.wait_event("started")
        send_all(program, client)
        wait_for(program, "concurrent", "send", "async", "oneway", "delay", "x", "y", "z", "commit")
        (delayed,) = program.of("message", kind="concurrent", body="delay")
        assert delayed["waitedMs"] >= 900
        assert program.of("message", kind="concurrent", body="send")[0]["keys"] == "key-send"
        wait_for(program, "orderly", *NUMBERS)
        assert list(dict.fromkeys(bodies(program, "orderly"))) == NUMBERS
        assert len({each["queueId"] for each in program.of("message", kind="orderly")}) == 1
        wait_for(program, "tagged", "a", "b")
        wait_for(program, "filtered", "3", "4", "5")
        if client == "go":
            wait_for(program, "broadcast1", *NUMBERS)
            wait_for(program, "broadcast2", *NUMBERS)
        else:
            wait_for(program, "broadcast", *NUMBERS)
            wait_for(program, "concurrent", "timer")
        assert program.of("message", kind="concurrent", body="again")[0]["times"] == 0
        program.wait_event("message", kind="concurrent", body="again", times=1)
        program.wait_event("checked", body="asked")
        wait_for(program, "concurrent", "asked")
        assert "rollback" not in bodies(program, "concurrent")
        assert set(bodies(program, "tagged")) == {"a", "b"}
        assert set(bodies(program, "filtered")) == {"3", "4", "5"}
        program.finish()
