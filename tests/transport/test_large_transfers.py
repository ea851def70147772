"""Large responses leave in slices and large frames are read in turns, with others served in between."""

import asyncio
import itertools
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from libramq.remoting.command import FLAG_ONEWAY, Command
from libramq.remoting.frame import encode_frame
from libramq.transport import large_transfers
from libramq.transport.large_transfers import (
    AT_ONCE_US,
    LARGE_BYTES,
    LARGE_FRAME_BYTES,
    LARGE_READ_BYTES,
    READS_PER_ROUND,
    SLICE_BYTES,
    SLICES_PER_ROUND,
    LargeReads,
    LargeWrite,
    LargeWrites,
    may_be_sliced,
)
from tests.transport.loops import LOOPS, run_on, until
from tests.transport.test_server import Client, Echo, serve

DATA = bytes(range(256)) * 40 * 1024  # 10 MiB: more than any socket takes at once.


class FakeTransport:
    """A transport over one end of a pair of sockets."""

    def __init__(self, end: socket.socket, waiting_bytes: int = 0) -> None:
        self._extra = {"socket": end}
        self._waiting_bytes = waiting_bytes
        self.written: list[Any] = []

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def get_extra_info(self, name: str) -> Any:
        return self._extra.get(name)

    def write(self, data: Any) -> None:
        self.written.append(data)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    server, client = socket.socketpair()
    server.setblocking(False)
    client.setblocking(False)
    with server, client:
        yield server, client


def read_all(end: socket.socket) -> bytes:
    received = b""
    while True:
        try:
            received += end.recv(1 << 20)
        except BlockingIOError:
            return received


def test_a_slice_at_a_time_leaves_and_everything_arrives_in_order(ends):
    server, client = ends
    transport, write = FakeTransport(server), LargeWrite(DATA[: 3 * SLICE_BYTES])
    write.add(b"a small answer")
    slices = []
    while write.size:
        before = write.size
        goes_on = write.send_slice(transport)
        if not transport.written:
            slices.append(read_all(client))
            assert len(slices[-1]) == before - write.size <= SLICE_BYTES
            assert goes_on == bool(write.size)
        else:  # A socket pair may accept less than a slice.
            slices += [read_all(client), *transport.written]
    assert b"".join(slices) == DATA[: 3 * SLICE_BYTES] + b"a small answer"


def slices_sent(monkeypatch, slice_us: int) -> list[int]:
    """Have the kernel accept every slice whole, in this time; return the growing list of slice sizes."""
    sent: list[int] = []

    def write(_: int, data: memoryview) -> int:
        sent.append(len(data))
        return len(data)

    monkeypatch.setattr(large_transfers, "os", SimpleNamespace(write=write))
    monkeypatch.setattr(large_transfers, "perf_counter_ns", lambda: len(sent) * slice_us * 1_000)
    return sent


@pytest.mark.parametrize(("slice_us", "at_once"), [(100, 4), (AT_ONCE_US // 2, 2), (AT_ONCE_US, 1)])
def test_slices_follow_each_other_at_once_while_the_kernel_takes_them_quickly(monkeypatch, slice_us, at_once):
    """A consumer's 1 MiB responses left in separate rounds, with requests read in between: it waited."""
    sent = slices_sent(monkeypatch, slice_us)
    large = LargeWrite(DATA[: 4 * SLICE_BYTES])
    with socket.socket() as end:
        assert large.send(FakeTransport(end), LargeWrites(lambda _: None).until_ns()) == (at_once < 4)
    assert sent == [SLICE_BYTES] * at_once
    assert large.size == (4 - at_once) * SLICE_BYTES


def test_the_answers_of_one_round_share_its_time(monkeypatch):
    """The 600 KB responses of twenty consumers, each with its own time limit, delayed others by 15 ms."""
    sent = slices_sent(monkeypatch, AT_ONCE_US // 2)
    rounds: list[Any] = []
    writes = LargeWrites(rounds.append)
    with socket.socket() as end:
        for at_once in (2, 1, 1):
            large, before = LargeWrite(DATA[: 4 * SLICE_BYTES]), len(sent)
            assert large.send(FakeTransport(end), writes.until_ns())
            assert len(sent) - before == at_once
        (round_over,) = rounds
        round_over()
        before = len(sent)
        large.send(FakeTransport(end), writes.until_ns())
    assert len(sent) - before == 2


def test_the_transport_gets_the_bytes_the_socket_does_not_accept(ends):
    server, client = ends
    transport, write = FakeTransport(server), LargeWrite(DATA)
    while write.send_slice(transport):
        pass
    assert write.size == 0
    received = read_all(client)
    assert 0 < len(received) < len(DATA)
    assert received + b"".join(transport.written) == DATA


def test_a_rest_is_copied_where_most_of_the_answer_has_left(ends):
    """A client that left 300 KB unread kept 4 MiB in memory."""
    server, client = ends
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * SLICE_BYTES)
    for size, is_copied in ((LARGE_BYTES, False), (SLICE_BYTES + 1_000, True)):
        transport, write = FakeTransport(server), LargeWrite(DATA[:size])
        write.send_slice(transport)
        read_all(client)
        write.hand_over(transport)
        (rest,) = transport.written
        assert isinstance(rest, bytes) == is_copied


def test_nothing_overtakes_waiting_bytes(ends):
    assert may_be_sliced(FakeTransport(ends[0]))
    assert not may_be_sliced(FakeTransport(ends[0], 1))


def test_a_broken_connection_is_the_transports_matter(ends):
    server, client = ends
    client.close()
    transport, write = FakeTransport(server), LargeWrite(DATA)
    assert not write.send_slice(transport)
    assert b"".join(transport.written) == DATA


def test_each_round_sends_a_few_slices_in_turn():
    rounds: list[Any] = []
    sent: list[str] = []
    writes = LargeWrites(rounds.append)

    class Writing:
        def __init__(self, name: str, slices: int) -> None:
            self.name, self.slices = name, slices

        def write_on(self) -> None:
            sent.append(self.name)
            self.slices -= 1
            if self.slices:
                writes.wait(self)

    for name in "abc":
        writes.wait(Writing(name, 2))
    assert SLICES_PER_ROUND == 2
    orders = []
    while rounds:
        assert len(rounds) == 1
        rounds.pop()()
        orders.append("".join(sent))
        sent.clear()
    assert orders == ["ab", "ca", "bc"]


@pytest.mark.parametrize("loop", list(LOOPS))
def test_answers_of_10_mib_arrive_whole_and_others_are_answered_between_their_slices(loop):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        slow, other = await Client.connect(port), await Client.connect(port)
        await asyncio.gather(slow.ask(), other.ask())
        reading = asyncio.ensure_future(slow.read(3))
        large, _ = echo.peers
        for body in (DATA, b"a small answer", DATA):
            large.write(encode_frame(Command(code=1, body=body)))
        assert large.unsent_bytes > len(DATA), "it left at once, or was not counted"
        assert await other.ask() == b"hi"
        assert large.unsent_bytes > len(DATA), "the other client waited for it"
        assert [reply.body for reply in await reading] == [DATA, b"a small answer", DATA]
        assert large.unsent_bytes == 0
        assert await slow.ask() == b"hi"
        for client in (slow, other):
            await client.close()
        await server.close()

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_bytes_written_before_the_end_arrive(loop):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        client = await Client.connect(port)
        await client.ask()
        (peer,) = echo.peers
        peer.write(DATA)
        peer.close("a test")
        assert not peer.is_open
        peer.write(b"too late")
        assert await client.reader.read() == DATA
        await echo.someone_left.wait()
        assert peer.unsent_bytes == 0
        await client.close()
        await server.close()

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_client_that_sends_nothing_more_gets_the_whole_answer(loop):
    """The client has shut down its side; the server ends the connection once everything has left."""

    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        client = await Client.connect(port)
        await client.ask()
        (peer,) = echo.peers
        peer.write(DATA)
        client.writer.write_eof()
        await until(lambda: not peer.is_open)
        assert await client.reader.read() == DATA
        await echo.someone_left.wait()
        await client.close()
        await server.close()

    run_on(loop, scenario)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_client_that_leaves_during_a_large_answer_disturbs_no_other(loop):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        leaving, other = await Client.connect(port), await Client.connect(port)
        await asyncio.gather(leaving.ask(), other.ask())
        echo.peers[0].write(DATA)
        leaving.writer.transport.abort()
        await echo.someone_left.wait()
        assert echo.gone[0].unsent_bytes == 0
        assert await other.ask() == b"hi"
        await other.close()
        await server.close()

    run_on(loop, scenario)


class Rounds:
    """A loop with manual rounds, and a record of the connections that read in each."""

    def __init__(self) -> None:
        self.due: list = []
        self.read: list[str] = []
        self.large_reads = LargeReads(self.due.append)

    def next_round(self) -> list[str]:
        due, self.due[:] = list(self.due), []
        self.read = []
        for work in due:
            work()
        return self.read


class Connection:
    def __init__(self, name: str, rounds: Rounds) -> None:
        self.name, self.rounds = name, rounds

    def read_on(self) -> None:
        self.rounds.read.append(self.name)


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()


def test_each_round_continues_a_few_frames_the_oldest_first(rounds):
    numbers = {Connection(name, rounds): rounds.large_reads.begin() for name in "abcde"}
    for connection, number in reversed(numbers.items()):
        rounds.large_reads.wait(connection, number)
    assert READS_PER_ROUND == 2
    assert rounds.next_round() == ["a", "b"]
    first = next(iter(numbers))
    rounds.large_reads.wait(first, numbers[first])
    assert rounds.next_round() == ["a", "c"], "the others hold no more data meanwhile"
    rounds.large_reads.wait(first, rounds.large_reads.begin())
    assert rounds.next_round() == ["d", "e"], "its next frame comes after the others' frames"
    assert rounds.next_round() == ["a"]
    assert rounds.due == [], "nothing wakes an idle loop"


@pytest.mark.parametrize("loop", list(LOOPS))
def test_twenty_large_frames_are_read_in_parts_and_all_of_them_arrive(loop, monkeypatch):
    """Each round of the loop has a limited number of reads for connections in the middle of a large frame."""
    reads_of_rounds: list[int] = []
    next_round = LargeReads._next_round

    def counted(self: LargeReads) -> None:
        waiting = len(self._waiting)
        next_round(self)
        reads_of_rounds.append(waiting - len(self._waiting))

    monkeypatch.setattr(LargeReads, "_next_round", counted)

    async def scenario() -> None:
        server, port = await serve(Echo(b"done"))
        clients = [await Client.connect(port) for _ in range(20)]
        body = bytes(32 * LARGE_FRAME_BYTES)
        await asyncio.gather(*(client.ask(body) for client in clients))
        for client in clients:
            await client.close()
        await server.close()

    run_on(loop, scenario)
    assert sum(reads_of_rounds) >= 20
    assert max(reads_of_rounds) <= READS_PER_ROUND


class Noting(Echo):
    """Records which connections had requests, in the order of the reads."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []

    def received(self, connection, requests) -> None:
        self.order.append(connection.number)
        super().received(connection, [request for request in requests if not request.is_oneway])


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_connection_that_sends_many_requests_is_not_read_to_the_end_at_once(loop):
    """Next to twenty connections that pipelined 4 MiB in frames of 64 KiB, a ping took 0.15 s."""

    noting = Noting()

    async def scenario() -> None:
        server, port = await serve(noting)
        clients = [await Client.connect(port) for _ in range(2)]
        frame = encode_frame(Command(code=1, body=bytes(LARGE_READ_BYTES // 2), flag=FLAG_ONEWAY))
        for client in clients:
            client.writer.write(frame * 256)  # Much of it is in the server's socket before it is read.
        await asyncio.gather(*(client.ask(b"done") for client in clients))
        for client in clients:
            await client.close()
        await server.close()

    run_on(loop, scenario)
    turns = sum(one != other for one, other in itertools.pairwise(noting.order))
    assert turns > 16, "the connections are not read in turn"


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_connection_that_ends_in_the_middle_of_a_large_frame_is_noticed(loop):
    async def scenario() -> None:
        echo = Echo()
        server, port = await serve(echo)
        client = await Client.connect(port)
        frame = encode_frame(Command(code=1, body=bytes(32 * LARGE_FRAME_BYTES)))
        client.writer.write(frame[: len(frame) // 2])
        await client.writer.drain()
        await client.close()
        await echo.someone_left.wait()
        assert server.connection_count == 0
        await server.close()

    run_on(loop, scenario)
