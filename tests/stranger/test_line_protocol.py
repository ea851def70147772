"""A protocol that the broker does not know, beside RocketMQ's: step by step, over sockets, simulated."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.clock import SystemClock
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.fencing import Claim, FenceGrant
from libramq.filesystem import LocalFileSystem
from libramq.groups.consumer_group import SILENCE_MS_MAX
from libramq.kernel.connection import ANONYMOUS, Principal
from libramq.message import decode_records
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData
from libramq.runtime.seams import Link
from libramq.store.config import FlushDiskType
from libramq.testing.machine.process import Process
from libramq.testing.nodes.broker_node import SimulatedBroker
from libramq.testing.world import World
from tests.auth.guards import Guard, Users
from tests.broker.brokers import Conversation, answer
from tests.broker.test_coordinated_groups import COLLECT_MS, alone
from tests.broker.test_shell import Client
from tests.broker.test_transactions import INTERVAL_MS, prepare
from tests.fakes import FakePeer
from tests.interop.ports import free_broker_port
from tests.stranger.line_protocol import LineReader, LineTranslator
from tests.transport.loops import LOOPS, run_on

HOST = "127.0.0.1"


class LinePeer(FakePeer):
    """A client of the line protocol, as a performer sees it; `writes` holds the text sent to it."""

    def __init__(self, talk: Conversation, address: str = "127.0.0.1:60000") -> None:
        super().__init__(address)
        self.writes: list[str] = []
        self._entrance = talk.performer.entrance(LineTranslator(talk.broker))
        self._entrance.connected(self)

    def write(self, data: bytes) -> None:
        self.writes.append(data.decode())

    def say(self, *lines: str) -> list[str]:
        """Deliver these lines in one read; return the lines that the turn sends back."""
        self._entrance.received(self, list(lines))
        return self.lines()

    def lines(self) -> list[str]:
        writes, self.writes = self.writes, []
        return "".join(writes).splitlines()

    def end(self) -> None:
        self.is_open = False
        self._entrance.closed(self)


@pytest.fixture
def talk(tmp_path: Path):
    talk = Conversation(tmp_path)
    talk.create_topic("T")
    yield talk
    talk.close()


def committed(talk: Conversation, queue_id: int = 0) -> str | None:
    """Return the group's offset, as an operator sees it."""
    header = h.QueryConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=queue_id)
    return talk.ask(FakePeer(), R.QUERY_CONSUMER_OFFSET, header).ext.get("offset")


def queue_of(talk: Conversation, queue_id: int = 0) -> MessageQueue:
    return MessageQueue("T", talk.config.broker_name, queue_id)


def test_a_rocketmq_client_consumes_messages_of_a_stranger(talk: Conversation):
    stranger = LinePeer(talk)
    assert stranger.say("APPEND T 0 hello there", "APPEND T 0 again") == ["OK 0", "OK 1"]
    pulled = talk.pull(FakePeer())
    assert pulled is not None
    messages = decode_records(pulled.body)
    assert [message.body for message in messages] == [b"hello there", b"again"]
    assert all(message.properties["UNIQ_KEY"] and message.properties["CLUSTER"] for message in messages)
    assert messages[0].born_host == (HOST, 60000)


def test_a_stranger_consumes_messages_of_a_rocketmq_client(talk: Conversation):
    talk.send(FakePeer(), body=b"from afar")
    assert LinePeer(talk).say("POLL G T 0 0 0") == ['FOUND 1 "from afar"']


def test_a_strangers_long_poll_wakes_in_the_turn_of_a_rocketmq_send(talk: Conversation):
    stranger = LinePeer(talk)
    assert stranger.say("POLL G T 0 0 5000") == []
    talk.send(FakePeer(), body=b"at last")
    assert stranger.lines() == ['FOUND 1 "at last"']
    talk.advance(10_000)
    assert stranger.lines() == [], "answered once"


def test_a_strangers_message_waits_for_its_delay_level(talk: Conversation):
    """Whatever a send may bring about is the service's, and not RocketMQ's protocol's."""
    stranger = LinePeer(talk)
    assert stranger.say("LATER 1 T 0 hello", "APPEND T 0 first", "POLL G T 0 0 0") == [
        "OK",
        "OK 0",
        'FOUND 1 "first"',
    ]
    talk.advance(2_000)
    assert stranger.say("POLL G T 0 1 0") == ['FOUND 2 "hello"']


def test_operators_see_a_stranger_among_the_producers_until_it_says_goodbye(talk: Conversation):
    """Heartbeats and departures are a service's: only the bytes are the protocol's."""
    stranger, header = LinePeer(talk), h.ProducerConnectionHeader(producer_group="P")
    assert stranger.say("HELLO c-1 P", f"HELLO {'c' * 256} P") == [
        "OK",
        "ERROR 29 29 INVALID_PARAMETER: a client id of 256 characters",
    ]
    listed = talk.ask(FakePeer(), R.GET_PRODUCER_CONNECTION_LIST, header)
    assert b'"clientId":"c-1"' in listed.body
    assert stranger.say("BYE P") == ["OK"]
    assert talk.ask(FakePeer(), R.GET_PRODUCER_CONNECTION_LIST, header).code == C.SYSTEM_ERROR


def test_a_stranger_hears_of_changes_of_its_group_in_its_own_protocol(talk: Conversation):
    """It used to get RocketMQ's frames among its lines."""
    stranger, java = LinePeer(talk), FakePeer()
    assert stranger.say("FOLLOW c-1 Shared")[0] == "OK"
    stranger.lines()
    group = ConsumerData(group_name="Shared")
    talk.ask(java, R.HEART_BEAT, None, HeartbeatData(client_id="c-2", consumer_data_set=[group]))
    assert stranger.lines() == ["CHANGED Shared"]
    talk.advance(SILENCE_MS_MAX)
    assert "THERE? Shared" in stranger.lines()


def test_a_stranger_is_asked_about_transactions_in_its_own_protocol(talk: Conversation):
    stranger = LinePeer(talk)
    stranger.say("HELLO c-1 P")
    prepare(talk, FakePeer())
    talk.flush()
    talk.advance(INTERVAL_MS)
    assert stranger.lines() == ["COMMITTED? P"]


def test_a_rocketmq_long_poll_wakes_in_the_turn_of_a_strangers_append(talk: Conversation):
    peer = FakePeer()
    command = talk.pull_command(suspend_timeout_millis=5_000)
    talk.give(peer, command)
    assert peer.replies == []
    LinePeer(talk).say("APPEND T 0 hello")
    assert answer(peer, command).code == C.SUCCESS


def test_a_strangers_long_poll_ends_on_time(talk: Conversation):
    stranger = LinePeer(talk)
    stranger.say("POLL G T 0 0 5000")
    talk.advance(4_999)
    assert stranger.lines() == []
    talk.advance(1)
    assert stranger.lines() == ["NOTHING 0"]
    assert len(talk.broker.purgatory) == 0


def test_a_strangers_polls_end_with_its_connection(talk: Conversation):
    stranger = LinePeer(talk)
    stranger.say("POLL G T 0 0 5000", "POLL G T 1 0 5000")
    assert talk.broker.purgatory.statistics().parked == len(talk.broker.held) == 2
    stranger.end()
    assert len(talk.broker.purgatory) == len(talk.broker.held) == 0
    talk.send(FakePeer())
    assert stranger.lines() == []


def test_a_strangers_poll_is_refused_when_its_topic_is_deleted(talk: Conversation):
    stranger = LinePeer(talk)
    stranger.say("POLL G T 0 0 5000")
    talk.ask(FakePeer(), R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    (line,) = stranger.lines()
    assert line.startswith(f"ERROR {int(C.TOPIC_NOT_EXIST)} ")


def test_operators_see_a_strangers_commit(talk: Conversation):
    stranger = LinePeer(talk)
    stranger.say("APPEND T 0 a", "APPEND T 0 b", "APPEND T 1 c", "POLL G T 0 0 0")
    assert committed(talk) in (None, "0")
    assert stranger.say("COMMIT G T 0 2", "COMMIT G T 1 1") == ["OK", "OK"]
    assert (committed(talk), committed(talk, 1)) == ("2", "1")


def test_a_refused_commit_leaves_its_neighbours_alone(talk: Conversation):
    stranger = LinePeer(talk)
    stranger.say("APPEND T 0 a", "POLL G T 0 0 0")
    first, second, third = stranger.say("COMMIT G T 99 1", "COMMIT G T", "COMMIT G T 0 1")
    assert first.startswith(f"ERROR {int(C.INVALID_PARAMETER)} ")
    assert second.startswith(f"ERROR {int(C.SYSTEM_ERROR)} ")
    assert (third, committed(talk)) == ("OK", "1")


def test_a_stranger_shares_a_coordinated_group_with_a_member_of_ours(talk: Conversation):
    alice = alone(talk)
    stranger = LinePeer(talk)
    word, member, epoch, *queues = stranger.say("JOIN G carol T")[0].split()
    assert (word, queues) == ("MEMBER", [])
    stranger.say(f"WAIT G T {member} {epoch}")
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert len(alice.revoke) == 2
    alice.release()
    talk.advance(COLLECT_MS)
    *earlier, last = stranger.lines()
    word, _, *queues = last.split()
    theirs = sorted(int(queue.partition(":")[0]) for queue in queues)
    assert word == "QUEUES"
    assert (len(theirs), sorted([*alice.held, *theirs])) == (2, [0, 1, 2, 3]), earlier
    assert stranger.say(f"LEAVE G {member}") == ["OK"]
    alice.poll()
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert sorted(alice.held) == [0, 1, 2, 3]


Script = Generator[str, str, dict[str, str]]


def joined(group: str, client: str) -> Script:
    """Join and wait for queues: yield lines, receive their answers, and return the claims by queue."""
    word, member, epoch, *queues = (yield f"JOIN {group} {client} T").split()
    assert word == "MEMBER"
    while not queues:
        word, epoch, *queues = (yield f"WAIT {group} T {member} {epoch}").split()
        assert word == "QUEUES"
    return {queue: f"{member} {queue_epoch}" for queue, queue_epoch in (held.split(":") for held in queues)}


def consumed(group: str, client: str) -> Script:
    """Join, open a queue, pull and commit its first message under the fence; others are refused."""
    claims = yield from joined(group, client)
    member, epoch = claims["0"].split()
    assert (yield f"OPEN {group} T 0 {member} {epoch}") == "OK 0"
    answered = yield f"POLL {group} T 0 0 0 {member} {epoch}"
    assert answered.startswith("FOUND ")
    assert (yield f"COMMIT {group} T 0 1 {member} {epoch}") == "OK"
    for claim in ("", f" {member} {int(epoch) - 1}", f" nobody {epoch}"):
        assert (yield f"COMMIT {group} T 0 0{claim}").startswith(f"ERROR {int(C.FENCED)} ")
    assert (yield f"POLL {group} T 0 0 0 nobody {epoch}").startswith(f"ERROR {int(C.FENCED)} ")
    assert (yield f"OPEN {group} T 0 nobody {epoch}").startswith(f"ERROR {int(C.FENCED)} ")
    assert (yield f"OPEN {group} T 0 {member} {epoch}") == "OK 1"
    return claims


def played(talk: Conversation, stranger: LinePeer, script: Script) -> dict[str, str]:
    """Play a script against a broker with a manual clock; return the script's claims."""
    line = next(script)
    while True:
        answered = stranger.say(line)
        if not answered:
            talk.advance(COLLECT_MS)
            answered = stranger.lines()
        (text,) = answered
        try:
            line = script.send(text)
        except StopIteration as ended:
            claims: dict[str, str] = ended.value
            return claims


def test_a_stranger_joins_opens_pulls_and_commits_under_the_fence(talk: Conversation):
    stranger = LinePeer(talk)
    stranger.say("APPEND T 0 hello")
    assert sorted(played(talk, stranger, consumed("G", "carol"))) == ["0", "1", "2", "3"]
    assert committed(talk) == "1"


def test_a_strangers_held_poll_is_fenced_when_another_opens_its_queue(talk: Conversation):
    """The previous owner uses the line protocol, the next one RocketMQ's."""
    stranger = LinePeer(talk)
    claim = played(talk, stranger, joined("G", "carol"))["0"]
    assert stranger.say(f"OPEN G T 0 {claim}") == ["OK 0"]
    assert stranger.say(f"POLL G T 0 0 60000 {claim}") == []
    later = Claim("dave", int(claim.split()[1]) + 1)
    talk.broker.fences.grant(FenceGrant(group="G", epoch=later.epoch, claims={queue_of(talk): later}))
    header = h.OpenQueueHeader(
        consumer_group="G", topic="T", queue_id=0, lb_member="dave", lb_queue_epoch=later.epoch
    )
    assert talk.ask(FakePeer(), R.OPEN_QUEUE, header).code == C.SUCCESS
    (refusal,) = stranger.lines()
    assert refusal.startswith(f"ERROR {int(C.FENCED)} ")


def test_a_strangers_opening_is_answered_once_it_is_durable(tmp_path: Path):
    talk = Conversation(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    talk.create_topic("T")
    talk.broker.fences.grant(FenceGrant(group="G", epoch=1, claims={queue_of(talk): Claim("carol", 1)}))
    stranger = LinePeer(talk)
    assert stranger.say("OPEN G T 0 carol 1") == []
    talk.flush()
    assert stranger.lines() == ["OK 0"]
    talk.close()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("SHOUT", C.SYSTEM_ERROR),
        ("APPEND T", C.SYSTEM_ERROR),
        ("APPEND Nowhere 0 x", C.TOPIC_NOT_EXIST),
        ("APPEND T 4 x", C.INVALID_PARAMETER),
        ("APPEND SELF_TEST_TOPIC 0 x", C.NO_PERMISSION),
        ("POLL G Nowhere 0 0 0", C.TOPIC_NOT_EXIST),
        ("POLL G T 4 0 0", C.INVALID_PARAMETER),
        ("JOIN G", C.SYSTEM_ERROR),
        ("WAIT G T nobody 0", C.UNKNOWN_MEMBER),
        ("LEAVE G nobody", C.UNKNOWN_MEMBER),
        ("OPEN G T 0 nobody 1", C.NOT_YET_GRANTED),
        ("OPEN G T 4 nobody 1", C.INVALID_PARAMETER),
        ("OPEN G Nowhere 0 nobody 1", C.TOPIC_NOT_EXIST),
        ("OPEN G T 0", C.SYSTEM_ERROR),
        ("COMMIT Nobody T 0 0", C.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_a_stranger_is_refused_like_any_client(talk: Conversation, line: str, code: C):
    stranger = LinePeer(talk)
    refusal, fine = stranger.say(line, "APPEND T 0 x")
    assert refusal.startswith(f"ERROR {int(code)} ")
    assert fine == "OK 0"


@pytest.mark.parametrize(
    ("line", "touched"),
    [
        ("APPEND T 0 x", ["Topic:T"]),
        ("POLL G T 0 0 0", ["Group:G", "Topic:T"]),
        ("COMMIT G T 0 0", ["Group:G", "Topic:T"]),
        ("JOIN G carol T", ["Group:G", "Topic:T"]),
        ("WAIT G T nobody 0", ["Group:G", "Topic:T"]),
        ("LEAVE G nobody", ["Group:G"]),
        ("OPEN G T 0 nobody 1", ["Group:G", "Topic:T"]),
    ],
)
def test_a_stranger_is_authorised_like_any_client(tmp_path: Path, line: str, touched: list[str]):
    guard = Guard()
    talk = Conversation(tmp_path, authorizer=guard)
    talk.create_topic("T")
    stranger = LinePeer(talk)
    for denied in touched:
        guard.denied = {denied}
        (refusal,) = stranger.say(line)
        assert refusal.startswith(f"ERROR {int(C.NO_PERMISSION)} ")
        assert denied in refusal
    assert not talk.messages("T")
    guard.denied, guard.asked = set(), []
    assert stranger.say("COMMIT G T 0 0", line)
    assert [str(resource) for resource, _ in guard.asked] == ["Group:G", "Topic:T", *touched]
    talk.close()


def test_a_stranger_logs_in_for_its_connection(tmp_path: Path):
    guard = Guard()
    talk = Conversation(tmp_path, authorizer=guard, authenticator=Users({"alice": "secret"}))
    talk.create_topic("T")
    alice, nobody = LinePeer(talk), LinePeer(talk)
    (refusal,) = alice.say("LOGIN alice guessed")
    assert refusal.startswith(f"ERROR {int(C.NO_PERMISSION)} ")
    alice.say("APPEND T 0 a")
    assert guard.principals == {ANONYMOUS}
    guard.principals = set()
    assert alice.say("LOGIN alice secret", "APPEND T 0 b", "POLL G T 0 1 0", "COMMIT G T 0 0") == [
        "OK",
        "OK 1",
        'FOUND 2 "b"',
        "OK",
    ]
    assert guard.principals == {Principal("alice")}
    nobody.say("APPEND T 0 c")
    assert guard.principals == {Principal("alice"), ANONYMOUS}
    talk.close()


def test_a_denied_commit_leaves_its_neighbours_alone(tmp_path: Path):
    guard = Guard({"Group:H"})
    talk = Conversation(tmp_path, authorizer=guard)
    talk.create_topic("T")
    stranger = LinePeer(talk)
    stranger.say("APPEND T 0 a", "POLL G T 0 0 0")
    first, second = stranger.say("COMMIT H T 0 1", "COMMIT G T 0 1")
    assert first.startswith(f"ERROR {int(C.NO_PERMISSION)} ")
    assert (second, committed(talk)) == ("OK", "1")
    talk.close()


def test_a_strangers_append_is_answered_once_it_is_durable(tmp_path: Path):
    talk = Conversation(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    talk.create_topic("T")
    stranger = LinePeer(talk)
    assert stranger.say("APPEND T 0 precious") == []
    talk.flush()
    assert stranger.lines() == ["OK 0"]
    talk.close()


# Over sockets.


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str) -> str:
    writer.write(line.encode() + b"\n")
    return (await reader.readline()).decode().rstrip("\n")


async def _play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, script: Script) -> None:
    line = next(script)
    while True:
        answered = await _ask(reader, writer, line)
        try:
            line = script.send(answered)
        except StopIteration:
            return


@pytest.mark.parametrize("loop", list(LOOPS))
def test_both_protocols_are_served_over_sockets(loop: str, tmp_path: Path):
    async def scenario() -> None:
        settings = BrokerConfig(store_path=str(tmp_path), listen_port=free_broker_port())
        broker = BrokerServer(settings, clock=SystemClock(), filesystem=LocalFileSystem())
        await broker.start()
        lines = broker.server(LineTranslator(broker.broker), LineReader)
        reader, writer = await asyncio.open_connection(HOST, await lines.listen(HOST, 0))
        client = Client(settings.address)
        try:
            await client.send(b"first", "T")
            assert await _ask(reader, writer, "POLL G T 0 0 0") == 'FOUND 1 "first"'
            assert await _ask(reader, writer, "APPEND T 0 second") == "OK 1"
            assert await client.bodies("T") == [b"first", b"second"]
            woken = asyncio.create_task(_ask(reader, writer, "POLL G T 0 2 15000"))
            while len(broker.broker.held) == 0:  # noqa: ASYNC110 - A broker sets no event.
                await asyncio.sleep(0.001)
            await client.send(b"third", "T")
            assert await woken == 'FOUND 3 "third"'
            assert await _ask(reader, writer, "COMMIT G T 0 3") == "OK"
            await _play(reader, writer, consumed("H", "carol"))
        finally:
            writer.close()
            await client.close()
            await lines.close()
            await broker.stop()

    run_on(loop, scenario)


# Simulated.


class SimulatedStranger:
    """A client of the line protocol in a simulation; `heard` holds its answers and their times."""

    def __init__(self, world: World, address: str) -> None:
        self.heard: list[tuple[int, str]] = []
        self.process = Process("stranger", world.time)
        self.process.start()
        self._world = world
        self._reader = LineReader()
        self._link: Link | None = None
        world.network.dial(address, self.process, self)
        world.time.run_until(world.time.now_ms + 100)

    def say(self, line: str) -> None:
        assert self._link is not None
        self._link.write(line.encode() + b"\n")

    def received(self, data: bytes) -> None:
        self.heard += [(self._world.time.elapsed_ms, line) for line in self._reader.receive(data)]

    def opened(self, link: Link) -> None:
        self._link = link

    def refused(self, error: object) -> None:
        pass

    def ended(self, reason: str) -> None:
        pass


@pytest.mark.parametrize("seed", range(5))
def test_a_stranger_runs_in_virtual_time(seed: int):
    world = World(seed)
    node = SimulatedBroker(world, "broker-a", "10.0.0.1", ())
    node.start()
    world.time.run_until(world.time.now_ms + 1_000)
    assert node.broker is not None
    node.broker.topics.for_send("T", "TBW102", 4, world.time.wall_ms())
    entrance = node.entrance(LineTranslator(node.broker))
    world.network.listen("10.0.0.1:7000", node.process, entrance, LineReader)
    consumer = SimulatedStranger(world, "10.0.0.1:7000")
    producer = SimulatedStranger(world, "10.0.0.1:7000")

    def run(milliseconds: int) -> None:
        world.time.run_until(world.time.now_ms + milliseconds)

    began_ms = world.time.elapsed_ms
    consumer.say("POLL G T 0 0 2000")
    run(3_000)
    ((at_ms, line),) = consumer.heard
    assert line == "NOTHING 0"
    assert 2_000 <= at_ms - began_ms < 2_050, "its clock is a little wrong, and bytes take some ms"
    consumer.say("POLL G T 0 0 2000")
    run(100)
    producer.say("APPEND T 0 hello")
    run(100)
    assert [line for _, line in producer.heard] == ["OK 0"]
    assert consumer.heard[-1][1] == 'FOUND 1 "hello"'
    members = SimulatedStranger(world, "10.0.0.1:7000")
    script = consumed("H", "carol")
    members.say(next(script))
    answered = 0
    while True:
        while len(members.heard) == answered:
            run(10)
        answered += 1
        try:
            members.say(script.send(members.heard[-1][1]))
        except StopIteration:
            break
    assert node.broker.offsets.query("H", "T", 0) == 1
