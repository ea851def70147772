"""Attacks by one small request, in units of work: decoding, encoding and storing, and their slices."""

import gc
import itertools

import pytest

from libramq.broker.groups import client_watch, group_health
from libramq.broker.groups import consumer_clients as notices
from libramq.broker.messages import drafts, sending
from libramq.broker.processor import listing
from libramq.broker.processor.administration import statistics
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats import fastjson
from libramq.formats.document import decode_body, encode_body
from libramq.formats.tables import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from libramq.groups import producer_group
from libramq.groups.consumer_group import ANSWER_MS_MAX, SILENCE_MS_MAX, ConsumerGroups, Member
from libramq.groups.pending_notifications import REPEAT_MS
from libramq.groups.producer_group import ProducerGroups
from libramq.groups.rebalance import GroupRebalance
from libramq.kernel.effect import Thread
from libramq.kernel.work import PORTION
from libramq.message.batch import BATCH_ITEMS_MAX, BatchItem, encode_batch
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import ConsumeStats, LockBatchBody, LockBatchReply, QueueRef
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData
from libramq.rpc import outcome
from libramq.rpc import request as request_module
from libramq.runtime import busy
from libramq.runtime.outgoing import OFFERED_BEHIND_BYTES_MAX
from libramq.runtime.performer import TURN_US_MAX
from libramq.store.log.append import MessageRun, RunResult
from tests.broker.brokers import Conversation, find_answer, heartbeat, notifications, send_header
from tests.fakes import FakePeer, turns_of

TOPICS = 300


@pytest.fixture
def talk(tmp_path):
    conversation = Conversation(tmp_path)
    yield conversation
    conversation.close()


@pytest.fixture
def peer():
    return FakePeer()


@pytest.fixture
def many(talk):
    for number in range(TOPICS):
        talk.broker.topics.put(TopicConfig(topic_name=f"T{number:03}"), talk.clock.wall_ms())
    return talk


def count_calls(monkeypatch, module, name):
    calls: list[object] = []
    real = getattr(module, name)

    def counted(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(module, name, counted)
    return calls


def test_256_requests_for_all_topics_have_them_encoded_once(many, peer, monkeypatch):
    """A thread encodes them, and only the clients that requested them wait for it."""
    encoded = count_calls(monkeypatch, listing, "encode_body")
    commands = [many.command(R.GET_ALL_TOPIC_CONFIG) for _ in range(256)]
    many.give(peer, *commands)
    assert not encoded, "not on the loop"
    other = FakePeer()
    assert many.send(other).code == C.SUCCESS
    many.answer_later(peer, commands[-1])
    assert len(encoded) == 2, "the send made a topic: once for each version"
    many.ask(FakePeer(), R.GET_ALL_TOPIC_CONFIG)
    assert len(encoded) == 2


def test_topics_are_listed_in_the_pages_of_javas_client(many, peer):
    """MQClientAPIImpl.getAllTopicConfig requests pages up to the total, and starts again at a new version."""
    version, sequence, found = "", 0, {}
    while True:
        header = h.GetAllTopicsHeader(topic_seq=sequence, data_version=version, max_topic_num=100)
        reply = many.ask(peer, R.GET_ALL_TOPIC_CONFIG, header)
        page = decode_body(reply.body, TopicConfigSerializeWrapper)
        assert len(page.topic_config_table) <= 100
        assert list(page.topic_config_table) == sorted(page.topic_config_table)
        found.update(page.topic_config_table)
        sequence += len(page.topic_config_table)
        version = encode_body(page.data_version).decode()
        if sequence >= int(reply.ext["totalTopicNum"]) - 1:
            break
    whole = decode_body(many.ask(peer, R.GET_ALL_TOPIC_CONFIG).body, TopicConfigSerializeWrapper)
    assert found.keys() <= whole.topic_config_table.keys()
    assert len(found) >= len(whole.topic_config_table) - 1


@pytest.mark.parametrize("version", ["", "{}", "no json", encode_body(DataVersion(counter=99)).decode()])
def test_a_page_of_another_version_restarts_at_the_beginning(many, peer, version):
    header = h.GetAllTopicsHeader(topic_seq=200, data_version=version, max_topic_num=3)
    page = decode_body(many.ask(peer, R.GET_ALL_TOPIC_CONFIG, header).body, TopicConfigSerializeWrapper)
    assert list(page.topic_config_table) == sorted(t.topic_name for t in many.broker.topics)[:3]


def test_no_page_is_larger_than_apaches(many, peer, monkeypatch):
    monkeypatch.setattr(listing, "PAGE_MAX", 50)
    header = h.GetAllTopicsHeader(topic_seq=0, data_version="", max_topic_num=2**31 - 1)
    page = decode_body(many.ask(peer, R.GET_ALL_TOPIC_CONFIG, header).body, TopicConfigSerializeWrapper)
    assert len(page.topic_config_table) == 50
    header = h.GetAllTopicsHeader(topic_seq=0, max_topic_num=0)
    assert many.ask(peer, R.GET_ALL_TOPIC_CONFIG, header).code == C.INVALID_PARAMETER


def test_a_large_body_is_decoded_by_a_thread(talk, peer, monkeypatch):
    decoded = count_calls(monkeypatch, request_module, "decode_body")
    data = encode_body(heartbeat("c")) + b" " * request_module.INLINE_BODY_BYTES_MAX
    command = talk.command(R.HEART_BEAT, None, data)
    after = talk.command(R.GET_CONSUMER_LIST_BY_GROUP, h.GroupHeader(consumer_group="G"))
    talk.give(peer, command, after)
    assert not decoded
    assert find_answer(peer, after) is None, "requests take effect in their order"
    assert talk.answer_later(peer, command).code == C.SUCCESS
    assert find_answer(peer, after).code == C.SUCCESS


def test_a_small_body_in_fastjsons_dialect_is_decoded_by_a_thread_too(talk, peer, monkeypatch):
    """4 KiB of it took 5 ms; twenty clients that sent it delayed all others by 0.1 s."""
    decoded = count_calls(monkeypatch, request_module, "decode_body")
    loose = talk.command(R.HEART_BEAT, None, b"{clientID:'c'}" + b" " * request_module.INLINE_LOOSE_BYTES_MAX)
    standard = talk.command(R.HEART_BEAT, None, heartbeat("c"))
    talk.give(peer, standard)
    assert len(decoded) == 1
    talk.give(peer, loose)
    assert len(decoded) == 1
    assert talk.answer_later(peer, loose).code == C.SUCCESS


def test_a_client_that_left_before_its_heartbeat_was_decoded_is_no_member(talk, peer):
    data = encode_body(heartbeat("c")) + b" " * request_module.INLINE_BODY_BYTES_MAX
    talk.give(peer, talk.command(R.HEART_BEAT, None, data))
    peer.close("gone")
    talk.performer.closed(peer)
    talk.threads.run_all(Thread.COMPUTE)
    assert talk.broker.members.consumers.group("G") is None


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b'{a:"c",b:[' + b"{}," * 10_000 + b"1]}", "standard JSON"),
        (b'{"a":[' + b"0," * 500_000 + b"0]}", "over 400000"),
        (b"[" * 500_000, "over 400000"),
        (b'{a:"' + b"x" * 4_000_000 + b'"}', "standard JSON"),
    ],
)
def test_a_body_of_too_many_values_is_refused_before_it_is_decoded(talk, peer, body, limit, monkeypatch):
    values = count_calls(monkeypatch, fastjson._Reader, "_value")
    reply = talk.ask(peer, R.HEART_BEAT, None, body)
    assert reply.code == C.SYSTEM_ERROR
    assert limit in reply.remark
    assert not values


def test_references_along_one_long_path_are_followed_once(monkeypatch):
    path = "$" + ".a" * 30
    text = '{0:1,"a":' + '{"a":' * 29 + '"end"' + "}" * 29 + ',"b":['
    text += ",".join(['{"$ref":"' + path + '"}'] * 5_000) + "]}"
    found = count_calls(monkeypatch, fastjson.re, "findall")
    assert fastjson.loads(text)["b"] == ["end"] * 5_000
    assert len(found) == 1


def test_an_overlong_path_is_refused():
    text = '{0:{"$ref":"$' + ".a" * 50_000 + '"}}'
    with pytest.raises(fastjson.RemoteProtocolError, match="characters"):
        fastjson.loads(text)


def test_a_batch_of_190650_empty_messages_is_refused_before_decoding(talk, peer, monkeypatch):
    built = count_calls(monkeypatch, sending, "StoreMessage")
    body = encode_batch([BatchItem(0, b"", b"")]) * 190_650
    reply = talk.ask(peer, R.SEND_BATCH_MESSAGE, send_header(batch=True), body)
    assert reply.code == C.SYSTEM_ERROR
    assert str(BATCH_ITEMS_MAX) in reply.remark
    assert not built


def count_of(messages) -> int:
    """Return the number of messages that are appended together."""
    return sum(len(each.bodies) if isinstance(each, MessageRun) else 1 for each in messages)


def appends_of(talk: Conversation, size=count_of) -> list[int]:
    """Return a list to which the size of each append is added."""
    appended: list[int] = []
    log = talk.broker.files.log
    append = log.append

    def counted(messages):
        appended.append(size(messages))
        return append(messages)

    log.append = counted
    return appended


def test_the_names_of_a_large_batch_are_written_as_it_is_stored(talk, peer, monkeypatch):
    """Writing the names of 16,384 messages took 9 ms when all were written after the last one was stored."""
    appended = appends_of(talk)
    named: list[tuple[int, int]] = []
    write = RunResult.offset_ids.fget

    def noted(result):
        named.append((len(appended), len(result.positions)))
        return write(result)

    monkeypatch.setattr(RunResult, "offset_ids", property(noted))
    step = drafts.RUN_ITEMS_MAX
    body = encode_batch([BatchItem(0, b"x", b"")] * (3 * step))
    reply = talk.ask(peer, R.SEND_BATCH_MESSAGE, send_header(batch=True), body)
    assert len(reply.ext["msgId"].split(",")) == 3 * step
    assert named == [(1, step), (2, step), (3, step)]


def test_a_large_batch_is_stored_in_slices_and_later_sends_follow_it(talk, peer):
    step = drafts.RUN_ITEMS_MAX
    bodies = [b"%d" % number for number in range(3 * step + 5)]
    body = encode_batch(BatchItem(0, each, b"") for each in bodies)
    appended = appends_of(talk)
    first = talk.command(R.SEND_MESSAGE_V2, send_header(), b"first")
    batch = talk.command(R.SEND_BATCH_MESSAGE, send_header(batch=True), body)
    last = talk.command(R.SEND_MESSAGE_V2, send_header(), b"last")
    talk.give(peer, first, batch, last)
    reply = find_answer(peer, batch) or talk.answer_later(peer, batch)
    assert reply.ext["queueOffset"] == "1"
    assert len(reply.ext["msgId"].split(",")) == len(bodies)
    assert find_answer(peer, last).ext["queueOffset"] == str(len(bodies) + 1)
    assert max(appended) <= step
    assert [m.body for m in talk.messages("T")] == [b"first", *bodies, b"last"]


def plain_batch(count: int, body: bytes = b"x") -> bytes:
    """Return a batch as producers make it: none of its properties needs a check."""
    return encode_batch(BatchItem(0, body, b"UNIQ_KEY\x01%032X\x02" % number) for number in range(count))


@pytest.mark.parametrize(
    ("count", "body", "slices"),
    [(2_500, b"x", [1_024, 1_024, 452]), (1_000, b"x" * 4_000, [322, 322, 322, 34])],
)
def test_plain_messages_are_stored_in_larger_slices_of_so_many_and_so_many_bytes(
    tmp_path, peer, count, body, slices
):
    talk = Conversation(tmp_path, commit_log_file_bytes=1 << 23)
    appended = appends_of(talk)
    reply = talk.ask(peer, R.SEND_BATCH_MESSAGE, send_header(batch=True), plain_batch(count, body))
    assert len(set(reply.ext["msgId"].split(","))) == count
    assert appended == slices
    assert [m.queue_offset for m in talk.messages("T")] == list(range(count))
    talk.close()


@pytest.mark.parametrize(
    "items",
    [
        [BatchItem(0, b"x" * 500, b"UNIQ_KEY\x01A\x02")] * 20 + [BatchItem(0, b"last", b"UNIQ_KEY\x01A\x02")],
        [BatchItem(0, b"x" * 30_000, b"UNIQ_KEY\x01A\x02")] * 100,
    ],
    ids=["a smaller last message", "3 MB"],
)
def test_a_small_batch_is_stored_by_one_append_whatever_its_messages_sizes(tmp_path, peer, items):
    """The batch is stored completely or not at all, without other messages in between."""
    talk = Conversation(tmp_path, commit_log_file_bytes=1 << 23)
    appended = appends_of(talk, len)
    reply = talk.ask(peer, R.SEND_BATCH_MESSAGE, send_header(batch=True), encode_batch(items))
    assert len(set(reply.ext["msgId"].split(","))) == len(items)
    assert appended == [1]
    assert [m.body for m in talk.messages("T")] == [item.body for item in items]
    talk.close()


def alive(kind: type) -> int:
    """Return the number of live objects of a type."""
    return sum(type(each) is kind for each in gc.get_objects())


def test_the_messages_of_a_large_batch_are_never_all_in_memory(talk, peer, monkeypatch):
    """Twenty batches of 16,384 messages took 133 MB between being checked and being stored."""
    step = drafts.RUN_ITEMS_MAX
    monkeypatch.setattr(sending, "BATCH_ITEMS_KEPT_MAX", step)
    bodies = [b"%d" % number for number in range(4 * step)]
    body = encode_batch(BatchItem(0, each, b"") for each in bodies)
    command = talk.command(R.SEND_BATCH_MESSAGE, send_header(batch=True), body)
    counts: list[int] = []
    talk.performer._timers.elapsed_us = itertools.count(0, TURN_US_MAX).__next__
    before = alive(MessageRun)
    talk.give(peer, command)
    while find_answer(peer, command) is None:
        talk.performer._timers.ring()
        counts.append(alive(MessageRun) - before)
    assert len(counts) > 2 * 3, "checked, then stored"
    assert max(counts) == 1, "of at most so many messages as are handled in a step"
    assert [m.body for m in talk.messages("T")] == bodies


def test_a_large_batch_whose_last_message_is_bad_stores_nothing(talk, peer, monkeypatch):
    step = drafts.RUN_ITEMS_MAX
    monkeypatch.setattr(sending, "BATCH_ITEMS_KEPT_MAX", step)
    bad = BatchItem(0, b"x", b"TIMER_DELAY_MS\x0110\x02")
    body = encode_batch([BatchItem(0, b"x", b"")] * (3 * step) + [bad])
    assert talk.ask(peer, R.SEND_BATCH_MESSAGE, send_header(batch=True), body).code == C.MESSAGE_ILLEGAL
    assert talk.broker.store.max_offset("T", 0) == 0


def test_large_heartbeats_are_decoded_a_few_at_a_time(talk, monkeypatch):
    """The others wait undecoded, and each is answered eventually."""
    data = HeartbeatData(
        client_id="c", consumer_data_set=[ConsumerData(group_name=f"{n:0100}") for n in range(600)]
    )
    command = talk.command(R.HEART_BEAT, None, data)
    cost = len(command.body) * request_module.DECODED_BYTES_PER_BYTE
    assert cost > busy.USUAL_BYTES_MAX
    at_most = busy.HUGE_LANE_BYTES // cost
    peers = [FakePeer(f"10.0.0.{number}:1") for number in range(at_most + 4)]
    for peer in peers:
        talk.give(peer, command)
    at_once = len(talk.threads.work)
    assert 1 <= at_once <= at_most
    assert not any(peer.is_reading for peer in peers)
    for peer in peers:
        assert talk.answer_later(peer, command).code == C.SUCCESS
    assert all(peer.is_reading for peer in peers)


def test_pipelined_batches_are_stored_in_slices_too(talk, peer):
    """64 batches of 128 messages, 0.2 MB in one read, used to be one turn of 135 ms."""
    step = drafts.RUN_ITEMS_MAX
    body = encode_batch([BatchItem(0, b"x", b"")] * step)
    appended = appends_of(talk)
    commands = [talk.command(R.SEND_BATCH_MESSAGE, send_header(batch=True), body) for _ in range(64)]
    talk.give(peer, *commands)
    offsets = [find_answer(peer, command).ext["queueOffset"] for command in commands]
    assert offsets == [str(step * number) for number in range(64)]
    assert max(appended) <= sending.APPENDED_MAX


def test_a_batch_with_one_bad_message_stores_nothing(talk, peer):
    step = drafts.RUN_ITEMS_MAX
    body = encode_batch([BatchItem(0, b"x", b"")] * (2 * step)) + b"\0\0\0\5"
    reply = talk.ask(peer, R.SEND_BATCH_MESSAGE, send_header(batch=True), body)
    assert reply.code == C.SYSTEM_ERROR
    assert talk.broker.store.max_offset("T", 0) == 0


def test_a_topic_named_a_hundred_times_is_processed_once(talk, peer):
    talk.create_topic("W", queues=1_000)
    looked: list[int] = []
    maximum = talk.broker.store.max_offset

    def counted(topic, queue_id):
        looked.append(queue_id)
        return maximum(topic, queue_id)

    talk.broker.store.max_offset = counted
    header = h.ConsumeStatsHeader(consumer_group="G", topic_list="W;" * 100)
    reply = talk.ask(peer, R.GET_CONSUME_STATS, header)
    assert len(looked) == 1_000
    assert len(decode_body(reply.body, ConsumeStats).offset_table) == 1_000


def test_statistics_of_too_many_queues_are_refused(talk, peer, monkeypatch):
    monkeypatch.setattr(statistics, "QUEUES_MAX", 10)
    talk.create_topic("W", queues=11)
    header = h.ConsumeStatsHeader(consumer_group="G", topic_list="W")
    reply = talk.ask(peer, R.GET_CONSUME_STATS, header)
    assert reply.code == C.INVALID_PARAMETER
    assert "topic by topic" in reply.remark


def test_taking_queues_to_read_looks_at_each_queue_once_and_not_for_each_group(talk, peer):
    """With 1,024 queues and 3,000 groups the broker stood still for 3.6 s, with 20,000 groups for 26 s."""
    talk.create_topic("S", queues=64)
    for queue_id in range(64):
        talk.send(peer, "S", queue_id=queue_id)
    offsets, store = talk.broker.offsets, talk.broker.store
    for number in range(100):
        offsets.commit(f"G{number}", "S", 63, 1)
    looked_at: list[int] = []
    end_of = store.max_offset

    def counted(topic, queue_id):
        looked_at.append(queue_id)
        return end_of(topic, queue_id)

    store.max_offset = counted
    header = h.CreateTopicHeader(topic="S", read_queue_nums=4, write_queue_nums=4, perm=6)
    assert talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC, header).code == C.SUCCESS
    assert len(looked_at) <= 2 * 64


def test_thousands_of_queues_are_locked_in_slices_and_encoded_by_a_thread(talk, peer, monkeypatch):
    monkeypatch.setattr(outcome, "ROWS_INLINE_MAX", 3 * PORTION)
    count = 3 * PORTION + 5
    talk.broker.topics.put(
        TopicConfig(topic_name="T", read_queue_nums=count, write_queue_nums=count), talk.clock.wall_ms()
    )
    talk.beat(peer, "alice")
    slices: list[int] = []
    lock = talk.broker.members.locks.lock

    def counted(group, client_id, queues, *, now_ms):
        slices.append(len(queues))
        return lock(group, client_id, queues, now_ms=now_ms)

    talk.broker.members.locks.lock = counted
    encoded = count_calls(monkeypatch, outcome, "encode_body")
    refs = [QueueRef(topic="T", broker_name="broker-a", queue_id=number) for number in range(count)]
    command = talk.command(
        R.LOCK_BATCH_MQ, None, LockBatchBody(consumer_group="G", client_id="alice", mq_set=refs)
    )
    talk.give(peer, command)
    talk.threads.finish(talk.threads.work.pop(0))  # Its body is decoded by a thread first.
    assert not encoded, "not on the loop"
    reply = talk.answer_later(peer, command)
    held = decode_body(reply.body, LockBatchReply).lock_ok_mq_set
    assert [ref.queue_id for ref in held] == list(range(count))
    assert max(slices) == PORTION
    assert len(slices) == 4


def test_members_are_notified_of_a_connection_that_ended_in_slices(talk, peer, monkeypatch):
    """With 1,000 groups that twenty clients share, 19,000 notifications would be sent in one turn."""
    others = [FakePeer() for _ in range(10)]
    for number, other in enumerate(others):
        talk.beat(other, f"client-{number}")
    talk.beat(peer, "alice")
    for other in others:
        notifications(other)
    talk.broker.kernel.workload.begin_turn = turns_of(4)
    peer.is_open = False
    talk.performer.closed(peer)
    slices = [sum(len(notifications(other)) for other in others)]
    while slices[-1]:
        talk.tick()
        slices.append(sum(len(notifications(other)) for other in others))
    assert max(slices) <= 4
    assert sum(slices) == 10


def share_groups(talk, count: int) -> list[FakePeer]:
    """Connect this many clients, which share twenty groups."""
    groups = [ConsumerData(group_name=f"G{number}") for number in range(20)]
    peers = [FakePeer(f"10.0.0.{number}:1") for number in range(count)]
    for number, peer in enumerate(peers):
        talk.ask(peer, R.HEART_BEAT, None, HeartbeatData(client_id=f"c{number}", consumer_data_set=groups))
    return peers


def drain(talk) -> None:
    """Send all waiting notifications."""
    while talk.broker.members.consumers.notifications.outbox:
        talk.tick()


def count_taken(talk, monkeypatch) -> list[int]:
    """Return a list that records how many notifications are sent at a time."""
    sizes: list[int] = []
    take = talk.broker.members.consumers.notifications.outbox.take

    def counted():
        taken = take()
        sizes.append(len(taken))
        return taken

    monkeypatch.setattr(talk.broker.members.consumers.notifications.outbox, "take", counted)
    return sizes


def test_the_notifications_of_a_heartbeat_are_sent_in_slices(talk, monkeypatch):
    """A heartbeat of 1,000 groups that twenty clients share took 166 ms of one turn to create 19,000."""
    monkeypatch.setattr(notices, "PORTION", 8)
    talk.broker.kernel.workload.begin_turn = turns_of(1)
    sizes = count_taken(talk, monkeypatch)
    peers = share_groups(talk, 3)
    drain(talk)
    assert max(sizes) <= 8
    assert len(sizes) > 60 // 8
    assert [len(set(notifications(peer))) for peer in peers] == [20] * 3
    talk.broker.kernel.workload.begin_turn = turns_of(8)
    talk.tick()
    talk.beat(FakePeer(), "new", "G0")
    assert [notifications(peer) for peer in peers] == [["G0"]] * 3, "the first slice leaves at once"


def test_a_member_is_notified_of_a_group_once_however_often_it_changes(talk, monkeypatch):
    """Heartbeats of 1,000 groups added 19,000 notifications each, faster than they were sent: 357 MB."""
    monkeypatch.setattr(notices, "PORTION", 1)
    talk.broker.kernel.workload.begin_turn = turns_of(1)
    peers = share_groups(talk, 3)
    for peer in share_groups(talk, 4):
        peer.is_open = False
        talk.performer.closed(peer)
    before = [len(notifications(peer)) for peer in peers]
    assert sum(before) <= 2, "the others wait, as nothing else was done in between"
    drain(talk)
    for peer in peers:
        names = notifications(peer)
        assert set(names) == {f"G{number}" for number in range(20)}
        assert len(names) <= 2 * 20, "a join, and a departure"


def test_a_member_that_does_not_read_is_notified_when_it_has_read(talk):
    """Notifications that twenty clients did not read used to fill 256 MB."""
    (peer,) = share_groups(talk, 1)
    drain(talk)
    assert len(notifications(peer)) == 20
    peer.unsent_bytes = OFFERED_BEHIND_BYTES_MAX + 1
    share_groups(talk, 2)
    drain(talk)
    assert notifications(peer) == []
    peer.unsent_bytes = 0
    talk.advance(REPEAT_MS)
    assert len(notifications(peer)) == 20


def test_a_connection_that_ended_leaves_its_groups_in_slices(talk, peer, monkeypatch):
    """1,000 groups took 97 ms. A client that reconnects meanwhile stays a member of the groups it joins."""
    talk.broker.kernel.workload.begin_turn = turns_of(4)
    groups = [f"G{number}" for number in range(10)]
    for group in groups:
        talk.beat(peer, "alice", group)

    def joined() -> int:
        return sum(talk.broker.members.consumers.group(group) is not None for group in groups)

    peer.is_open = False
    talk.performer.closed(peer)
    assert joined() == 5, "the first one at once"
    again = FakePeer()
    talk.beat(again, "alice", "G9")
    talk.coordinate()
    assert joined() == 1
    assert list(talk.broker.members.consumers.group("G9").members) == [again]


def test_pending_notifications_are_checked_in_slices(talk, monkeypatch):
    """Checking 20,000 of them took 100 ms, once a second."""
    groups = [f"G{number}" for number in range(10)]
    peers = [FakePeer(f"10.0.0.{number}:1000") for number in range(2)]
    for number, peer in enumerate(peers):
        for group in groups:
            talk.beat(peer, f"client-{number}", group)
    for peer in peers:
        notifications(peer)
    talk.broker.kernel.workload.begin_turn = turns_of(4)
    talk.clock.advance(REPEAT_MS)
    slices: list[int] = []
    while sum(slices) < len(groups) * len(peers):
        talk.tick()
        slices.append(sum(len(notifications(peer)) for peer in peers))
    assert max(slices) <= 4 * 2, "four groups of two"
    assert len(slices) > 2


def test_the_health_of_many_groups_is_checked_in_slices(talk, peer, monkeypatch):
    talk.broker.kernel.workload.begin_turn = turns_of(2)
    talk.create_topic("T", 1)
    for number in range(10):
        for client_id in ("alice", "bob"):
            talk.beat(FakePeer(), client_id, f"G{number}")
    looked = count_calls(monkeypatch, group_health, "diagnose")
    talk.clock.advance(group_health.LOOK_MS)
    slices: list[int] = []
    while len(talk.broker.members.health.kinds()) < 10:
        before = len(looked)
        talk.tick()
        slices.append(len(looked) - before)
    assert max(slices) <= 2
    assert sum(slices) == 10


def test_members_are_checked_in_slices(talk, peer, monkeypatch):
    """Checking 20,000 members for silence took 11 ms, once a second."""
    talk.broker.kernel.workload.begin_turn = turns_of(1)
    for number in range(10):
        talk.beat(peer, "alice", f"G{number}")
    slices: list[int] = []
    look = ConsumerGroups.look

    def counted(self, group, **options):
        slices.append(len(group.members))
        return look(self, group, **options)

    monkeypatch.setattr(ConsumerGroups, "look", counted)
    talk.clock.advance(client_watch.TICK_MS)
    counts = [count_new(slices, talk.tick) for _ in range(40)]
    assert max(counts) == 1
    assert slices == [1] * 10, "a group at a time"


def count_new(found: list[int], act) -> int:
    """Return the number of items an action adds to a list."""
    before = len(found)
    act()
    return len(found) - before


def test_members_whose_sessions_expire_together_are_removed_in_slices(talk, peer, monkeypatch):
    """1,000 groups of a client that is silent for 75 s took 97 ms, as those of one that disconnects."""
    talk.broker.kernel.workload.begin_turn = turns_of(4)
    groups = [f"G{number}" for number in range(10)]
    for group in groups:
        talk.beat(peer, "alice", group)

    def joined() -> int:
        return sum(talk.broker.members.consumers.group(group) is not None for group in groups)

    talk.advance(SILENCE_MS_MAX + client_watch.TICK_MS)
    assert joined() == 10, "they have been probed"
    counts = [10]
    for _ in range(2 * ANSWER_MS_MAX):
        talk.clock.advance(1)
        talk.tick()
        counts.append(joined())
    assert counts[-1] == 0
    assert all(before - after <= 4 for before, after in itertools.pairwise(counts))


def test_rebalances_are_settled_in_slices(talk, peer, monkeypatch):
    """Checking whether those of 1,000 groups are over took 10 ms, once a second."""
    talk.broker.kernel.workload.begin_turn = turns_of(4)
    for number in range(10):
        talk.beat(peer, "alice", f"G{number}")
    settled: list[int] = []
    settle = GroupRebalance.settle

    def counted(self, *arguments, **options):
        settled.append(1)
        return settle(self, *arguments, **options)

    monkeypatch.setattr(GroupRebalance, "settle", counted)
    talk.clock.advance(client_watch.TICK_MS)
    counts = [count_new(settled, talk.tick) for _ in range(20)]
    assert max(counts) <= 4
    assert sum(counts) == 10


def test_producers_are_checked_in_slices():
    producers: ProducerGroups[str] = ProducerGroups()
    for number in range(10):
        producers.beat(f"P{number}", Member("c1", "p", "JAVA", 479, 0))
    slices = producers.remove_silent(producer_group.SILENCE_MS_MAX + 1)
    counts = [len(producers) for _ in slices]
    assert [before - after for before, after in itertools.pairwise([10, *counts])] == [1, 0] * 10
