"""Pulls by SQL92: their own expressions, their groups', held pulls, large queues, and files on disk."""

import json

import pytest

from libramq.clock import WallMs
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.filter import consumer_filters
from libramq.filter.consumer_filters import DEAD_KEPT_MS
from libramq.kernel.effect import Thread
from libramq.message import decode_records
from libramq.remoting import headers as h
from libramq.rpc.broker_calls import PULL_SUBSCRIPTION, PULL_SUSPEND
from libramq.runtime.performer import TURN_US_MAX
from libramq.store.reading.filtered_read import STEP_COUNT_MAX, FilteredRead
from tests.broker.brokers import Conversation, find_answer, heartbeat, send_header, subscription
from tests.broker.test_bounded_work import count_calls
from tests.broker.test_cold_reads import ColdPages
from tests.broker.test_pop import Popper
from tests.fakes import FakePeer

GROUPS_OWN = {"sys_flag": 0, "sub_version": 1}
HELD = PULL_SUSPEND | PULL_SUBSCRIPTION


def fill(talk, *values, topic="T"):
    """Send a message for each value of the property `a`."""
    producer = FakePeer("10.0.0.1:1")
    for value in values:
        reply = talk.send(producer, topic, str(value).encode(), properties={"a": str(value)})
        assert reply.code == C.SUCCESS


def fill_many(talk, count, value):
    """Send many messages in batches of one read."""
    producer = FakePeer("10.0.0.1:1")
    header = send_header("T", properties={"a": str(value)})
    for start in range(0, count, 100):
        number = min(100, count - start)
        talk.give(producer, *(talk.command(R.SEND_MESSAGE_V2, header, b"x") for _ in range(number)))
    assert talk.broker.store.max_offset("T", 0) >= count


def pull(talk, peer, expression="a > 3", **fields):
    """Pull by SQL92, and return the answer, however many turns it takes."""
    fields = {"subscription": expression, "expression_type": "SQL92", "sys_flag": PULL_SUBSCRIPTION} | fields
    command = talk.pull_command(**fields)
    talk.give(peer, command)
    return find_answer(peer, command) or talk.answer_later(peer, command)


def bodies(reply):
    return [message.body for message in decode_records(reply.body)]


def sql(expression="a > 3", version=1, topic="T"):
    return subscription(topic, version=version, sub_string=expression, expression_type="SQL92")


def subscribed(talk, peer, *subscriptions):
    talk.beat(peer, "alice", subscriptions=list(subscriptions))


# A pull's own expression.


def test_a_pull_brings_the_messages_that_pass_its_expression(talk, peer):
    fill(talk, 1, 5, 2, 9, "x")
    reply = pull(talk, peer)
    assert (reply.code, bodies(reply), reply.ext["nextBeginOffset"]) == (C.SUCCESS, [b"5", b"9"], "5")
    assert bodies(pull(talk, peer, "a IS NOT NULL")) == [b"1", b"5", b"2", b"9", b"x"]


def test_a_pull_that_matches_nothing_continues_behind_it(talk, peer):
    fill(talk, 1, 2)
    reply = pull(talk, peer)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (C.PULL_RETRY_IMMEDIATELY, "2")
    assert reply.remark == "NO_MATCHED_MESSAGE"
    assert pull(talk, peer, queue_offset=2).code == C.PULL_NOT_FOUND
    assert pull(talk, peer, queue_offset=7).code == C.PULL_OFFSET_MOVED
    assert pull(talk, peer, queue_offset=0, queue_id=1).code == C.PULL_NOT_FOUND


def test_a_filtered_pull_keeps_the_limits_of_others(talk, peer):
    fill(talk, *[1, 7] * 40)
    assert len(bodies(pull(talk, peer, max_msg_nums=1000))) == 32
    reply = pull(talk, peer, max_msg_nums=3)
    assert (bodies(reply), reply.ext["nextBeginOffset"]) == ([b"7"] * 3, "7")
    assert len(bodies(pull(talk, peer, max_msg_bytes=1))) == 1


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"subscription": "a >"}, C.SUBSCRIPTION_PARSE_FAILED, "column 4"),
        ({"subscription": None}, C.SUBSCRIPTION_PARSE_FAILED, "empty"),
        ({"expression_type": "SQL99"}, C.SUBSCRIPTION_PARSE_FAILED, "'SQL99' are not known"),
    ],
)
def test_an_expression_that_cannot_be_served(talk, peer, fields, code, reason):
    fill(talk, 1)
    reply = pull(talk, peer, **fields)
    assert reply.code == code
    assert reason in reply.remark


def test_a_broker_whose_operator_switched_filters_off(tmp_path, peer):
    talk = Conversation(tmp_path, enable_property_filter=False)
    fill(talk, 1)
    assert pull(talk, peer).code == C.SYSTEM_ERROR
    subscribed(talk, peer, sql())
    refused = talk.pull(peer, **GROUPS_OWN)
    assert (refused.code, refused.remark) == (
        C.SYSTEM_ERROR, "The broker does not support consumer to filter message by SQL92",
    )  # fmt: skip
    assert check(talk, peer, sql()).code == C.SYSTEM_ERROR
    assert check(talk, peer, subscription()).code == C.SUCCESS
    talk.close()


def check(talk, peer, data):
    body = {"clientId": "c", "group": "G", "subscriptionData": data}
    return talk.ask(peer, R.CHECK_CLIENT_CONFIG, None, body)


def test_a_client_has_its_expression_checked_before_it_starts(talk, peer):
    assert check(talk, peer, sql("a > 3 AND b IN ('x')")).code == C.SUCCESS
    refused = check(talk, peer, sql("a > 3 AN b"))
    assert refused.code == C.SUBSCRIPTION_PARSE_FAILED
    assert "column 7: unexpected 'AN'" in refused.remark
    assert check(talk, peer, subscription(expression_type="")).code == C.SUCCESS


# The group's subscription.


def test_a_group_is_served_by_the_expression_of_its_heartbeats(talk, peer):
    fill(talk, 1, 5)
    subscribed(talk, peer, sql())
    assert bodies(talk.pull(peer, **GROUPS_OWN)) == [b"5"]
    subscribed(talk, peer, sql("a < 3", version=2))
    assert bodies(talk.pull(peer, **GROUPS_OWN)) == [b"1"]
    subscribed(talk, peer, sql("a = 77", version=1))  # Of a member that is behind.
    assert bodies(talk.pull(peer, **GROUPS_OWN)) == [b"1"]
    subscribed(talk, peer, subscription(version=3))
    assert bodies(talk.pull(peer, **GROUPS_OWN)) == [b"1", b"5"]


def test_who_is_ahead_of_its_heartbeat_is_not_served_unfiltered(talk, peer):
    """Clients check only tags, so they would handle all unfiltered messages."""
    fill(talk, 1, 5)
    subscribed(talk, peer, sql())
    assert talk.pull(peer, sys_flag=0, sub_version=2).code == C.SUBSCRIPTION_NOT_LATEST
    talk.broker.members.filters._filters.get("G", "T").version = 0
    assert talk.pull(peer, **GROUPS_OWN).code == C.FILTER_DATA_NOT_LATEST


def test_a_group_with_an_expression_that_cannot_be_parsed(talk, peer):
    fill(talk, 1, 5)
    subscribed(talk, peer, sql())
    subscribed(talk, peer, sql("a >", version=2))
    reply = talk.pull(peer, sys_flag=0, sub_version=2)
    assert (reply.code, "may be wrong" in reply.remark) == (C.FILTER_DATA_NOT_EXIST, True)
    subscribed(talk, peer, sql("a > 1", version=3))
    assert bodies(talk.pull(peer, sys_flag=0, sub_version=3)) == [b"5"]


def test_a_group_that_returns_replaces_what_it_left(talk):
    """This holds for any version, as no member is left whose expression would take precedence."""
    fill(talk, 1, 5)
    alice = FakePeer()
    subscribed(talk, alice, sql("a > 3", version=9))
    talk.ask(alice, R.UNREGISTER_CLIENT, h.UnregisterClientHeader(client_id="alice", consumer_group="G"))
    assert talk.broker.members.filters._filters.get("G", "T").dead_ms is not None
    bob = FakePeer()
    subscribed(talk, bob, sql("a < 3", version=2))
    assert bodies(talk.pull(bob, sys_flag=0, sub_version=2)) == [b"1"]


# Retry topics.


def retried(talk, peer, topic, value):
    properties = {"RETRY_TOPIC": topic, "a": str(value)}
    assert talk.send(peer, "%RETRY%G", str(value).encode(), properties=properties).code == C.SUCCESS


@pytest.mark.parametrize(("for_retries", "expected"), [(True, [b"5", b"2"]), (False, [b"2", b"1"])])
def test_a_retry_topic_by_the_expressions_of_the_topics_its_messages_came_from(
    tmp_path, peer, for_retries, expected
):
    talk = Conversation(tmp_path, filter_support_retry=for_retries)
    own = sql("a < 3", topic="%RETRY%G")
    subscribed(talk, peer, sql("a > 3"), own, subscription("U"))
    for topic, value in (("T", 5), ("U", 2), ("T", 1)):
        retried(talk, peer, topic, value)
    assert bodies(talk.pull(peer, topic="%RETRY%G", **GROUPS_OWN)) == expected
    talk.close()


# Held pulls.


def hold(talk, peer, expression, **fields):
    defaults = {"expression_type": "SQL92", "sys_flag": HELD, "suspend_timeout_millis": 15_000}
    command = talk.pull_command(subscription=expression, **(defaults | fields))
    talk.give(peer, command)
    assert find_answer(peer, command) is None
    return command


def test_a_held_pull_is_looked_at_with_its_expression_before_it_runs_again(talk, peer, monkeypatch):
    """It advances in place: a message that does not match costs one check, however many clients wait."""
    talk.create_topic("T")
    command = hold(talk, peer, "a > 3")
    other = hold(talk, FakePeer(), "a > 3")
    runs = []
    run_again = talk.broker.reads.reading._run_again
    monkeypatch.setattr(
        talk.broker.reads.reading,
        "_run_again",
        lambda *args, **named: (runs.append(args), run_again(*args, **named)),
    )
    fill(talk, 1, 2, "x")
    assert find_answer(peer, command) is None
    assert runs == []
    fill(talk, 5)
    reply = find_answer(peer, command)
    assert (bodies(reply), reply.ext["nextBeginOffset"]) == ([b"5"], "4")
    assert len(runs) == 2
    assert other.opaque != command.opaque


def test_a_held_pull_that_times_out_continues_behind_what_it_has_seen(talk, peer):
    talk.create_topic("T")
    command = hold(talk, peer, "a > 3")
    fill(talk, 1, 2)
    talk.advance(15_000)
    reply = find_answer(peer, command)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (C.PULL_NOT_FOUND, "2")


@pytest.mark.parametrize("kind", ["SQL92", "TAG"])
def test_a_held_pull_does_not_wait_behind_messages_that_it_has_not_seen(talk, peer, kind):
    """More arrive at once than one pull examines: the reader must continue before the next one arrives."""
    fill_many(talk, 1, 1)
    expression = {"SQL92": "a > 3", "TAG": "wanted"}[kind]
    command = hold(talk, peer, expression, expression_type=kind, queue_offset=1)
    producer = FakePeer("10.0.0.1:1")
    header = send_header("T", properties={"a": "1"})
    talk.give(producer, *(talk.command(R.SEND_MESSAGE_V2, header, b"x") for _ in range(2_000)))
    reply = find_answer(peer, command) or talk.answer_later(peer, command)
    assert reply.code == C.PULL_RETRY_IMMEDIATELY
    assert 1 < int(reply.ext["nextBeginOffset"]) < 2_001


# Much to filter out.


@pytest.fixture
def slow_steps(talk, monkeypatch):
    """Make each step take as long as a turn may."""
    step = FilteredRead.step

    def slow(read):
        talk.performer._timers.now_us += TURN_US_MAX
        return step(read)

    monkeypatch.setattr(FilteredRead, "step", slow)


def test_a_pull_that_filters_many_messages_out_takes_turns_with_others(talk, peer, slow_steps):
    """Steps have 32 messages, so other clients do not wait for all 800 that a pull examines."""
    fill_many(talk, 900, 1)
    command = talk.pull_command(subscription="a > 3", expression_type="SQL92", sys_flag=PULL_SUBSCRIPTION)
    talk.give(peer, command)
    assert find_answer(peer, command) is None
    other = FakePeer("10.0.0.3:1")
    assert talk.pull(other, topic="T", queue_offset=0).code == C.SUCCESS  # Served while the first one waits.
    reply = talk.answer_later(peer, command)
    assert (reply.code, reply.ext["nextBeginOffset"]) == (C.PULL_RETRY_IMMEDIATELY, "800")
    assert talk.turns == 800 // STEP_COUNT_MAX - 1
    fill(talk, 9)
    reply = pull(talk, peer, queue_offset=800)
    assert (bodies(reply), reply.ext["nextBeginOffset"]) == ([b"9"], "901")


HEAVY = " OR ".join(f"a > {number}" for number in range(8, 72))


def test_a_pop_skips_a_bounded_number_of_messages_and_the_next_one_continues(talk, peer):
    """All of its steps are one turn, so there are fewer steps where each message costs more."""
    talk.create_topic("T", queues=1)
    fill_many(talk, 900, 1)
    fill(talk, 9)
    for expression, examined in (("a > 3", 800), (HEAVY, 800 // 4)):
        popper = Popper(talk, group=f"G{examined}")
        command = popper.command(exp=expression, exp_type="SQL92", wait_ms=10_000)
        talk.give(popper.peer, command)
        talk.threads.run_all(Thread.COMPUTE)  # It parses long expressions.
        reply = find_answer(popper.peer, command)
        assert reply is not None  # It is not held: matching messages may follow.
        assert reply.code == C.POLLING_TIMEOUT
        for _ in range(900 // examined - 1):
            assert popper.pop(exp=expression, exp_type="SQL92") == []
        (found,) = popper.pop(exp=expression, exp_type="SQL92")
        assert found.body == b"9"


def test_a_heartbeat_with_many_expressions_takes_turns_with_others(talk, peer):
    """Each may take 10 ms to parse; known ones take none."""
    talk.create_topic("T")
    many = [sql(f"a > {number}", topic=f"T{number}") for number in range(300)]
    beat = talk.command(R.HEART_BEAT, None, heartbeat("alice", "G", subscriptions=many))
    steps = 0
    for outcome in (
        talk.broker.members.filters.register("Other", many),
        talk.broker.members.filters.register("Other", many),
    ):
        steps += sum(1 for _ in outcome)
    assert steps == 300
    talk.give(peer, beat)
    assert (find_answer(peer, beat) or talk.answer_later(peer, beat)).code == C.SUCCESS
    assert talk.broker.members.filters._filters.get("G", "T299") is not None


def test_the_filters_of_all_groups_are_bounded_and_dead_ones_go_first(monkeypatch):
    monkeypatch.setattr(consumer_filters, "CHARACTERS_MAX", 100)
    filters = consumer_filters.ConsumerFilters(None, wall_ms=WallMs(0))

    def register(group: str) -> None:
        expression = "a > 1" + " " * 25
        for _ in filters.register(group, [sql(expression)], wall_ms=WallMs(1)):
            pass

    parsed = count_calls(monkeypatch, consumer_filters, "parse_filter")
    for number in range(5):
        register(f"G{number}")
    assert [filters.get(f"G{number}", "T") is not None for number in range(5)] == [True] * 3 + [False] * 2
    assert len(parsed) == 3, "what cannot be kept is not parsed, which takes up to 10 ms"
    filters.unregister("G1", wall_ms=WallMs(2))
    register("G4")
    assert [filters.get(f"G{number}", "T") is not None for number in range(5)] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_a_topic_that_is_deleted_under_a_pull(talk, peer, slow_steps):
    fill_many(talk, 200, 1)
    command = talk.pull_command(subscription="a > 3", expression_type="SQL92", sys_flag=PULL_SUBSCRIPTION)
    talk.give(peer, command)
    assert find_answer(peer, command) is None
    talk.ask(FakePeer(), R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    assert talk.answer_later(peer, command).code in (C.PULL_NOT_FOUND, C.PULL_OFFSET_MOVED, C.TOPIC_NOT_EXIST)


def test_a_connection_that_ends_under_a_pull(talk, peer, slow_steps):
    fill_many(talk, 200, 1)
    command = talk.pull_command(
        subscription="a > 3", expression_type="SQL92", sys_flag=HELD, suspend_timeout_millis=15_000
    )
    talk.give(peer, command)
    peer.is_open = False
    talk.performer.closed(peer)
    turn = talk.performer.turns.timer
    while turn is not None:
        turn.cancel()
        turn.action()
        turn = talk.performer.turns.timer
    assert len(talk.broker.held) == 0


# On the disk.


def filters_file(root):
    return json.loads((root / "config" / "consumerFilter.json").read_text())["filterDataByTopic"]


def test_filters_are_in_apaches_file_and_are_loaded_from_it(tmp_path, peer):
    talk = Conversation(tmp_path)
    fill(talk, 1, 5)
    subscribed(talk, peer, sql(version=7))
    talk.close()
    (data,) = filters_file(tmp_path)["T"]["groupFilterData"].values()
    assert data == {
        "consumerGroup": "G",
        "topic": "T",
        "expression": "a > 3",
        "expressionType": "SQL92",
        "clientVersion": 7,
        "bornTime": data["bornTime"],
        "deadTime": 0,
        "bloomFilterData": {"bitNum": 112, "bitPos": [24, 26, 83]},
    }
    again = Conversation(tmp_path)
    found = again.broker.members.filters._filters.get("G", "T")
    assert (found.expression, found.version, found.dead_ms is not None) == ("a > 3", 7, True)
    subscribed(again, peer, sql(version=7))
    assert found.dead_ms is None
    assert bodies(again.pull(peer, sys_flag=0, sub_version=7)) == [b"5"]
    again.close()


def test_the_file_is_written_some_seconds_after_a_change(tmp_path, peer):
    talk = Conversation(tmp_path)
    talk.create_topic("T")
    subscribed(talk, peer, sql())
    for _ in range(3):
        talk.advance(5_000)
        talk.flush()
        talk.threads.run_all(Thread.DISK)
    assert list(filters_file(tmp_path)) == ["T"]
    talk.kill()


def test_a_filter_of_a_group_that_left_is_forgotten_after_a_day(tmp_path, peer):
    talk = Conversation(tmp_path)
    talk.create_topic("T")
    subscribed(talk, peer, sql())
    filters, now_ms = talk.broker.members.filters._filters, talk.clock.wall_ms()
    filters.unregister("G", wall_ms=now_ms)
    filters.clean(wall_ms=now_ms + DEAD_KEPT_MS - 1)
    assert filters.get("G", "T") is not None
    filters.clean(wall_ms=now_ms + DEAD_KEPT_MS)
    assert filters.get("G", "T") is None
    talk.close()


@pytest.mark.parametrize(
    "text", ["{", '{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"expression":1}}}}}']
)
def test_a_broken_file_does_not_keep_a_broker_from_starting(tmp_path, peer, text):
    """The members' heartbeats restore everything that the file had."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerFilter.json").write_text(text)
    talk = Conversation(tmp_path)
    fill(talk, 1, 5)
    subscribed(talk, peer, sql())
    assert bodies(talk.pull(peer, **GROUPS_OWN)) == [b"5"]
    talk.close()


def test_a_filtered_read_of_what_is_not_in_memory_waits_in_a_thread(tmp_path, peer):
    talk = Conversation(tmp_path)
    fill(talk, *[1] * 40, 9)
    talk.close()
    again = Conversation(tmp_path)
    cold = ColdPages(again)
    found, offset = [], 0
    while offset < 41:
        command = again.pull_command(
            subscription="a > 3", expression_type="SQL92", sys_flag=PULL_SUBSCRIPTION, queue_offset=offset
        )
        again.give(peer, command)
        reply = find_answer(peer, command)
        while reply is None:
            again.read_cold()
            turn = again.performer.turns.timer
            if turn is not None:
                turn.cancel()
                turn.action()
            reply = find_answer(peer, command)
        found += bodies(reply) if reply.code == C.SUCCESS else []
        offset = int(reply.ext["nextBeginOffset"])
    assert (found, cold.waits_on_loop) == ([b"9"], 0)
    again.close()
