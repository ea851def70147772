"""Apache's TransactionMQProducer at both brokers, and open transactions that the other broker continues."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from libramq.client import TransactionState
from libramq.message import Message, MessageExt
from libramq.sync import Producer
from tests.interop.apache import SMALL_STORE, ApacheBroker
from tests.interop.cluster import Cluster
from tests.interop.libra import LibraServers
from tests.interop.process import PATIENCE_S, Events, Program

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("_programs")]

#: Many checks: a broker keeps checking while it stops and while its producer is away.
SOON = {"transactionCheckInterval": 1_000, "transactionTimeOut": 1_000, "transactionCheckMax": 1_000}
CHECKS_MAX = 30
SIZES = {
    name: SMALL_STORE[name]
    for name in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
}
NAME, HANDED = "transacting", "Handed"


class Brokers:
    """Our broker and Apache's, which open one store directory in turn, at one address."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self._home = home
        self._stack = stack
        self.servers = LibraServers(home, NAME, settings={**SIZES, **SOON})
        stack.callback(self.servers.stop)
        self.cluster = Cluster("libra", self.servers.namesrv, home)
        stack.callback(self.cluster.stop_programs, keep_producers=False)
        self._apache: ApacheBroker | None = None

    def to_apache(self) -> None:
        self.servers.stop_broker(NAME)
        store = self._home / NAME / "store"
        settings = {
            **SMALL_STORE,
            **SOON,
            "transactionOpBatchInterval": 100,  # It repeats checks until it has written the end.
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
        }
        self._apache = ApacheBroker(
            self._home / "apache",
            namesrv=self.servers.namesrv,
            name=NAME,
            settings=settings,
            port=self.servers.ports[NAME],
        )
        self._stack.callback(self._apache.process.kill)
        self._apache.process.wait_line("boot success", within_s=PATIENCE_S)
        self._wait_route()

    def to_ours(self) -> None:
        assert self._apache is not None
        self._apache.stop()
        self.servers.start(NAME)
        self._wait_route()

    def _wait_route(self) -> None:
        """Wait until the name server knows the new broker's topics."""
        self.cluster.wait_until(
            lambda: bool((self.cluster.route(HANDED) or {}).get("brokerDatas")),
            "the topic's route",
            within_s=PATIENCE_S,
        )


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(tmp_path, stack)


def producer(cluster: Cluster, group: str) -> Program:
    program = cluster.start("Transact", {"group": group})
    program.wait_event("started")
    return program


def transact(program: Program, topic: str, body: str, local: str, check: str = "unknown") -> None:
    question = {"topic": topic, "body": body, "local": local, "check": check}
    sent = program.ask("sent", question)
    assert sent["status"] == "SEND_OK", sent


def bodies(consumer: Events) -> list[str]:
    return sorted(delivery["body"] for delivery in consumer.of("message"))


def test_consumers_get_committed_messages(cluster: Cluster) -> None:
    topic, group = cluster.fresh_name("Transacted"), cluster.fresh_name("group")
    cluster.create_topic(topic, 2)
    consumer = cluster.consumer(group, topic)
    transacting = producer(cluster, cluster.fresh_name("producers"))
    for number in range(6):
        transact(transacting, topic, str(number), ("commit", "rollback", "unknown")[number % 3])
    cluster.send(topic=topic, body="last")
    consumer.wait_event("message", body="last")
    deliveries = consumer.wait_count(3, "message")
    assert bodies(consumer) == ["0", "3", "last"]
    committed = next(delivery for delivery in deliveries if delivery["body"] == "0")
    assert (committed["tags"], committed["topic"]) == ("TagA", topic)
    consumer.finish()


def test_a_producer_is_checked_until_it_knows(brokers: Brokers) -> None:
    cluster = brokers.cluster
    topic = cluster.fresh_name("Asked")
    cluster.create_topic(topic, 2)
    consumer = cluster.consumer(cluster.fresh_name("group"), topic)
    transacting = producer(cluster, cluster.fresh_name("producers"))
    transact(transacting, topic, "committed later", "unknown", "commit")
    transact(transacting, topic, "rolled back later", "unknown", "rollback")
    transact(transacting, topic, "never known", "unknown", "unknown")
    consumer.wait_event("message", body="committed later")
    asked = transacting.wait_event("check", body="rolled back later")
    assert (asked["topic"], asked["times"]) == (topic, "1")
    assert asked["transactionId"]
    # Checks repeat until the producer's one-way answer has reached the broker, and then end.
    for times in range(3, CHECKS_MAX):
        transacting.wait_event("check", body="never known", times=str(times))
        asked_before = len(transacting.of("check", body="rolled back later"))
        transacting.wait_event("check", body="never known", times=str(times + 1))
        if len(transacting.of("check", body="rolled back later")) == asked_before:
            break
    else:
        pytest.fail(f"asked {asked_before} times, although it knows")
    assert bodies(consumer) == ["committed later"]
    consumer.finish()


def test_either_broker_continues_the_others_open_transactions(brokers: Brokers) -> None:
    """Each broker leaves open transactions to the other; finished ones are not checked again."""
    cluster = brokers.cluster
    topic, group, producers = HANDED, cluster.fresh_name("group"), cluster.fresh_name("producers")
    cluster.create_topic(topic, 2)
    transacting = producer(cluster, producers)
    transact(transacting, topic, "done at ours", "commit")
    # A broker may check a transaction that takes a second to end, and then gets the same answer.
    transact(transacting, topic, "undone at ours", "rollback", "rollback")
    transacting.finish()
    asleep = producer(cluster, cluster.fresh_name("asleep"))  # No producer of its group remains.
    transact(asleep, topic, "left by ours", "unknown", "commit")
    asleep.finish()
    brokers.to_apache()

    at_apaches = producer(cluster, str(asleep_group(asleep)))
    transact(at_apaches, topic, "done at Apache's", "commit")
    transact(at_apaches, topic, "undone at Apache's", "rollback", "rollback")
    consumer = cluster.consumer(group, topic)
    consumer.wait_event("message", body="left by ours")
    transact(at_apaches, topic, "left by Apache's", "unknown", "unknown")
    at_apaches.finish()
    consumer.finish()
    brokers.to_ours()

    consumer = cluster.consumer(cluster.fresh_name("group"), topic)
    transacting = producer(cluster, str(asleep_group(asleep)))
    transact(transacting, topic, "last", "commit")
    consumer.wait_event("message", body="last")
    transacting.wait_event("check", body="left by Apache's")
    expected = {"done at Apache's", "done at ours", "last", "left by ours"}  # Apache's may deliver twice.
    cluster.wait_until(
        lambda: set(bodies(consumer)) >= expected, "all that was committed", within_s=PATIENCE_S
    )
    assert set(bodies(consumer)) == expected
    assert {check["body"] for check in transacting.of("check")} == {"left by Apache's"}
    consumer.finish()


def test_our_producer_at_either_broker(brokers: Brokers) -> None:
    """Both brokers commit, roll back and check its transactions; they know it from its heartbeats."""
    cluster = brokers.cluster
    cluster.create_topic(HANDED, 2)
    asked: list[str] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.body.decode())
        return TransactionState.ROLLBACK if message.body.startswith(b"undone") else TransactionState.COMMIT

    def transact_ours(where: str) -> None:
        with Producer(group="ours", namesrv=cluster.namesrv, check_transaction=check) as transacting:
            for body in ("done", "left", "undone"):
                with transacting.transaction(Message(HANDED, f"{body} at {where}".encode())) as transaction:
                    if body == "undone":
                        transaction.rollback()
                    elif body == "left":
                        transaction.leave_open()
            consumer.wait_event("message", body=f"left at {where}")
            consumer.wait_event("message", body=f"done at {where}")

    consumer = cluster.consumer(cluster.fresh_name("group"), HANDED)
    transact_ours("ours")
    consumer.finish()
    assert set(bodies(consumer)) == {"done at ours", "left at ours"}
    brokers.to_apache()
    consumer = cluster.consumer(cluster.fresh_name("group"), HANDED)
    transact_ours("Apache's")
    consumer.finish()
    assert {body for body in bodies(consumer) if body.endswith("Apache's")} == {
        "done at Apache's",
        "left at Apache's",
    }
    # On a slow machine a broker also checks transactions that take more than a second to end.
    assert set(asked) >= {"left at ours", "left at Apache's"}


def asleep_group(program: Program) -> str:
    """Return the producer group that a program was started with."""
    return next(each.partition("=")[2] for each in program.command if each.startswith("-Dgroup="))
