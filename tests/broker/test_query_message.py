"""QUERY_MESSAGE: messages by key, however far the index has been built."""

from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.kernel.effect import Thread
from libramq.message import decode_records
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.store import key_index
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

FOREVER = 1 << 60


@pytest.fixture
def talk(tmp_path: Path):
    talk = Conversation(tmp_path, max_hash_slot_num=10, max_index_num=1_000)
    talk.create_topic("T")
    yield talk
    talk.close()


def header(key: str, **fields: object) -> h.QueryMessageHeader:
    defaults: dict[str, object] = {"max_num": 32, "begin_timestamp": 0, "end_timestamp": FOREVER}
    return h.QueryMessageHeader(topic="T", key=key, **(defaults | fields))  # type: ignore[arg-type]


def query(talk: Conversation, key: str, **fields: object) -> Command:
    return talk.ask(FakePeer(), R.QUERY_MESSAGE, header(key, **fields))


def bodies(reply: Command) -> list[bytes]:
    assert reply.code == C.SUCCESS, reply.remark
    return [message.body for message in decode_records(reply.body)]


def test_messages_are_found_by_key(talk: Conversation) -> None:
    for number in range(3):
        talk.send(FakePeer(), body=b"%d" % number, properties={"KEYS": f"all odd{number % 2}"})
    reply = query(talk, "all")
    assert bodies(reply) == [b"2", b"1", b"0"]
    assert int(reply.ext["indexLastUpdatePhyoffset"]) > 0
    assert int(reply.ext["indexLastUpdateTimestamp"]) == int(talk.clock.wall_ms())
    assert bodies(query(talk, "odd0", max_num=1)) == [b"2"]


def test_a_message_is_found_by_the_unique_key_of_its_producer(talk: Conversation) -> None:
    talk.send(FakePeer(), body=b"mine", properties={"UNIQ_KEY": "7F0000010001"})
    assert bodies(query(talk, "7F0000010001", is_unique_key=True)) == [b"mine"]


def test_an_unknown_key_finds_nothing(talk: Conversation) -> None:
    """This holds even before the first message."""
    assert query(talk, "k").code == C.QUERY_NOT_FOUND
    talk.send(FakePeer())
    assert query(talk, "k").code == C.QUERY_NOT_FOUND
    assert query(talk, "").code == C.INVALID_PARAMETER


def test_a_long_log_is_indexed_in_slices_between_other_requests(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "STRETCH", 2)
    for number in range(6):
        talk.send(FakePeer(), body=b"%d" % number, properties={"KEYS": "k"})
    asker, neighbour = FakePeer(), FakePeer("127.0.0.1:2")
    talk.give(asker, talk.command(R.QUERY_MESSAGE, header("k")))
    stretches = 0
    while not asker.replies:
        (work,) = [each for each in talk.threads.work if each[0] is Thread.COMPUTE]
        talk.threads.work.remove(work)
        talk.threads.finish(work)
        talk.send(neighbour, body=b"later")
        stretches += 1
    assert stretches == 5  # Three that are full, one that finds nothing more, and the search.
    assert bodies(asker.replies[0]) == [b"5", b"4", b"3", b"2", b"1", b"0"]


def test_a_closed_connection_ends_its_search_and_the_next_query_continues_it(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "STRETCH", 2)
    for number in range(6):
        talk.send(FakePeer(), body=b"%d" % number, properties={"KEYS": "k"})
    impatient = FakePeer()
    talk.give(impatient, talk.command(R.QUERY_MESSAGE, header("k")))
    impatient.is_open = False
    talk.performer.closed(impatient)
    talk.threads.run_all(Thread.COMPUTE)
    assert impatient.replies == []
    assert len(bodies(query(talk, "k"))) == 6


def test_a_damaged_index_is_one_clear_error(talk: Conversation, tmp_path: Path) -> None:
    talk.send(FakePeer(), properties={"KEYS": "k"})
    (tmp_path / "index").write_bytes(b"no directory")
    reply = query(talk, "k")
    assert reply.code == C.SYSTEM_ERROR
    assert talk.send(FakePeer()).code == C.SUCCESS


def test_messages_of_an_earlier_process_are_found(tmp_path: Path, talk: Conversation) -> None:
    talk.send(FakePeer(), body=b"before", properties={"KEYS": "k"})
    assert bodies(query(talk, "k")) == [b"before"]
    talk.send(FakePeer(), body=b"killed", properties={"KEYS": "k"})
    talk.kill()
    again = Conversation(tmp_path, max_hash_slot_num=10, max_index_num=1_000)
    assert bodies(query(again, "k")) == [b"killed", b"before"]
    again.close()
    talk.broker.close = lambda: None  # type: ignore[method-assign]  # Its files are another's now.
