"""Connections in the middle of a large frame take turns to read, so that others are served between reads."""

import asyncio
import itertools

import pytest

from libramq.remoting.command import FLAG_ONEWAY, Command
from libramq.remoting.frame import encode_frame
from libramq.transport.large_transfers import LARGE_FRAME_BYTES, LARGE_READ_BYTES, READS_PER_ROUND, LargeReads
from tests.transport.loops import LOOPS, run_on
from tests.transport.test_server import Client, Echo, serve


class Rounds:
    """A loop with manual rounds, and a record of who reads in them."""

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
    assert rounds.next_round() == ["a", "c"], "the others hold no more of theirs meanwhile"
    rounds.large_reads.wait(first, rounds.large_reads.begin())
    assert rounds.next_round() == ["d", "e"], "its next frame comes after those of the others"
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
    """Notes which connections had requests, in the order of the reads."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []

    def received(self, connection, requests) -> None:
        self.order.append(connection.number)
        super().received(connection, [request for request in requests if not request.is_oneway])


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_connection_that_sends_many_requests_is_not_read_to_the_end_at_once(loop):
    """Beside twenty that pipelined 4 MiB of frames of 64 KiB, a ping took 0.15 s."""

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
    assert turns > 16, "they are not read in turn"


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
