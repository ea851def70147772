"""Light queues (LMQ): a message is in its topic's queue and in each that its producer names."""

from pathlib import Path

import pytest

from libramq.errors import InvalidName
from libramq.message import MessageExt
from libramq.message.properties import decode_properties, encode_properties
from libramq.store import MessageStore, StoreMessage
from libramq.store.check import check_store
from libramq.store.log.append import AppendStatus, stored_again
from libramq.store.queues import consume_queue_table
from libramq.store.queues.light_queues import NAMES_MAX, names_of
from tests.fakes import OwnFiles
from tests.store.stores import Disk, flush, kill, message, open_store, read_all, run_with

A, B = "%LMQ%a", "%LMQ%b"
DISPATCH, NUMBERS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"


def light(body: str, names: str, topic: str = "T", **properties: str) -> StoreMessage:
    plain = message(body, topic=topic)
    plain.properties_text = encode_properties({DISPATCH: names, **properties})
    return plain


def with_light(root: Path, **options: object) -> MessageStore:
    return open_store(root, light_queues_max=10, **options)


def bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    return [each.body for each in read_all(store, topic)]


def numbers(store: MessageStore, topic: str) -> list[str | None]:
    return [each.properties.get(NUMBERS) for each in read_all(store, topic)]


def fill(store: MessageStore) -> None:
    """Store messages in one batch and by themselves: two in A, three in B, one in neither."""
    store.append_batch([light("ab", f"{A},{B}"), message("plain"), light("b", B)])
    store.append_batch([light("ba", f"{B},{A}")])


def check(store: MessageStore) -> None:
    assert bodies(store) == [b"ab", b"plain", b"b", b"ba"]
    assert (bodies(store, A), bodies(store, B)) == ([b"ab", b"ba"], [b"ab", b"b", b"ba"])
    assert numbers(store, "T") == ["0,0", None, "1", "2,1"]


def test_a_message_is_in_each_queue_that_it_names(tmp_path: Path):
    """The log has it once, under its own topic, with the queue numbers in a property."""
    store = with_light(tmp_path)
    fill(store)
    check(store)
    found: MessageExt = read_all(store, B)[2]
    assert (found.topic, found.queue_id, found.queue_offset) == ("T", 0, 3)
    assert store.drain_topic_puts() == {"T": 4}
    assert store.take_changes()[0] == {("T", 0): 4, (A, 0): 2, (B, 0): 3}
    store.close()
    again = with_light(tmp_path)
    check(again)
    again.close()


@pytest.mark.parametrize("has_option", [True, False], ids=["still on", "switched off"])
def test_a_kill_loses_no_place_in_a_light_queue(tmp_path: Path, has_option: bool):
    """Units are rebuilt from the numbers in the records, and existing queues catch up."""
    store = with_light(tmp_path)
    store.append_batch([light("first", f"{A},{B}")])
    flush(store)
    store.append_batch([light("second", f"{B},{A}")])
    kill(store)
    again = open_store(tmp_path, light_queues_max=10 if has_option else 0)
    assert bodies(again, A) == bodies(again, B) == [b"first", b"second"]
    again.close()
    report = check_store(tmp_path, OwnFiles())
    assert not report.is_damaged, report
    assert report.queues.unit_count == 6
    last = with_light(tmp_path)
    last.append_batch([light("third", A)])
    assert numbers(last, A) == ["0,0", "1,1", "2"]
    last.close()


def test_all_units_are_built_again_where_queues_are_lost(tmp_path: Path):
    store = with_light(tmp_path)
    fill(store)
    flush(store)
    kill(store)
    for file in (tmp_path / "consumequeue").glob("*/0/*"):
        file.unlink()
    again = with_light(tmp_path)
    check(again)
    again.close()


def test_without_the_option_messages_are_in_their_topic_only(tmp_path: Path):
    store = open_store(tmp_path)
    fill(store)
    assert bodies(store) == [b"ab", b"plain", b"b", b"ba"]
    assert not store.has_queue(A, 0)
    kill(store)
    again = with_light(tmp_path)
    assert not again.has_queue(A, 0), "Apache's broker does not make up for it either"
    again.append_batch([light("later", A)])
    assert bodies(again, A) == [b"later"]
    again.close()


@pytest.mark.parametrize(
    "topic", ["%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"]
)
def test_copies_that_are_not_for_readers_of_the_topic_stay_out(tmp_path: Path, topic: str):
    """Their copied queue numbers are removed; otherwise recovery would put them in the original's place."""
    store = with_light(tmp_path)
    store.append_batch([light("first", A), light("copy", A, topic, **{NUMBERS: "0", "K": "v"})])
    assert bodies(store, A) == [b"first"]
    (copy,) = read_all(store, topic)
    assert copy.properties == {DISPATCH: A, "K": "v"}
    kill(store)
    again = with_light(tmp_path)
    assert bodies(again, A) == [b"first"]
    again.close()


def test_a_message_that_is_stored_again_gets_new_numbers(tmp_path: Path):
    """Delayed and committed messages are stored again under the topic they were sent to."""
    store = with_light(tmp_path)
    fill(store)
    (first, *_) = read_all(store, A)
    again = stored_again(first, "T", 0, first.properties)
    assert NUMBERS not in decode_properties(again.properties_text)
    store.append_batch([again])
    assert numbers(store, A)[-1] == "2,3"
    store.close()


def test_a_queue_that_is_named_twice_has_the_message_once(tmp_path: Path):
    store = with_light(tmp_path)
    store.append_batch([light("twice", f"{A},{A}"), light("next", A)])
    assert (bodies(store, A), numbers(store, A)) == ([b"twice", b"next"], ["0,0", "1"])
    store.close()


@pytest.mark.parametrize("names", ["plain", f"{A},", "%LMQ%../x", f"{A},other"])
def test_other_names_leave_a_message_in_its_topic(tmp_path: Path, names: str):
    """The broker refuses them; a message accepted earlier is still delivered."""
    store = with_light(tmp_path)
    (result,) = store.append_batch([light("x", names, **{NUMBERS: "0"})])
    assert result.status is AppendStatus.PUT_OK
    assert (bodies(store), store.light_queue_count) == ([b"x"], 0)
    assert numbers(store, "T") == [None]
    store.close()


def test_names_are_checked():
    assert names_of(f"{A},{B}") == [A, B]
    for wrong in ("plain", f"{A},", "", "%LMQ%a/b", ",".join([A] * (NAMES_MAX + 1))):
        with pytest.raises(InvalidName):
            names_of(wrong)


def test_a_batch_cannot_make_queues_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Sends are checked against the limit one by one, before any of a batch is stored."""
    monkeypatch.setattr(consume_queue_table, "LIGHT_BEYOND_MAX", 0)
    store = open_store(tmp_path, light_queues_max=3)
    items = [(0, b"x", encode_properties({DISPATCH: f"%LMQ%{n}"}), 0) for n in range(9)]
    assert store.append_batch([run_with("T", 0, items)])[0].is_ok
    assert (store.light_queue_count, len(bodies(store))) == (3, 9)
    store.close()


def test_a_refused_message_leaves_no_unit(tmp_path: Path):
    store = with_light(tmp_path, max_message_size=100)
    results = store.append_batch([light("x" * 101, A), message("plain"), light("fits", A)])
    assert [each.is_ok for each in results] == [False, True, True]
    assert (bodies(store, A), numbers(store, A)) == ([b"fits"], ["0"])
    store.close()


def test_a_disk_that_refuses_uses_no_number(tmp_path: Path):
    disk = Disk()
    store = with_light(tmp_path, disk=disk)
    store.append_batch([light("first", A)])
    flush(store)
    disk.bytes_left = 10
    assert not store.append_batch([light("lost", A)])[0].is_ok
    assert bodies(store, A) == [b"first"]
    kill(store)


def test_messages_of_a_batch_are_in_their_light_queues(tmp_path: Path):
    """Apache's broker numbers only messages sent singly."""
    store = with_light(tmp_path)
    items = [
        (0, b"one", encode_properties({DISPATCH: A}), 0),
        (0, b"two", b"", 0),
        (0, b"three", encode_properties({DISPATCH: f"{B},{A}"}), 0),
    ]
    assert store.append_batch([run_with("T", 0, items), light("four", A)])[0].is_ok
    assert (bodies(store, A), bodies(store, B)) == ([b"one", b"three", b"four"], [b"three"])
    assert numbers(store, "T") == ["0", None, "0,1", "2"]
    illegal = [(0, b"lost", encode_properties({DISPATCH: A}), 0), (0, b"x\0", b"\0", 0)]
    assert not store.append_batch([run_with("T", 0, illegal)])[0].is_ok
    store.append_batch([light("five", A)])
    assert numbers(store, A)[-1] == "3"
    kill(store)
    again = with_light(tmp_path)
    assert bodies(again, A) == [b"one", b"three", b"four", b"five"]
    again.close()


def test_a_deleted_light_topic_begins_again(tmp_path: Path):
    store = with_light(tmp_path)
    fill(store)
    store.delete_topic(A)
    assert store.light_queue_count == 1
    store.append_batch([light("new", A)])
    assert (bodies(store, A), numbers(store, A)) == ([b"new"], ["0"])
    flush(store)
    kill(store)
    again = with_light(tmp_path)
    assert bodies(again, A) == [b"new"]
    assert bodies(again, B) == [b"ab", b"b", b"ba"]
    again.close()


def test_a_slave_gives_light_queues_their_units(tmp_path: Path):
    master = with_light(tmp_path / "master")
    fill(master)
    flush(master)
    slave = with_light(tmp_path / "slave", is_copy=True)
    slave.copy.append(0, (tmp_path / "master" / "commitlog" / f"{0:020d}").read_bytes()[: master.end])
    check(slave)
    assert slave.copy.new_topics == {"T"}
    for store in (master, slave):
        store.close()
