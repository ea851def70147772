"""Light queues (LMQ): Apache's Java client sends to them and pulls from them, at both brokers."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.interop import wire
from tests.interop.apache import SMALL_STORE, ApacheBroker, ApacheNameServer
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S, Program

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

BROKER = "broker-a"
A, B, GROUP = "%LMQ%a", "%LMQ%b", "%LMQ%readers"
PARENT = "Parent"
SET_MESSAGE_REQUEST_MODE = 401
LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}
#: Settings that must be equal for both brokers to use one directory.
STORE = {
    name: SMALL_STORE[name]
    for name in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
}


@pytest.fixture(params=["apache", "libra"])
def light_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        if request.param == "apache":
            names = ApacheNameServer(tmp_path / "namesrv")
            stack.callback(names.stop)
            names.wait_ready()
            namesrv = names.address
            broker = ApacheBroker(
                tmp_path / BROKER, namesrv=namesrv, name=BROKER, settings={**SMALL_STORE, **LIGHT}
            )
            stack.callback(broker.process.kill)
            broker.wait_ready()
        else:
            servers = LibraServers(tmp_path, BROKER, settings={**STORE, **LIGHT})
            stack.callback(servers.stop)
            namesrv = servers.namesrv
        cluster = Cluster(request.param, namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        yield cluster


class Puller:
    """Apache's pull consumer, in a light group."""

    def __init__(self, cluster: Cluster) -> None:
        self._program: Program = cluster.start("Offsets", {"group": GROUP})
        self._program.wait_event("started")
        self._cluster = cluster
        self.ask("max", PARENT)  # The client learns the broker's address by the parent's route.

    def ask(self, question: str, topic: str, **more: object) -> Any:
        asked = {"ask": question, "topic": topic, "broker": BROKER, "queueId": 0, **more}
        answer = self._program.ask("answer", asked)
        assert "error" not in answer, answer
        return answer["answer"]

    def bodies(self, topic: str, count: int) -> list[str]:
        """Return a light queue's messages, once there are this many: Apache's broker dispatches later."""
        self._cluster.wait_until(
            lambda: self.ask("max", topic) >= count, f"{count} messages in {topic}", within_s=PATIENCE_S
        )
        found: list[str] = self.ask("pull", topic, tags="*", offset=0, count=32)["bodies"]
        return found

    def commit(self, topic: str, offset: int) -> None:
        self.ask("commit", topic, offset=offset)
        self._cluster.wait_until(
            lambda: self.ask("committed", topic) == offset, "a commit", within_s=PATIENCE_S
        )

    def finish(self) -> None:
        self._program.finish()


def send(cluster: Cluster, body: str, *queues: str) -> None:
    cluster.send(topic=PARENT, body=body, properties={"INNER_MULTI_DISPATCH": ",".join(queues)})


def test_javas_client_sends_to_light_queues_and_pulls_from_them(light_cluster: Cluster) -> None:
    light_cluster.create_topic(PARENT, 2)
    for number in range(6):
        send(light_cluster, str(number), *((A, B) if number % 2 else (A,)))
    light_cluster.send(topic=PARENT, body="plain")
    puller = Puller(light_cluster)
    assert puller.bodies(A, 6) == [str(number) for number in range(6)]
    assert puller.bodies(B, 3) == ["1", "3", "5"]
    assert puller.ask("pull", B, tags="*", offset=2, count=32)["next"] == 3
    assert puller.ask("pull", B, tags="*", offset=3, count=32)["status"] == "NO_NEW_MSG"
    assert [puller.ask("min", A), puller.ask("max", A)] == [0, 6]
    puller.commit(A, 4)
    assert puller.ask("committed", A) == 4
    puller.finish()


def consume(cluster: Cluster, group: str, topic: str, **properties: object) -> Program:
    """Start Apache's push consumer on a light topic."""
    place = {"parent": PARENT, "broker": cluster.broker_address, "brokerName": BROKER}
    program = cluster.start("Light", {"group": group, "topic": topic, **place, **properties})
    program.wait_event("started")
    return program


def handled(program: Program, *, again: bool = False) -> list[str]:
    """Return the messages that were delivered for the first time, or redelivered."""
    return [each["body"] for each in program.of("message") if bool(each["reconsumeTimes"]) is again]


def wait_handled(program: Program, expected: list[str], *, again: bool = False) -> None:
    program.wait_until(
        lambda: sorted(handled(program, again=again)) == expected, f"not {expected}", within_s=PATIENCE_S
    )


def test_javas_push_consumer_reads_a_light_topic_on(light_cluster: Cluster) -> None:
    """It gets existing and new messages, retries failed ones, and resumes where it was."""
    light_cluster.create_topic(PARENT, 1)
    for number in range(3):
        send(light_cluster, str(number), A, B)
    consumer = consume(light_cluster, "pushed", A, fail="first")
    wait_handled(consumer, ["0", "1", "2"])
    send(light_cluster, "3", A)
    send(light_cluster, "elsewhere", B)
    wait_handled(consumer, ["0", "1", "2", "3"])
    wait_handled(consumer, ["0", "1", "2", "3"], again=True)
    consumer.finish()
    send(light_cluster, "4", A)
    consumer = consume(light_cluster, "pushed", A)
    wait_handled(consumer, ["4"])
    consumer.finish()


def test_javas_pop_consumer_reads_a_light_topic(light_cluster: Cluster) -> None:
    light_cluster.create_topic(PARENT, 1)
    body = {"topic": A, "consumerGroup": "popped", "mode": "POP", "popShareQueueNum": 8}
    made = json.dumps({"groupName": "popped"}).encode()
    at = light_cluster.broker_address
    assert wire.ask(at, wire.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=made).header["code"] == 0
    answer = wire.ask(at, SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode()).header
    assert answer["code"] == 0, answer
    for number in range(3):
        send(light_cluster, str(number), B, A)
    consumer = consume(light_cluster, "popped", A, pop="true", fail="first", invisible=10_000)
    wait_handled(consumer, ["0", "1", "2"])
    send(light_cluster, "3", A)
    wait_handled(consumer, ["0", "1", "2", "3"])
    wait_handled(consumer, ["0", "1", "2", "3"], again=True)
    assert all(each["popped"] for each in consumer.of("message"))
    consumer.finish()


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_light_queues_are_handed_to_apaches_broker_and_back(tmp_path: Path, is_killed: bool) -> None:
    """Either broker continues the other's offsets, including those of light groups."""
    with ExitStack() as stack:
        servers = LibraServers(tmp_path, BROKER, settings={**STORE, **LIGHT})
        stack.callback(servers.stop)
        cluster = Cluster("libra", servers.namesrv, tmp_path)
        stack.callback(cluster.stop_programs, keep_producers=False)
        cluster.create_topic(PARENT, 1)
        for number in range(3):
            send(cluster, str(number), A, B)
        puller = Puller(cluster)
        assert puller.bodies(B, 3) == ["0", "1", "2"]
        puller.commit(A, 2)
        puller.finish()
        cluster.stop_programs(keep_producers=False)
        servers.stop_broker(BROKER)

        apache = ApacheBroker(
            tmp_path / BROKER, namesrv=servers.namesrv, name=BROKER, settings={**SMALL_STORE, **LIGHT},
            port=servers.ports[BROKER],
        )  # fmt: skip
        stack.callback(apache.process.kill)
        apache.wait_ready()
        puller = Puller(cluster)
        assert puller.bodies(A, 3) == puller.bodies(B, 3) == ["0", "1", "2"]
        assert puller.ask("committed", A) == 2
        send(cluster, "3", B, A)
        assert puller.bodies(A, 4) == ["0", "1", "2", "3"]
        puller.commit(A, 3)
        puller.finish()
        cluster.stop_programs(keep_producers=False)
        (apache.process.kill if is_killed else apache.stop)()

        servers.start(BROKER)
        send(cluster, "4", A)
        puller = Puller(cluster)
        assert puller.bodies(A, 5) == ["0", "1", "2", "3", "4"]
        assert puller.bodies(B, 4) == ["0", "1", "2", "3"]
        if not is_killed:  # Apache's broker writes offsets every 5 s.
            assert puller.ask("committed", A) == 3
        puller.finish()
