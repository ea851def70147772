"""Tests of a program that fetches messages itself: messages in hand, commits and handovers."""

import pytest

from libramq.client.consuming import effects as fx
from libramq.client.consuming.fetching.fetch_buffer import FetchBuffer
from libramq.errors import CommitFailed, LocalProtocolError, RequestTimeout
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import Conversation, found, nothing, q
from tests.client.consuming.coordinated import FENCED, Member, assigned, refusal
from tests.client.consuming.examples import route


class Program:
    """The program beside a conversation's core: it fetches from a buffer, and reports its progress at
    once.
    """

    def __init__(self, talk):
        self.talk = talk
        self.buffer = FetchBuffer(self._report, lambda: None)
        self.reports = []
        self.ended = []

    def _report(self, batch, ending):
        self.reports.append((batch, ending))

    def _pass_on(self):
        """Move what the last event delivered into the buffer."""
        for effect in self.talk.of(fx.Deliver):
            self.buffer.put(effect.deliveries)
        for effect in self.talk.of(fx.CommitsEnded):
            effect.ended(effect.error)
        self.talk.effects = [e for e in self.talk.effects if not isinstance(e, fx.Deliver | fx.CommitsEnded)]

    def take(self, count_max=1 << 31):
        """Fetch; the effects that follow in the core are in `effects` of the conversation."""
        self._pass_on()
        taken = self.buffer.take(count_max)
        self._flush()
        return {queue: [message.queue_offset for message in messages] for queue, messages in taken.items()}

    def one(self):
        self._pass_on()
        message = self.buffer.take_one()
        self._flush()
        return None if message is None else message.queue_offset

    def finish(self, *, is_done=True):
        self.buffer.finish(is_done=is_done)
        self._flush()

    def _fetching(self):
        self._pass_on()
        return self.talk.core.fetching

    def assign(self, *queues):
        self.talk._(self._fetching().assign(queues, self.talk.now_ms))

    def seek(self, queue, offset):
        self.talk._(self._fetching().seek({queue: offset}, self.talk.now_ms))

    def commit(self, offsets=None):
        self.finish()
        self.talk._(self._fetching().commit(offsets, self.ended.append))

    def _flush(self):
        reports, self.reports = self.reports, []
        if reports:
            self.talk.handled(*reports)


def alone(queues=1, offset=0, **settings):
    """Return a program that owns all queues of T, without a coordinator."""
    talk = Conversation(**({"fetches": True, "rebalance_ms": 600_000} | settings)).pulling(queues, offset)
    return talk, Program(talk)


def member(*queues, **settings):
    """Return a program that owns queues of a coordinated group, under epoch 1."""
    talk = Member(fetches=True, **settings).holding(*queues)
    return talk, Program(talk)


def commits(talk):
    return [(commit.queue, commit.offset) for commit in talk.of(rq.CommitOffset)]


def test_messages_come_by_queue_and_in_order():
    talk, program = alone(2)
    talk.pulled(q(0), found(0, 1))
    program._pass_on()
    talk.pulled(q(1), found(5))
    program._pass_on()
    talk.pulled(q(0), found(2))
    assert program.take() == {q(0): [0, 1, 2], q(1): [5]}
    assert program.take() == {}


def test_what_was_returned_is_done_with_the_next_call():
    """It is committed when a commit is due; messages in hand are not."""
    talk, program = alone()
    talk.pulled(q(0), found(0, 1, 2, 3))
    assert program.take(3) == {q(0): [0, 1, 2]}
    talk.at(1_000)
    assert commits(talk) == []
    assert program.take(1) == {q(0): [3]}
    talk.at(2_000)
    assert commits(talk) == [(q(0), 3)]
    talk.commit_answered(*talk.of(rq.CommitOffset))
    assert program.take() == {}
    talk.at(3_000)
    assert commits(talk) == [(q(0), 4)]


def test_one_message_at_a_time_counts_as_well():
    talk, program = alone()
    talk.pulled(q(0), found(0, 1, 2))
    assert [program.one(), program.one()] == [0, 1]
    talk.at(1_000)
    assert commits(talk) == [(q(0), 1)]


def test_a_program_that_fetches_has_no_retry_topic_and_no_handler_deadline():
    """Fetched messages that are kept long are neither sent back nor abandoned."""
    talk, program = alone(consume_timeout_ms=1_000)
    talk.pulled(q(0), found(0))
    program.take()
    talk.at(60_000)
    assert talk.of(rq.SendBack) + talk.of(fx.Abandon) == []
    talk.start()
    assert talk.of(rq.FetchRoutes)[0].topics == ("T",)
    (heartbeat,) = talk._(talk.core.known_brokers.send_heartbeats(["a:1"]))
    (group,) = heartbeat.data.consumer_data_set
    assert group.consume_type == "CONSUME_ACTIVELY"
    assert [each.topic for each in group.subscription_data_set] == ["T"]


def test_without_auto_commit_only_a_request_commits():
    talk, program = alone(auto_commit=False)
    talk.pulled(q(0), found(0, 1))
    program.take()
    program.take()
    talk.at(20_000)
    assert commits(talk) == []
    program.commit()
    assert commits(talk) == [(q(0), 2)]
    talk.commit_answered(*talk.of(rq.CommitOffset))
    program._pass_on()
    assert program.ended == [None]


def test_a_commit_of_offsets_may_go_back():
    talk, program = alone(auto_commit=False, offset=7)
    program.commit({q(0): 3})
    assert commits(talk) == [(q(0), 3)]
    talk.commit_answered(*talk.of(rq.CommitOffset), ok=False)
    program._pass_on()
    (error,) = program.ended
    assert isinstance(error, RequestTimeout)


def test_a_commit_follows_the_one_under_way():
    """A queue has one commit under way at a time, and both calls return."""
    talk, program = alone(auto_commit=False)
    program.commit({q(0): 3})
    (first,) = talk.of(rq.CommitOffset)
    program.commit({q(0): 5})
    assert commits(talk) == []
    talk.commit_answered(first)
    assert commits(talk) == [(q(0), 5)]
    program._pass_on()
    assert program.ended == [None]
    talk.commit_answered(*talk.of(rq.CommitOffset))
    program._pass_on()
    assert program.ended == [None, None]


def test_a_commit_of_a_queue_that_is_lost_fails():
    talk, program = member(q(0), auto_commit=False)
    program.commit({q(0): 3})
    talk.commit_refused(*talk.of(rq.CommitOffset), FENCED)
    program._pass_on()
    (error,) = program.ended
    assert isinstance(error, CommitFailed)
    with pytest.raises(LocalProtocolError, match="not assigned"):
        program.commit({q(0): 3})


def test_a_hand_over_waits_for_what_is_in_hand():
    """No more messages of the queue are returned. The next call ends the waiting, and commits."""
    talk, program = member(q(0), q(1))
    talk.pulled(q(0), found(0, 1, 2))
    assert program.take(2) == {q(0): [0, 1]}
    talk.polled(assigned(q(1), epoch=2))
    assert commits(talk) == []
    assert talk.of(fx.Revoked) == []
    assert program.take() == {}
    assert talk.of(fx.Revoked) == [fx.Revoked((q(0),))]
    assert commits(talk) == [(q(0), 2)]
    talk.commit_answered(*talk.of(rq.CommitOffset))
    (release,) = talk.of(rq.ReleaseQueues)
    assert [grant.queue for grant in release.queues] == [q(0)]
    assert release.uncommitted == ()


def test_a_hand_over_waits_no_longer_than_it_may():
    """Messages in hand are then redelivered to the next member; those done before are committed."""
    talk, program = member(q(0), revoke_timeout_ms=4_000)
    talk.pulled(q(0), found(0, 1, 2))
    assert [program.one(), program.one()] == [0, 1]
    talk.polled(assigned(epoch=2))
    assert commits(talk) == [(q(0), 1)]
    talk.commit_answered(*talk.of(rq.CommitOffset))
    talk.at(3_999)
    assert talk.of(fx.Revoked) == []
    talk.at(4_000)
    assert talk.of(fx.Revoked) == [fx.Revoked((q(0),))]
    assert talk.core.process_queues() == []
    assert program.one() is None
    assert commits(talk) == []


def test_what_waits_in_the_buffer_delays_no_hand_over():
    talk, program = member(q(0))
    talk.pulled(q(0), found(0, 1))
    program._pass_on()
    talk.polled(assigned(epoch=2))
    assert talk.of(fx.Revoked) == [fx.Revoked((q(0),))]
    assert program.take() == {}


def test_a_batch_that_is_partly_done_delays_no_hand_over():
    """With one message done and none in hand the queue is released at once; the next member gets the rest."""
    talk, program = member(q(0))
    talk.pulled(q(0), found(0, 1))
    assert program.one() == 0
    program.finish()
    talk.polled(assigned(epoch=2))
    assert talk.of(fx.Revoked) == [fx.Revoked((q(0),))]
    assert commits(talk) == [(q(0), 1)]


def test_the_hook_of_a_hand_over_may_commit():
    talk, program = member(q(0), auto_commit=False, has_revoke_hook=True)
    talk.pulled(q(0), found(0, 1))
    program.take()
    talk.polled(assigned(epoch=2))
    program.take()
    assert talk.of(fx.Revoked) == [fx.Revoked((q(0),))]
    program.commit()
    (commit,) = talk.of(rq.CommitOffset)
    assert commit.offset == 2
    talk._(talk.core.hook_done(fx.Revoked((q(0),)), talk.now_ms))
    talk.commit_answered(commit)
    program._pass_on()
    assert program.ended == [None]
    assert talk.core.process_queues() == []


def test_a_queue_that_was_lost_returns_nothing_more():
    talk, program = member(q(0), q(1))
    talk.pulled(q(0), found(0, 1))
    assert program.one() == 0
    talk.pulled(q(0), refusal(FENCED), claim=talk.claim())
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))]
    assert program.one() is None
    assert talk.core.table._left_behind == set()


def test_a_paused_queue_is_skipped_and_keeps_its_order():
    talk, program = alone(2)
    talk.pulled(q(0), found(0, 1))
    program._pass_on()
    talk._(talk.core.pause([q(0)], talk.now_ms))
    talk.pulled(q(1), found(7))
    assert program.take() == {q(1): [7]}
    talk.pulled(q(0), found(2))
    assert program.take() == {}
    talk._(talk.core.resume([q(0)], talk.now_ms))
    assert program.take() == {q(0): [0, 1, 2]}


def test_nothing_is_returned_without_a_lease():
    """A process that was suspended returns nothing before it has an answer from its coordinator."""
    talk, program = member(q(0), session_ms=10_000)
    talk.pulled(q(0), found(0, 1))
    assert program.one() == 0
    talk.now_ms = 10_500
    assert program.one() is None
    talk.polled(assigned(q(0)))  # The answer to an earlier poll.
    assert program.one() is None
    talk.polled(assigned(q(0)))
    assert program.one() == 1


def test_seeking_drops_what_was_pulled_and_pulls_elsewhere():
    """The answer to the earlier pull is ignored."""
    talk, program = alone()
    talk.pulled(q(0), found(0, 1))
    (before,) = talk.of(rq.Pull)
    program.seek(q(0), 50)
    (pull,) = talk.of(rq.Pull)
    assert pull.offset == 50
    assert talk.core.fetching.position(q(0)) == 50
    assert talk._(before.ask.done(nothing(4)[0], 0)) == []
    assert program.take() == {}
    talk.pulled(q(0), found(50, 51))
    assert program.one() == 50
    assert talk.core.fetching.position(q(0)) == 51


def test_a_sought_position_is_committed_even_if_it_is_earlier():
    talk, program = alone(offset=40)
    talk.pulled(q(0), found(40, 41))
    program.take()
    program.seek(q(0), 10)
    program.take()
    talk.at(1_000)
    assert commits(talk) == [(q(0), 10)]


def test_without_auto_commit_a_sought_position_is_not_committed():
    talk, program = alone(offset=40, auto_commit=False)
    program.seek(q(0), 10)
    talk.at(20_000)
    assert commits(talk) == []
    program.commit()
    assert commits(talk) == [(q(0), 10)]


def test_a_queue_that_is_being_opened_begins_where_the_program_wants():
    """Programs seek in on_assigned."""
    talk = Conversation(fetches=True).joined(1)
    program = Program(talk)
    program.seek(q(0), 30)
    assert talk.core.fetching.position(q(0)) == 30
    talk.committed(q(0), 5)
    assert [pull.offset for pull in talk.of(rq.Pull)] == [30]
    with pytest.raises(LocalProtocolError, match="not assigned"):
        program.seek(q(3), 30)


def test_assigned_queues_are_read_without_a_membership():
    """The brokers get no heartbeat with a group, and no query for its members."""
    talk = Conversation(fetches=True, assigns=True)
    program = Program(talk)
    talk.start()
    talk.routes(T=route(4))
    assert [beat.data.consumer_data_set for beat in talk.of(rq.SendHeartbeat)] == [[]]
    talk.heartbeat()
    assert talk.effects == []
    program.assign(q(1), q(2))
    for query in talk.of(rq.QueryOffset):
        talk.committed(query.queue, 4)
    assert talk.core.owned() == [q(1), q(2)]
    program.assign(q(2), q(3))
    assert talk.of(fx.Revoked) == [fx.Revoked((q(1),))]
    assert talk.core.owned() == [q(2), q(3)]


def test_assigned_queues_wait_for_the_route_to_their_broker():
    talk = Conversation(fetches=True, assigns=True)
    program = Program(talk)
    talk.start()
    program.assign(q(1))
    assert talk.effects == []
    talk.routes(T=route(4))
    talk.heartbeat()
    assert [query.queue for query in talk.of(rq.QueryOffset)] == [q(1)]


def test_the_limit_of_all_queues_is_shared_among_them():
    """It works like pullThresholdForAll: with four queues, each holds a quarter."""
    talk, program = alone(4, pull_threshold_for_all=8)
    talk.pulled(q(0), found(0, 1))
    assert len(talk.of(rq.Pull)) == 1
    program._pass_on()
    talk.pulled(q(0), found(2))
    assert talk.of(rq.Pull) == []
    assert program.take() == {q(0): [0, 1, 2]}
    program.take()
    assert [pull.queue for pull in talk.of(rq.Pull)] == [q(0)]


def test_stopping_waits_for_what_is_in_hand_and_commits_it():
    talk, program = alone()
    talk.pulled(q(0), found(0, 1, 2))
    program.one()
    talk.stop(timeout_ms=5_000)
    assert talk.of(rq.Unregister) == []
    program.finish()
    assert commits(talk) == [(q(0), 1)]
    talk.commit_answered(*talk.of(rq.CommitOffset))
    assert talk.of(rq.Unregister) != []


def test_what_was_not_done_when_the_program_failed_is_not_committed():
    talk, program = alone()
    talk.pulled(q(0), found(0, 1, 2))
    program.one()
    program.one()
    program.finish(is_done=False)
    talk.stop(timeout_ms=5_000)
    assert commits(talk) == [(q(0), 1)]


def test_nothing_waits_after_a_pull_that_found_nothing():
    """The position advances past messages that the subscription leaves out."""
    talk, program = alone()
    talk.pulled(q(0), nothing(9))
    assert talk.core.fetching.position(q(0)) == 9
    assert program.take() == {}
    talk.at(1_000)
    assert commits(talk) == [(q(0), 9)]


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 1_000), ({"pull_threshold_for_all": 300}, 300), ({"pull_batch_size": 32}, 32)],
)
def test_record_batches_are_pulled_in_large_portions_within_the_limits(settings, count):
    talk, program = alone(**settings)
    program.talk.core.fetching.read_records()
    talk.pulled(q(0), found(0))
    (pull,) = talk.of(rq.Pull)
    assert (pull.as_records, pull.count_max) == (True, count)
