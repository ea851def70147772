"""Tests of popping ahead: when it happens, who gets the messages, and which ones are returned."""

import asyncio

import pytest

from libramq.client.popping import popped_ahead
from libramq.client.popping.popped import Place
from libramq.client.popping.popped_ahead import Brought, Pace, PopAnswer, PoppedAhead, Terms, kept_ms
from libramq.errors import ConnectionLost, RemoteError
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.rpc.pop_calls import PopReply
from tests.client.fake_broker import record

#: Far longer than a test: no timer ends it.
LONG = Terms(600_000, 0)


@pytest.mark.parametrize(
    ("gaps_ms", "counts", "ahead"),
    [
        ([0, 0, 0], [4, 4, 4], [False, True, True]),
        ([0, 100, 100], [4, 4, 4], [False, True, True]),
        ([0, 101, 0], [4, 4, 4], [False, False, True]),
        ([0, 0, 0, 0], [4, 3, 4, 4], [False, False, False, True]),
    ],
)
def test_a_quick_program_with_full_receives_gets_the_next_ahead(gaps_ms, counts, ahead):
    """A pause of more than a hundredth of the invisible time, or a receive that is not full, begins again."""
    pace, now_ms, found = Pace(), 0, []
    for gap_ms, count in zip(gaps_ms, counts, strict=True):
        now_ms += gap_ms
        pace.called(10_000, now_ms)
        found.append(pace.returned(count, 4, now_ms))
    assert found == ahead


def test_nothing_is_popped_ahead_beside_another_receive():
    """Its request keeps the broker busy already. After one that failed, two full ones are needed again."""
    pace = Pace()
    for _ in range(3):
        pace.called(10_000, 0)
    assert [pace.returned(4, 4, 0) for _ in range(3)] == [False, False, True]
    pace.called(10_000, 0)
    pace.failed()
    pace.called(10_000, 0)
    assert not pace.returned(4, 4, 0)


def test_messages_are_kept_for_a_tenth_of_their_invisible_time():
    """The limit is 5 s."""
    assert [kept_ms(each) for each in (1_000, 10_000, 600_000)] == [100, 1_000, 5_000]


class Ahead:
    """A PoppedAhead with a manual clock; `returned` has the bodies of returned messages."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.returned: list[bytes] = []
        self.changed = asyncio.Event()
        self.popped = PoppedAhead(self._give_back, lambda: self.now_ms)

    async def _give_back(self, message: MessageExt) -> None:
        self.returned.append(message.body)
        self.changed.set()

    async def start(self, *bodies: bytes, terms: Terms = LONG) -> None:
        async def pop() -> Brought:
            return brought(*bodies)

        await self.popped.start(pop(), terms)

    async def take(self, count_max: int = 32, terms: Terms = LONG) -> list[bytes] | None:
        taken = await self.popped.take(count_max, terms)
        return None if taken is None else [message.body for message in taken.messages]


def brought(*bodies: bytes) -> Brought:
    """Return the result of a pop of messages with these bodies, not decoded yet."""
    body = b"".join(record(MessageQueue("T", "b", 3), at, each) for at, each in enumerate(bodies))
    return Brought("T", [PopAnswer(PopReply(0, 5, 6, 2, {"0 3": 0}, body), Place("T", "b"))])


async def test_the_next_receives_take_what_was_popped_ahead():
    """One that wants fewer leaves the others; with no more, it pops itself."""
    ahead = Ahead()
    await ahead.start(b"a", b"b", b"c")
    assert await ahead.take(2) == [b"a", b"b"]
    assert ahead.popped.has_any
    assert await ahead.take(2) == [b"c"]
    assert await ahead.take(2) is None
    assert not ahead.popped.has_any
    await ahead.popped.aclose()
    assert ahead.returned == []


@pytest.mark.parametrize(("passed_ms", "terms"), [(5_001, LONG), (0, Terms(1, 0)), (0, Terms(600_000, 1))])
async def test_messages_that_no_receive_may_have_are_given_back(passed_ms, terms):
    """They were kept too long, are visible again too soon, or came by a former subscription."""
    ahead = Ahead()
    await ahead.start(b"a", b"b")
    ahead.now_ms += passed_ms
    assert await ahead.take(terms=terms) is None
    await ahead.popped.aclose()
    assert ahead.returned == [b"a", b"b"]


async def test_messages_that_nobody_takes_are_given_back():
    """No further receive is needed: a timer ends their time."""
    ahead = Ahead()
    await ahead.start(b"a", terms=Terms(10, 0))
    await ahead.changed.wait()
    assert ahead.returned == [b"a"]
    assert not ahead.popped.has_any


async def test_one_receive_waits_for_a_pop_and_others_pop_themselves():
    """When that receive is cancelled, the messages go to the next one."""
    ahead, arrives = Ahead(), asyncio.Event()

    async def pop() -> Brought:
        await arrives.wait()
        return brought(b"a")

    await ahead.popped.start(pop(), LONG)
    waiting = asyncio.create_task(ahead.take())
    await asyncio.sleep(0)
    assert await ahead.take() is None
    waiting.cancel()
    await asyncio.wait([waiting])
    arrives.set()
    assert await ahead.take() == [b"a"]


async def test_a_receive_waits_for_a_pop_no_longer_than_its_messages_may_be_kept():
    """Its broker may not answer, and others have messages."""
    ahead, arrives, short = Ahead(), asyncio.Event(), Terms(200, 0)

    async def pop() -> Brought:
        await arrives.wait()
        return brought(b"late")

    await ahead.popped.start(pop(), short)
    assert await asyncio.wait_for(ahead.take(terms=short), 5) is None
    assert not ahead.popped.has_any
    arrives.set()
    await ahead.changed.wait()
    assert ahead.returned == [b"late"]


@pytest.mark.parametrize("error", [ConnectionLost("gone"), None])
async def test_a_pop_that_failed_or_found_nothing_leaves_the_next_to_the_receive(error):
    """It has its own request, and raises its own error."""
    ahead = Ahead()

    async def pop() -> Brought:
        if error is not None:
            raise error
        return brought()

    await ahead.popped.start(pop(), LONG)
    assert await ahead.take() is None
    assert not ahead.popped.has_any


async def test_what_cannot_be_given_back_is_logged(caplog):
    """It is visible again after its invisible time."""

    async def refuse(message: MessageExt) -> None:
        raise RemoteError("the broker is gone")

    async def pop() -> Brought:
        return brought(b"a")

    popped = PoppedAhead(refuse, lambda: 0)
    await popped.start(pop(), LONG)
    await popped.aclose()
    assert "the broker is gone" in caplog.text


async def test_a_pop_that_no_broker_answers_ends_with_the_consumer(monkeypatch):
    """It would try the next broker by connections that are closed."""
    monkeypatch.setattr(popped_ahead, "CLOSE_S", 0.0)
    ahead, ended = Ahead(), asyncio.Event()

    async def pop() -> Brought:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    await ahead.popped.start(pop(), LONG)
    await ahead.popped.aclose()
    await ended.wait()


async def test_an_answer_that_cannot_be_read_fails_one_receive():
    """The next one pops itself."""
    ahead = Ahead()

    answer = PopReply(0, 5, 6, 2, {"0 3": 0}, (8).to_bytes(4) + b"junk" + (8).to_bytes(4) + b"junk")

    async def unreadable() -> Brought:
        return Brought("T", [PopAnswer(answer, Place("T", "b"))])

    await ahead.popped.start(unreadable(), LONG)
    with pytest.raises(RemoteError):
        await ahead.take(1)
    assert await ahead.take(1) is None
