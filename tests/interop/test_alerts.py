"""The alert rules of packaging/, each tested by causing its problem; Prometheus's engine evaluates them.

A scrape before the problem, and one afterwards, count as a minute apart. The time that a problem has to last
(`for`) is not waited for.
"""

import asyncio
import errno
import json
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from libramq import Message, Producer, PushConsumer
from libramq.balance import register_strategy
from libramq.broker import metrics_server
from libramq.broker.config import BrokerConfig
from libramq.broker.groups import group_health
from libramq.broker.shell import BrokerServer
from libramq.client import Admin, Reject, Retry
from libramq.clock import SystemClock, WallMs
from libramq.errors import LibraError
from libramq.filesystem import DiskUsage, LocalFileSystem
from libramq.nameserver import NameServer
from tests.interop.apache import CACHE, HERE, SETUP_TIMEOUT_S
from tests.interop.ports import free_broker_port, free_port
from tests.packaging.test_monitoring import RULES

pytestmark = pytest.mark.interop

GROUP, TOPIC, WIDE = "shop", "Orders", "Wide"
#: A rebalance is over after a minute at the latest, even with members missing.
PATIENCE_S = 120


@pytest.fixture(scope="module", autouse=True)
def _program() -> None:
    """Compile the program that queries Prometheus's engine."""
    done = subprocess.run(
        [HERE / "prometheus" / "setup"], capture_output=True, text=True, timeout=SETUP_TIMEOUT_S, check=False
    )
    assert not done.returncode, done.stdout + done.stderr


class Disk(LocalFileSystem):
    """A disk with troubles: nearly full, slow to flush, slow to write."""

    def __init__(self) -> None:
        super().__init__()
        self.full = self.fails = False
        self.fsync_s = self.pwrite_s = 0.0

    def disk_space(self, path: Path) -> DiskUsage:
        return DiskUsage(95, 5) if self.full else DiskUsage(50, 50)

    def used_percent(self, path: Path) -> float:
        return 95.0 if self.full else 50.0

    def fsync(self, file: int) -> None:
        time.sleep(self.fsync_s)
        super().fsync(file)

    def pwrite(self, file: int, data: bytes, offset: int) -> None:
        time.sleep(self.pwrite_s)
        if self.fails:
            raise OSError(errno.ENOSPC, "no space")
        super().pwrite(file, data, offset)


class Clock(SystemClock):
    """A clock that can be set forward."""

    ahead_ms = 0

    def wall_ms(self) -> WallMs:
        return WallMs(super().wall_ms() + self.ahead_ms)


class Scene:
    """A broker that is scraped."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self.directory, self.stack = directory, stack
        self.disk, self.clock = Disk(), Clock()
        self.port = free_port()
        self.is_stopped = False

    async def start(self) -> None:
        names = NameServer("127.0.0.1", free_port())
        await names.start()
        self.stack.push_async_callback(names.stop)
        self.namesrv = f"127.0.0.1:{names.port}"
        config = BrokerConfig(
            store_path=str(self.directory / "store"),
            listen_port=free_broker_port(),
            commit_log_file_bytes=1 << 20,
            flush_disk_type="SYNC_FLUSH",
            metrics_exporter_type="PROM",
            metrics_port=self.port,
            namesrv_addr=self.namesrv,
        )  # type: ignore[arg-type]
        self.server = BrokerServer(
            config, clock=self.clock, filesystem=self.disk, randomness=random.Random(7)
        )
        await self.server.start()
        self.stack.push_async_callback(self.stop)
        async with Admin(namesrv=self.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=1)
            await admin.create_topic(WIDE, queues=4)
        self.producer = await self.stack.enter_async_context(
            Producer(namesrv=self.namesrv, send_timeout_ms=5_000)
        )

    async def stop(self) -> None:
        """Stop the broker, once."""
        if not self.is_stopped:
            self.is_stopped, self.disk.fails = True, False
            await self.server.stop()

    async def send(self, count: int) -> list[object]:
        sends = (self.producer.send(Message(TOPIC, b"x")) for _ in range(count))
        return await asyncio.gather(*sends, return_exceptions=True)

    def member(self, handler: Callable[[list[Any]], Any] = lambda _: None, **options: Any) -> PushConsumer:
        topic = options.pop("topic", TOPIC)
        options = {"group": GROUP, "namesrv": self.namesrv, "consume_from": "earliest", **options}
        consumer = PushConsumer(**options)
        consumer.subscribe(topic, "*", handler)
        return consumer

    def scrape(self, name: str) -> Path:
        """Write a scrape for Prometheus to a file, and whether it succeeded."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
                text = answer.read().decode() + 'up{job="libramq"} 1\n'
        except urllib.error.URLError:
            text = 'up{job="libramq"} 0\n'
        (file := self.directory / name).write_text(text)
        return file

    def alerts(self, before: Path) -> set[str]:
        """Return the alerts that fire after the scrapes so far."""
        command = [CACHE / "prometheus" / "check", RULES, before, self.scrape("after")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return {json.loads(line)["alert"] for line in done.stdout.splitlines()}


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(metrics_server, "LAG_MS", 500)
    monkeypatch.setattr(group_health, "ORDERLY_STALLED_MS", 10_000)
    async with AsyncExitStack() as stack:
        found = Scene(tmp_path, stack)
        await found.start()
        yield found


async def handled(scene: Scene, count: int, **options: Any) -> None:
    """Have a member handle this many messages, and leave."""
    done: list[object] = []
    async with scene.member(done.extend, **options), asyncio.timeout(PATIENCE_S):
        while True:
            if len(done) >= count:
                return
            await asyncio.sleep(0.05)


async def broker_stops(scene: Scene) -> None:
    await scene.stop()


MEMBER = f"""
import sys, time
from libramq.sync import PushConsumer
def handle(messages): print("handled", flush=True)
consumer = PushConsumer(group="{GROUP}", namesrv=sys.argv[1], consume_from="earliest", persist_ms=50)
consumer.subscribe(sys.argv[2], "*", handle)
with consumer: time.sleep(600)
"""


async def only_member_is_killed(scene: Scene) -> None:
    """500 messages remain afterwards."""
    await scene.send(1)
    member = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEMBER, scene.namesrv, TOPIC, stdout=asyncio.subprocess.PIPE
    )
    assert member.stdout is not None
    await member.stdout.readline()
    await asyncio.sleep(1)  # It commits twenty times a second.
    member.kill()
    await member.wait()
    await scene.send(500)


HANGING = f"""
import sys, time
from libramq.sync import PushConsumer
def handle(messages): print("called", flush=True); time.sleep(600)
consumer = PushConsumer(group="{GROUP}_new", namesrv=sys.argv[1], consume_from="earliest")
consumer.subscribe("{WIDE}", "*", handle)
with consumer: time.sleep(600)
"""


async def a_new_group_hangs(scene: Scene) -> asyncio.subprocess.Process:
    """Its first message is handled forever: it has committed nothing."""
    for queue in await scene.producer.publish_queues(WIDE):
        await scene.producer.send(Message(WIDE, b"x"), queue=queue)
    member = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HANGING, scene.namesrv, stdout=asyncio.subprocess.PIPE
    )
    scene.stack.push_async_callback(member.wait)
    scene.stack.callback(lambda: member.returncode is None and member.kill())
    assert member.stdout is not None
    await member.stdout.readline()
    scene.clock.ahead_ms = 11 * 60_000
    return member


async def a_new_group_is_killed(scene: Scene) -> None:
    """It ends before its first commit."""
    (await a_new_group_hangs(scene)).kill()


def first_only(client_id: str, queues: Any, client_ids: Any) -> Any:
    return queues[:1]


async def a_strategy_leaves_queues(scene: Scene) -> None:
    """The coordinator, in this process, takes a strategy by its name only."""
    register_strategy("TEST_FIRST_ONLY", first_only)
    await scene.stack.enter_async_context(scene.member(strategy="TEST_FIRST_ONLY", topic=WIDE))


async def a_group_stops_for_a_while(scene: Scene) -> None:
    await scene.send(3)
    scene.clock.ahead_ms = 11 * 60_000


async def members_subscribe_to_different_topics(scene: Scene) -> None:
    await scene.stack.enter_async_context(scene.member(instance_name="one"))
    await scene.stack.enter_async_context(scene.member(instance_name="two", topic=WIDE))


async def a_topic_is_missing(scene: Scene) -> None:
    await scene.stack.enter_async_context(scene.member(topic="Ordres"))


async def a_message_is_rejected(scene: Scene) -> None:
    await scene.send(1)
    await scene.stack.enter_async_context(scene.member(lambda _: Reject()))


async def a_message_fails_again_and_again(scene: Scene) -> None:
    """At the third attempt its handler asks for a delay."""
    await scene.send(1)
    await scene.stack.enter_async_context(
        scene.member(lambda messages: Retry(after=1 if messages[0].reconsume_times < 2 else 600))
    )


async def an_ordered_message_fails_again_and_again(scene: Scene) -> None:
    """Its handler asks for a delay; the message stays in place."""
    await scene.send(1)
    await scene.stack.enter_async_context(scene.member(lambda _: Retry(after=1), orderly=True))


async def a_handler_hangs(scene: Scene) -> None:
    returns = threading.Event()
    await scene.send(1)
    await scene.stack.enter_async_context(scene.member(lambda _: returns.wait(600), max_processing_ms=500))
    scene.stack.callback(returns.set)


async def members_come_and_go(scene: Scene) -> None:
    for _ in range(20):
        async with scene.member():
            await asyncio.sleep(0.1)


async def a_member_freezes(scene: Scene) -> None:
    """Its queues move when its session is over, ten seconds later."""
    member = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEMBER, scene.namesrv, WIDE, stdout=asyncio.subprocess.PIPE
    )
    scene.stack.push_async_callback(member.wait)
    scene.stack.callback(member.kill)
    handled_here: list[object] = []
    await scene.stack.enter_async_context(scene.member(handled_here.extend, topic=WIDE))
    assert member.stdout is not None
    handled_there = asyncio.ensure_future(member.stdout.readline())
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if handled_here and handled_there.done():
                break
            handled_here.clear()
            for queue in await scene.producer.publish_queues(WIDE):
                await scene.producer.send(Message(WIDE, b"x"), queue=queue)
            await asyncio.sleep(0.5)
    member.send_signal(signal.SIGSTOP)
    for queue in await scene.producer.publish_queues(WIDE):  # It reads until it has been sent something.
        await scene.producer.send(Message(WIDE, b"x"), queue=queue)


async def the_disk_fills(scene: Scene) -> None:
    scene.disk.full = True
    async with asyncio.timeout(PATIENCE_S):
        while True:
            outcome = (await scene.send(1))[0]
            if isinstance(outcome, LibraError):
                return
            await asyncio.sleep(0.1)


async def writes_fail(scene: Scene) -> None:
    scene.disk.fails = True
    await scene.send(1)


async def flushes_take_long(scene: Scene) -> None:
    scene.disk.fsync_s = 1.3
    for _ in range(12):
        await scene.send(1)
    scene.disk.fsync_s = 0


async def writes_take_long(scene: Scene) -> None:
    scene.disk.pwrite_s = 0.5
    await scene.send(1)
    scene.disk.pwrite_s = 0


TROUBLES: dict[Callable[[Scene], Awaitable[object]], set[str]] = {
    broker_stops: {"LibraBrokerSilent"},
    only_member_is_killed: {"LibraGroupWithoutMembers"},
    a_strategy_leaves_queues: {"LibraQueuesUnowned"},
    a_group_stops_for_a_while: {"LibraGroupBehind"},
    a_new_group_hangs: {"LibraGroupBehind"},
    a_new_group_is_killed: {"LibraGroupWithoutMembers", "LibraGroupBehind"},
    members_subscribe_to_different_topics: {"LibraGroupUnhealthy"},
    a_topic_is_missing: {"LibraTopicMissing"},
    a_message_fails_again_and_again: {"LibraMessagesFail"},
    an_ordered_message_fails_again_and_again: {"LibraGroupStalled"},
    a_handler_hangs: {"LibraHandlerHangs"},
    a_message_is_rejected: {"LibraDeadLetters"},
    members_come_and_go: {"LibraRebalancesOften"},
    a_member_freezes: {"LibraQueuesPauseLong"},
    the_disk_fills: {"LibraSendsRefused", "LibraDiskFills"},
    writes_fail: {"LibraStoreRefuses"},
    flushes_take_long: {"LibraRequestsSlow", "LibraFlushesSlow"},
    writes_take_long: {"LibraLoopBlocked"},
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_trouble_has_its_alert(scene: Scene, trouble: Callable[[Scene], Awaitable[object]]) -> None:
    """None of the alerts fires before the problem."""
    await scene.send(1)
    await handled(scene, 1)  # The group is known: increases are seen from the second scrape on.
    await asyncio.sleep(2.5)  # The metrics of a broker's start have been sampled.
    before = await asyncio.to_thread(scene.scrape, "before")
    assert not await asyncio.to_thread(scene.alerts, before) & TROUBLES[trouble]
    await trouble(scene)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await asyncio.to_thread(scene.alerts, before)
            if found >= TROUBLES[trouble]:
                return
            await asyncio.sleep(0.5)


def test_every_rule_was_tried() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == set().union(*TROUBLES.values())
