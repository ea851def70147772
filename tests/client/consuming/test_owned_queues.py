"""Tests of the owned queues: their start, their pulls, and refusals by brokers."""

import pytest

from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.options import ConsumeFrom
from libramq.codes import ResponseCode
from libramq.errors import ConnectionLost, RequestTimeout, broker_error
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import Conversation, found, nothing, q
from tests.client.consuming.examples import message, route


@pytest.mark.parametrize(
    ("consume_from", "question"),
    [
        (ConsumeFrom.LAST_OFFSET, rq.MaxOffset),
        (ConsumeFrom.TIMESTAMP, rq.SearchOffset),
        (ConsumeFrom.FIRST_OFFSET, rq.Pull),
    ],
)
def test_a_new_group_starts_at_the_configured_position(consume_from, question):
    """That is the end, a time, or the beginning."""
    talk = Conversation(consume_from=consume_from, consume_timestamp_ms=777).joined(1)
    (asked,) = talk.committed(q(0), None)
    assert isinstance(asked, question)
    if isinstance(asked, rq.SearchOffset):
        assert asked.timestamp_ms == 777
    if not isinstance(asked, rq.Pull):
        (pull,) = talk.start_at(q(0), 40)
        assert (pull.offset, talk.offset(q(0))) == (40, None)


@pytest.mark.parametrize("error", [RequestTimeout("x"), broker_error(1, "x")])
def test_an_offset_that_cannot_be_fetched_is_fetched_again(error):
    """A queue must never start from zero by accident; the next round takes it again in a second."""
    talk = Conversation().joined(1)
    assert talk.committed(q(0), error) == [fx.Revoked((q(0),))]
    assert talk.core.owned() == []
    assert talk.at(999) == []
    assert talk.at(1000) == [rq.FetchConsumerList("a:1")]
    talk.members("me")
    assert len(talk.of(rq.QueryOffset)) == 1


def test_an_answer_for_an_earlier_ownership_is_ignored():
    """The queue was lost and taken again meanwhile."""
    talk = Conversation().joined(1)
    (late,) = talk.of(rq.QueryOffset)
    talk.committed(q(0), RequestTimeout("x"))
    talk.at(1000)
    talk.members("me")
    assert talk._(late.ask.done(99, talk.now_ms)) == []
    assert talk.committed(q(0), 5)[0].offset == 5


def test_messages_are_cut_into_batches_and_the_next_pull_leaves_at_once():
    """batch_size limits what one call of a handler gets."""
    talk = Conversation(batch_size=2).pulling()
    talk.pulled(q(0), found(0, 1, 2))
    assert [[m.queue_offset for m in each.messages] for each in talk.deliveries()] == [[0, 1], [2]]
    assert talk.of(rq.Pull) == [rq.Pull(q(0), "a:1", 3)]


def test_no_pull_brings_more_than_may_wait():
    """So a queue never holds more than twice its limit, however small that is."""
    talk = Conversation(pull_threshold_for_queue=3).pulling()
    talk.pulled(q(0), found(0, 1, 2))
    (pull,) = talk.of(rq.Pull)
    assert pull.count_max == 3
    talk.pulled(q(0), found(3, 4, 5))
    assert talk.of(rq.Pull) == []


def test_done_messages_are_committed_with_the_next_pull_and_every_second():
    """The offset is the smallest one that is not done."""
    talk = Conversation(persist_ms=1000).pulling()
    talk.pulled(q(0), found(0, 1, 2))
    first, second, third = talk.deliveries()
    talk.handled((first, HandlerOutcome.SUCCESS), (third, HandlerOutcome.SUCCESS))
    assert talk.at(1000) == [rq.CommitOffset(q(0), 1, "a:1")]
    talk.commit_answered(talk.effects[0])
    talk.handled((second, HandlerOutcome.SUCCESS))
    (pull,) = talk.pulled(q(0), nothing(3))
    assert (pull.offset, talk.offset(q(0))) == (3, 3)
    (commit,) = talk.at(2000)
    assert commit.offset == 3
    talk.commit_answered(commit)
    assert talk.at(4000) == []


def test_unchanged_offsets_are_committed_every_five_seconds():
    """The last owner's commit may have arrived after ours."""
    talk = Conversation(rebalance_ms=600_000, route_refresh_ms=600_000).pulling(offset=9)
    assert talk.at(4999) == []
    assert rq.CommitOffset(q(0), 9, "a:1") in talk.at(5000)


def test_a_commit_that_failed_is_repeated():
    """Only an acknowledged commit counts."""
    talk = Conversation().pulling()
    talk.pulled(q(0), found(0))
    talk.handled((talk.deliveries()[0], HandlerOutcome.SUCCESS))
    (commit,) = talk.at(1000)
    talk.commit_answered(commit, ok=False)
    assert talk.at(2000) == [commit]


def test_an_empty_pull_moves_the_offset_only_when_nothing_waits():
    """Messages that the broker has filtered out need not be filtered again."""
    talk = Conversation().pulling()
    (pull,) = talk.pulled(q(0), nothing(8, ResponseCode.PULL_RETRY_IMMEDIATELY))
    assert (pull.offset, talk.offset(q(0))) == (8, 8)
    talk.pulled(q(0), found(8))
    (pull,) = talk.pulled(q(0), nothing(20, ResponseCode.PULL_RETRY_IMMEDIATELY))
    assert (pull.offset, talk.offset(q(0))) == (20, 8)


def test_tags_are_compared_exactly():
    """The broker compares hashes, and "Aa" and "BB" have the same. Dropped messages do not hold the offset
    back.
    """
    talk = Conversation(expression="Aa").pulling()
    talk.pulled(q(0), found(0, 1, tag="BB"))
    assert talk.deliveries() == []
    assert talk.offset(q(0)) == 2
    talk.pulled(q(0), found(2, tag="Aa"))
    assert len(talk.deliveries()) == 1
    talk.pulled(q(0), found(3))
    assert talk.deliveries() == []


def test_a_queue_that_holds_too_much_waits_50_ms_or_until_a_handler_is_done():
    """Here it holds more than 1000 messages."""
    talk = Conversation(batch_size=1000).pulling()
    talk.pulled(q(0), found(*range(1001)))
    assert talk.of(rq.Pull) == []
    batch, single = talk.deliveries()
    assert talk.at(49) == []
    assert talk.at(50) == []
    talk.handled((single, HandlerOutcome.SUCCESS))
    assert len(talk.of(rq.Pull)) == 1
    talk.handled((batch, HandlerOutcome.SUCCESS))
    assert talk.of(rq.Pull) == []
    assert talk.at(200) == []


def test_flow_control_is_rechecked_by_a_timer():
    """The queue is checked every 50 ms if no event causes it before."""
    talk = Conversation(pull_threshold_for_queue=1).pulling()
    talk.pulled(q(0), found(0, 1))
    owned = talk.core.table.get(q(0))
    owned.held.remove([m for each in talk.deliveries() for m in each.messages])
    assert len(talk.at(50)) == 1


@pytest.mark.parametrize(
    ("error", "delay_ms"),
    [
        (broker_error(215, "flow control"), 20),
        (broker_error(1, "something"), 1000),
        (broker_error(16, "no permission"), 1000),
        (RequestTimeout("x"), 1000),
        (ConnectionLost("x"), 1000),
    ],
)
def test_a_pull_that_failed_is_repeated_after_its_delay(error, delay_ms):
    """It is repeated from the same offset."""
    talk = Conversation().pulling(offset=7)
    assert talk.pulled(q(0), error) == []
    assert talk.at(delay_ms - 1) == []
    (pull,) = talk.at(delay_ms)[:1]
    assert (pull.queue, pull.offset) == (q(0), 7)


def test_a_broker_that_answers_again_is_pulled_from_at_once():
    """It has restarted, and its heartbeat is answered before the second is over."""
    talk = Conversation().pulling(offset=7)
    talk.lost()
    talk.pulled(q(0), ConnectionLost("x"))
    talk.at(100)
    assert len(talk.of(rq.SendHeartbeat)) == 1
    talk.heartbeat()
    assert [pull.offset for pull in talk.of(rq.Pull)] == [7]
    assert [each for each in talk.at(1_099) if isinstance(each, rq.Pull)] == []


def test_the_broker_may_suggest_a_slave():
    """After a failure the member pulls from the master again."""
    talk = Conversation().joined(1, route_=route(1, slaves=True))
    talk.heartbeat("a:2")
    talk.members("me")
    talk.committed(q(0), 5)
    (pull,) = talk.pulled(q(0), nothing(5, broker_id=1))
    assert pull.address == "a:2"
    talk.pulled(q(0), RequestTimeout("x"))
    assert [effect.address for effect in talk.at(1000) if isinstance(effect, rq.Pull)] == ["a:1"]


def test_a_refused_offset_is_replaced_committed_and_pulled_from():
    """It is frozen against late results; the queue starts again only when the broker has acknowledged the
    commit.
    """
    talk = Conversation().pulling(offset=50)
    talk.pulled(q(0), found(50))
    late = talk.deliveries()[0]
    assert talk.pulled(q(0), nothing(90, ResponseCode.PULL_OFFSET_MOVED)) == [
        rq.CommitOffset(q(0), 90, "a:1")
    ]
    (commit,) = talk.effects
    talk.handled((late, HandlerOutcome.SUCCESS))
    assert not late.begin()
    (query,) = talk.commit_answered(commit)
    assert query == rq.QueryOffset(q(0), "a:1")
    assert talk.committed(q(0), 90)[0].offset == 90


@pytest.mark.parametrize("committed", [50, None])
def test_a_shortened_queue_restarts_at_the_committed_offset(committed):
    """Its end was lost, or its topic made again: pulled messages that were not handled are not skipped."""
    talk = Conversation(consume_from=ConsumeFrom.FIRST_OFFSET).pulling(offset=50)
    talk.pulled(q(0), found(50, 51, 52))
    late = talk.deliveries()
    (query,) = talk.pulled(q(0), nothing(51, ResponseCode.PULL_OFFSET_MOVED))
    assert query == rq.QueryOffset(q(0), "a:1")
    talk.handled(*((delivery, HandlerOutcome.SUCCESS) for delivery in late))
    assert not any(delivery.begin() for delivery in late)
    assert talk.committed(q(0), committed)[0].offset == (committed or 0)
    assert talk.offset(q(0)) == committed


def test_a_recreated_topic_is_read_from_its_beginning():
    """Offsets that were handled of the former topic are not committed: they belong to other messages now."""
    talk = Conversation(consume_from=ConsumeFrom.FIRST_OFFSET, persist_ms=100).pulling(offset=0)
    talk.pulled(q(0), found(0, 1))
    late = talk.deliveries()
    talk.pulled(q(0), broker_error(ResponseCode.TOPIC_NOT_EXIST, "it was deleted"))
    talk.handled(*((delivery, HandlerOutcome.SUCCESS) for delivery in late))
    assert [type(effect) for effect in talk.at(1_000)] == [rq.Pull]
    (query,) = talk.pulled(q(0), found(2, 3))
    assert query == rq.QueryOffset(q(0), "a:1")
    assert talk.committed(q(0), None)[0].offset == 0
    assert talk.offset(q(0)) is None


def test_a_committed_offset_beyond_the_queue_is_lowered():
    """Some brokers, such as Apache's, do not lower it themselves when their machine has lost power."""
    talk = Conversation().pulling(offset=51)
    (commit,) = talk.pulled(q(0), nothing(10, ResponseCode.PULL_OFFSET_MOVED))
    assert commit == rq.CommitOffset(q(0), 10, "a:1")


@pytest.mark.parametrize(("newer", "begins_at"), [(0, 0), (8, 8), (12, 10)])
def test_what_was_stored_since_is_read_where_the_committed_offset_is_beyond_the_queue_too(newer, begins_at):
    """The topic was made again, or the queue has lost its end, at an Apache broker, which keeps the offset.

    If the member continued where that broker says, at the queue's end, it would skip all of it.
    """
    talk = Conversation().pulling(offset=50)
    reply, _ = found(50)
    talk.pulled(q(0), (reply, [message(50, stored_ms=777)]))
    talk.pulled(q(0), nothing(10, ResponseCode.PULL_OFFSET_MOVED))
    talk.committed(q(0), 51)
    (search,) = talk.pulled(q(0), nothing(10, ResponseCode.PULL_OFFSET_MOVED))
    assert search == rq.SearchOffset(q(0), "a:1", 778)
    (commit,) = talk.start_at(search.queue, newer)
    assert commit == rq.CommitOffset(q(0), begins_at, "a:1")


def test_an_operators_reset_is_committed_and_followed():
    """Results of running handlers change nothing; other topics and queues are not affected."""
    talk = Conversation().pulling(offset=50)
    talk.pulled(q(0), found(50))
    late = talk.deliveries()[0]
    assert talk._(talk.core.offsets_set("U", {q(0): 7}, talk.now_ms)) == []
    effects = talk._(talk.core.offsets_set("T", {q(0): 7, q(9): 3}, talk.now_ms))
    assert effects == [rq.CommitOffset(q(0), 7, "a:1")]
    (commit,) = effects
    talk.handled((late, HandlerOutcome.SUCCESS))
    (query,) = talk.commit_answered(commit)
    assert query == rq.QueryOffset(q(0), "a:1")
    assert talk.committed(q(0), 7)[0].offset == 7


def test_a_repeatedly_refused_offset_is_retried_after_a_pause():
    """After the second refusal, it waits a second."""
    talk = Conversation().pulling()
    for turn in range(3):
        (commit,) = talk.pulled(q(0), nothing(10, ResponseCode.PULL_OFFSET_MOVED))
        talk.commit_answered(commit)
        if turn:
            assert talk.of(rq.QueryOffset) == []
            talk.at(talk.now_ms + 1000)
        assert [effect.queue for effect in talk.of(rq.QueryOffset)] == [q(0)]
        talk.committed(q(0), 10)
