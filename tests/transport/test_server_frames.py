"""The frames that a server holds, incomplete or waiting to be processed, are bounded in sum."""

import pytest

from libramq.remoting.command import Command, reply_to
from libramq.remoting.frame import encode_frame
from libramq.runtime.outgoing import UNSENT_BYTES_HIGH
from libramq.transport import server as server_module
from libramq.transport.server import (
    UNFINISHED_BYTES_MAX,
    WAITING_BYTES_MAX,
    Server,
    ServerConnection,
    UnfinishedFrames,
    WaitingFrames,
)
from tests.transport.loops import LOOPS, run_on, until
from tests.transport.test_server import Client, serve

MIB = 1 << 20
BODY = bytes(4 * MIB)
SENDERS = 40
#: Two rounds of reads may be in progress when the limit is exceeded; each may complete two frames.
BYTES_MAX = WAITING_BYTES_MAX + 4 * len(BODY)


class Slow:
    """A protocol that processes small requests at once, and large ones one by one when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[ServerConnection, Command]] = []
        self.gone: list[ServerConnection] = []

    def connected(self, connection: ServerConnection) -> None: ...

    def received(self, connection: ServerConnection, requests: list[Command]) -> None:
        for request in requests:
            if len(request.body) < MIB:
                connection.write(encode_frame(reply_to(request, 0)))
            else:
                connection.pause_reading()
                self.waiting.append((connection, request))

    def writable(self, connection: ServerConnection) -> None: ...

    def closed(self, connection: ServerConnection) -> None:
        self.gone.append(connection)

    @property
    def waiting_bytes(self) -> int:
        return sum(len(request.body) for _, request in self.waiting)

    def process_first(self) -> None:
        connection, request = self.waiting.pop(0)
        connection.write(encode_frame(reply_to(request, 0)))
        connection.resume_reading()


async def send_large(port: int, count: int) -> list[Client]:
    """Return clients that each send a frame of 4 MiB."""
    clients = [await Client.connect(port) for _ in range(count)]
    for client in clients:
        client.writer.write(client.frame(BODY))
    return clients


async def end(server: Server, *clients: Client) -> None:
    for client in clients:
        client.writer.transport.abort()  # Data that the server cannot read would prevent the close.
        await client.close()
    await server.close()


@pytest.mark.parametrize("loop", list(LOOPS))
def test_many_connections_that_wait_with_large_frames_are_read_as_room_is_made(loop):
    async def scenario() -> None:
        slow = Slow()
        server, port = await serve(slow)
        clients = await send_large(port, SENDERS)
        other = await Client.connect(port)
        await until(lambda: slow.waiting_bytes >= WAITING_BYTES_MAX)
        for _ in range(20):
            await other.ask()  # Small requests are still served.
        answered = 0
        most_bytes = 0
        while answered < SENDERS:
            most_bytes = max(most_bytes, slow.waiting_bytes)
            await until(lambda: bool(slow.waiting))
            slow.process_first()
            answered += 1
            await other.ask()
        assert most_bytes <= BYTES_MAX
        for client in clients:
            (reply,) = await client.read(1)
            assert reply.opaque == 1
        assert slow.gone == [], "no connection is closed for having waited"
        await end(server, other, *clients)

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_the_frames_of_a_connection_that_ends_make_room(loop):
    async def scenario() -> None:
        slow = Slow()
        server, port = await serve(slow)
        clients = await send_large(port, SENDERS)
        await until(lambda: slow.waiting_bytes >= WAITING_BYTES_MAX)
        held = len(slow.waiting)
        for connection, _ in slow.waiting[:held]:
            connection.abort("the test ends it")
        await until(lambda: len(slow.waiting) > held)
        await end(server, *clients)

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_clients_that_do_not_read_their_answers_do_not_keep_the_room(loop, monkeypatch):
    """Frames behind a client's unread responses could wait forever, so the worst connection is closed."""
    monkeypatch.setattr(server_module, "STUCK_MS", 10)

    async def scenario() -> None:
        slow = Slow()
        server, port = await serve(slow)
        clients = await send_large(port, WAITING_BYTES_MAX // len(BODY))
        await until(lambda: slow.waiting_bytes >= WAITING_BYTES_MAX)
        stuck, _ = slow.waiting[3]
        stuck.write(bytes(2 * UNSENT_BYTES_HIGH))
        (honest,) = await send_large(port, 1)
        await until(lambda: len(slow.waiting) > len(clients))
        assert slow.gone == [stuck]
        await end(server, honest, *clients)

    run_on(loop, scenario)


class Sender:
    def __init__(self, unsent_bytes: int = 0, leaving_bytes: int = 0) -> None:
        self.unsent_bytes = unsent_bytes
        self.leaving_bytes = leaving_bytes


def test_bytes_count_until_the_connection_is_served_or_ends():
    frames = WaitingFrames()
    first, second = Sender(), Sender()
    frames.add(first, WAITING_BYTES_MAX // 2)
    frames.add(first, WAITING_BYTES_MAX // 2 - 1)
    assert frames.has_room
    frames.add(second, 1)
    assert not frames.has_room
    frames.forget(second)
    frames.forget(second)
    assert frames.has_room
    frames.forget(first)
    assert frames.total_bytes == 0


def test_the_connection_with_most_unread_answers_is_the_one_that_is_stuck():
    frames = WaitingFrames()
    reads_all, reads_little, reads_nothing, has_none_waiting = map(Sender, (0, MIB, 2 * MIB, 3 * MIB))
    frames.add(reads_all, WAITING_BYTES_MAX)
    assert frames.stuck() is None, "it waits for us"
    frames.add(Sender(4 * MIB, 4 * MIB), 1)
    assert frames.stuck() is None, "its answer is on its way"
    frames.add(reads_little, 1)
    frames.add(reads_nothing, 1)
    frames.add(has_none_waiting, 1)
    frames.forget(has_none_waiting)
    assert frames.stuck() is reads_nothing


def test_the_connection_holding_most_bytes_longest_is_closed():
    frames = UnfinishedFrames()
    for number in range(4):
        assert frames.update(f"stalled-{number}", 15 * MIB, 1_000, is_another=True) == []
    assert frames.update("producer", 3 * MIB, 60_000, is_another=True) == []
    assert frames.update("tiny", 100, 1_000, is_another=True) == []
    given_up = frames.update("producer", 5 * MIB, 60_001, is_another=False)
    assert given_up == ["stalled-0", "stalled-1"], "until there is room for more than one read"
    for each in given_up:
        frames.forget(each)
    assert frames.total_bytes == 35 * MIB + 100


def test_the_age_of_a_connection_counts_from_its_current_frame():
    frames = UnfinishedFrames()
    frames.update("busy", 15 * MIB, 0, is_another=True)
    frames.update("busy", 15 * MIB, 50_000, is_another=True)
    frames.update("stalled", 12 * MIB, 10_000, is_another=True)
    frames.update("other", 15 * MIB, 50_000, is_another=True)
    assert frames.update("last", UNFINISHED_BYTES_MAX - 41 * MIB, 50_001, is_another=True)[0] == "stalled"


def test_finished_frames_and_ended_connections_are_not_counted():
    frames = UnfinishedFrames()
    for _ in range(100):
        assert frames.update("a", 15 * MIB, 0, is_another=True) == []
        assert frames.update("a", 0, 0, is_another=True) == []
        assert frames.update("b", 15 * MIB, 0, is_another=False) == []
        frames.forget("b")
    assert frames.total_bytes == 0
