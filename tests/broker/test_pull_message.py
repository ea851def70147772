"""Pulls: each check, every status, and held pulls."""

import itertools
import tracemalloc

import pytest

from libramq.broker.groups.pull import TAG_CHARACTERS_MAX, TagExpressions
from libramq.broker.messages.reading import PASSED_OVER_MS
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.tables import SubscriptionGroupConfig
from libramq.kernel.effect import Thread
from libramq.message import decode_records
from libramq.message.tags import java_hash
from libramq.remoting import headers as h
from libramq.rpc.broker_calls import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from libramq.runtime.busy import RUNS_MAX
from libramq.waits.held_pulls import SUSPEND_MS_MAX
from tests.broker.brokers import Conversation, answer, find_answer, subscription
from tests.fakes import FakePeer, turns_of

HELD = PULL_SUSPEND | PULL_SUBSCRIPTION


def bodies(reply) -> list[bytes]:
    return [message.body for message in decode_records(reply.body)]


def fill(talk: Conversation, count: int, topic: str = "T", **fields) -> None:
    producer = FakePeer("10.0.0.1:1")
    for n in range(count):
        assert talk.send(producer, topic, str(n).encode(), **fields).code == C.SUCCESS


# Results of a pull.


def test_a_pull_brings_the_records_as_they_are_stored(talk, peer):
    fill(talk, 5)
    reply = talk.pull(peer, queue_offset=2)
    assert (reply.code, reply.remark) == (C.SUCCESS, "FOUND")
    assert bodies(reply) == [b"2", b"3", b"4"]
    assert reply.ext.items() >= {
        "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5", "suggestWhichBrokerId": "0",
    }.items()  # fmt: skip


def test_lite_pulls_are_pulls(talk, peer):
    fill(talk, 1)
    command = talk.pull_command(sys_flag=PULL_SUBSCRIPTION | 16)
    command.code = R.LITE_PULL_MESSAGE
    talk.give(peer, command)
    assert bodies(answer(peer, command)) == [b"0"]


def test_a_pull_returns_at_most_32_messages(talk, peer):
    fill(talk, 40)
    assert len(bodies(talk.pull(peer, max_msg_nums=7))) == 7
    assert len(bodies(talk.pull(peer, max_msg_nums=1000))) == 32
    assert len(bodies(talk.pull(peer, max_msg_nums=-5))) == 1
    assert len(bodies(talk.pull(peer, max_msg_bytes=1))) == 1


@pytest.mark.parametrize(
    ("offset", "code", "next_offset", "status"),
    [
        (3, C.PULL_NOT_FOUND, "3", "OFFSET_OVERFLOW_ONE"),
        (4, C.PULL_OFFSET_MOVED, "3", "OFFSET_OVERFLOW_BADLY"),
        (-1, C.PULL_OFFSET_MOVED, "0", "OFFSET_TOO_SMALL"),
    ],
)
def test_offsets_outside_the_queue_are_corrected(talk, peer, offset, code, next_offset, status):
    fill(talk, 3)
    reply = talk.pull(peer, queue_offset=offset)
    assert (reply.code, reply.ext["nextBeginOffset"], reply.remark) == (code, next_offset, status)


def test_a_queue_without_messages_has_its_own_status(talk, peer):
    talk.create_topic("T")
    assert talk.pull(peer, queue_offset=0).code == C.PULL_NOT_FOUND
    reply = talk.pull(peer, queue_offset=7)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (C.PULL_OFFSET_MOVED, "0")


# The cost of waiting.


def held_pulls(talk: Conversation, connections: int, each: int, **fields) -> list[tuple[FakePeer, object]]:
    pulls = []
    for number in range(connections):
        peer = FakePeer(f"10.0.1.{number}:1")
        for _ in range(each):
            command = talk.pull_command(sys_flag=HELD, suspend_timeout_millis=15_000, **fields)
            talk.give(peer, command)
            pulls.append((peer, command))
    assert all(find_answer(peer, command) is None for peer, command in pulls)
    return pulls


def count_reads(talk: Conversation) -> list[int]:
    """Return a list to which every later read of the store adds its offset."""
    store, reads = talk.broker.store, []
    read = store.read

    def counted(topic, queue_id, offset, *others, **options):
        if topic == "T":
            reads.append(offset)
        return read(topic, queue_id, offset, *others, **options)

    store.read = counted
    return reads


def test_a_message_that_no_held_pull_matches_wakes_none(talk):
    talk.create_topic("T", queues=1)
    pulls = held_pulls(talk, 10, 50, subscription="red || rose")
    reads = count_reads(talk)
    fill(talk, 5, properties={"TAGS": "blue"})
    assert reads == []
    fill(talk, 1, properties={"TAGS": "rose"})
    talk.coordinate()
    assert reads == [5] * len(pulls), "each once, behind what it passed over"
    for peer, command in pulls:
        assert len(bodies(answer(peer, command))) == 1


def run_due(talk: Conversation) -> list[int]:
    """Run due work, a turn at a time; return the number of reads in each turn."""
    reads, sizes = count_reads(talk), []
    while (due_ms := talk.broker.engine.next_due_ms) is not None and due_ms <= talk.clock.monotonic_ms():
        before = len(reads)
        talk.tick()
        sizes.append(len(reads) - before)
    return [size for size in sizes if size]


def test_pulls_that_one_message_wakes_are_run_in_slices(talk, monkeypatch):
    """10,000 pulls from 160 connections blocked all other clients for 0.2 s."""
    talk.broker.kernel.workload.begin_turn = turns_of(4)
    talk.create_topic("T", queues=1)
    pulls = held_pulls(talk, 5, 2)
    reads = count_reads(talk)
    fill(talk, 1)
    assert len(reads) == 4
    fill(talk, 1)
    assert len(reads) == 4, "they are not woken again"
    gone, _ = pulls[-1]
    gone.is_open = False
    talk.performer.closed(gone)
    turns = run_due(talk)
    assert max(turns) <= 4
    assert sum(turns) == 4
    assert [len(bodies(answer(peer, command))) for peer, command in pulls[:-2]] == [1] * 4 + [2] * 4
    assert not any(find_answer(peer, command) for peer, command in pulls[-2:])
    fill(talk, 1)
    assert len(reads) == 8, "each was answered once"


def test_pulls_whose_time_is_up_together_end_in_slices(talk):
    """20,000 pulls from one connection blocked all other clients for 0.4 s."""
    talk.broker.kernel.workload.begin_turn = turns_of(4)
    talk.create_topic("T", queues=1)
    pulls = held_pulls(talk, 5, 2)
    talk.clock.advance(15_000)
    sizes = run_due(talk)
    assert max(sizes) <= 4
    assert sum(sizes) == 10
    assert all(answer(peer, command).code == C.PULL_NOT_FOUND for peer, command in pulls)


def test_pulls_of_a_deleted_topic_end_in_slices(talk, monkeypatch):
    """10,000 took 0.2 s of one turn."""
    talk.broker.kernel.workload.begin_turn = turns_of(4)
    talk.create_topic("T", queues=1)
    pulls = held_pulls(talk, 5, 2)
    talk.broker.members.removal.remove_topic("T", talk.clock.wall_ms())
    talk.performer.follow()
    counts = [sum(len(peer.replies) for peer, _ in pulls[::2])]
    while counts[-1] < 10 and len(counts) < 9:
        talk.tick()
        counts.append(sum(len(peer.replies) for peer, _ in pulls[::2]))
    assert counts[-1] == 10
    assert all(after - before <= 4 for before, after in itertools.pairwise([0, *counts]))
    assert {answer(peer, command).code for peer, command in pulls} == {C.TOPIC_NOT_EXIST}


def test_an_expired_pull_returns_the_offset_after_filtered_messages(talk):
    talk.create_topic("T", queues=1)
    ((peer, command),) = held_pulls(talk, 1, 1, subscription="red")
    fill(talk, 5, properties={"TAGS": "blue"})
    talk.advance(15_000)
    reply = answer(peer, command)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (C.PULL_NOT_FOUND, "5")


@pytest.mark.parametrize("is_subscribed", [True, False], ids=["by heartbeat", "by the pull"])
def test_pulls_that_wait_with_the_same_tags_share_them(talk, is_subscribed):
    talk.create_topic("T", queues=1)
    tags = " || ".join(f"tag-{number:04}" for number in range(1_000))
    fields = {"subscription": tags}
    if is_subscribed:
        talk.beat(FakePeer(), "alice", subscriptions=[subscription(expression=tags)])
        fields = {"sub_version": 1, "sys_flag": PULL_SUSPEND}
    tracemalloc.start()
    try:
        fields = {"sys_flag": HELD, "suspend_timeout_millis": 15_000} | fields
        for number in range(40):
            talk.give(FakePeer(f"10.0.1.{number}:1"), talk.pull_command(**fields))
        assert len(talk.broker.held) == 40
        assert tracemalloc.get_traced_memory()[0] < 800_000, "20 KB a pull; 64 KB would be a set for each"
    finally:
        tracemalloc.stop()


# The checks, in their order.


def test_a_broker_without_read_permission_refuses_pulls(tmp_path, peer):
    talk = Conversation(tmp_path, broker_permission=2)
    assert talk.pull(peer, topic="NoSuch").code == C.NO_PERMISSION
    talk.close()


def test_the_group_is_checked_before_the_topic(tmp_path, peer):
    talk = Conversation(tmp_path, auto_create_subscription_group=False)
    assert talk.pull(peer, group="G", topic="NoSuch").code == C.SUBSCRIPTION_GROUP_NOT_EXIST
    talk.close()


def test_a_group_with_a_valid_name_is_created_by_its_first_pull(talk, peer):
    talk.create_topic("T")
    assert talk.pull(peer, group="../G").code == C.SUBSCRIPTION_GROUP_NOT_EXIST
    assert talk.pull(peer, group="Fresh").code == C.PULL_NOT_FOUND
    assert "Fresh" in talk.broker.groups


def test_a_group_without_permission_is_refused(talk, peer):
    config = SubscriptionGroupConfig(group_name="G", consume_enable=False)
    talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    assert talk.pull(peer, topic="NoSuch").code == C.NO_PERMISSION


def test_a_missing_or_unreadable_topic_is_refused(talk, peer):
    assert talk.pull(peer, topic="NoSuch").code == C.TOPIC_NOT_EXIST
    talk.create_topic("WriteOnly", perm=2)
    assert talk.pull(peer, topic="WriteOnly", queue_id=99).code == C.NO_PERMISSION


@pytest.mark.parametrize("queue_id", [-1, 4, 1 << 30])
def test_a_missing_queue_is_refused(talk, peer, queue_id):
    talk.create_topic("T", queues=4)
    assert talk.pull(peer, queue_id=queue_id).code == C.INVALID_PARAMETER


def test_an_unparsable_filter_is_refused(talk, peer):
    talk.create_topic("T")
    assert talk.pull(peer, subscription=" || ").code == C.SUBSCRIPTION_PARSE_FAILED
    assert talk.pull(peer, subscription="a >", expression_type="SQL92").code == C.SUBSCRIPTION_PARSE_FAILED


def test_without_a_filter_of_its_own_a_pull_needs_a_heartbeat(talk, peer):
    talk.create_topic("T")
    talk.create_topic("U")
    plain = {"sys_flag": 0, "sub_version": 1}
    assert talk.pull(peer, **plain).code == C.SUBSCRIPTION_NOT_EXIST
    talk.beat(peer, "alice", subscriptions=[subscription("U")])
    assert talk.pull(peer, **plain).code == C.SUBSCRIPTION_NOT_EXIST
    talk.beat(peer, "alice", subscriptions=[subscription("T"), subscription("U")])
    assert talk.pull(peer, **plain).code == C.PULL_NOT_FOUND


def test_a_group_that_may_not_broadcast_is_refused(talk, peer):
    talk.create_topic("T")
    config = SubscriptionGroupConfig(group_name="G", consume_broadcast_enable=False)
    talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    talk.beat(peer, "alice", message_model="BROADCASTING")
    assert talk.pull(peer, sys_flag=0).code == C.NO_PERMISSION
    assert talk.pull(peer).code == C.NO_PERMISSION


def test_tag_expressions_are_parsed_once_and_the_oldest_are_forgotten():
    expressions = TagExpressions()
    codes = expressions.codes("red || blue")
    assert codes == {java_hash("red"), java_hash("blue")}
    assert expressions.codes("red || blue") is codes
    long = "a" * (TAG_CHARACTERS_MAX // 5)
    for end in "bcdef":
        assert expressions.codes(f"{long}{end}") == {java_hash(f"{long}{end}")}
    assert expressions.codes("red || blue") == codes
    assert expressions.codes("red || blue") is not codes


# Filters.


def test_tags_are_filtered_by_the_pulls_own_expression_or_by_the_groups(talk, peer):
    for tag in ("red", "green", "blue", "red"):
        fill(talk, 1, properties={"TAGS": tag})
    assert len(bodies(talk.pull(peer, subscription="red || blue"))) == 3
    talk.beat(peer, "alice", subscriptions=[subscription("T", "green", version=7)])
    assert len(bodies(talk.pull(peer, sys_flag=0, sub_version=7))) == 1
    assert len(bodies(talk.pull(peer, subscription="*"))) == 4


def test_tags_with_equal_hashes_are_both_delivered(talk, peer):
    assert java_hash("Aa") == java_hash("BB")
    fill(talk, 1, properties={"TAGS": "Aa"})
    fill(talk, 1, properties={"TAGS": "BB"})
    assert len(bodies(talk.pull(peer, subscription="Aa"))) == 2


def test_the_next_offset_is_after_messages_that_do_not_match(talk, peer):
    fill(talk, 3, properties={"TAGS": "red"})
    reply = talk.pull(peer, subscription="blue", suspend_timeout_millis=5_000)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (C.PULL_RETRY_IMMEDIATELY, "3")


# Held pulls.


def test_a_pull_at_the_end_is_held_and_woken_by_the_next_message(talk, peer):
    fill(talk, 1)
    command = talk.pull_command(queue_offset=1, suspend_timeout_millis=15_000)
    talk.give(peer, command)
    assert find_answer(peer, command) is None
    fill(talk, 1, queue_id=1)
    assert find_answer(peer, command) is None
    talk.send(FakePeer(), body=b"news")
    reply = answer(peer, command)
    assert bodies(reply) == [b"news"]
    assert reply.ext["nextBeginOffset"] == "2"
    assert len(talk.broker.held) == 0


def test_a_sender_wakes_its_own_pull_too(talk, peer):
    talk.create_topic("T")
    command = talk.pull_command(suspend_timeout_millis=15_000)
    talk.give(peer, command)
    talk.send(peer, body=b"mine")
    assert bodies(answer(peer, command)) == [b"mine"]


def test_an_expired_held_pull_is_answered_as_empty(talk, peer):
    talk.create_topic("T")
    command = talk.pull_command(suspend_timeout_millis=15_000)
    talk.give(peer, command)
    talk.advance(14_999)
    assert find_answer(peer, command) is None
    talk.advance(1)
    reply = answer(peer, command)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (C.PULL_NOT_FOUND, "0")


def test_the_time_of_a_held_pull_is_limited(talk, peer):
    talk.create_topic("T")
    command = talk.pull_command(suspend_timeout_millis=1 << 40)
    talk.give(peer, command)
    talk.advance(SUSPEND_MS_MAX)
    assert answer(peer, command).code == C.PULL_NOT_FOUND


def test_without_long_polling_a_pull_waits_a_second(tmp_path, peer):
    talk = Conversation(tmp_path, long_polling_enable=False)
    talk.create_topic("T")
    command = talk.pull_command(suspend_timeout_millis=15_000)
    talk.give(peer, command)
    talk.advance(999)
    assert find_answer(peer, command) is None
    talk.advance(1)
    assert answer(peer, command).code == C.PULL_NOT_FOUND
    talk.close()


def test_a_held_pull_keeps_waiting_when_new_messages_are_filtered_out(talk, peer):
    talk.create_topic("T")
    command = talk.pull_command(subscription="red", suspend_timeout_millis=15_000)
    talk.give(peer, command)
    fill(talk, 2, properties={"TAGS": "blue"})
    assert find_answer(peer, command) is None
    fill(talk, 1, properties={"TAGS": "red"})
    reply = answer(peer, command)
    assert (bodies(reply), reply.ext["nextBeginOffset"]) == ([b"0"], "3")


def test_an_expired_held_pull_skips_messages_that_did_not_match(talk, peer):
    talk.create_topic("T")
    command = talk.pull_command(subscription="red", suspend_timeout_millis=15_000)
    talk.give(peer, command)
    fill(talk, 2, properties={"TAGS": "blue"})
    talk.advance(15_000)
    reply = answer(peer, command)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (C.PULL_NOT_FOUND, "2")


@pytest.mark.parametrize(
    ("expression", "kind", "is_cold"),
    [("red", "TAG", False), ("red", "TAG", True), ("a = 'red'", "SQL92", False)],
    ids=["by tags", "by tags that are not in memory", "by SQL"],
)
def test_a_client_learns_soon_that_its_pull_has_passed_messages_over(talk, peer, expression, kind, is_cold):
    """It then commits past them. A group that filters out the last messages seemed to lag for 15 s."""
    talk.create_topic("T")
    if is_cold:
        talk.broker.store.tag_codes = lambda *_, **__: None
    command = talk.pull_command(
        subscription=expression, expression_type=kind, sys_flag=HELD, suspend_timeout_millis=15_000
    )
    talk.give(peer, command)
    talk.advance(1_000)
    fill(talk, 1, properties={"TAGS": "blue", "a": "blue"})
    talk.advance(2_000)
    fill(talk, 1, properties={"TAGS": "blue", "a": "blue"})
    talk.advance(PASSED_OVER_MS - 2_001)
    assert find_answer(peer, command) is None
    talk.advance(1)
    reply = answer(peer, command)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (C.PULL_NOT_FOUND, "2")


def test_held_pulls_end_with_their_connection(talk, peer):
    talk.create_topic("T")
    talk.give(peer, talk.pull_command(suspend_timeout_millis=15_000))
    assert len(talk.broker.held) == 1
    peer.is_open = False
    talk.performer.closed(peer)
    assert len(talk.broker.held) == 0


def test_deleting_a_topic_answers_its_held_pulls(talk, peer):
    """If the topic is created again, its messages begin below the offset that the pull waits for."""
    fill(talk, 1)
    command = talk.pull_command(queue_offset=1, suspend_timeout_millis=15_000)
    talk.give(peer, command)
    talk.ask(FakePeer(), R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    assert answer(peer, command).code == C.TOPIC_NOT_EXIST


def test_a_read_error_of_a_woken_pull_is_answered_and_affects_no_other(talk, peer, monkeypatch):
    talk.create_topic("T")
    bad, good = FakePeer("b:1"), FakePeer("g:1")
    commands = {one: talk.pull_command(suspend_timeout_millis=15_000) for one in (bad, good)}
    for one, command in commands.items():
        talk.give(one, command)
    read = talk.broker.store.read
    failures = [OSError(5, "the disk is broken")]

    def failing(*arguments, **named):
        if failures:
            raise failures.pop()
        return read(*arguments, **named)

    monkeypatch.setattr(talk.broker.store, "read", failing)
    assert talk.send(peer).code == C.SUCCESS
    assert answer(bad, commands[bad]).code == C.SYSTEM_ERROR
    assert bodies(answer(good, commands[good])) == [b"hello"]


# The disk.


def cold_broker(tmp_path) -> Conversation:
    """A broker whose first messages are not in the page cache."""
    talk = Conversation(tmp_path, commit_log_file_bytes=1 << 16)
    fill(talk, 40, properties={"filler": "x" * 3_000})
    talk.close()
    talk = Conversation(tmp_path, commit_log_file_bytes=1 << 16)
    talk.disk.is_cold = True
    return talk


def test_cold_data_is_read_by_a_thread_first(tmp_path, peer):
    talk = cold_broker(tmp_path)
    command = talk.pull_command()
    talk.give(peer, command)
    assert find_answer(peer, command) is None
    assert talk.threads.work
    talk.read_cold()
    reply = answer(peer, command)
    assert bodies(reply)[0] == b"0"
    talk.close()


def test_a_connection_that_ends_while_a_thread_reads_leaves_nothing_behind(tmp_path, peer):
    talk = cold_broker(tmp_path)
    talk.give(peer, talk.pull_command(subscription="red", suspend_timeout_millis=15_000, queue_offset=0))
    peer.is_open = False
    talk.performer.closed(peer)
    talk.read_cold()
    assert len(talk.broker.held) == 0
    talk.close()


def test_the_cold_reads_of_one_connection_are_limited(tmp_path, peer):
    """Other consumers would wait behind everything that one client requests."""
    talk = cold_broker(tmp_path)
    commands = [talk.pull_command() for _ in range(20)]
    talk.give(peer, *commands)
    assert len(talk.threads.work) == RUNS_MAX[Thread.READ]
    talk.read_cold()
    while len(peer.replies) < len(commands):
        talk.performer._timers.ring()
        talk.read_cold()
    assert [bodies(answer(peer, command))[0] for command in commands] == [b"0"] * 20
    talk.close()


def test_a_pull_under_sync_flush_sees_durable_messages_only(tmp_path, peer):
    talk = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    talk.create_topic("T")
    command = talk.pull_command(suspend_timeout_millis=15_000)
    talk.give(peer, command)
    talk.give(FakePeer(), talk.command(R.SEND_MESSAGE_V2, send_to_t(), b"x"))
    assert find_answer(peer, command) is None
    talk.flush()
    assert bodies(answer(peer, command)) == [b"x"]
    talk.close()


def send_to_t():
    from tests.broker.brokers import send_header

    return send_header()


# Commits in pulls.


def test_a_pull_commits_its_groups_offset_on_request(talk, peer):
    fill(talk, 5)
    talk.pull(peer, commit_offset=3)
    assert talk.broker.offsets.query("G", "T", 0) is None
    talk.pull(peer, commit_offset=3, sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET)
    assert talk.broker.offsets.query("G", "T", 0) == 3


def test_a_held_pull_commits_once(talk, peer):
    fill(talk, 5)
    command = talk.pull_command(
        queue_offset=5, commit_offset=3, sys_flag=HELD | PULL_COMMIT_OFFSET, suspend_timeout_millis=9_000
    )
    talk.give(peer, command)
    talk.broker.offsets.commit("G", "T", 0, 5)
    talk.send(FakePeer())
    assert answer(peer, command).code == C.SUCCESS
    assert talk.broker.offsets.query("G", "T", 0) == 5
