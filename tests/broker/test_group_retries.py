"""Messages that fail repeatedly, as operators see them before they become dead letters."""

import pytest

from libramq.broker.groups.group_health import FAILING_MS
from libramq.broker.groups.group_retries import POPS_AT_ONCE, READ_MAX
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.groups.diagnosis import FAILURES_MIN, Kind
from libramq.remoting import headers as h
from tests.broker.brokers import Conversation, subscription
from tests.broker.test_group_health import kinds, text
from tests.broker.test_group_lag import Metered, left
from tests.broker.test_pop import Orderly, Popper
from tests.fakes import FakePeer

RETRIES, RETRY = "libra_group_retry_messages", "%RETRY%G"
#: A second, and an hour.
SOON, LATE = 1, 17


def fail(talk: Conversation, peer: FakePeer, offset: int, level: int, group: str = "G") -> None:
    header = h.SendBackHeader(offset=offset, group=group, delay_level=level)
    assert talk.ask(peer, R.CONSUMER_SEND_MSG_BACK, header).code == C.SUCCESS


def fail_often(talk: Conversation, peer: FakePeer, times: int) -> None:
    """Let one message of G fail this many times; after the last failure it waits for an hour."""
    talk.send(peer)
    offset = talk.messages("T")[-1].physical_offset
    for _ in range(times - 1):
        fail(talk, peer, offset, SOON)
        talk.advance(1_000)
        offset = talk.messages(RETRY)[-1].physical_offset
    fail(talk, peer, offset, LATE)


def problems(talk: Conversation) -> list[tuple[str, str]]:
    """Return the diagnoses of the next check, once all waiting messages were counted."""
    kinds(talk)
    return kinds(talk)


@pytest.fixture
def failing(talk: Conversation, peer: FakePeer) -> Conversation:
    talk.create_topic("T", 1)
    talk.beat(peer, "alice")
    return talk


def test_a_message_that_has_failed_three_times_is_a_problem_of_its_group(failing, peer, caplog):
    """It used to be invisible until it became a dead letter, nearly five hours later."""
    fail_often(failing, peer, FAILURES_MIN - 1)
    assert problems(failing) == []
    fail_often(failing, peer, FAILURES_MIN + 2)
    assert problems(failing) == [(Kind.FAILING, "")]
    assert "wait for another attempt: 1, of which one failed 5 times" in text(failing)
    assert "diagnosis=failing" in caplog.text


def test_a_message_that_waits_for_a_second_is_seen_too(failing, peer):
    """It is delivered before the next check: it has to be counted by the same one."""
    failing.send(peer)
    offset = failing.messages("T")[-1].physical_offset
    for _ in range(12):
        fail(failing, peer, offset, SOON)
        failing.advance(1_000)
        offset = failing.messages(RETRY)[-1].physical_offset
    assert kinds(failing) == [(Kind.FAILING, "")]


def test_the_problem_lasts_while_the_message_is_tried_again_and_ends_with_it(failing, peer):
    fail_often(failing, peer, FAILURES_MIN)
    assert problems(failing) == [(Kind.FAILING, "")]
    while len(failing.messages(RETRY)) < FAILURES_MIN:
        failing.advance(30_000)
        failing.beat(peer, "alice")
    assert problems(failing) == [(Kind.FAILING, "")]
    for _ in range(3):
        failing.advance(FAILING_MS // 2)
        failing.beat(peer, "alice")
    assert problems(failing) == []


def test_the_metric_counts_what_waits_between_attempts_and_for_a_handler(failing, peer):
    metered = Metered(failing)
    header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic=RETRY, queue_id=0, commit_offset=0)
    for _ in range(70):  # More than one read of a level takes.
        failing.send(peer, properties={"DELAY": str(LATE)})
        fail_often(failing, peer, 1)
    fail_often(failing, peer, 2)
    failing.ask(peer, R.UPDATE_CONSUMER_OFFSET, header)
    metered.look()
    assert metered.of(RETRIES) == 72  # One of them also waits for a handler: it was not committed.
    header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic=RETRY, queue_id=0, commit_offset=1)
    failing.ask(peer, R.UPDATE_CONSUMER_OFFSET, header)
    metered.look()
    assert metered.of(RETRIES) == 71
    failing.advance(3_600_000)
    failing.advance(60_000)
    metered.look()
    assert metered.of(RETRIES) == 71
    assert len(failing.messages(RETRY)) == 72
    header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic=RETRY, queue_id=0, commit_offset=72)
    failing.ask(peer, R.UPDATE_CONSUMER_OFFSET, header)
    metered.look()
    assert metered.of(RETRIES) == 0


def test_it_is_known_again_after_a_start_though_nobody_is_connected(tmp_path, peer):
    """Before the levels were read it is unknown."""
    talk = Conversation(tmp_path)
    talk.create_topic("T", 1)
    talk.beat(peer, "alice")
    for _ in range(3):
        fail_often(talk, peer, 1)
    assert problems(talk) == []
    assert talk.broker.members.retries.waiting() == {"G": {1: 3}}
    talk.close()
    talk = Conversation(tmp_path, clock=talk.clock)
    assert talk.broker.members.retries.waiting() is None
    metered = Metered(talk)
    metered.look()
    assert metered.of(RETRIES) == 3
    talk.close()


def test_a_level_that_goes_on_elsewhere_is_counted_again(failing, peer):
    for _ in range(3):
        fail_often(failing, peer, 1)
    metered = Metered(failing)
    metered.look()
    assert metered.of(RETRIES) == 3
    failing.broker.schedule.reached(LATE, 2)  # As by a slave that acted as master.
    metered.look()
    assert metered.of(RETRIES) == 1


def test_while_a_level_is_counted_again_it_is_unknown_what_waits(failing, peer):
    """A partial count would pass for the total."""
    for _ in range(READ_MAX + 3):
        fail_often(failing, peer, 1)
    problems(failing)
    retries = failing.broker.members.retries
    assert retries.waiting() == {"G": {1: READ_MAX + 3}}
    failing.broker.schedule.reached(LATE, 2)
    seen = [retries.waiting() for _ in retries.look()]
    assert seen[0] is None
    assert retries.waiting() == {"G": {1: READ_MAX + 1}}


@pytest.mark.parametrize("is_counted", [True, False])
def test_what_waits_for_a_deleted_retry_topic_is_no_problem_of_the_next_one(failing, peer, is_counted):
    """It is dropped when due; until then it alarmed an operator who had recreated the topic."""
    retries = failing.broker.members.retries
    fail_often(failing, peer, FAILURES_MIN)
    if is_counted:
        assert problems(failing) == [(Kind.FAILING, "")]
    assert failing.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic=RETRY)).code == C.SUCCESS
    fail_often(failing, peer, 1)
    fail_often(failing, peer, 1)
    failing.advance(FAILING_MS)
    failing.beat(peer, "alice")
    assert problems(failing) == []
    assert retries.waiting() == {"G": {1: 2}}
    for _ in range(121):
        failing.advance(30_000)
        failing.beat(peer, "alice")
    problems(failing)
    assert retries.waiting() == {}
    assert len(failing.messages(RETRY)) == 2


@pytest.mark.parametrize("restarts", [False, True])
def test_a_group_goes_on_failing_without_its_last_member(tmp_path, request, restarts):
    """The problem ended with the member, and was invisible until the message was redelivered."""
    talk, peer = Conversation(tmp_path), FakePeer()
    talk.create_topic("T", 1)
    talk.beat(peer, "alice", subscriptions=[subscription("T"), subscription(RETRY)])
    talk.pull(peer, topic=RETRY, suspend_timeout_millis=15_000)
    fail_often(talk, peer, FAILURES_MIN)
    assert problems(talk) == [(Kind.FAILING, "")]
    peer.is_open = False
    talk.performer.closed(peer)
    if restarts:
        talk.close()
        talk = Conversation(tmp_path, clock=talk.clock)
    request.addfinalizer(talk.close)
    for _ in range(30):
        talk.advance(30_000)
    metered = Metered(talk)
    metered.look()
    assert metered.of("libra_group_diagnosis", kind="failing") == 1
    assert kinds(talk) == [(Kind.FAILING, "")]
    for _ in range(120):
        talk.advance(30_000)
    assert len(talk.messages(RETRY)) == FAILURES_MIN
    for _ in range(3):
        metered.look()
    assert metered.of("libra_group_diagnosis", kind="failing") == 0
    assert metered.of("libra_group_diagnosis", kind="no_members") == 1


@pytest.mark.parametrize("is_member", [False, True])
def test_a_popped_message_that_fails_again_and_again_is_a_problem(failing, peer, is_member):
    """This covers members and programs that only pop, and both postponed and unacknowledged messages."""
    popper = Popper(failing)
    if is_member:
        popper.peer = peer
    else:
        left(failing, peer)
    failing.send(popper.peer)
    for times in range(FAILURES_MIN):
        (message,) = popper.pop(invisible_time=10_000)
        assert message.reconsume_times == times
        if times < FAILURES_MIN - 1:
            failing.advance(10_000)
            failing.beat(peer, "alice") if is_member else None
    popper.change(message, 10_000)
    assert problems(failing) == []
    failing.advance(10_000)
    (message,) = popper.pop(invisible_time=10_000)
    popper.change(message, 600_000)
    assert problems(failing) == [(Kind.FAILING, "")]
    assert "wait for another attempt: 1, of which one failed 3 times" in text(failing)
    failing.advance(FAILING_MS)
    assert problems(failing) == [(Kind.FAILING, "")]
    failing.advance(600_000)
    (message,) = popper.pop(invisible_time=10_000)
    popper.ack(message)
    failing.advance(FAILING_MS)
    assert problems(failing) == []


def test_failures_of_a_popped_message_from_an_ipv6_client_are_counted(failing):
    """Its record has their number elsewhere, and its store time where that of others is."""
    popper = Popper(failing)
    failing.send(FakePeer("2001:db8::1:1000"))
    for times in range(FAILURES_MIN + 1):
        (message,) = popper.pop(invisible_time=10_000)
        assert (message.reconsume_times, "2001:db8::1" in message.born_host) == (times, True)
        if times < FAILURES_MIN:
            failing.advance(10_000)
    assert problems(failing) == [(Kind.FAILING, "")]
    assert "wait for another attempt: 1, of which one failed 3 times" in text(failing)


def test_a_message_that_fails_where_it_is_popped_in_order_is_a_problem(failing, peer):
    orderly = Orderly(failing)
    failing.send(peer)
    for _ in range(FAILURES_MIN + 1):
        assert orderly.pop()
        failing.advance(30_000)
        failing.beat(peer, "alice")
    assert problems(failing) == [(Kind.FAILING, "")]


def test_what_nobody_pops_in_order_any_more_or_is_acknowledged_fails_no_longer(failing, peer):
    """It counted until the group was deleted, since the queue's last pop is kept."""
    orderly, retries = Orderly(failing), failing.broker.members.retries
    failing.send(peer)
    failing.send(peer)
    for _ in range(FAILURES_MIN + 1):
        failing.advance(30_000)
        failing.beat(peer, "alice")
        _, other = orderly.pop(invisible_time=30_000)
    failing.advance(1_000)
    assert retries.waiting() == {"G": {FAILURES_MIN: 2}}
    orderly.ack(other)
    failing.advance(1_000)
    assert retries.waiting() == {"G": {FAILURES_MIN: 1}}
    failing.advance(30_000)
    assert retries.waiting() == {}
    for _ in range(FAILING_MS // 30_000):
        failing.advance(30_000)
        failing.beat(peer, "alice")
    assert (Kind.FAILING, "") not in problems(failing)


def test_pops_in_order_are_looked_at_in_steps(failing, peer):
    """A table of 200,000 blocked all other requests for 0.4 s each second."""
    orderly = Orderly(failing)
    failing.send(peer)
    orderly.pop()
    ordered = failing.broker.tables.ordered
    ((queue, pop),) = ordered.pops.items()
    ordered.pops.update({(f"G{number}", *queue[1:]): pop for number in range(5 * POPS_AT_ONCE)})
    assert sum(1 for _ in failing.broker.members.retries._look_at_pops()) >= 5


def test_retries_are_summed_up_only_when_groups_are_checked(failing, peer, monkeypatch):
    """The retries of 10,000 groups take some 30 ms, during which no request is served."""
    retries, calls = failing.broker.members.retries, []
    waiting = retries.waiting
    monkeypatch.setattr(retries, "waiting", lambda: calls.append("called") or waiting())
    for _ in range(20):
        failing.advance(1_000)
        failing.beat(peer, "alice")
    assert 3 <= len(calls) <= 5


def test_a_retry_topic_of_which_nothing_is_committed_counts_from_its_first_message(failing, peer):
    metered = Metered(failing)
    fail_often(failing, peer, 1)
    metered.look()
    assert metered.of(RETRIES) == 1
    failing.beat(peer, "alice", subscriptions=[subscription("T"), subscription(RETRY)])
    fail_often(failing, peer, 2)
    metered.look()
    assert metered.of(RETRIES) == 3
