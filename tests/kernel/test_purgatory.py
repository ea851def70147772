"""The purgatory: a waiting answer is sent once, counted while it waits, and dropped with its connection."""

from collections import deque
from collections.abc import Iterator

import pytest
from tests.fakes import FakePeer

from libramq.kernel import purgatory as module
from libramq.kernel.deadlines import Deadlines
from libramq.kernel.purgatory import Parked, Purgatory


class Answer(Parked):
    """An answer that records whether it expired or was unlinked."""

    def __init__(self, connection: FakePeer, cost_bytes: int = 0) -> None:
        super().__init__(connection, cost_bytes=cost_bytes)
        self.expired_ms: list[int] = []
        self.unlinked = 0

    def expire(self, now_ms: int) -> None:
        self.expired_ms.append(now_ms)

    def unlink(self) -> None:
        self.unlinked += 1


@pytest.fixture
def deadlines():
    return Deadlines()


@pytest.fixture
def purgatory(deadlines):
    return Purgatory(deadlines, lambda steps: deque(steps, 0).clear())


def test_an_answer_is_released_once(purgatory, deadlines):
    answer = Answer(FakePeer())
    purgatory.park(answer, 100)
    assert purgatory.release(answer)
    assert not purgatory.release(answer)
    deadlines.run(1_000)
    assert (answer.expired_ms, answer.unlinked) == ([], 1)


def test_an_expired_answer_leaves_its_index(purgatory, deadlines):
    answer = Answer(FakePeer())
    purgatory.park(answer, 100)
    deadlines.run(100)
    assert (answer.expired_ms, answer.unlinked) == ([100], 1)
    assert not purgatory.release(answer)


def test_parked_answers_disappear_with_their_connection(purgatory, deadlines):
    here, there = FakePeer(), FakePeer()
    gone = [Answer(here), Answer(here)]
    stays = Answer(there)
    for answer in (*gone, stays):
        purgatory.park(answer, 100)
    purgatory.connection_ended(here)
    assert [answer.unlinked for answer in gone] == [1, 1]
    assert purgatory.statistics() == (1, 0, 1)
    deadlines.run(100)
    assert stays.expired_ms == [100]
    assert [answer.expired_ms for answer in gone] == [[], []]


def test_the_answers_of_an_ended_connection_are_dropped_one_by_one(deadlines):
    """20,000 took 0.1 s of one turn."""
    works: list[Iterator[None]] = []
    purgatory = Purgatory(deadlines, works.append)
    gone, stays = FakePeer(), FakePeer()
    for peer in [*[gone] * 3, stays]:
        purgatory.park(Answer(peer), 5_000)
    purgatory.connection_ended(gone)
    purgatory.connection_ended(FakePeer())
    (steps,) = works
    assert [len(purgatory) for _ in steps] == [3, 2, 1]


def test_parked_answers_are_counted_by_connection_and_in_all(purgatory, monkeypatch):
    monkeypatch.setattr(module, "PARKED_MAX", 3)
    monkeypatch.setattr(module, "PARKED_PER_CONNECTION_MAX", 2)
    monkeypatch.setattr(module, "PARKED_BYTES_MAX", 100)
    here, there = FakePeer(), FakePeer()
    first = Answer(here, 60)
    purgatory.park(first)
    assert not purgatory.has_room(there, 41)
    assert purgatory.has_room(there, 40)
    purgatory.park(Answer(here, 10))
    assert not purgatory.has_room(here)
    purgatory.park(Answer(there))
    assert not purgatory.has_room(there)
    assert purgatory.statistics() == (3, 70, 2)
    purgatory.release(first)
    assert purgatory.statistics() == (2, 10, 2)
    assert purgatory.has_room(here)
