"""Batches of RocketMQ's producers in topics with queue.type=BatchCQ: one record each, and many messages."""

import pytest

from libramq.batches.kafka_batch import FORMAT, KAFKA_BATCH
from libramq.client.producing.send_result import send_results
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.message import MessageQueue
from libramq.message import sys_flag as flags
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.properties import decode_properties, encode_properties, properties_to_text
from libramq.message.record import decode_records, peek_record
from libramq.message.tags import tag_code
from libramq.protocols.kafka.records import fetched_records
from libramq.remoting.headers import QueryMessageHeader, SendBackHeader
from libramq.rpc.broker_calls import SendReply
from libramq.wire.kafka.record_batch import decode_batch as decode_kafka_batch
from tests.broker.brokers import answer, send_header
from tests.fakes import FakePeer

KEY = {"UNIQ_KEY": "BATCH"}


def items(*bodies: str, **properties: str) -> list[BatchItem]:
    return [
        BatchItem(number, body.encode(), encode_properties({"UNIQ_KEY": f"ID{body}", **properties}))
        for number, body in enumerate(bodies)
    ]


@pytest.fixture
def topic(talk):
    assert talk.create_topic("T", queues=1, attributes="+queue.type=BatchCQ").code == C.SUCCESS
    return "T"


def sent(talk, batch: list[BatchItem] | bytes, **fields: object):
    body = batch if isinstance(batch, bytes) else encode_batch(batch)
    header = send_header(**({"batch": True, "properties": KEY} | fields))
    return talk.ask(FakePeer(), R.SEND_BATCH_MESSAGE, header, body)


def heads(talk):
    stored = b"".join(talk.broker.store.read("T", 0, 0, 32, as_stored=True).data)
    found, start = [], 0
    while start < len(stored):
        found.append(peek_record(stored, start))
        start += found[-1].size
    return found, stored


def found_by(talk, key: str, *, unique: bool = False):
    header = QueryMessageHeader(
        topic="T", key=key, max_num=32, begin_timestamp=0, end_timestamp=2**62, is_unique_key=unique
    )
    return decode_records(talk.ask(FakePeer(), R.QUERY_MESSAGE, header).body)


@pytest.mark.usefixtures("topic")
def test_it_is_stored_in_apaches_layout_and_its_answer_tells_java_of_it(talk):
    """SendMessageProcessor.sendBatchMessage, BatchConsumeQueue.assignQueueOffset."""
    talk.send(FakePeer())
    batch = items("a", "b", "c")
    reply = sent(talk, batch)
    assert (reply.code, reply.ext["queueOffset"], reply.ext["batchUniqId"]) == (C.SUCCESS, "1", "BATCH")
    assert reply.ext["transactionId"] == "BATCH"
    sent(talk, items("d"))
    (_, head, last), stored = heads(talk)
    assert stored[head.body_start : head.body_end] == encode_batch(batch)
    assert (head.queue_offset, last.queue_offset) == (1, 4)
    assert head.sys_flag == flags.INNER_BATCH | flags.NEED_UNWRAP
    assert decode_properties(head.properties) == {
        "INNER_NUM": "3", "INNER_BASE": "1", "UNIQ_KEY": "BATCH",
        "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    assert talk.broker.store.statistics().put_message_count == 5
    assert talk.broker.store.drain_topic_puts() == {"T": 5}


@pytest.mark.usefixtures("topic")
def test_its_messages_are_read_selected_and_sent_back_as_any_others(talk):
    sent(talk, items("a", "b", TAGS="x", colour="blue"))
    sent(talk, items("c", TAGS="y"))
    found = talk.messages("T")
    assert [(m.queue_offset, m.body, m.flag) for m in found] == [(0, b"a", 0), (1, b"b", 1), (2, b"c", 0)]
    assert found[1].properties == {"UNIQ_KEY": "IDb", "TAGS": "x", "colour": "blue"}
    assert (found[1].born_timestamp_ms, found[1].sys_flag) == (12_345, 0)
    selected = talk.pull(FakePeer(), subscription="y")
    assert [m.body for m in decode_records(selected.body)] == [b"c"]
    assert talk.broker.store.read("T", 0, 0, 1, None, frozenset({tag_code("x")})).count == 1
    header = SendBackHeader(group="G", offset=found[1].physical_offset, delay_level=-1, origin_topic="T")
    talk.beat(FakePeer(), "c")
    assert talk.ask(FakePeer(), R.CONSUMER_SEND_MSG_BACK, header).code == C.SUCCESS
    (again,) = talk.messages("%DLQ%G")
    assert (again.body, again.tags, again.properties["colour"]) == (b"b", "x", "blue")


@pytest.mark.usefixtures("topic")
def test_our_producers_know_the_place_of_each_message_by_that_of_the_first(talk):
    """The batch itself has no unique id: Apache's brokers would give it to all messages in other topics."""
    reply = sent(talk, items("a", "b", "c"), properties={"WAIT": "true"}, lb_inner=True)
    assert "batchUniqId" not in reply.ext
    assert reply.ext["lbInnerNum"] == "3"
    (head,), _ = heads(talk)
    assert len(decode_properties(head.properties)["UNIQ_KEY"]) == 32
    ext = reply.ext
    result = send_results(
        ("IDa", "IDb", "IDc"), MessageQueue("T", "broker-a", 0),
        SendReply(0, 0, int(ext["queueOffset"]), ext["msgId"], "", "", ext["lbInnerNum"]),
    )  # fmt: skip
    expected = [(m.offset_id, m.properties["UNIQ_KEY"], m.queue_offset) for m in talk.messages("T")]
    assert [(r.offset_message_id, r.message_id, r.queue_offset) for r in result] == expected


@pytest.mark.usefixtures("topic")
def test_its_messages_are_found_by_their_keys_and_the_batch_by_its_own(talk):
    sent(talk, [*items("a", "b", KEYS="k1 k2"), *items("c", KEYS="k2")])
    talk.send(FakePeer(), properties={"KEYS": "k2"})
    assert [m.body for m in found_by(talk, "k2")] == [b"hello", b"c", b"b", b"a"]
    assert [(m.body, m.queue_offset) for m in found_by(talk, "IDb", unique=True)] == [(b"b", 1)]
    (batch,) = found_by(talk, "BATCH", unique=True)
    assert (batch.properties["INNER_NUM"], batch.sys_flag & flags.INNER_BATCH) == ("3", flags.INNER_BATCH)
    assert found_by(talk, "IDd", unique=True) == []


@pytest.mark.parametrize(
    ("batch", "fields", "count"),
    [
        (items("a", "b"), {"properties": {}}, 2),  # Apache's broker also does so without a batch id.
        (items("a", "b"), {"properties": {"UNIQ_KEY": ""}}, 2),  # As without one.
        (items("a", "b"), {"properties": {"MY_UNIQ_KEY": "1"}}, 2),
        (items("a", "b", POP_CK="0 1 1 0 0 broker-a 0 7"), {}, 2),
        (items("a", "b"), {"sys_flag": flags.COMPRESSED}, 2),
        (items("a", "b"), {"reconsume_times": 1}, 2),
        (items("a", "b"), {"properties": KEY | {"INNER_NUM": "9"}}, 2),
        (items("a", "b", TRAN_MSG="true"), {}, 0),
        (items("a", "b", TIMER_DELAY_SEC="3"), {}, 0),
        ([BatchItem(0, b"a", b"user\x01\0\x02")], {}, 0),
        ([], {}, 0),
        (items("a") * 32_768, {}, 0),
        (encode_batch(items("a", "b"))[:-1], {}, 0),
        (encode_batch(items("a") * 20)[:-1], {}, 0),
        (encode_batch(items("a", "b")) + bytes(21), {}, 0),
        (encode_batch(items("a", "b")) + bytes(22), {}, 0),
        (encode_batch(items("a") * 8)[:-10] + bytes(10), {}, 0),
    ],
)
@pytest.mark.usefixtures("topic")
def test_what_asks_for_something_of_its_own_is_stored_one_by_one_and_what_is_wrong_not_at_all(
    talk, batch, fields, count
):
    reply = sent(talk, batch, **fields)
    assert (reply.code == C.SUCCESS) == bool(count)
    assert "batchUniqId" not in reply.ext
    if not count:
        assert talk.broker.store.statistics().put_message_count == 0
        return
    found, _ = heads(talk)
    assert [(head.queue_offset, head.sys_flag & flags.INNER_BATCH) for head in found] == [(0, 0), (1, 0)]
    assert all("POP_CK" not in m.properties for m in talk.messages("T"))


def test_in_other_topics_it_is_stored_one_by_one(talk):
    talk.create_topic("T", queues=1)
    reply = sent(talk, items("a", "b"), lb_inner=True)
    assert "batchUniqId" not in reply.ext
    assert "lbInnerNum" not in reply.ext
    assert reply.ext["msgId"].count(",") == 1


@pytest.mark.parametrize("bodies", [["a"] * 12_000, ["a", "bc"] * 3_000, ["a" * 99] * 12_000])
@pytest.mark.usefixtures("topic")
def test_a_large_one_is_checked_in_steps_and_those_behind_it_are_stored_after_it(talk, bodies):
    """Messages of one size are looked at together, others one by one; no file of the log holds the last."""
    peer = FakePeer()
    large = [each._replace(flag=0) for each in items(*bodies)]
    first, second = (
        talk.command(R.SEND_BATCH_MESSAGE, send_header(batch=True, properties=KEY), encode_batch(each))
        for each in (large, items("x", "y"))
    )
    talk.give(peer, first, second)
    assert talk.answer_later(peer, second).ext["queueOffset"] == str(len(bodies))
    is_whole = len(encode_batch(large)) < talk.broker.store.config.mapped_file_size_commit_log
    assert answer(peer, first).ext.get("batchUniqId") == ("BATCH" if is_whole else None)
    store = talk.broker.store
    assert store.max_offset("T", 0) == len(bodies) + 2
    (message,) = decode_records(b"".join(store.read("T", 0, len(bodies) - 1, 1).data))
    assert message.body == bodies[-1].encode()


@pytest.mark.usefixtures("topic")
def test_properties_of_a_batch_are_text_that_its_readers_get(talk):
    """The batch's own properties belong to no message."""
    sent(talk, items("a", name="\u00e9"), properties=properties_to_text({**KEY, "INSTANCE_ID": "n"}))
    (message,) = talk.messages("T")
    assert message.properties == {"UNIQ_KEY": "IDa", "name": "\u00e9"}


@pytest.mark.usefixtures("topic")
def test_the_mark_of_kafkas_batches_in_a_producers_property_is_none(talk):
    """It would make the batch unreadable, and its bytes would go to Kafka's consumers as they are."""
    sent(talk, items("a", "b"), properties=KEY | {KAFKA_BATCH: FORMAT})
    (head,), stored = heads(talk)
    assert decode_properties(head.properties)[KAFKA_BATCH] == FORMAT
    assert [m.body for m in talk.messages("T")] == [b"a", b"b"]
    assert [each.value for each in decode_kafka_batch(fetched_records([stored]))] == [b"a", b"b"]
