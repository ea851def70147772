"""Replies reach their waiting callers: by request number, once, in time."""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import LocalProtocolError, RemoteProtocolError
from libramq.remoting import connection
from libramq.remoting.command import FLAG_ONEWAY, Command, reply_to
from libramq.remoting.connection import FrameFiller, FrameReader, PendingRequests
from libramq.remoting.frame import encode_frame


def test_replies_may_come_in_any_order():
    pending: PendingRequests[str] = PendingRequests()
    first, second = Command(code=1), Command(code=2)
    pending.add(first, "alice", deadline_ms=10)
    pending.add(second, "bob", deadline_ms=10)
    assert first.opaque != second.opaque
    assert pending.take(reply_to(second, 0)) == "bob"
    assert pending.take(reply_to(second, 0)) is None  # No caller waits for a second answer.
    assert pending.take(reply_to(first, 0)) == "alice"
    assert len(pending) == 0


def test_a_reply_without_a_request_is_ignored():
    pending: PendingRequests[str] = PendingRequests()
    assert pending.take(Command(code=0, opaque=99, flag=1)) is None


def test_requests_time_out_at_their_deadlines():
    pending: PendingRequests[str] = PendingRequests()
    late, early = Command(code=1), Command(code=1)
    pending.add(late, "late", deadline_ms=20)
    pending.add(early, "early", deadline_ms=10)
    assert pending.expire(9) == []
    assert pending.expire(10) == ["early"]
    assert pending.take(reply_to(early, 0)) is None
    assert pending.expire(30) == ["late"]


def test_a_lost_connection_fails_every_waiting_request_once():
    pending: PendingRequests[str] = PendingRequests()
    for name in ("a", "b"):
        pending.add(Command(code=1), name, deadline_ms=10)
    assert list(pending.drain()) == ["a", "b"]
    assert list(pending.drain()) == []


def test_a_request_that_was_given_up_is_forgotten():
    pending: PendingRequests[str] = PendingRequests()
    request = Command(code=1)
    pending.add(request, "alice", deadline_ms=10)
    pending.discard(request.opaque)
    assert pending.take(reply_to(request, 0)) is None


def test_a_oneway_request_is_not_waited_for():
    pending: PendingRequests[str] = PendingRequests()
    with pytest.raises(LocalProtocolError):
        pending.add(Command(code=1, flag=FLAG_ONEWAY), "alice", deadline_ms=10)


def test_requests_in_flight_are_limited(monkeypatch):
    monkeypatch.setattr(connection, "PENDING_REQUESTS_MAX", 2)
    pending: PendingRequests[str] = PendingRequests()
    pending.add(Command(code=1), "a", deadline_ms=10)
    pending.add(Command(code=1), "b", deadline_ms=10)
    with pytest.raises(LocalProtocolError, match="2 requests are pending"):
        pending.add(Command(code=1), "c", deadline_ms=10)


def test_request_numbers_stay_within_31_bits():
    """Java's opaque is a signed int; ours starts over instead of turning negative."""
    pending: PendingRequests[str] = PendingRequests()
    pending._next_opaque = 0x7FFF_FFFE
    numbers = []
    for _ in range(3):
        request = Command(code=1)
        pending.number(request)
        numbers.append(request.opaque)
    assert numbers == [0x7FFF_FFFF, 0, 1]


def test_commands_before_a_bad_byte_are_lost_with_their_connection():
    good = encode_frame(Command(code=1))
    with pytest.raises(RemoteProtocolError):
        FrameReader().receive(good + b"\xff\xff\xff\xff")


SIZES = [0, 10, connection.SMALL_READ_BYTES // 2, connection.SMALL_READ_BYTES + 5, 300_000]


@given(
    st.lists(st.tuples(st.sampled_from(SIZES), st.sampled_from([0, 1])), max_size=6),
    st.lists(st.sampled_from([1, 3, 100, 65_536, 200_000]), min_size=1, max_size=20),
)
def test_frames_are_filled_in_place_as_they_are_cut_from_pieces(
    frames: list[tuple[int, int]], reads: list[int]
):
    sent = [
        Command(code=number, ext={"k": str(size)}, body=bytes([number]) * size, serialization=form)
        for number, (size, form) in enumerate(frames)
    ]
    wire = b"".join(map(encode_frame, sent))
    filler, got, position = FrameFiller(), [], 0
    while position < len(wire):
        # A socket returns the data it has, never more than the buffer can hold.
        count = min(
            max(reads[len(got) % len(reads)], len(wire) // 50), len(filler.room), len(wire) - position
        )
        filler.room[:count] = wire[position : position + count]
        position += count
        got += filler.received(count)
    assert [(each.code, each.ext, each.body) for each in got] == [
        (each.code, each.ext, each.body) for each in sent
    ]
    assert all(type(each.body) is bytes for each in got)  # Later reads leave them unchanged.
    elsewhere = FrameFiller()
    assert [each.body for each in elsewhere.receive(wire)] == [each.body for each in sent]


def test_messages_that_are_held_stay_as_they_came_while_connections_share_memory():
    """Pieces of any size arrive over three connections; one sometimes ends in the middle of a frame."""
    dice, held = random.Random(1), list[tuple[Command, bytes, str]]()
    fillers = [FrameFiller() for _ in range(3)]
    wires, coming = [b""] * 3, [list[tuple[bytes, str]]() for _ in range(3)]
    for step in range(4_000):
        at = dice.randrange(3)
        if len(wires[at]) < 100_000:
            body, note = dice.randbytes(dice.choice((0, 9, 4_096, 65_536, 90_000))), f"note {step}"
            wires[at] += encode_frame(Command(code=1, body=body, ext={"note": note}))
            coming[at].append((hashlib.sha256(body).digest(), note))
        room = fillers[at].room
        count = min(len(room), len(wires[at]), dice.choice((1, 7, 4_096, 1 << 20)))
        room[:count], wires[at] = wires[at][:count], wires[at][count:]
        for command in fillers[at].received(count):
            held.append((command, *coming[at].pop(0)))
        if dice.random() < 0.01:
            fillers[at], wires[at], coming[at] = FrameFiller(), b"", []
    assert len(held) > 500
    for command, digest, note in held:
        assert (hashlib.sha256(command.body).digest(), command.ext) == (digest, {"note": note})


def test_spare_memory_is_limited():
    spare = connection.SpareMemory()
    for size in (100, 200, 300, 400, 500, connection.SPARE_BYTES_MAX + 1):
        spare.give_back(memoryview(bytearray(size)))
    assert spare.sizes == [200, 300, 400, 500]
    assert len(spare.take(450)) == 500
    assert len(spare.take(401)) == 401  # A buffer that is too small is dropped.
    assert spare.sizes == [200, 300]


def test_a_bad_length_is_refused_when_frames_are_filled_in_place():
    filler = FrameFiller()
    filler.room[:4] = b"\xff\xff\xff\xff"
    with pytest.raises(RemoteProtocolError):
        filler.received(4)
