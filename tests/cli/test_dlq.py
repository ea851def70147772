"""`libra dlq` lists, shows, exports and resends a group's dead letters."""

import asyncio
import contextlib
import json

import pytest

from libramq import Message, Producer, PushConsumer
from libramq.admin.dead_letters import DeadLetter, DeadLetters, replay
from libramq.cli.dlq import _new_file, _Progress
from libramq.client.queue_reader import QueueReader
from libramq.errors import ConfigError
from libramq.message.message import MessageExt
from libramq.transport.address import split_name_servers
from tests.cli.commands import SECONDS_MAX, libra, one_line

GROUP, TOPIC = "G_dead", "T_dead"


def raises(messages):
    raise ValueError("no such account")


async def _make(namesrv):
    async with Producer(namesrv=namesrv) as producer:
        for number in range(3):
            message = Message(
                TOPIC, str(number).encode(), tags="paid", keys=f"k{number}", properties={"a": "1"}
            )
            await producer.send(message)
    consumer = PushConsumer(group=GROUP, namesrv=namesrv, consume_from="earliest", max_reconsume_times=0)
    consumer.subscribe(TOPIC, "*", raises)
    async with consumer, asyncio.timeout(SECONDS_MAX):
        while True:
            if len(await asyncio.to_thread(dead, namesrv)) == 3:
                return
            await asyncio.sleep(0.05)


def dead(namesrv):
    with DeadLetters(namesrv, GROUP) as letters:
        return list(letters.read())


@pytest.fixture(scope="module")
def letters(up) -> list[DeadLetter]:
    asyncio.run(_make(up.namesrv))
    return dead(up.namesrv)


def sent_again(namesrv):
    reader = QueueReader(split_name_servers(namesrv), group="R")
    ends = reader.max_offsets(reader.queues(TOPIC))
    found = [message for queue, end in ends.items() for message in reader.messages(queue, 0, end)]
    reader.close()
    return [each for each in found if "LIBRA_REPLAYED_FROM" in each.properties]


def test_they_are_listed_with_their_handlers_exception(up, letters):
    """Their number among the groups is shown as well, and the topic they came from."""
    shown = libra("dlq", "list", "-g", GROUP, namesrv=up.namesrv)
    assert shown.code == 0
    for letter in letters:
        (line,) = (line for line in shown.out.splitlines() if letter.message_id in line)
        assert TOPIC in line
        assert "ValueError: no such account" in line
    newest = libra("dlq", "list", "-g", GROUP, "--limit", "1", namesrv=up.namesrv).out
    assert letters[-1].message_id in newest
    assert letters[0].message_id not in newest
    assert "the newest 1 of 3" in newest
    groups = json.loads(libra("groups", "--json", namesrv=up.namesrv).out)
    assert [each["deadLetters"] for each in groups if each["group"] == GROUP] == [3]


def test_one_is_shown_whole_and_all_are_exported(up, letters, tmp_path):
    (row,) = json.loads(libra("dlq", "show", "-g", GROUP, letters[1].message_id, namesrv=up.namesrv).out)
    assert (row["originTopic"], row["body"]) == (TOPIC, letters[1].message.body.decode())
    assert row["properties"]["LIBRA_ERROR_TYPE"] == "ValueError"
    assert row["properties"]["LIBRA_ERROR_TEXT"] == "no such account"
    lines = libra("dlq", "export", "-g", GROUP, namesrv=up.namesrv).out.splitlines()
    assert [json.loads(line)["messageId"] for line in lines] == [each.message_id for each in letters]
    file = tmp_path / "dead.jsonl"
    libra("dlq", "export", "-g", GROUP, "-o", str(file), namesrv=up.namesrv)
    assert file.read_text().splitlines() == lines


def test_one_some_or_all_are_sent_again(up, letters):
    """They go to their topic, with tags, keys and properties, and with the dead letter's place."""
    one = libra("dlq", "replay", "-g", GROUP, letters[0].message_id, namesrv=up.namesrv)
    assert one.out == f"sent 1 dead letter of {GROUP} again: 1 to {TOPIC}\n"
    (message,) = sent_again(up.namesrv)
    assert (message.body, message.tags, message.keys) == (
        letters[0].message.body,
        "paid",
        letters[0].message.keys,
    )
    assert message.properties["a"] == "1"
    assert message.properties["LIBRA_REPLAYED_FROM"] == letters[0].place
    assert "LIBRA_ERROR_TEXT" not in message.properties
    assert message.reconsume_times == 0
    since = letters[1].message.store_timestamp_ms
    libra("dlq", "replay", "-g", GROUP, "--since", str(since), namesrv=up.namesrv)
    libra("dlq", "replay", "-g", GROUP, "--since", "2100-01-01", namesrv=up.namesrv)
    later = [each for each in letters if each.message.store_timestamp_ms >= since]
    assert len(sent_again(up.namesrv)) == 1 + len(later)
    every = libra("dlq", "replay", "-g", GROUP, "--all", "--json", namesrv=up.namesrv)
    assert json.loads(every.out) == {"group": GROUP, "sent": 3, "topics": {TOPIC: 3}}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["replay", "-g", GROUP], "name the message ids to send again, or give --since or --all"),
        (["replay", "-g", GROUP, "nope"], f"group {GROUP} has no dead letter nope"),
        (["show", "-g", GROUP, "nope"], f"group {GROUP} has no dead letter nope"),
        (["list", "-g", "G_typo"], "no broker knows group G_typo"),
        (["export", "-g", "G_typo"], "no broker knows group G_typo"),
        (["replay", "-g", "G_typo", "--all"], "no broker knows group G_typo"),
        (["export", "-g", GROUP, "--since", "soon"], "'soon' is not a time: write 2026-05-01"),
    ],
)
def test_impossible_requests_yield_one_line(up, letters, arguments, says):
    failed = libra("dlq", *arguments, namesrv=up.namesrv)
    assert says in one_line(failed)


def test_an_export_replaces_nothing_and_leaves_no_part_of_it(up, letters, tmp_path):
    """An existing directory or file used to be answered with "this is a file; name a directory"."""
    (tmp_path / "a").write_text("mine")
    for path, says in ((tmp_path, "is a directory; name a file in it"), (tmp_path / "a", "exists already")):
        assert says in one_line(libra("dlq", "export", "-g", GROUP, "-o", str(path), namesrv=up.namesrv))
    assert (tmp_path / "a").read_text() == "mine"
    with contextlib.suppress(KeyboardInterrupt), _new_file(tmp_path / "part") as out:
        out.write("x")
        raise KeyboardInterrupt
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize(
    ("is_by_id", "says"),
    [
        (False, "1 was sent again; libra dlq replay -g 'a|b' -t Elsewhere --since {at} goes on"),
        (True, "1 was sent again; {id} is the next one to send, in the order of libra dlq list"),
    ],
)
def test_an_interrupted_replay_prints_how_to_resume_it(letters, capsys, is_by_id, says):
    """The suggested command used to resend to the original topics, including unselected messages."""
    progress = _Progress("-g 'a|b' -t Elsewhere", is_by_id=is_by_id)
    for number, letter in enumerate(progress.begun(letters)):
        if number == 1:
            break
        progress.sent(letter)
    progress.interrupted(KeyboardInterrupt())
    next_ = letters[1]
    expected = says.format(at=next_.message.store_timestamp_ms, id=next_.message_id)
    assert capsys.readouterr().err == f"libra: {expected}\n"


def test_a_group_without_any_says_so(up):
    made = libra("admin", "updateSubGroup", "-c", "DefaultCluster", "-g", "G_alive", namesrv=up.namesrv)
    assert made.code == 0
    assert libra("dlq", "list", "-g", "G_alive", namesrv=up.namesrv).out == (
        "group G_alive has no dead letters\n"
    )


class Sender:
    def __init__(self, fails_at):
        self.sent = []
        self._fails_at = fails_at

    def send(self, message):
        if len(self.sent) == self._fails_at:
            raise ConfigError("the disk is full")
        self.sent.append(message)


def test_a_rate_is_kept_and_a_failure_ends_it(letters):
    """The number of sent messages is known."""
    now, done = [0.0], []

    def sleep(seconds):
        now[0] += seconds

    with pytest.raises(ConfigError):
        replay(letters, Sender(2), rate=10, sent=done.append, sleep=sleep, monotonic=lambda: now[0])
    assert done == letters[:2]
    assert now[0] == pytest.approx(0.2)


@pytest.mark.parametrize("named", ["TBW102", "%RETRY%other", "%DLQ%other", "a b", ""])
def test_a_dead_letter_cannot_name_a_topic_that_brokers_trust(letters, named):
    """Anybody may write such a property, but a replay has an operator's rights."""
    message = letters[0].message
    forged = {**message.properties, "RETRY_TOPIC": named}
    letter = DeadLetter(GROUP, _with(message, forged))
    assert letter.topic is None
    with pytest.raises(ConfigError, match="which topic it came from"):
        letter.again()
    assert letter.again("Other").topic == "Other"


def _with(message, properties):
    return MessageExt(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        store_timestamp_ms=message.store_timestamp_ms,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        body=message.body,
        properties=properties,
        store_size=message.store_size,
        body_crc=message.body_crc,
    )
