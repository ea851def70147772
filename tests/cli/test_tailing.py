"""Following a topic: queues merged by time, with new messages and new queues as they appear."""

import json
from itertools import islice

import pytest

from libramq.cli import tailing
from libramq.cli.output import print_table
from libramq.cli.printable import printable
from libramq.cli.tailing import earliest, follow, latest
from libramq.client.queue_reader import QueueReader, Stretch
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.message.record import encode_message


class Reader:
    """The part of QueueReader that `follow` uses, over lists."""

    def __init__(self) -> None:
        self.held: dict[MessageQueue, list[MessageExt]] = {}
        self.absent: dict[str, list[str]] = {}

    def put(self, queue_id: int, stored_ms: int, body: str) -> None:
        queue = MessageQueue("T", "b", queue_id)
        held = self.held.setdefault(queue, [])
        host = ("127.0.0.1", 1)
        held.append(
            MessageExt(
                topic="T",
                queue_id=queue_id,
                queue_offset=len(held),
                physical_offset=0,
                flag=0,
                sys_flag=0,
                born_timestamp_ms=stored_ms,
                born_host=host,
                store_timestamp_ms=stored_ms,
                store_host=host,
                reconsume_times=0,
                prepared_transaction_offset=0,
                body=body.encode(),
                properties={},
                store_size=0,
                body_crc=0,
            )
        )

    def queues(self, topic):
        assert topic == "T"
        return list(self.held)

    def absent_brokers(self, topics):
        assert topics == ["T"]
        return self.absent

    def min_offsets(self, queues):
        return dict.fromkeys(queues, 0)

    def max_offsets(self, queues):
        return {queue: len(self.held[queue]) for queue in queues}

    def read(self, queue, start, end, *, lost):
        for offset in range(start, end):  # Brokers may return one record more than requested.
            records = [encode_message(one) for one in self.held[queue][offset : offset + 2]]
            yield Stretch(queue, offset, offset + 1, b"".join(records))

    messages = QueueReader.messages


def bodies(messages):
    return [message.body.decode() for message in messages]


def test_queues_are_merged_by_store_time():
    reader = Reader()
    for queue_id, stored_ms, body in [(0, 10, "a"), (1, 20, "b"), (0, 30, "c"), (1, 40, "d")]:
        reader.put(queue_id, stored_ms, body)
    assert bodies(islice(follow(reader, "T", earliest), 4)) == ["a", "b", "c", "d"]


def test_from_the_latest_only_new_messages_are_shown_and_new_queues_from_their_start():
    reader = Reader()
    reader.put(0, 10, "old")
    pauses = []

    def sleep(_seconds):
        """Store new messages: `follow` sleeps only when there is nothing to read."""
        pauses.append(_seconds)
        if len(pauses) == 1:
            reader.put(0, 20, "new")
        if len(pauses) == 2:
            reader.put(7, 30, "in a new queue")

    found = follow(reader, "T", latest, sleep=sleep)
    assert bodies(islice(found, 2)) == ["new", "in a new queue"]


def test_a_broker_that_is_away_is_named_once(capsys):
    reader = Reader()
    reader.absent = {"b2": ["T"]}
    reader.put(0, 10, "a")
    pauses = []

    def sleep(_seconds):
        pauses.append(_seconds)
        if len(pauses) == 2 * tailing.POLLS_PER_ROUTE:
            reader.put(0, 20, "b")

    assert bodies(islice(follow(reader, "T", earliest, sleep=sleep), 2)) == ["a", "b"]
    assert capsys.readouterr().err == "libra: broker b2 is away; its messages of T are not shown\n"


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\nforged 10:00:00 b:0@7\u202egnp.exe\u2028\x7f"


def hostile_message() -> MessageExt:
    reader = Reader()
    reader.put(0, 1, HOSTILE)
    (message,) = reader.held[MessageQueue("T", "b", 0)]
    message.properties.update({"TAGS": "\x1b[31mred", "KEYS": "\x1b[5mk"})
    return message


def test_control_characters_of_a_message_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A message is one line with control characters escaped; tabs and letters of any script stay."""
    tailing._print_line(hostile_message())
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert not set(out[:-1]) & set("\x1b\x07\x9b\r\n\u202e\u2028\x7f")
    assert "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\r\\nforged" in out
    assert "[\\x1b[31mred]" in out
    assert printable("a\tü 你好 👩‍💻") == "a\tü 你好 👩‍💻"


def test_control_characters_do_not_reach_the_terminal_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The escaped JSON decodes to the original body."""
    tailing._print_json(hostile_message())
    out = capsys.readouterr().out
    assert not set(out[:-1]) & set("\x1b\x07\x9b\r\n\u202e\u2028\x7f")
    assert json.loads(out)["body"] == HOSTILE


def test_control_characters_do_not_reach_the_terminal_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Client ids and remarks come from other machines as well."""
    print_table(["client"], [["\x1b[31m10.0.0.1@1"]])
    assert "\x1b" not in capsys.readouterr().out
