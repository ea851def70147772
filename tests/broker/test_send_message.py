"""Sends: each check in the broker's order, and the stored message."""

import pytest

from libramq.broker.messages.creation_rate import AT_ONCE, PER_CONNECTION_A_SECOND, PER_CONNECTION_AT_ONCE
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.properties import properties_to_text
from libramq.message.record import decode_record
from libramq.message.tags import tag_code
from libramq.remoting import headers as h
from libramq.remoting.command import FLAG_ONEWAY, Command, Serialization
from tests.broker.brokers import Conversation, answer, find_answer, send_header
from tests.fakes import FakePeer

FORBIDDEN = [
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "LIBRA_REBALANCE_EVENTS",
]  # fmt: skip


def test_a_send_is_stored_and_answered_with_all_that_the_java_client_reads(talk, peer):
    reply = talk.send(peer, properties={"UNIQ_KEY": "AB12", "TAGS": "red", "user": "x"}, flag=3, queue_id=2)
    assert reply.code == C.SUCCESS
    assert reply.ext.items() >= {
        "queueId": "2", "queueOffset": "0", "transactionId": "AB12",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }.items()  # fmt: skip
    (message,) = talk.messages("T", 2)
    assert message.offset_id == reply.ext["msgId"]
    assert (message.body, message.flag, message.born_timestamp_ms) == (b"hello", 3, 12_345)
    assert message.born_host == ("10.0.0.7", 4711)
    assert message.properties == {
        "UNIQ_KEY": "AB12", "TAGS": "red", "user": "x",
        "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip


def test_a_send_with_long_names_and_one_in_the_binary_form_are_the_same(talk, peer):
    long = h.SendMessageHeader(
        producer_group="P", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=1,
        sys_flag=0, born_timestamp=1, flag=0, properties="k\x01v\x02",
    )  # fmt: skip
    assert talk.ask(peer, R.SEND_MESSAGE, long, b"1").code == C.SUCCESS
    command = talk.command(R.SEND_MESSAGE_V2, send_header(queue_id=1, properties={"k": "v"}), b"2")
    command.serialization = Serialization.ROCKETMQ
    talk.give(peer, command)
    reply = answer(peer, command)
    assert (reply.code, reply.serialization) == (C.SUCCESS, Serialization.ROCKETMQ)
    assert [(m.body, m.properties["k"]) for m in talk.messages("T", 1)] == [(b"1", "v"), (b"2", "v")]


@pytest.mark.parametrize("topic", ["../x", "a/b", "", " ", "x" * 128, "blank here", "ünïcode"])
def test_an_invalid_topic_name_is_refused(talk, peer, topic):
    reply = talk.send(peer, topic)
    assert reply.code == C.INVALID_PARAMETER
    assert topic not in talk.broker.topics


@pytest.mark.parametrize("topic", FORBIDDEN)
def test_clients_do_not_write_to_the_brokers_own_topics(talk, peer, topic):
    assert talk.send(peer, topic).code == C.NO_PERMISSION
    assert talk.broker.store.max_offset(topic, 0) == 0


def test_a_new_topic_is_made_from_its_template(talk, peer):
    talk.send(peer, "Few", default_topic_queue_nums=2)
    talk.send(peer, "Many", default_topic_queue_nums=4000)
    talk.send(peer, "None", default_topic_queue_nums=-3)
    few, many, none = (talk.broker.topics.get(name) for name in ("Few", "Many", "None"))
    assert (few.read_queue_nums, few.write_queue_nums, few.perm) == (2, 2, 6)
    assert many.write_queue_nums == 4
    assert none.write_queue_nums == 1


def test_an_unknown_topic_whose_template_has_no_inherit_bit_is_refused(talk, peer):
    assert talk.send(peer, "New", default_topic="BenchmarkTest").code == C.TOPIC_NOT_EXIST
    assert talk.send(peer, "New", default_topic="NoSuch").code == C.TOPIC_NOT_EXIST
    assert "New" not in talk.broker.topics


def test_without_auto_creation_only_known_topics_are_written(tmp_path, peer):
    talk = Conversation(tmp_path, auto_create_topic_enable=False)
    assert talk.send(peer, "New").code == C.TOPIC_NOT_EXIST
    talk.create_topic("Known")
    assert talk.send(peer, "Known").code == C.SUCCESS
    talk.close()


def test_a_topic_without_the_write_permission_is_not_written(talk, peer):
    talk.create_topic("ReadOnly", perm=4)
    assert talk.send(peer, "ReadOnly").code == C.NO_PERMISSION


def test_a_queue_outside_the_topic_is_refused_and_a_negative_one_chosen(talk, peer):
    talk.create_topic("T", queues=3)
    assert talk.send(peer, queue_id=3).code == C.INVALID_PARAMETER
    chosen = {int(talk.send(peer, queue_id=-1).ext["queueId"]) for _ in range(40)}
    assert chosen == {0, 1, 2}


def test_an_oversized_message_is_refused_and_the_largest_taken(tmp_path, peer):
    talk = Conversation(tmp_path, max_message_size=1000)
    reply = talk.send(peer, body=bytes(1001))
    assert reply.code == C.MESSAGE_ILLEGAL
    assert "1000" in reply.remark
    assert talk.send(peer, body=bytes(1000)).code == C.SUCCESS
    talk.close()


def test_properties_over_what_a_record_holds_are_refused(talk, peer):
    assert talk.send(peer, properties={"k": "v" * 33_000}).code == C.MESSAGE_ILLEGAL
    assert talk.messages("T") == []


def test_numbers_too_large_for_a_record_are_refused(talk, peer):
    for field, number in (("flag", 1 << 40), ("born_timestamp", 1 << 70), ("reconsume_times", -1 << 40)):
        assert talk.send(peer, **{field: number}).code in (C.MESSAGE_ILLEGAL, C.SYSTEM_ERROR)
    assert talk.send(peer, body=b"good").code == C.SUCCESS
    assert [m.body for m in talk.messages("T")] == [b"good"]


def test_a_missing_header_field_is_named(talk, peer):
    reply = talk.ask(peer, R.SEND_MESSAGE_V2, {"a": "P", "b": "T"}, b"x")
    assert reply.code == C.SYSTEM_ERROR
    assert "`c`" in reply.remark


def test_a_message_without_a_unique_key_gets_one(talk, peer):
    reply = talk.send(peer)
    (message,) = talk.messages("T")
    assert len(message.properties["UNIQ_KEY"]) == 32
    assert reply.ext["transactionId"] == message.properties["UNIQ_KEY"]


def test_a_negative_attempt_count_is_stored_as_zero(talk, peer):
    """In orderly consumption a failing handler would have kept its queue for 2^31 attempts."""
    assert talk.send(peer, reconsume_times=-(2**31)).code == C.SUCCESS
    (message,) = talk.messages("T")
    assert message.reconsume_times == 0


def test_a_pop_check_point_is_not_stored(talk, peer):
    talk.send(peer, properties={"POP_CK": "1 2 3", "a": "b"})
    (message,) = talk.messages("T")
    assert "POP_CK" not in message.properties
    assert message.properties["a"] == "b"


def test_transactions_are_refused_clearly(tmp_path, peer):
    talk = Conversation(tmp_path, reject_transaction_message=True)
    reply = talk.send(peer, properties={"TRAN_MSG": "true"}, sys_flag=4)
    assert reply.code == C.NO_PERMISSION
    assert "transaction" in reply.remark
    assert talk.send(peer, properties={"TRAN_MSG": "false"}).code == C.SUCCESS
    talk.close()


@pytest.mark.parametrize("sys_flag", [4, 12], ids=["prepared", "rolled back"])
def test_a_transaction_by_its_system_flag_alone_is_refused_as_well(talk, peer, sys_flag):
    """It would be in no queue: acknowledged, but unreadable."""
    reply = talk.send(peer, sys_flag=sys_flag)
    assert (reply.code, "transaction" in reply.remark) == (C.NO_PERMISSION, True)
    batch = talk.command(
        R.SEND_BATCH_MESSAGE, send_header(batch=True, sys_flag=sys_flag), encode_batch([item(b"1")])
    )
    talk.give(peer, batch)
    assert answer(peer, batch).code == C.NO_PERMISSION
    assert talk.broker.store.statistics().put_message_count == 0


def test_a_retry_of_what_a_transaction_committed_can_be_read(talk, peer):
    """Java's clients before 4.6.1 leave the transaction flag in messages that they send for a retry."""
    properties = {"TRAN_MSG": "true", "DELAY": "1", "RETRY_TOPIC": "T"}
    reply = talk.send(peer, "%RETRY%G", sys_flag=4, reconsume_times=1, properties=properties)
    assert reply.code == C.SUCCESS
    talk.advance(1_000)
    assert [message.sys_flag & 12 for message in talk.messages("%RETRY%G")] == [0]


@pytest.mark.parametrize("name", ["RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"])
def test_no_message_but_a_retry_says_that_it_came_from_another_topic(talk, peer, name):
    """Its dead letter would be resent to that topic with the rights of the resending user."""
    talk.create_topic("T", queues=1)
    keys = [f"{number:032X}" for number in range(3)]
    talk.send(peer, properties={name: "secret", "UNIQ_KEY": keys[0], "a": "1"})
    items = [
        BatchItem(0, b"x", f"UNIQ_KEY\x01{key}\x02{name}\x01secret\x02a\x011\x02".encode()) for key in keys
    ]
    for batch in (items[:1], items):
        sent = talk.command(R.SEND_BATCH_MESSAGE, send_header(batch=True), encode_batch(batch))
        talk.give(peer, sent)
        assert answer(peer, sent).code == C.SUCCESS
    stored = [message.properties for message in talk.messages("T")]
    assert len(stored) == 5
    assert all(name not in each and each["a"] == "1" for each in stored)


def test_a_retry_says_where_it_came_from(talk, peer):
    talk.send(peer, "%RETRY%G", properties={"RETRY_TOPIC": "T", "DLQ_ORIGIN_TOPIC": "secret"})
    (message,) = talk.messages("%RETRY%G")
    assert message.properties["RETRY_TOPIC"] == "T"
    assert "DLQ_ORIGIN_TOPIC" not in message.properties


def test_all_sends_of_one_read_are_one_write_and_keep_their_order(talk, peer):
    talk.create_topic("T", queues=1)
    talk.disk.writes.clear()
    commands = [talk.command(R.SEND_MESSAGE_V2, send_header(), str(n).encode()) for n in range(50)]
    commands[7] = talk.command(R.SEND_MESSAGE_V2, send_header(queue_id=9), b"no such queue")
    talk.give(peer, *commands)
    assert len(talk.disk.writes) == 1
    assert [reply.opaque for reply in peer.replies] == [command.opaque for command in commands]
    assert [reply.code for reply in peer.replies].count(C.SUCCESS) == 49
    assert peer.replies[7].code == C.INVALID_PARAMETER
    assert [m.body for m in talk.messages("T")] == [str(n).encode() for n in range(50) if n != 7]


def test_later_requests_on_a_connection_see_its_earlier_send(talk, peer):
    talk.create_topic("T", queues=1)
    send = talk.command(R.SEND_MESSAGE_V2, send_header(), b"x")
    ends = [talk.command(R.GET_MAX_OFFSET, h.QueueHeader(topic="T", queue_id=0)) for _ in range(2)]
    talk.give(peer, ends[0], send, ends[1])
    assert [answer(peer, command).ext["offset"] for command in ends] == ["0", "1"]


def test_a_oneway_send_is_stored_and_not_answered(talk, peer):
    talk.tell(peer, R.SEND_MESSAGE_V2, send_header(), b"x")
    assert peer.replies == []
    assert len(talk.messages("T")) == 1


# Batches.


def batch_command(talk: Conversation, *items: BatchItem, topic: str = "T", properties: str = "") -> Command:
    header = send_header(topic, batch=True, properties=properties)
    return talk.command(R.SEND_BATCH_MESSAGE, header, encode_batch(items))


def item(body: bytes, **properties: str) -> BatchItem:
    return BatchItem(5, body, properties_to_text(properties).encode())


def test_a_batch_is_stored_message_by_message_in_one_write(talk, peer):
    talk.create_topic("T", queues=1)
    talk.disk.writes.clear()
    command = batch_command(
        talk, item(b"1", UNIQ_KEY="K1", TAGS="a"), item(b"2"), properties="UNIQ_KEY\x01B\x02"
    )
    talk.give(peer, command)
    reply = answer(peer, command)
    assert (reply.code, reply.ext["queueOffset"], reply.ext["transactionId"]) == (C.SUCCESS, "0", "B")
    first, second = talk.messages("T")
    assert len(talk.disk.writes) == 1
    assert reply.ext["msgId"] == f"{first.offset_id},{second.offset_id}"
    assert (first.body, first.flag, first.properties["UNIQ_KEY"], first.tags) == (b"1", 5, "K1", "a")
    assert (second.body, len(second.properties["UNIQ_KEY"])) == (b"2", 32)
    assert second.properties["CLUSTER"] == "DefaultCluster"


@pytest.mark.parametrize("tags", ["", "a"])
@pytest.mark.parametrize("has_special", [False, True])
def test_messages_of_a_batch_are_completed_together_as_they_are_alone(talk, peer, tags, has_special):
    """One message with special properties makes the broker examine all of them one by one."""
    talk.create_topic("T", queues=1)
    items = [item(b"%d" % number, UNIQ_KEY=f"K{number}", TAGS=tags) for number in range(3)]
    if has_special:
        items.insert(1, item(b"special", UNIQ_KEY="K", TAGS=tags, name="\u00e9", POP_CK="0 1 1"))
    for each in items:
        talk.give(peer, batch_command(talk, each))
    talk.give(peer, batch_command(talk, *items))
    stored = talk.messages("T")
    alone, together = stored[: len(items)], stored[len(items) :]
    assert [m.properties for m in alone] == [m.properties for m in together]
    assert [m.body for m in together] == [each.body for each in items]
    units = [talk.broker.store._queues.get("T", 0).unit(number) for number in range(len(stored))]
    assert {unit[2] for unit in units} == {tag_code(tags)}


def test_a_batch_with_a_bad_message_is_refused_whole(talk, peer):
    talk.create_topic("T", queues=1)
    huge = BatchItem(0, b"2", ("k\x01" + "v" * 32_760 + "\x02").encode())
    for items in ((item(b"1"), huge), (huge, item(b"1"))):
        command = batch_command(talk, *items)
        talk.give(peer, command)
        assert answer(peer, command).code == C.MESSAGE_ILLEGAL
    assert talk.messages("T") == []


def test_a_batch_brings_no_handle_of_a_pop(talk, peer):
    """A consumer that pops the message would acknowledge the messages the handle names."""
    named = item(b"1", POP_CK="0 1 1 0 0 broker-a 0 7", a="b")
    talk.give(peer, batch_command(talk, named))
    (message,) = talk.messages("T")
    assert "POP_CK" not in message.properties
    assert message.properties["a"] == "b"


def test_a_batch_to_a_retry_topic_an_empty_one_and_a_torn_one_are_refused(talk, peer):
    for body, topic, code in (
        (encode_batch([item(b"1")]), "%RETRY%G", C.MESSAGE_ILLEGAL),
        (b"", "T", C.MESSAGE_ILLEGAL),
        (encode_batch([item(b"1")])[:-1], "T", C.SYSTEM_ERROR),
        (b"\x7f\xff\xff\xff" + bytes(30), "T", C.SYSTEM_ERROR),
    ):
        command = talk.command(R.SEND_BATCH_MESSAGE, send_header(topic, batch=True), body)
        talk.give(peer, command)
        assert answer(peer, command).code == code


def test_the_batch_bit_decides_and_not_the_code(talk, peer):
    command = talk.command(R.SEND_MESSAGE_V2, send_header(batch=True), encode_batch([item(b"1"), item(b"2")]))
    talk.give(peer, command)
    assert answer(peer, command).ext["msgId"].count(",") == 1


# Retry topics and dead letters.


def retry(talk: Conversation, peer: FakePeer, reconsume_times: int, **fields: object) -> Command:
    return talk.send(peer, "%RETRY%G", reconsume_times=reconsume_times, **fields)


def test_a_send_to_the_retry_topic_needs_its_group(tmp_path, peer):
    talk = Conversation(tmp_path, auto_create_subscription_group=False)
    assert retry(talk, peer, 1).code == C.SUBSCRIPTION_GROUP_NOT_EXIST
    talk.close()


def test_a_send_to_the_retry_topic_becomes_a_dead_letter_after_the_last_attempt(talk, peer):
    assert retry(talk, peer, 16, properties={"k": "v"}).code == C.SUCCESS
    assert retry(talk, peer, 17, properties={"k": "v"}).code == C.SUCCESS
    (kept,) = talk.messages("%RETRY%G")
    (dead,) = talk.messages("%DLQ%G")
    assert (kept.reconsume_times, dead.reconsume_times) == (16, 17)
    assert dead.properties["DELAY"] == "-1"
    assert talk.broker.topics.get("%DLQ%G").write_queue_nums == 1


def test_the_clients_own_maximum_counts_since_the_version_that_has_it(talk, peer):
    for version, expected in ((479, 1), (120, 0)):
        command = talk.command(
            R.SEND_MESSAGE_V2, send_header("%RETRY%G", reconsume_times=4, max_reconsume_times=3), b"x"
        )
        command.version = version
        before = talk.broker.store.max_offset("%DLQ%G", 0)
        talk.give(peer, command)
        assert answer(peer, command).code == C.SUCCESS
        assert talk.broker.store.max_offset("%DLQ%G", 0) - before == expected


def test_a_retry_of_an_ordered_group_becomes_a_dead_letter(talk, peer):
    from libramq.message.queue import MessageQueue

    talk.create_topic("T")
    talk.broker.members.locks.lock(
        "G", "c", [MessageQueue("T", "broker-a", 0)], now_ms=talk.clock.monotonic_ms()
    )
    retry(talk, peer, 1)
    assert len(talk.messages("%DLQ%G")) == 1
    talk.clock.advance(60_001)
    retry(talk, peer, 1)
    assert len(talk.messages("%DLQ%G")) == 1
    assert len(talk.messages("%RETRY%G")) == 1


# Disk.


def test_a_sync_flush_send_is_answered_after_the_flush_and_readable_only_then(tmp_path, peer):
    talk = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    command = talk.command(R.SEND_MESSAGE_V2, send_header(), b"x")
    impatient = talk.command(R.SEND_MESSAGE_V2, send_header(properties={"WAIT": "false"}), b"y")
    talk.give(peer, command, impatient)
    assert find_answer(peer, command) is None
    assert answer(peer, impatient).code == C.SUCCESS
    assert talk.broker.store.max_offset("T", 0) == 0
    talk.flush()
    assert answer(peer, command).code == C.SUCCESS
    assert talk.broker.store.max_offset("T", 0) == 2
    talk.close()


def test_a_flush_that_fails_answers_flush_disk_timeout_with_the_ids(tmp_path, peer):
    talk = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    command = talk.command(R.SEND_MESSAGE_V2, send_header(), b"x")
    talk.give(peer, command)
    talk.disk.fails_sync = True
    talk.flush()
    reply = answer(peer, command)
    assert reply.code == C.FLUSH_DISK_TIMEOUT
    assert {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"} <= reply.ext.keys()
    talk.close()


def test_a_full_disk_is_answered_and_nothing_of_the_message_stays(talk, peer):
    talk.send(peer, body=b"before")
    talk.disk.bytes_left = 20
    assert talk.send(peer, body=b"lost").code == C.SERVICE_NOT_AVAILABLE
    talk.disk.bytes_left = None
    talk.advance(10_000)
    assert talk.send(peer, body=b"after").code == C.SUCCESS
    assert [m.body for m in talk.messages("T")] == [b"before", b"after"]


def test_a_topic_that_cannot_be_journalled_is_not_created(talk, peer):
    talk.disk.bytes_left = 5
    assert talk.send(peer, "New").code == C.SERVICE_NOT_AVAILABLE
    assert "New" not in talk.broker.topics
    talk.disk.bytes_left = None
    assert talk.send(peer, "New").code == C.SUCCESS


def test_invalid_unicode_fails_only_its_own_request(talk, peer):
    good = talk.command(R.SEND_MESSAGE_V2, send_header(), b"good")
    bad = talk.command(R.SEND_MESSAGE_V2, send_header(properties="UNIQ_KEY\x01\ud800\x02"), b"bad")
    talk.give(peer, bad, good)
    assert answer(peer, good).code == C.SUCCESS
    assert answer(peer, bad).opaque == bad.opaque


def test_a_record_names_the_brokers_address(talk, peer):
    talk.send(peer)
    data = talk.broker.store.record_at(0)
    message, _ = decode_record(data)
    assert message.store_host == ("127.0.0.1", 10911)


def test_a_flag_of_both_oneway_and_response_is_no_request(talk, peer):
    talk.give(peer, Command(code=R.SEND_MESSAGE_V2, flag=FLAG_ONEWAY | 1, ext={}, opaque=1))
    assert peer.replies == []


@pytest.mark.parametrize(
    "text", ["k\x01\0\x02", "k\0\x01v\x02", "k\x01" + "\0" * 512 + "\x02", "TAGS\x01a\0"]
)
def test_a_property_with_a_nul_is_refused_however_it_is_sent(talk, peer, text):
    """No checksum covers properties, and NULs are what remains in a sector that never reached the disk."""
    one = talk.ask(peer, R.SEND_MESSAGE_V2, send_header(properties=text), b"x")
    batch = send_header(batch=True)
    several = talk.ask(
        peer, R.SEND_MESSAGE_V2, batch,
        encode_batch([BatchItem(0, b"good", b"k\x01v\x02"), BatchItem(0, b"bad", text.encode())]),
    )  # fmt: skip
    for reply in (one, several):
        assert reply.code == C.MESSAGE_ILLEGAL
        assert "NUL" in reply.remark
    assert talk.messages("T", 0) == []


# How many topics sends may create.


def test_a_producer_that_creates_many_topics_is_slowed_down_and_others_are_not(talk, peer):
    for number in range(PER_CONNECTION_AT_ONCE):
        assert talk.send(peer, f"T{number}").code == C.SUCCESS
    refused = talk.send(peer, "One-more")
    assert refused.code == C.SYSTEM_BUSY
    assert (
        "topic One-more is not created: sends from 10.0.0.7:4711 may create 20 topics a second"
        in refused.remark
    )
    assert "One-more" not in talk.broker.topics
    assert talk.send(peer, "T0").code == C.SUCCESS
    assert talk.send(FakePeer("10.0.0.8:1"), "Another").code == C.SUCCESS
    talk.advance(1_000)
    codes = [talk.send(peer, f"U{number}").code for number in range(PER_CONNECTION_A_SECOND + 1)]
    assert codes == [C.SUCCESS] * PER_CONNECTION_A_SECOND + [C.SYSTEM_BUSY]


def test_topic_creation_is_limited_across_connections(talk):
    connections = AT_ONCE // PER_CONNECTION_AT_ONCE
    for number in range(connections):
        peer = FakePeer(f"10.0.1.{number}:1")
        for topic in range(PER_CONNECTION_AT_ONCE):
            assert talk.send(peer, f"T{number}-{topic}").code == C.SUCCESS
        talk.performer.closed(peer)
    refused = talk.send(FakePeer("10.0.2.1:1"), "One-more")
    assert (refused.code, "at this broker" in refused.remark) == (C.SYSTEM_BUSY, True)


def test_sends_that_wait_for_the_disk_keep_no_bodies_in_memory(tmp_path, peer):
    """On a disk that hangs, producers would fill the memory before their requests time out."""
    talk = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    command = talk.command(R.SEND_MESSAGE_V2, send_header(), b"x" * 1_000)
    talk.give(peer, command)
    assert talk.broker.purgatory.statistics().parked == 1
    assert command.body == b""
    talk.flush()
    assert answer(peer, command).code == C.SUCCESS
    talk.close()
