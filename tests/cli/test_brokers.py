"""`libra up --brokers 3`: one cluster of several processes, which start and end together."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from libramq import Message, Producer, PushConsumer
from libramq.broker.config import BrokerConfig
from libramq.cli.options import LogLevel
from libramq.cli.servers import broker_children
from libramq.cli.servers.broker_children import BrokerChildren
from libramq.cli.servers.commands import _properties
from libramq.cli.servers.layout import directories
from libramq.client import Admin, ConsumeFrom
from libramq.clock import SystemClock
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError, LibraError, RouteNotFound
from libramq.formats.document import encode_body
from libramq.message import MessageQueue
from libramq.remoting.body.coordination import PeerGatherBody
from libramq.remoting.command import Command
from libramq.transport.asyncio_remotes import AsyncioRemotes
from tests.cli.commands import SECONDS_MAX, end, libra, one_line, start, wait_gone, without_pauses
from tests.interop.ports import free_broker_port, free_port
from tests.transport.loops import until

NAMES = ("broker-a", "broker-b", "broker-c")


class Cluster(NamedTuple):
    process: object
    namesrv: str
    children: list[int]
    data: Path


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    nameserver, data = free_port(), tmp_path / "data"
    process = start(
        [
            *("up", "--brokers", "3", "--data", str(data)),
            *("--nameserver-port", str(nameserver), "--broker-port", str(free_broker_port(brokers=3))),
        ]
    )
    try:
        said = process.stdout.readline()
        while said.startswith("port "):
            said = process.stdout.readline()
        assert f"LibraMQ is up: name server 127.0.0.1:{nameserver}, brokers broker-a " in said
        assert all(name in said for name in NAMES)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield Cluster(process, f"127.0.0.1:{nameserver}", [int(pid) for pid in children], data)
    finally:
        end(process)


async def registered(admin: Admin, topic: str) -> None:
    """Wait until the name server knows a topic at every broker."""
    while True:
        with contextlib.suppress(RouteNotFound):
            route = await admin.topic_route(topic)
            if sorted(queue.broker_name for queue in route.queue_datas) == list(NAMES):
                return
        await asyncio.sleep(0.05)


async def test_a_topic_its_messages_and_its_group_span_all_brokers(cluster):
    """One signal also stops all brokers gracefully."""
    async with Admin(namesrv=cluster.namesrv) as admin:
        assert len(await admin.create_topic("T", queues=2)) == 3
        async with asyncio.timeout(SECONDS_MAX):
            await registered(admin, "T")
    async with Producer(namesrv=cluster.namesrv) as producer:
        sent = [await producer.send(Message("T", b"%d" % number)) for number in range(12)]
    queues = {result.queue for result in sent}
    assert len(queues) == 6
    assigned, bodies, complete = set(), set(), asyncio.Event()

    async def handle(messages):
        bodies.update(message.body for message in messages)
        assigned.update((message.broker_name, message.queue_id) for message in messages)
        if len(bodies) == 12:
            complete.set()

    consumer = PushConsumer(group="G", namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("T", "*", handle)
    async with asyncio.timeout(SECONDS_MAX), consumer:
        await complete.wait()
    assert assigned == {(queue.broker_name, queue.queue_id) for queue in queues}
    cluster.process.send_signal(signal.SIGINT)
    _, err = await asyncio.to_thread(cluster.process.communicate, timeout=SECONDS_MAX)
    assert (cluster.process.returncode, without_pauses(err)) == (0, "")
    for pid in cluster.children:
        wait_gone(pid)
    assert all(not (cluster.data / name / "abort").exists() for name in NAMES)


async def test_brokers_of_up_refuse_unsigned_peers(cluster):
    """Otherwise any program on the machine could pretend to be one of the brokers."""
    async with Admin(namesrv=cluster.namesrv) as admin:
        brokers = (await admin.cluster_info()).broker_addr_table
    remotes = AsyncioRemotes(SystemClock().monotonic_ms)
    body = encode_body(PeerGatherBody(group="G"))
    for name in NAMES:
        forged = Command(code=RequestCode.PEER_GATHER, ext={"lbVersion": "1"}, body=body)
        reply = await remotes.call(brokers[name].master_address, forged)
        assert reply.code == ResponseCode.NO_PERMISSION
        assert "not signed with the innerClientAuthenticationCredentials" in reply.remark
    await remotes.aclose()


def test_the_children_get_no_secret_by_arguments_and_no_signals_of_the_terminal(cluster):
    """Ctrl-C while one was being restarted left a traceback, and "did not stop cleanly"."""
    for pid in cluster.children:
        assert os.getpgid(pid) != os.getpgid(cluster.process.pid)  # A terminal's Ctrl-C is not for them.
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert command[1:] == [b"-m", b"libramq.cli.servers.broker_process", b"warning", b""]
        assert b"libra-up" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_name_server_reads_the_credentials_of_its_brokers(tmp_path):
    """If the credentials cannot be parsed, the error does not show them."""
    config = tmp_path / "namesrv.conf"
    config.touch(mode=0o600)
    config.write_text('innerClientAuthenticationCredentials={"secretKey":"hush"}\n')
    said = one_line(libra("nameserver", "-c", str(config), "--port", str(free_port())))
    assert said.startswith(f"{config}: innerClientAuthenticationCredentials cannot be read; write")
    assert "hush" not in said


async def test_a_broker_that_has_to_be_killed_is_a_failure(tmp_path, monkeypatch):
    """`libra up` used to end with 0, twenty seconds later and without a message."""
    monkeypatch.setattr(broker_children, "STOP_SECONDS", 0.5)
    config = BrokerConfig(broker_name="broker-b", listen_port=free_broker_port(), store_path=str(tmp_path))
    children = BrokerChildren([config], LogLevel.WARNING)
    await children.start()
    frozen = int((tmp_path / "abort").read_text().split()[0])
    os.kill(frozen, signal.SIGSTOP)
    with pytest.raises(LibraError, match=r"broker-b did not stop within 0.5 s and was killed"):
        await children.stop()
    wait_gone(frozen)


def test_no_process_survives_a_kill_of_the_parent(cluster):
    assert len(cluster.children) == 2
    cluster.process.kill()
    for pid in cluster.children:
        wait_gone(pid)


def _line(stream, text):
    """Read lines until one contains a text."""
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"no line has {text!r}")


async def test_a_killed_broker_is_started_again_with_its_messages(cluster):
    async with Admin(namesrv=cluster.namesrv) as admin:
        await admin.create_topic("T", queues=1)
        async with asyncio.timeout(SECONDS_MAX):
            await registered(admin, "T")
        async with Producer(namesrv=cluster.namesrv) as producer:
            await producer.send(Message("T", b"kept"), queue=MessageQueue("T", "broker-b", 0))
        os.kill(cluster.children[0], signal.SIGKILL)
        name = (await asyncio.to_thread(_line, cluster.process.stderr, "is restarted")).split()[1]
        again = await asyncio.to_thread(_line, cluster.process.stderr, "serves again, as process")
        assert again.startswith(f"libra: {name} serves again")
        consumer = PushConsumer(group="G", namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        kept = []
        consumer.subscribe("T", "*", kept.extend)
        async with consumer:
            await until(lambda: kept)
    assert cluster.process.poll() is None
    cluster.process.terminate()
    cluster.process.communicate(timeout=SECONDS_MAX)
    assert cluster.process.returncode == 0


async def test_with_keep_going_a_killed_broker_stays_away(tmp_path, capsys):
    config = BrokerConfig(broker_name="broker-b", listen_port=free_broker_port(), store_path=str(tmp_path))
    children = BrokerChildren([config], LogLevel.WARNING, keep_going=True)
    await children.start()
    assert children.lines()[0].endswith("; one that ends is not restarted (--keep-going)")
    supervising = asyncio.create_task(children.supervise())
    killed = int((tmp_path / "abort").read_text().split()[0])
    os.kill(killed, signal.SIGKILL)
    err = []
    await until(
        lambda: _err(capsys, err, "broker-b has ended (signal 9), and is not restarted; the others continue")
    )
    assert not supervising.done()
    supervising.cancel()
    await children.stop()


def _err(capsys, before, text):
    """Return whether a text has been written to standard error by now."""
    before.append(capsys.readouterr().err)
    return text in "".join(before)


async def test_a_broker_that_ends_again_and_again_is_a_failure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(broker_children, "ENDS_MAX", 2)
    monkeypatch.setattr(broker_children, "RESTART_SECONDS", 0.01)
    config = BrokerConfig(broker_name="broker-b", listen_port=free_broker_port(), store_path=str(tmp_path))
    children = BrokerChildren([config], LogLevel.WARNING)
    await children.start()
    supervising = asyncio.create_task(children.supervise())
    err = []
    os.kill(int(children.lines()[0].split()[2].rstrip(";")), signal.SIGKILL)
    await until(lambda: _err(capsys, err, "broker-b serves again"))
    os.kill(int(children.lines()[0].split()[2].rstrip(";")), signal.SIGKILL)
    await until(supervising.done)
    assert "broker-b ended 2 times within 60 s, the last time with signal 9" in str(supervising.result())
    await children.stop()


def test_a_file_of_options_applies_to_all_brokers_and_what_up_decides_is_refused(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("autoCreateTopicEnable=false\nlistenPort=1\n")
    said = one_line(libra("up", "-c", str(file), "--data", str(tmp_path / "data")))
    assert f"{file} listenPort: libra up sets it" in said
    with pytest.raises(ConfigError, match="--set flushDiskType: write NAME=VALUE"):
        _properties([], ["flushDiskType"])
    file.write_text("flushDiskTpye=SYNC_FLUSH\n")
    with pytest.raises(ConfigError, match=f"{file}: flushDiskTpye: no such option"):
        _properties([file], [])
    file.write_text("autoCreateTopicEnable=false\nmaxMessageSize=1000\nmadeUp=1\n")
    assert _properties([file], ["maxMessageSize=2000"]) == {
        "autoCreateTopicEnable": "false",
        "maxMessageSize": "2000",
        "madeUp": "1",
    }


def test_a_different_count_of_brokers_is_refused_where_it_would_hide_messages(tmp_path):
    assert directories(tmp_path, 1) == {"broker-a": tmp_path}
    three = directories(tmp_path, 3)
    assert three == {name: tmp_path / name for name in NAMES}
    for path in three.values():
        path.mkdir()
    for count in (1, 2):
        with pytest.raises(ConfigError, match="messages of 3 brokers; start it with --brokers 3"):
            directories(tmp_path, count)
    assert list(directories(tmp_path, 4))[-1] == "broker-d"
    (tmp_path / "one" / "commitlog").mkdir(parents=True)
    said = one_line(libra("up", "--brokers", "2", "--data", str(tmp_path / "one")))
    assert "holds the messages of a single broker; start it without --brokers" in said
