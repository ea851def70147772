"""Tests of the membership: how a member finds its coordinator, joins, polls and returns."""

import pytest

from libramq.client.consuming import effects as fx
from libramq.client.consuming.membership.membership import ASK_AGAIN_MS, NAME_AGAIN_MS
from libramq.codes import ResponseCode
from libramq.errors import ConnectFailed, ConnectionLost, MemberReplaced, NoPermission, RequestTimeout
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import RETRY, found, q
from tests.client.consuming.coordinated import (
    FENCED,
    NOT_COORDINATOR,
    UNKNOWN_MEMBER,
    Member,
    assigned,
    refusal,
)
from tests.client.consuming.examples import route

NO_PERMISSION = ResponseCode.NO_PERMISSION


def test_a_member_finds_joins_and_polls():
    """The requests have its subscriptions, its session, and the last epoch it received."""
    talk = Member(session_ms=6_000).looking()
    assert talk.of(rq.FetchConsumerList) == []
    assert talk.question == rq.FindGroup("a:1")
    assert talk.question.ask.timeout_ms == 2_000
    talk.found_group("b:1")
    join = talk.question
    assert isinstance(join, rq.JoinGroup)
    assert (join.address, join.header.lb_session_ms, join.header.lb_member) == ("b:1", 6_000, None)
    assert join.body.subscriptions == {"T": "*", RETRY: "*"}
    assert (join.body.strategy, join.body.held) == ("balanced_sticky", [])
    talk.group_joined(assigned(epoch=7))
    poll = talk.question
    assert isinstance(poll, rq.PollGroup)
    assert (poll.address, poll.member, poll.epoch, poll.ask.timeout_ms) == ("b:1", "m1", 7, 3_000)
    assert talk.polled(assigned(epoch=8))[-1].epoch == 8


def test_without_coordinators_members_allocate_for_themselves():
    """Apache's brokers have none; one such broker among several is enough."""
    talk = Member()
    talk.start()
    talk.routes(T=route(2, brokers=("a", "b")))
    talk.heartbeat("a:1")
    assert len(talk.of(rq.FetchConsumerList)) == 1
    talk.heartbeat("b:1", offers=True)
    assert talk.of(rq.FindGroup) == []


def test_a_broker_without_coordinators_ends_the_membership():
    """The broker joined the cluster later, and cannot keep queues for a coordinator."""
    talk = Member().holding(q(0))
    talk.heartbeat("b:1")
    assert talk.of(rq.LeaveGroup) == [rq.LeaveGroup("a:1", "m1", "member_left")]
    assert len(talk.of(rq.FetchConsumerList)) == 1
    assert talk.core.owned() == [q(0)]


def test_a_broker_that_does_not_know_group_find_has_no_coordinator():
    """This holds regardless of its heartbeat's answer."""
    talk = Member().looking()
    talk.found_group(refusal(3, "not supported"))
    assert len(talk.of(rq.FetchConsumerList)) == 1


def test_a_broker_of_another_protocol_version_has_no_coordinator():
    """The member allocates for itself, and with it the whole group."""
    talk = Member().looking()
    talk.found_group(refusal(15, "GROUP_FIND is written in version 1 of the group protocol"))
    assert len(talk.of(rq.FetchConsumerList)) == 1


def test_a_coordinator_of_another_protocol_version_is_retried_after_a_pause():
    """It may be the next to be upgraded."""
    talk = Member().looking()
    talk.found_group("b:1")
    talk.group_joined(refusal(15, "GROUP_JOIN is written in version 1 of the group protocol"))
    assert talk.effects == []
    talk.at(talk.now_ms + ASK_AGAIN_MS)
    assert len(talk.of(rq.FindGroup)) == 1


def test_a_broadcasting_consumer_joins_no_group():
    """Its members share no queues."""
    talk = Member(broadcasting=True).looking()
    assert talk.question is None


def test_a_silent_coordinator_is_asked_again_once_the_others_do_not_know():
    """The only other broker was its slave, which never knows: the group stood still (seed 8320081)."""
    talk = Member().looking(brokers=("a", "b"))
    talk.found_group("a:1")
    talk.group_joined(ConnectionLost("a:1 is gone"))
    before = talk.question
    talk.group_joined(ConnectionLost("a:1 is gone"))
    asked = []
    for _ in range(4):
        while talk.question is before:
            talk.at(talk.next_due_ms)
        asked.append(talk.question.address)
        before = talk.question
        talk.found_group(refusal(2, "this is a slave"))
    assert asked[0] == "b:1"
    assert "a:1" in asked


def test_brokers_are_queried_for_the_coordinator_in_turn():
    """The pause is 50 ms, doubles each time, and is a second at most."""
    talk = Member().looking(brokers=("a", "b"))
    asked, times = [talk.question.address], []
    for _ in range(8):
        talk.found_group(ConnectFailed("nobody"))
        before, question = talk.now_ms, talk.question
        while talk.question is question:
            talk.at(talk.next_due_ms)
        times.append(talk.now_ms - before)
        asked.append(talk.question.address)
    assert times == [50, 100, 200, 400, 800, 1000, 1000, 1000]
    assert set(asked[:4]) == {"a:1", "b:1"}


@pytest.mark.parametrize("asked_first", ["join", "poll"])
def test_a_member_follows_a_redirect_to_the_coordinator(asked_first):
    """It follows the first at once, and a redirect onwards only after a pause."""
    talk = Member().looking()
    talk.found_group()
    if asked_first == "poll":
        talk.group_joined()
    answer = talk.group_joined if asked_first == "join" else talk.polled
    answer(refusal(NOT_COORDINATOR, "b:1"))
    assert (talk.question.address, type(talk.question).__name__.lower()) == ("b:1", f"{asked_first}group")
    answer(refusal(NOT_COORDINATOR, "a:1"))
    assert talk.effects == []
    talk.at(talk.now_ms + 100)
    assert len(talk.of(rq.FindGroup)) == 1


def test_a_coordinator_not_known_yet_is_queried_again():
    """The answer has an empty address."""
    talk = Member().looking()
    talk.found_group(refusal(NOT_COORDINATOR, ""))
    assert len(talk.at(50)) == 1


def test_a_lost_connection_is_reopened_within_the_grace():
    """The member reconnects to the same coordinator at once, then looks for it, with the same member id."""
    talk = Member().holding(q(0))
    talk.polled(ConnectionLost("gone"))
    (poll,) = talk.effects
    assert (poll.address, poll.member) == ("a:1", "m1")
    talk.polled(ConnectFailed("gone"))
    assert [type(each) for each in talk.at(talk.now_ms + 100)] == [rq.FindGroup]
    talk.found_group("b:1")
    (poll,) = talk.effects
    assert (poll.address, poll.member) == ("b:1", "m1")
    assert talk.held() == {q(0): 1}
    assert talk.core.owned() == [q(0)]


def test_a_forgotten_member_joins_again_with_its_queues():
    """The coordinator has lost its memory, and the member's session has not ended."""
    talk = Member().holding(q(0), q(1))
    talk.polled(refusal(UNKNOWN_MEMBER))
    join = talk.question
    assert join.header.lb_member == "m1"
    assert talk.held() == {q(0): 1, q(1): 1}
    assert talk.of(fx.Lost) == []
    talk.group_joined(assigned(q(0), q(1)))
    assert talk.of(rq.OpenQueue) == []
    assert talk.core.owned() == [q(0), q(1)]


def test_queues_are_opened_again_under_a_new_member_id():
    """Another member has got the old id; the queues are read on meanwhile."""
    talk = Member().holding(q(0))
    talk.polled(refusal(UNKNOWN_MEMBER))
    talk.group_joined(assigned((q(0), 2), epoch=2), member="m2")
    (request,) = talk.of(rq.OpenQueue)
    assert request.claim == talk.claim(2, "m2")
    assert talk.of(fx.Lost) == []


def test_a_late_answer_to_an_earlier_request_is_ignored():
    """The poll had already timed out."""
    talk = Member().holding(q(0))
    late = talk.question
    talk.polled(RequestTimeout("late"))
    assert talk._(late.ask.done(assigned(), talk.now_ms)) == []
    assert talk.core.owned() == [q(0)]


def test_a_late_answer_to_a_poll_renews_the_lease():
    """A coordinator that stood still for a moment had its members stop until their next poll was answered."""
    talk = Member(session_ms=6_000).holding(q(0))
    talk.pulled(q(0), found(0))
    talk.at(2_000)
    talk.polled(assigned(q(0)))
    late = talk.question
    talk.at(5_500)
    talk.polled(RequestTimeout("late"))
    talk.at(6_000)
    assert not talk.deliveries_begin()
    talk._(late.ask.done(assigned(q(0)), talk.now_ms))
    talk.at(7_999)
    assert talk.deliveries_begin()
    talk.at(8_000)
    assert not talk.deliveries_begin()
    talk._(late.ask.done(assigned(q(0)), talk.now_ms))
    assert not talk.deliveries_begin()


def test_a_lease_that_ends_is_reported_to_brokers_until_it_is_renewed():
    """`libra groups` needs the report: brokers the member still reaches may have no other sign of it."""
    talk = Member(session_ms=6_000).holding(q(0))
    talk.polled(RequestTimeout("late"))
    talk.at(6_000)
    assert [beat.lease_ended for beat in talk.of(rq.SendHeartbeat)] == [True]
    talk.found_group()
    talk.polled(assigned(q(0)))
    assert [beat.lease_ended for beat in talk.of(rq.SendHeartbeat)] == [False]


def test_a_poll_answered_early_without_news_is_repeated_after_a_pause():
    """A fault between the two must not cause a thousand requests a second."""
    talk = Member().holding(q(0))
    assert talk.polled(assigned(q(0))) == []
    assert talk.at(99) == []
    talk.at(100)
    assert len(talk.of(rq.PollGroup)) == 1


def test_a_replaced_static_member_leaves_the_group():
    """Two members with the same instance id would replace each other for ever."""
    talk = Member(instance_id="left").holding(q(0))
    talk.polled(refusal(FENCED))
    assert talk.of(fx.Lost) == [fx.Lost((q(0),))]
    assert talk.of(rq.JoinGroup) == talk.of(rq.FindGroup) == []
    talk.heartbeat("b:1", offers=True)
    assert talk.of(rq.FindGroup) == talk.of(rq.FetchConsumerList) == []


def test_a_replaced_static_member_waits_for_its_name():
    """It does not replace the other member. Its user is notified when it is kept out and when it is back."""
    talk = Member(instance_id="left").holding(q(0))
    talk.polled(refusal(FENCED))
    (trouble,) = talk.of(fx.Trouble)
    assert (type(trouble.error), trouble.keeps_out) == (MemberReplaced, True)
    for _ in range(3):
        talk.at(talk.now_ms + NAME_AGAIN_MS - 1)
        assert talk.of(rq.JoinGroup) == []
        talk.at(talk.now_ms + 1)
        (join,) = talk.of(rq.JoinGroup)
        header = join.header
        assert (header.lb_instance, header.lb_member, header.lb_if_free) == ("left", "m1", True)
        assert join.body.held == []
        talk.group_joined(refusal(FENCED))
        assert talk.of(fx.Trouble) == talk.of(fx.Lost) == []
    talk.at(talk.now_ms + NAME_AGAIN_MS)
    talk.group_joined(assigned(q(1), epoch=5), member="m2")
    assert talk.of(fx.Recovered) == [fx.Recovered()]
    assert talk.question.member == "m2"
    assert [each.queue for each in talk.of(rq.OpenQueue)] == [q(1)]


def test_a_denied_member_is_reported_until_permitted():
    """One report is made for all refusals."""
    talk = Member().looking()
    talk.found_group()
    talk.group_joined(refusal(NO_PERMISSION, "not for you"))
    (trouble,) = talk.of(fx.Trouble)
    assert (type(trouble.error), trouble.keeps_out) == (NoPermission, True)
    talk.at(talk.now_ms + 2_000)
    talk.found_group()
    talk.group_joined(refusal(NO_PERMISSION, "not for you"))
    assert talk.of(fx.Trouble) == []
    talk.at(talk.now_ms + 2_000)
    talk.found_group()
    talk.group_joined()
    assert talk.of(fx.Recovered) == [fx.Recovered()]


def test_a_denied_heartbeat_stops_membership_and_a_denied_topic_does_not():
    """Other topics continue; both are reported."""
    talk = Member().looking()
    denied = refusal(NO_PERMISSION)

    def answered(about, outcome, *, keeps_out=False):
        talk.core.troubles.answered(about, outcome, keeps_out=keeps_out)
        return talk._([])

    assert answered("broker a:1", denied, keeps_out=True) == [fx.Trouble(denied, True)]
    assert answered("topic T", denied) == [fx.Trouble(denied, False)]
    assert answered("topic T", denied) == answered("topic U", None) == []
    assert answered("topic T", None) == []
    assert answered("broker a:1", RequestTimeout("x"), keeps_out=True) == []
    assert answered("broker a:1", None, keeps_out=True) == [fx.Recovered()]


def test_a_heartbeat_that_is_denied_again_and_again_is_logged_once(caplog):
    """It is repeated twice a second, as long as a password is wrong; another reason is logged."""
    talk = Member().looking()
    known = talk.core.known_brokers
    for outcome in (refusal(NO_PERMISSION), refusal(NO_PERMISSION), RequestTimeout("no answer")):
        talk._(known.heartbeat_answered("a:1", outcome, talk.now_ms))
    first, second = (each for each in caplog.messages if each.startswith("heartbeat failed"))
    assert "NO_PERMISSION" in first
    assert "no answer" in second
    talk.heartbeat()
    talk._(known.heartbeat_answered("a:1", refusal(NO_PERMISSION), talk.now_ms))
    assert "NO_PERMISSION" in caplog.messages[-1]


def test_a_join_names_the_chosen_strategy():
    """The join also has the name of a static member."""
    talk = Member(group_strategy="AVG_BY_CIRCLE", instance_id="left").looking()
    talk.found_group()
    assert (talk.question.body.strategy, talk.question.header.lb_instance) == ("AVG_BY_CIRCLE", "left")
