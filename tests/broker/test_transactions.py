"""Transactions: half messages, commits, rollbacks, checks, and their state after a restart."""

import pytest

from libramq.broker.transactions import half, known_transactions
from libramq.broker.transactions.known_transactions import KnownTransactions
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.message import decode_records
from libramq.message.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from libramq.remoting import headers as h
from libramq.store.log.append import SERVICE_NOT_AVAILABLE
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
INTERVAL_MS, TIMEOUT_MS = 30_000, 6_000
GROUP = half.TRANSACTION_GROUP


@pytest.fixture
def producer(talk):
    """A connected producer of the group P."""
    peer = FakePeer("10.0.0.7:1")
    talk.beat_producer(peer, "producer")
    return peer


def prepare(talk, peer, body=b"order", **properties):
    """Send a half message, and return what a producer needs to end it."""
    named = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": f"KEY{body.decode()}"} | properties
    born = int(talk.clock.wall_ms())
    reply = talk.send(peer, body=body, queue_id=2, properties=named, sys_flag=4, born_timestamp=born)
    assert reply.code == C.SUCCESS, reply.remark
    return {
        "tran_state_table_offset": int(reply.ext["queueOffset"]),
        "commit_log_offset": int(reply.ext["msgId"][16:], 16),
    }


def end(talk, peer, place, how=COMMIT, **fields):
    header = h.EndTransactionHeader(**({"producer_group": "P", "commit_or_rollback": how} | place | fields))
    return talk.ask(peer, R.END_TRANSACTION, header)


def bodies(talk, topic="T", queue_id=2):
    return [message.body for message in talk.messages(topic, queue_id)]


def checks(peer):
    """Remove the checks from the peer's replies, and return their headers and messages."""
    found = [reply for reply in peer.replies if reply.code == R.CHECK_TRANSACTION_STATE]
    peer.replies[:] = [reply for reply in peer.replies if reply not in found]
    assert all(check.is_oneway for check in found)
    return [(check.ext, decode_records(check.body)[0]) for check in found]


def place_of(check):
    return {
        "tran_state_table_offset": int(check["tranStateTableOffset"]),
        "commit_log_offset": int(check["commitLogOffset"]),
        "from_transaction_check": True,
    }


def progress(talk):
    """Flush until the progress of the checks is committed, and return it."""
    for _ in range(3):
        talk.flush()
        talk.advance(200)
    offsets = talk.broker.offsets
    return [offsets.query(GROUP, topic, 0) for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)]


# Ends.


def test_nobody_sees_a_half_message(talk, peer):
    prepare(talk, peer)
    assert bodies(talk) == []
    (message,) = talk.messages(TRANS_HALF_TOPIC)
    assert message.sys_flag & 12 == 0
    assert (
        message.properties.items()
        >= {
            "REAL_TOPIC": "T",
            "REAL_QID": "2",
            "__transactionId__": "KEYorder",
            "PGROUP": "P",
            "TRAN_MSG": "true",
        }.items()
    )


def test_a_committed_message_is_in_its_queue(talk, peer):
    place = prepare(talk, peer, TAGS="red", colour="blue")
    assert end(talk, peer, place).code == C.SUCCESS
    (message,) = talk.messages("T", 2)
    assert (message.body, message.tags, message.sys_flag & 12) == (b"order", "red", 8)
    assert message.properties["colour"] == "blue"
    assert message.properties["UNIQ_KEY"] == "KEYorder"
    assert message.prepared_transaction_offset == place["commit_log_offset"]
    assert not {"REAL_TOPIC", "REAL_QID", "TRAN_MSG"} & message.properties.keys()
    (operation,) = talk.messages(TRANS_OP_HALF_TOPIC)
    assert (operation.tags, operation.body) == ("d", b"0,")


def test_a_rolled_back_message_is_seen_by_nobody(talk, peer, producer):
    place = prepare(talk, peer)
    assert end(talk, peer, place, ROLLBACK).code == C.SUCCESS
    talk.advance(3 * INTERVAL_MS)
    assert (bodies(talk), checks(producer)) == ([], [])
    assert len(talk.messages(TRANS_HALF_TOPIC)) == 1


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
def test_only_the_first_end_of_a_transaction_counts(talk, peer, first, second):
    place = prepare(talk, peer)
    assert end(talk, peer, place, first).code == C.SUCCESS
    assert end(talk, peer, place, second).code == C.SUCCESS
    assert bodies(talk) == ([b"order"] if first == COMMIT else [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"producer_group": "Q"}, "The producer group wrong"),
        ({"tran_state_table_offset": 7}, "The transaction state table offset wrong"),
        ({"commit_log_offset": 7}, "Find prepared transaction message failed"),
        ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
    ],
)
def test_who_names_another_message_ends_nothing(talk, peer, change, reason):
    place = prepare(talk, peer)
    reply = end(talk, peer, place, **change)
    assert (reply.code, reply.remark) == (C.SYSTEM_ERROR, reason)
    assert bodies(talk) == []


def test_an_ordinary_message_cannot_be_committed(talk, peer):
    reply = talk.send(peer, queue_id=2, properties={"PGROUP": "P", "REAL_TOPIC": "T", "REAL_QID": "1"})
    place = {"tran_state_table_offset": 0, "commit_log_offset": int(reply.ext["msgId"][16:], 16)}
    assert end(talk, peer, place).remark == "Find prepared transaction message failed"


def test_a_delay_begins_with_the_commit(talk, peer):
    place = prepare(talk, peer, DELAY="1")
    talk.advance(5_000)
    end(talk, peer, place)
    assert bodies(talk) == []
    talk.advance(1_000)
    assert bodies(talk) == [b"order"]


@pytest.mark.parametrize("wrong", [{"TIMER_DELAY_MS": "x"}, {"TIMER_DELAY_SEC": "9999999"}])
def test_a_time_that_can_never_be_is_refused_with_the_half_message(talk, peer, wrong):
    """The answer to the commit would be too late, since no producer waits for it."""
    reply = talk.send(peer, properties={"TRAN_MSG": "true", "PGROUP": "P"} | wrong, sys_flag=4)
    assert reply.code == C.MESSAGE_ILLEGAL, reply.remark
    assert talk.messages(TRANS_HALF_TOPIC) == []


def test_transactions_may_be_refused(tmp_path, peer):
    talk = Conversation(tmp_path, reject_transaction_message=True)
    reply = talk.send(peer, properties={"TRAN_MSG": "true", "PGROUP": "P"}, sys_flag=4)
    assert (reply.code, "transaction" in reply.remark) == (C.NO_PERMISSION, True)
    talk.close()


# Checks.


def test_a_silent_producer_is_checked_and_its_answer_counts(talk, peer, producer):
    prepare(talk, peer)
    talk.advance(INTERVAL_MS)
    ((header, message),) = checks(producer)
    assert (message.topic, message.queue_id, message.body) == ("T", 2, b"order")
    assert (header["msgId"], header["transactionId"]) == ("KEYorder", "KEYorder")
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert end(talk, producer, place_of(header)).code == C.SUCCESS
    assert bodies(talk) == [b"order"]
    talk.advance(3 * INTERVAL_MS)
    assert checks(producer) == []


def test_an_answer_of_not_known_yet_is_requested_again(talk, peer, producer):
    prepare(talk, peer)
    talk.advance(INTERVAL_MS)
    ((header, _),) = checks(producer)
    fields = {"producer_group": "P", "commit_or_rollback": UNKNOWN} | place_of(header)
    talk.tell(producer, R.END_TRANSACTION, h.EndTransactionHeader(**fields))
    talk.advance(INTERVAL_MS)
    ((_, message),) = checks(producer)
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "2"


def test_a_young_message_is_not_checked(talk, peer, producer):
    prepare(talk, peer, b"old")
    talk.advance(INTERVAL_MS - TIMEOUT_MS + 1)
    prepare(talk, peer, b"young")
    talk.advance(TIMEOUT_MS - 1)
    assert [message.body for _, message in checks(producer)] == [b"old"]
    talk.advance(INTERVAL_MS)
    assert [message.body for _, message in checks(producer)] == [b"young", b"old"]


def test_who_ends_a_message_by_its_first_place_ends_its_copies(talk, peer, producer):
    """The producer was checked, and its own commit from before arrives after that."""
    place = prepare(talk, peer)
    talk.advance(2 * INTERVAL_MS)
    (_, (header, _)) = checks(producer)
    assert end(talk, peer, place).code == C.SUCCESS
    assert end(talk, producer, place_of(header)).code == C.SUCCESS
    assert bodies(talk) == [b"order"]
    talk.advance(3 * INTERVAL_MS)
    assert checks(producer) == []


def test_a_message_that_nobody_ends_is_discarded(tmp_path, peer):
    talk = Conversation(tmp_path, transaction_check_max=3)
    producer = FakePeer("10.0.0.7:1")
    talk.beat_producer(producer, "producer")
    prepare(talk, peer)
    for _ in range(6):
        talk.beat_producer(producer, "producer")
        talk.advance(INTERVAL_MS)
    assert len(checks(producer)) == 3
    assert bodies(talk, TRANS_CHECK_MAX_TIME_TOPIC, 0) == [b"order"]
    assert bodies(talk) == []
    talk.close()


def test_a_message_that_was_discarded_is_checked_again(tmp_path, peer):
    """An operator resumes it, twice by mistake: its producer is checked again, and it is stored once."""
    talk = Conversation(tmp_path, transaction_check_max=1)
    producer = FakePeer("10.0.0.7:1")
    talk.beat_producer(producer, "producer")
    prepare(talk, peer)
    for _ in range(3):
        talk.advance(INTERVAL_MS)
    (given_up,) = talk.messages(TRANS_CHECK_MAX_TIME_TOPIC)
    checks(producer)
    for _ in range(2):
        assert resume(talk, peer, given_up.offset_id).code == C.SUCCESS
    talk.advance(INTERVAL_MS)
    asked = checks(producer)
    assert [(message.body, message.properties["TRANSACTION_CHECK_TIMES"]) for _, message in asked] == [
        (b"order", "1")
    ] * 2
    for check, _ in asked:
        assert end(talk, producer, place_of(check)).code == C.SUCCESS
    assert bodies(talk) == [b"order"]
    talk.close()


def test_only_a_message_that_was_discarded_is_resumed(talk, peer):
    place = prepare(talk, peer)
    end(talk, peer, place)
    half_message, stored = talk.messages(TRANS_HALF_TOPIC)[0], talk.messages("T", 2)[0]
    for message_id in (half_message.offset_id, stored.offset_id, "0" * 32, ""):
        assert resume(talk, peer, message_id).code == C.SYSTEM_ERROR
    assert len(talk.messages(TRANS_HALF_TOPIC)) == 1


def resume(talk, peer, message_id):
    return talk.ask(peer, R.RESUME_CHECK_HALF_MESSAGE, h.ResumeCheckHeader(msg_id=message_id))


def test_an_immunity_time_of_its_own(talk, peer, producer):
    """No producer is checked before it is over; afterwards the producer must wait to be checked."""
    place = prepare(talk, peer, CHECK_IMMUNITY_TIME_IN_SECONDS="70")
    talk.advance(2 * INTERVAL_MS)
    assert checks(producer) == []
    talk.advance(INTERVAL_MS)
    ((header, _),) = checks(producer)
    assert end(talk, peer, place).code == C.ILLEGAL_OPERATION
    assert end(talk, peer, place_of(header)).code == C.SUCCESS
    assert bodies(talk) == [b"order"]


def test_an_immunity_time_ends_though_the_clock_was_set_back(talk, peer, producer):
    """The clock went back an hour, and no producer was checked for that hour."""
    prepare(talk, peer, CHECK_IMMUNITY_TIME_IN_SECONDS="70")
    talk.clock.set_wall(-3_600_000)
    talk.advance(4 * INTERVAL_MS)
    assert [message.body for _, message in checks(producer)][:1] == [b"order"]


def test_an_end_within_the_immunity_time_counts_for_the_copies(talk, peer, producer):
    place = prepare(talk, peer, CHECK_IMMUNITY_TIME_IN_SECONDS="70")
    talk.advance(INTERVAL_MS)
    assert end(talk, peer, place).code == C.SUCCESS
    talk.advance(4 * INTERVAL_MS)
    assert (bodies(talk), checks(producer)) == ([b"order"], [])


def test_many_open_transactions_are_looked_at_in_turns(talk, peer, producer):
    for number in range(200):
        prepare(talk, peer, b"%d" % number)
    talk.advance(INTERVAL_MS)
    assert len(checks(producer)) == 200
    assert len(talk.messages(TRANS_HALF_TOPIC)) == 400


def test_a_broker_without_transactions_has_nothing_to_do_for_them(talk, peer):
    talk.send(peer)
    talk.advance(10 * INTERVAL_MS)
    assert TRANS_HALF_TOPIC not in talk.broker.topics
    assert talk.broker.transactions.checking._rounds.due_ms is None


# Restarts.


@pytest.mark.parametrize("stop", ["close", "kill"])
def test_open_transactions_are_continued_after_a_restart(tmp_path, peer, stop):
    talk = Conversation(tmp_path)
    places = [prepare(talk, peer, b"%d" % number) for number in range(5)]
    end(talk, peer, places[0])
    end(talk, peer, places[2], ROLLBACK)
    getattr(talk, stop)()
    again = Conversation(tmp_path, clock=talk.clock)
    producer = FakePeer("10.0.0.7:1")
    again.advance(INTERVAL_MS)
    again.beat_producer(producer, "producer")
    again.advance(INTERVAL_MS)
    assert [message.body for _, message in checks(producer)] == [b"1", b"3", b"4"]
    assert end(again, peer, places[1]).code == C.SUCCESS
    assert end(again, peer, places[2]).code == C.SUCCESS  # It was rolled back.
    assert bodies(again) == [b"0", b"1"]
    again.close()


def test_progress_is_committed_once_it_is_durable(tmp_path, peer):
    """Progress that a power cut could undo must not be committed."""
    talk = Conversation(tmp_path)
    places = [prepare(talk, peer, b"%d" % number) for number in range(3)]
    for place in places[:2]:
        end(talk, peer, place)
    talk.advance(INTERVAL_MS)
    assert talk.broker.offsets.query(GROUP, TRANS_HALF_TOPIC, 0) is None
    assert progress(talk) == [3, 2]
    talk.kill()
    again = Conversation(tmp_path, clock=talk.clock)
    assert again.broker.transactions.checking.open.half_offset == 3
    again.advance(INTERVAL_MS)
    assert len(again.messages(TRANS_HALF_TOPIC)) == 5  # Three, and two copies of the open one.
    again.close()


def test_the_ends_of_apaches_brokers_name_several_messages(tmp_path, peer):
    talk = Conversation(tmp_path)
    places = [prepare(talk, peer, b"%d" % number) for number in range(4)]
    operation = half.ended([0, 2, 3], "K", b"\x7f\0\0\1\0\0\0\1", talk.clock.wall_ms())
    talk.broker.transactions.transactions.create_topics(talk.clock.wall_ms())
    talk.broker.store.append_batch([operation])
    talk.close()
    again = Conversation(tmp_path, clock=talk.clock)
    again.advance(1)
    for place in places:
        end(again, peer, place)
    assert bodies(again) == [b"1"]
    again.close()


@pytest.mark.parametrize("stop", [Conversation.kill, Conversation.close])
def test_a_commit_that_is_repeated_after_a_restart_is_delivered_once_though_checks_have_passed_it(
    tmp_path, peer, stop
):
    """Its answer waited for a slave when the broker was killed, and rounds had gone on behind it."""
    talk = Conversation(tmp_path)
    place = prepare(talk, peer, b"1")
    end(talk, peer, place)
    talk.advance(INTERVAL_MS + 1_000)
    assert progress(talk) == [1, 1]
    stop(talk)
    again = Conversation(tmp_path)
    assert end(again, peer, place).code == C.SUCCESS
    assert bodies(again) == [b"1"]
    again.close()


def test_a_commit_older_than_what_a_start_reads_again_is_not_stored_twice(tmp_path, peer, monkeypatch):
    """Its outcome is no longer known: it is refused, and if the transaction is open, a check follows."""
    monkeypatch.setattr(known_transactions, "REMEMBERED", 1)
    talk = Conversation(tmp_path)
    places = [prepare(talk, peer, b"%d" % number) for number in range(3)]
    for place in places:
        end(talk, peer, place)
    talk.advance(INTERVAL_MS + 1_000)
    assert progress(talk) == [3, 3]
    talk.close()
    again = Conversation(tmp_path, clock=talk.clock)
    reply = end(again, peer, places[0])
    assert (reply.code, "the next check" in reply.remark) == (C.SYSTEM_ERROR, True)
    assert end(again, peer, places[2]).code == C.SUCCESS
    assert bodies(again) == [b"0", b"1", b"2"]
    again.close()


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_commit_waits_while_a_start_still_reads_what_has_ended(tmp_path, peer, monkeypatch, is_cold):
    """It was refused, and Java's producer, which commits one-way, was checked 30 s later."""
    talk = Conversation(tmp_path)
    places = [prepare(talk, peer, b"%d" % number) for number in range(3)]
    for place in places[:2]:
        end(talk, peer, place)
    talk.close()
    monkeypatch.setattr(known_transactions, "STRETCHES_AT_START", 0)
    again = Conversation(tmp_path, clock=talk.clock)
    again.disk.is_cold = is_cold
    header = h.EndTransactionHeader(producer_group="P", commit_or_rollback=COMMIT, **places[2])
    again.tell(peer, R.END_TRANSACTION, header)
    for _ in range(20):
        again.read_cold()
        if again.performer.turns.timer is not None:
            again.performer.turns.timer.action()
        again.performer.follow()
    again.disk.is_cold = False
    assert bodies(again) == [b"0", b"1", b"2"]
    assert [end(again, peer, place).code for place in places] == [C.SUCCESS] * 3
    assert bodies(again) == [b"0", b"1", b"2"]
    again.close()


@pytest.mark.parametrize("stop", [Conversation.kill, Conversation.close])
def test_a_transaction_whose_copy_is_open_is_ended_by_its_first_place_after_a_restart(tmp_path, peer, stop):
    """Its producer took longer than a check's interval, and the broker was restarted meanwhile."""
    talk = Conversation(tmp_path)
    place = prepare(talk, peer)
    talk.advance(2 * INTERVAL_MS)
    assert progress(talk)[0] == 2
    stop(talk)
    again = Conversation(tmp_path, clock=talk.clock)
    assert end(again, peer, place).code == C.SUCCESS
    assert bodies(again) == [b"order"]
    producer = FakePeer("10.0.0.7:1")
    again.beat_producer(producer, "producer")
    again.advance(3 * INTERVAL_MS)
    assert checks(producer) == []
    again.close()


@pytest.mark.parametrize("delayed", [{}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "3000"}])
def test_a_commit_whose_operation_message_was_cut_off_counts(tmp_path, peer, delayed):
    """Its producer was checked, or repeated the commit, and the message was stored a second time."""
    talk = Conversation(tmp_path)
    place = prepare(talk, peer, **delayed)
    end(talk, peer, place)
    (operation,) = talk.messages(TRANS_OP_HALF_TOPIC)
    (log,) = talk.broker.store.config.commit_log_directory.iterdir()
    talk.kill()
    with log.open("r+b") as file:
        file.seek(operation.physical_offset)
        file.write(bytes(1_000))
    # A kill would let the delivery of the delayed ones be repeated.
    for stop in (Conversation.close if delayed else Conversation.kill, Conversation.close):
        again = Conversation(tmp_path, clock=talk.clock)
        assert len(again.messages(TRANS_OP_HALF_TOPIC)) == 1
        assert end(again, peer, place).code == C.SUCCESS
        producer = FakePeer("10.0.0.7:1")
        again.beat_producer(producer, "producer")
        again.advance(3 * INTERVAL_MS)
        assert checks(producer) == []
        assert bodies(again) == [b"order"]
        stop(again)


def test_a_disk_that_refuses_keeps_half_messages_for_later(talk, peer, producer, monkeypatch):
    prepare(talk, peer)
    monkeypatch.setattr(
        talk.broker.files.log, "append", lambda messages: [SERVICE_NOT_AVAILABLE] * len(messages)
    )
    talk.advance(INTERVAL_MS + 1_000)
    assert checks(producer) == []
    monkeypatch.undo()
    talk.advance(1_000)
    assert len(checks(producer)) == 1


def test_a_commit_that_a_full_disk_refused_is_taken_when_it_is_repeated(talk, peer, producer):
    """A check has passed the half message before; the knowledge of its copy is kept."""
    place = prepare(talk, peer)
    talk.advance(INTERVAL_MS)
    talk.disk.bytes_left = 0
    assert end(talk, peer, place).code != C.SUCCESS
    talk.disk.bytes_left = None
    talk.advance(10_000)
    assert end(talk, peer, place).code == C.SUCCESS
    assert bodies(talk) == [b"order"]
    checks(producer)
    talk.advance(3 * INTERVAL_MS)
    assert checks(producer) == []


def test_what_ends_while_a_start_still_reads_does_not_hide_what_ended_before(tmp_path, peer, monkeypatch):
    """An open message keeps rounds at the begin; the ends that it was read with were forgotten."""
    monkeypatch.setattr(known_transactions, "STRETCHES_AT_START", 0)
    monkeypatch.setattr(known_transactions, "REMEMBERED", 0)
    talk = Conversation(tmp_path)
    places = [prepare(talk, peer, b"%d" % number) for number in range(3)]
    for place in places[1:]:
        end(talk, peer, place)
    talk.kill()
    again = Conversation(tmp_path, clock=talk.clock, transaction_timeout_ms=10 * INTERVAL_MS)
    assert end(again, peer, prepare(again, peer, b"new")).code == C.SUCCESS
    again.advance(2 * INTERVAL_MS)
    assert not progress(again)[1]
    again.kill()
    last = Conversation(tmp_path, clock=talk.clock)
    last.advance(100)
    assert [end(last, peer, place).code for place in places[1:]] == [C.SUCCESS] * 2
    assert bodies(last) == [b"1", b"2", b"new"]
    last.close()


def test_open_transactions_keep_operations_until_their_messages_are_passed():
    known = KnownTransactions(0, 10)
    known.ended(10, [1])
    known.ended(11, [0, 3])
    assert known.op_offset == 10
    known.passed(2)
    assert known.op_offset == 11
    known.passed(4)
    assert known.op_offset == 12
    assert known.has_ended(3)
    assert not known.has_ended(2)


def test_a_start_remembers_no_more_than_a_running_broker(monkeypatch):
    """Apache's operation messages name some 500 half messages each: 4,096 of them took 200 MB."""
    monkeypatch.setattr(known_transactions, "ENDED_MAX", 1_000)
    known = KnownTransactions(10_000, 100)
    for number in range(4):
        known.remember(range(500 * number, 500 * number + 500))
    assert [known.has_ended(offset) for offset in (0, 999, 1_000, 1_999)] == [False, False, True, True]


def test_nobody_else_commits_how_far_transactions_were_handled(tmp_path, peer):
    """After a commit for the broker's own group and a restart, earlier transactions were never checked."""
    talk = Conversation(tmp_path)
    for number in range(5):
        prepare(talk, peer, b"%d" % number)
    queue = {"topic": TRANS_HALF_TOPIC, "queueId": "0"}
    group = {"consumerGroup": GROUP}
    pop = {"maxMsgNums": "32", "invisibleTime": "1000", "pollTime": "0", "bornTime": "0", "initMode": "0"}
    reset = {"group": GROUP, "timestamp": "-1", "isForce": "true"}
    clone = {"srcGroup": "G", "destGroup": GROUP, "offline": "true"}
    pull = talk.pull_command(GROUP, TRANS_HALF_TOPIC, commit_offset=5, sys_flag=1 | 4)
    forged = [
        talk.command(R.UPDATE_CONSUMER_OFFSET, group | queue | {"commitOffset": "5"}),
        talk.command(R.POP_MESSAGE, group | queue | pop),
        talk.command(R.INVOKE_BROKER_TO_RESET_OFFSET, reset | queue),
        talk.command(R.CLONE_GROUP_OFFSET, clone | queue),
        pull,
    ]
    for command in forged:
        talk.give(peer, command)
    assert [reply.code for reply in peer.replies] == [C.NO_PERMISSION] * len(forged)
    talk.close()
    again = Conversation(tmp_path, clock=talk.clock)
    producer = FakePeer("10.0.0.7:1")
    again.beat_producer(producer, "producer")
    again.advance(INTERVAL_MS)
    assert [message.body for _, message in checks(producer)] == [b"%d" % number for number in range(5)]
    again.close()
