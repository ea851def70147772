"""The broker as a process: sockets, threads and timers, a name server beside it, stops and kills."""

import asyncio
import contextlib
import errno
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from libramq.broker.broker_conf import broker_config
from libramq.broker.config import VIP_DISTANCE, BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.clock import SystemClock
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import ConfigError, ConnectionLost, LibraError, RequestTimeout, StoreLocked, TopicNotExist
from libramq.filesystem import FileSystem, LocalFileSystem
from libramq.formats.document import encode_body
from libramq.formats.tables import TopicConfig
from libramq.groups.rebalance_event import decode_event
from libramq.message import MessageQueue, decode_records
from libramq.nameserver import NameServer
from libramq.protocols.kafka.server import KafkaServer
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.replication.blocks import BlockReader, encode_report
from libramq.rpc import admin_calls, broker_calls, name_server_calls
from libramq.rpc.call import Call
from libramq.runtime.asyncio_seams import BriefWork
from libramq.transport.asyncio_remotes import AsyncioRemotes
from tests.broker.brokers import heartbeat, send_header
from tests.broker.test_few_descriptors import count_open, descriptors
from tests.cli.commands import end, start
from tests.interop.ports import free_broker_port, free_port
from tests.transport.loops import LOOPS, run_on, until, until_asked

T = TypeVar("T")
both = pytest.mark.parametrize("loop", list(LOOPS))
HOST = "127.0.0.1"


class Client:
    """A client that makes calls over one set of connections, and remembers its notifications."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.notified: asyncio.Queue[str] = asyncio.Queue()
        self.remotes = AsyncioRemotes(SystemClock().monotonic_ms, on_request=self._asked)

    def _asked(self, _: str, command: Command, __: object) -> None:
        assert command.code == R.NOTIFY_CONSUMER_IDS_CHANGED
        self.notified.put_nowait(command.ext["consumerGroup"])

    async def make(self, call: Call[T], *, address: str | None = None, timeout_ms: int = 5_000) -> T:
        where = address or self.address
        reply = await self.remotes.call(where, call.command(), timeout_ms=timeout_ms)
        return call.result(reply, where=where)

    async def send(self, body: bytes, topic: str = "T", queue_id: int = 0, **fields: object):
        header = send_header(topic, queue_id=queue_id, **fields)
        return await self.make(broker_calls.send_message(header, body))

    async def beat(self, client_id: str, group: str = "G") -> None:
        await self.make(broker_calls.heartbeat(heartbeat(client_id, group)))

    async def pull(
        self, topic: str = "T", queue_id: int = 0, offset: int = 0, hold_ms: int = 0, **fields: object
    ):
        header = h.PullMessageHeader(
            consumer_group="G", topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=32,
            sys_flag=6, subscription="*", suspend_timeout_millis=hold_ms, **fields,
        )  # fmt: skip
        return await self.make(broker_calls.pull_message(header), timeout_ms=30_000)

    async def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        found: list[bytes] = []
        while (reply := await self.pull(topic, queue_id, len(found))).code == 0:
            found += [message.body for message in decode_records(reply.body)]
        return found

    async def close(self) -> None:
        await self.remotes.aclose()


def config(data: Path, **options: object) -> BrokerConfig:
    defaults: dict[str, object] = {"store_path": str(data), "listen_port": free_broker_port()}
    return BrokerConfig(**(defaults | options))  # type: ignore[arg-type]


@asynccontextmanager
async def running(settings: BrokerConfig, filesystem: FileSystem | None = None) -> AsyncIterator[Client]:
    """Run a broker that listens, and yield a client of it."""
    server = BrokerServer(settings, clock=SystemClock(), filesystem=filesystem or LocalFileSystem())
    await server.start()
    client = Client(settings.address)
    try:
        yield client
    finally:
        await client.close()
        await server.stop()


@both
def test_a_broker_and_a_name_server_find_each_other(loop, tmp_path):
    async def scenario() -> None:
        async with NameServer(HOST, 0) as nameserver:
            settings = config(tmp_path, namesrv_addr=nameserver.address)
            async with running(settings) as client:
                cluster = await client.make(name_server_calls.cluster_info(), address=nameserver.address)
                assert cluster.broker_addr_table["broker-a"].broker_addrs == {0: settings.address}
                await client.send(b"x", "Fresh")

                async def has_route() -> bool:
                    try:
                        call = name_server_calls.topic_route("Fresh")
                        route = await client.make(call, address=nameserver.address)
                    except TopicNotExist:
                        return False
                    return route.queue_datas[0].write_queue_nums == 4

                await until_asked(has_route)
            other = Client(nameserver.address)
            assert (await other.make(name_server_calls.cluster_info())).broker_addr_table == {}
            await other.close()

    run_on(loop, scenario)


@pytest.mark.parametrize("ip", ["127.0.0.3", "::1"])
def test_a_broker_listens_at_the_address_that_it_announces(ip, tmp_path):
    async def scenario() -> None:
        port = free_broker_port()
        properties = {"brokerIP1": ip, "listenPort": str(port), "storePathRootDir": str(tmp_path)}
        async with running(broker_config(properties)[0]) as client:
            await client.send(b"x")

    if ip == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("a kernel without IPv6")
    asyncio.run(scenario())


@pytest.mark.parametrize(
    "ip", ["0.0.0.0", "0.0.0.1", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "fe80::1", "fe80::1%lo"]
)
def test_an_address_to_which_no_client_can_connect_is_not_announced(ip, tmp_path):
    properties = {"brokerIP1": ip, "bindAddress": "127.0.0.1"}
    with pytest.raises(ConfigError, match=f"brokerIP1 {ip}: no client can connect"):
        broker_config(properties)
    with pytest.raises(ConfigError, match=r"kafkaAdvertised .*: no client can connect"):
        KafkaServer(None, BrokerConfig(kafka_advertised=f"[{ip}]:9092"), LocalFileSystem())


@pytest.mark.parametrize("port", ["", "0", "65536", "9" * 5_000])
def test_an_address_for_kafkas_clients_without_a_port_is_refused(port):
    with pytest.raises(ConfigError, match=r"kafkaAdvertised=.*: write HOST:PORT"):
        KafkaServer(None, BrokerConfig(kafka_advertised=f"a.example:{port}"), LocalFileSystem())


@both
def test_the_vip_port_serves_the_same_requests(loop, tmp_path):
    async def scenario() -> None:
        settings = config(tmp_path)
        async with running(settings) as client:
            vip = f"{HOST}:{settings.listen_port - 2}"
            header = send_header()
            sent = await client.make(broker_calls.send_message(header, b"vip"), address=vip)
            assert sent.code == 0
            assert await client.bodies() == [b"vip"]

    run_on(loop, scenario)


@both
def test_a_slave_gets_the_log_at_the_ha_port(loop, tmp_path):
    async def scenario() -> None:
        port = free_broker_port()
        settings = config(tmp_path, listen_port=port, ha_listen_port=port + 1)
        async with running(settings) as client:
            await client.send(b"copied")
            reading, writing = await asyncio.open_connection(HOST, port + 1)
            writing.write(encode_report(0))
            blocks, reader = [], BlockReader()
            while not blocks:
                blocks += reader.receive(await reading.read(1 << 16))
            assert [message.body for message in decode_records(blocks[0].data)] == [b"copied"]
            writing.write(encode_report(1 << 40))
            assert await reading.read() == b""
            writing.close()

    run_on(loop, scenario)


def test_clients_leave_descriptors_to_a_slave(tmp_path):
    """A slave that lost its connection copied nothing while clients kept connecting."""

    clients: list[Client] = []

    async def connect_many(address: str) -> None:
        while True:
            clients.append(Client(address))
            await clients[-1].send(b"copied")

    async def scenario() -> None:
        port = free_broker_port()
        settings = config(tmp_path, listen_port=port, ha_listen_port=port + 1)
        async with running(settings):
            with pytest.raises(ConnectionLost):
                await connect_many(settings.address)
            await clients.pop().close()
            reading, writing = await asyncio.open_connection(HOST, port + 1)
            writing.write(encode_report(0))
            assert await reading.read(1)
            writing.close()
            for each in clients:
                await each.close()

    with descriptors(count_open() + 160):
        asyncio.run(scenario())


@both
def test_a_connection_from_elsewhere_is_ended_before_it_reports(loop, tmp_path):
    """It used to hold a descriptor for two minutes, and there is no limit on connections per address."""

    async def scenario() -> None:
        port = free_broker_port()
        settings = config(
            tmp_path, listen_port=port, ha_listen_port=port + 1, ha_allowed_addresses="10.0.0.0/8"
        )
        async with running(settings):
            reader, writer = await asyncio.open_connection(HOST, port + 1)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

    run_on(loop, scenario)


def test_a_failing_step_of_the_stop_leaves_no_store_open(tmp_path, monkeypatch):
    async def scenario() -> None:
        settings = config(tmp_path)
        server = BrokerServer(settings, clock=SystemClock(), filesystem=LocalFileSystem())
        await server.start()
        close = server._remotes.aclose

        async def fail() -> None:
            await close()
            raise RuntimeError("a bug")

        monkeypatch.setattr(server._remotes, "aclose", fail)
        with pytest.raises(RuntimeError, match="a bug"):
            await server.stop()
        async with running(settings) as client:
            await client.send(b"x")

    asyncio.run(scenario())


def test_a_taken_port_is_reported_and_the_data_left_alone(tmp_path):
    async def scenario() -> None:
        settings = config(tmp_path / "one")
        async with running(settings) as client:
            await client.send(b"x")
            other = BrokerServer(
                config(tmp_path / "two", listen_port=settings.listen_port),
                clock=SystemClock(),
                filesystem=LocalFileSystem(),
            )
            with pytest.raises(ConfigError, match=f"port {settings.listen_port} "):
                await other.start()
            above = BrokerServer(
                config(tmp_path / "three", listen_port=settings.listen_port + VIP_DISTANCE),
                clock=SystemClock(),
                filesystem=LocalFileSystem(),
            )
            needed = f"listenPort={settings.listen_port + VIP_DISTANCE} needs it too"
            with pytest.raises(ConfigError, match=needed):  # It is derived, not configured.
                await above.start()
            async with running(config(tmp_path / "two")) as second:
                assert await second.bodies("BenchmarkTest") == []
            assert await client.bodies() == [b"x"]

    run_on("asyncio", scenario)


def test_a_failed_start_raises_and_leaves_the_store_unlocked(tmp_path):
    """An impossible host name raises no OSError, so the start used to go on without listening."""

    async def scenario() -> None:
        wrong = config(tmp_path, bind_address="a..b", allow_public=True)
        broker = BrokerServer(wrong, clock=SystemClock(), filesystem=LocalFileSystem())
        with pytest.raises(UnicodeError):
            await broker.start()
        async with running(config(tmp_path)) as client:
            await client.send(b"x")

    run_on("asyncio", scenario)


def test_two_brokers_do_not_share_a_directory(tmp_path):
    async def scenario() -> None:
        async with running(config(tmp_path)) as client:
            other = BrokerServer(config(tmp_path), clock=SystemClock(), filesystem=LocalFileSystem())
            with pytest.raises(StoreLocked, match=str(tmp_path)):
                await other.start()
            await other.stop()
            assert (await client.send(b"x")).code == 0

    run_on("asyncio", scenario)


def test_an_unreadable_directory_is_unlocked_again(tmp_path):
    (tmp_path / "config").mkdir()
    broken = tmp_path / "config" / "topics.json"
    broken.write_text("{broken")

    async def scenario() -> None:
        server = BrokerServer(config(tmp_path), clock=SystemClock(), filesystem=LocalFileSystem())
        with pytest.raises(LibraError, match=r"topics\.json"):
            await server.start()
        await server.stop()
        broken.unlink()
        async with running(config(tmp_path)) as client:
            assert (await client.send(b"x")).code == 0

    run_on("asyncio", scenario)


@both
def test_bad_bytes_affect_no_other_connection(loop, tmp_path):
    async def scenario() -> None:
        settings = config(tmp_path)
        async with running(settings) as client:
            await client.send(b"x")
            reader, writer = await asyncio.open_connection(HOST, settings.listen_port)
            writer.write(b"\xff" * 100)
            assert await reader.read() == b""
            writer.close()
            assert await client.bodies() == [b"x"]

    run_on(loop, scenario)


@both
def test_members_are_notified_of_joins_departures_and_kills(loop, tmp_path):
    async def scenario() -> None:
        settings = config(tmp_path)
        async with running(settings) as alice:
            await alice.beat("alice")
            assert await alice.notified.get() == "G"
            bob = Client(settings.address)
            await bob.beat("bob")
            assert await alice.notified.get() == "G"
            assert await bob.notified.get() == "G"
            assert await alice.make(broker_calls.consumer_list("G")) == ["alice", "bob"]
            await bob.make(broker_calls.unregister_client("bob", producer_group=None, consumer_group="G"))
            assert await alice.notified.get() == "G"
            await bob.beat("bob")
            assert await alice.notified.get() == "G"
            await bob.close()
            assert await alice.notified.get() == "G"
            assert await alice.make(broker_calls.consumer_list("G")) == ["alice"]
            started = ["member_joined", "member_joined", "member_left", "member_joined", "connection_closed"]
            reasons: list[str | None] = []
            while len(reasons) < len(started):
                events = await alice.bodies("LIBRA_REBALANCE_EVENTS")
                reasons = [decode_event(event).reason for event in events if b"started" in event]
            assert reasons == started

    run_on(loop, scenario)


@both
def test_a_held_pull_is_woken_by_another_connections_send(loop, tmp_path):
    async def scenario() -> None:
        settings = config(tmp_path)
        async with running(settings) as client:
            await client.send(b"first")
            held = asyncio.ensure_future(client.pull(offset=1, hold_ms=20_000))
            producer = Client(settings.address)
            await producer.send(b"other queue", queue_id=1)
            assert not held.done()
            await producer.send(b"second")
            reply = await held
            assert [message.body for message in decode_records(reply.body)] == [b"second"]
            short = await client.pull(offset=2, hold_ms=30)
            assert short.code == C.PULL_NOT_FOUND
            await producer.close()

    run_on(loop, scenario)


class SlowDisk(LocalFileSystem):
    """A file system whose flush of the commit log waits until it is released, or fails."""

    def __init__(self) -> None:
        self.may_flush = threading.Event()
        self.may_flush.set()
        self.is_flushing = threading.Event()
        self.is_broken = False
        self.paths: dict[int, Path] = {}

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        file = super().open(path, write=write, create=create)
        self.paths[file] = path
        return file

    def fsync(self, file: int) -> None:
        if self.paths[file].parent.name != "commitlog":
            return
        self.is_flushing.set()
        self.may_flush.wait(60)
        if self.is_broken:
            raise OSError(errno.EIO, "the disk is broken")


@both
def test_under_sync_flush_answers_wait_for_the_disk(loop, tmp_path, monkeypatch):
    """On a disk that is known to be slow nothing else does."""
    monkeypatch.setattr(BriefWork, "may_begin", lambda *_: False)
    disk = SlowDisk()

    async def scenario() -> None:
        async with running(config(tmp_path, flush_disk_type="SYNC_FLUSH"), disk) as client:
            await client.send(b"before")
            disk.may_flush.clear()
            disk.is_flushing.clear()
            waiting = [asyncio.ensure_future(client.send(str(n).encode())) for n in range(5)]
            await asyncio.to_thread(disk.is_flushing.wait, 10)
            assert await client.make(broker_calls.max_offset(MessageQueue("T", "broker-a", 0))) == 1
            impatient = await client.send(b"no wait", properties={"WAIT": "false"}, queue_id=1)
            assert impatient.code == 0
            assert not any(one.done() for one in waiting)
            disk.may_flush.set()
            assert [reply.code for reply in await asyncio.gather(*waiting)] == [0] * 5
            assert len(await client.bodies()) == 6

    run_on(loop, scenario)


def test_after_a_failed_flush_sends_are_refused(tmp_path):
    disk = SlowDisk()

    async def scenario() -> None:
        async with running(config(tmp_path, flush_disk_type="SYNC_FLUSH"), disk) as client:
            await client.send(b"before")
            disk.is_broken = True
            assert (await client.send(b"lost?")).code == C.FLUSH_DISK_TIMEOUT
            with pytest.raises(LibraError, match="flush"):
                await client.send(b"refused")
            assert await client.bodies() == [b"before"]

    run_on("asyncio", scenario)


@both
def test_the_creator_of_a_topic_finds_it_at_the_name_servers(loop, tmp_path):
    """The answer comes when name servers know the topic, so a client never sees one of another size."""

    async def scenario() -> None:
        async with (
            NameServer(HOST, 0) as nameserver,
            running(config(tmp_path, namesrv_addr=nameserver.address)) as client,
        ):
            for queues in range(1, 6):
                name = f"T{queues}"
                topic = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
                await client.make(admin_calls.create_topic(topic))
                route = await client.make(name_server_calls.topic_route(name), address=nameserver.address)
                assert route.queue_datas[0].write_queue_nums == queues

    run_on(loop, scenario)


def test_an_absent_or_hanging_name_server_is_not_awaited_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr("libramq.broker.shell.FIRST_ROUND_MS_MAX", 50)
    monkeypatch.setattr("libramq.broker.cluster.registration.ANNOUNCED_MS_MAX", 100)
    created = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)

    async def scenario() -> None:
        ended = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            await writer.wait_closed()
            ended.set()

        hanging = await asyncio.start_server(hang, HOST, 0)
        addresses = f"{HOST}:{hanging.sockets[0].getsockname()[1]};{HOST}:{free_port()}"
        async with running(config(tmp_path, namesrv_addr=addresses)) as client:
            await client.make(admin_calls.create_topic(created))
        await ended.wait()
        hanging.close()

    run_on("asyncio", scenario, seconds=20)  # Less than a hanging name server is waited for.


def test_a_name_server_that_starts_later_or_restarts_gets_a_registration(tmp_path):
    async def scenario() -> None:
        port = free_port()
        address = f"{HOST}:{port}"
        async with running(config(tmp_path, namesrv_addr=address)) as client:

            async def is_known() -> bool:
                try:
                    found = await client.make(name_server_calls.cluster_info(), address=address)
                except LibraError:
                    return False
                return "broker-a" in found.broker_addr_table

            for _ in range(2):
                assert not await is_known()
                async with NameServer(HOST, port):
                    await until_asked(is_known)

    run_on("asyncio", scenario)


def test_a_hanging_name_server_delays_neither_the_broker_nor_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("libramq.broker.shell.FIRST_ROUND_MS_MAX", 50)

    async def scenario() -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        hanging = await asyncio.start_server(hang, HOST, 0)
        async with NameServer(HOST, 0) as nameserver:
            addresses = f"{HOST}:{hanging.sockets[0].getsockname()[1]};{nameserver.address}"
            async with running(config(tmp_path, namesrv_addr=addresses)) as client:
                await client.send(b"x", "Fresh")
                while True:
                    try:
                        await client.make(name_server_calls.topic_route("Fresh"), address=nameserver.address)
                        break
                    except TopicNotExist:
                        await asyncio.sleep(0.005)
        hanging.close()

    run_on("asyncio", scenario, seconds=20)  # Less than a hanging name server is waited for.


def test_a_start_ends_when_the_broker_listens_however_long_that_takes(tmp_path, monkeypatch):
    """At a load of 15 the broker did not listen yet 50 ms after it had given up on the name servers."""
    monkeypatch.setattr("libramq.broker.shell.FIRST_ROUND_MS_MAX", 0)
    monkeypatch.setattr("libramq.broker.cluster.registration.LOOK_AROUND_MS_MAX", 1_500)

    async def scenario() -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        hanging = await asyncio.start_server(hang, HOST, 0)
        address = f"{HOST}:{hanging.sockets[0].getsockname()[1]}"
        async with running(config(tmp_path, namesrv_addr=address)) as client:
            await client.send(b"x", "Fresh")
        hanging.close()

    run_on("asyncio", scenario, seconds=30)


@both
def test_everything_survives_a_stop_and_a_start(loop, tmp_path):
    async def scenario() -> None:
        queue = MessageQueue("T", "broker-a", 0)
        for turn in range(3):
            async with running(config(tmp_path)) as client:
                assert await client.bodies() == [str(n).encode() for n in range(turn)] if turn else True
                await client.send(str(turn).encode())
                await client.beat("alice")
                await client.make(broker_calls.update_consumer_offset("G", queue, turn + 1))
                await client.send(b"later", properties={"DELAY": "18"})
        async with running(config(tmp_path)) as client:
            assert await client.make(broker_calls.query_consumer_offset("G", queue)) == 3
            stats = await client.make(admin_calls.topic_stats("SCHEDULE_TOPIC_XXXX"))
            assert sum(offset.max_offset for offset in stats.offset_table.values()) == 3
            with pytest.raises(LibraError, match="no consumer"):
                await client.make(broker_calls.consumer_list("G"))

    run_on(loop, scenario)


def test_a_stopping_broker_records_no_departure_of_its_members(tmp_path):
    async def scenario() -> None:
        settings = config(tmp_path)
        server = BrokerServer(settings, clock=SystemClock(), filesystem=LocalFileSystem())
        await server.start()
        alice = Client(settings.address)
        await alice.beat("alice")
        await server.stop()
        await until(lambda: not alice.remotes.is_connected(alice.address))
        await alice.close()
        async with running(settings) as client:
            events = [decode_event(event) for event in await client.bodies("LIBRA_REBALANCE_EVENTS")]
            assert [event.reason for event in events] == ["member_joined"]

    run_on("asyncio", scenario)


def test_acknowledged_writes_survive_a_kill(tmp_path):
    """A process is killed by SIGKILL while messages, commits, topics and groups are being written."""
    data, port, nameserver_port = tmp_path / "data", free_broker_port(), free_port()
    process = start(
        ["up", "--nameserver-port", str(nameserver_port), "--broker-port", str(port), "--data", str(data)]
    )
    sent: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(4)}
    committed: dict[int, int] = {}
    topics: list[str] = []

    async def producer(client: Client, queue_id: int) -> None:
        while True:
            body = f"{queue_id}-{len(sent[queue_id])}".encode()
            await client.send(body, queue_id=queue_id)
            sent[queue_id].append(body)

    async def committer(client: Client, queue_id: int) -> None:
        queue = MessageQueue("T", "broker-a", queue_id)
        while True:
            offset = len(sent[queue_id])
            await client.make(broker_calls.update_consumer_offset("G", queue, offset))
            committed[queue_id] = offset

    async def founder(client: Client) -> None:
        while True:
            topic = f"Topic-{len(topics)}"
            await client.send(b"first", topic)
            topics.append(topic)

    async def work() -> None:
        client = Client(f"{HOST}:{port}")
        await client.beat("alice")
        await client.send(b"0-0")
        sent[0].append(b"0-0")
        tasks = [asyncio.ensure_future(producer(client, n)) for n in range(4)]
        tasks += [asyncio.ensure_future(committer(client, n)) for n in range(4)]
        tasks.append(asyncio.ensure_future(founder(client)))
        await until(lambda: all(len(bodies) > 300 for bodies in sent.values()) and len(topics) > 20)
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, ConnectionLost | RequestTimeout | LibraError) for outcome in outcomes)
        await client.close()

    async def look() -> None:
        async with running(config(data)) as client:
            for queue_id, bodies in sent.items():
                found = await client.bodies(queue_id=queue_id)
                assert found[: len(bodies)] == bodies
                assert len(found) <= len(bodies) + 1
                queue = MessageQueue("T", "broker-a", queue_id)
                offset = await client.make(broker_calls.query_consumer_offset("G", queue))
                assert committed[queue_id] <= offset <= len(found)
            for topic in topics:
                assert await client.bodies(topic) == [b"first"]

    try:
        assert process.stdout is not None
        while "LibraMQ is up" not in process.stdout.readline():
            assert process.poll() is None
        run_on("uvloop", work, seconds=60)
        run_on("uvloop", look, seconds=60)
    finally:
        end(process)


def test_requests_that_lack_their_body_are_answered(tmp_path):
    async def scenario() -> None:
        async with running(config(tmp_path)) as client:
            for body in (b"", encode_body({}), b"\x00"):
                reply = await client.remotes.call(client.address, Command(code=R.LOCK_BATCH_MQ, body=body))
                assert reply.code != C.SUCCESS
            assert (await client.send(b"x")).code == 0

    run_on("asyncio", scenario)
