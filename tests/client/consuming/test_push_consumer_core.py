"""Tests of the push consumer's core, event by event: joining, rebalancing, leaving."""

from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.options import ConsumeFrom
from libramq.formats.route import BrokerData, TopicRouteData
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import RETRY, WALL_MS, Conversation, found, nothing, q
from tests.client.consuming.examples import route


def test_a_member_joins_in_four_steps():
    """These are routes, heartbeat, member list and committed offsets; then it pulls."""
    talk = Conversation()
    assert talk.start() == [rq.FetchRoutes(("T", RETRY))]
    (heartbeat,) = talk.routes(T=route(2), **{RETRY: None})
    assert heartbeat.address == "a:1"
    assert talk.heartbeat() == [rq.FetchConsumerList("a:1")]
    talk.members("me")
    assert talk.of(fx.Assigned) == [fx.Assigned((q(0), q(1)))]
    assert [effect.queue for effect in talk.of(rq.QueryOffset)] == [q(0), q(1)]
    (pull,) = talk.committed(q(0), 17)
    assert pull == rq.Pull(q(0), "a:1", 17)


def test_the_heartbeat_has_group_subscriptions_and_start_position():
    """The retry topic is subscribed without a filter; the version is the wall clock's time."""
    talk = Conversation(expression="b || a", consume_from=ConsumeFrom.FIRST_OFFSET)
    talk.start()
    (heartbeat,) = talk.routes(T=route())
    (consumer,) = heartbeat.data.consumer_data_set
    assert heartbeat.data.client_id == "me"
    assert (consumer.group_name, consumer.consume_from_where) == ("g", "CONSUME_FROM_FIRST_OFFSET")
    topic, retry = consumer.subscription_data_set
    assert (topic.topic, topic.sub_string, topic.tags_set) == ("T", "b || a", ("a", "b"))
    assert (topic.code_set, topic.sub_version) == ((97, 98), WALL_MS)
    assert (retry.topic, retry.sub_string, retry.tags_set) == (RETRY, "*", ())


def test_every_broker_gets_a_heartbeat_including_slaves():
    """All get it at once, not only the one that is queried for the members."""
    talk = Conversation()
    talk.start()
    talk.routes(T=route(brokers=("a", "b"), slaves=True))
    assert [effect.address for effect in talk.effects] == ["a:1", "a:2", "b:1", "b:2"]


def test_a_topic_without_route_is_queried_again_with_growing_pauses():
    """The first heartbeat creates the retry topic; a user's topic may be created at any time."""
    talk = Conversation(route_refresh_ms=5000)
    talk.start()
    for due_ms in (1000, 3000, 7000, 12_000, 17_000):
        talk.routes(T=None, **{RETRY: None})
        talk.at(due_ms - 1, with_routes=True)
        assert talk.of(rq.FetchRoutes) == []
        assert talk.at(due_ms, with_routes=True) == [rq.FetchRoutes(("T", RETRY))]
    talk.routes(T=route())
    assert len(talk.of(rq.SendHeartbeat)) == 1


def test_a_single_member_starts_at_once_and_others_wait_for_commits():
    """The last owner needs a moment to commit; a single member has no other to wait for."""
    alone = Conversation().joined(1)
    assert len(alone.of(rq.QueryOffset)) == 1
    among = Conversation().joined(2, "me", "you")
    assert among.of(rq.QueryOffset) == []
    assert among.of(fx.Assigned) == [fx.Assigned((q(0),))]
    assert [effect.queue for effect in among.at(100)] == [q(0)]


def test_a_member_gives_up_its_surplus_when_another_joins():
    """After code 40 and the member list, surplus queues are committed and released."""
    talk = Conversation().pulling(4)
    talk.pulled(q(3), found(0, 1))
    talk.handled((talk.deliveries()[0], HandlerOutcome.SUCCESS))
    assert talk.notified() == [rq.FetchConsumerList("a:1")]
    talk.members("me", "you")
    assert talk.of(rq.CommitOffset) == [rq.CommitOffset(q(3), 1, "a:1")]
    assert talk.of(fx.Revoked) == [fx.Revoked((q(2), q(3)))]
    assert talk.core.owned() == [q(0), q(1)]
    (heartbeat,) = talk.of(rq.SendHeartbeat)
    assert heartbeat.data.consumer_data_set[0].subscription_data_set[0].sub_version > WALL_MS


def test_queues_that_stay_are_not_disturbed():
    """Their pull is still under way, and its answer is accepted."""
    talk = Conversation().pulling(4)
    before = talk.owned(q(0))
    talk.notified()
    talk.members("me", "you")
    assert talk.owned(q(0)) is before
    assert len(talk.pulled(q(0), found(0))) == 2


def test_a_queue_with_a_running_handler_drains_before_its_release():
    """No further handler begins, and the running one's messages are committed."""
    talk = Conversation().pulling(2)
    talk.pulled(q(1), found(0, 1))
    running, waiting = talk.deliveries()
    assert running.begin()
    talk.notified()
    talk.members("me", "you")
    assert talk.of(fx.Revoked) == []
    assert not waiting.begin()
    talk.handled((running, HandlerOutcome.SUCCESS))
    assert talk.effects == [rq.CommitOffset(q(1), 1, "a:1"), fx.Revoked((q(1),))]


def test_draining_has_a_deadline():
    """After 75 ms the queue is released, and the handler's later result is ignored."""
    talk = Conversation().pulling(2)
    talk.pulled(q(1), found(0))
    (running,) = talk.deliveries()
    running.begin()
    talk.notified()
    talk.members("me", "you")
    assert talk.at(74) == []
    assert talk.at(75) == [fx.Revoked((q(1),))]
    assert talk.handled((running, HandlerOutcome.SUCCESS)) == []
    assert talk.handled((running, HandlerOutcome.LATER)) == []


def test_a_queue_that_returns_while_it_drains_is_taken_again():
    """The other member has left at once."""
    talk = Conversation().pulling(2)
    talk.pulled(q(1), found(0))
    (running,) = talk.deliveries()
    running.begin()
    for ids in (("me", "you"), ("me",)):
        talk.notified()
        talk.members(*ids)
    talk.handled((running, HandlerOutcome.SUCCESS))
    assert talk.of(fx.Revoked) == [fx.Revoked((q(1),))]
    assert talk.of(fx.Assigned) == []
    (commit,) = talk.of(rq.CommitOffset)
    talk.commit_answered(commit)
    assert talk.of(fx.Assigned) == [fx.Assigned((q(1),))]
    assert [effect.queue for effect in talk.of(rq.QueryOffset)] == [q(1)]


def test_notifications_during_a_round_cause_one_more_round():
    """There is one round for all of them, and none is lost."""
    talk = Conversation().pulling(2)
    assert len(talk.notified()) == 1
    assert talk.notified() == []
    assert talk.notified() == []
    talk.members("me", "you")
    assert talk.of(rq.FetchConsumerList) == [rq.FetchConsumerList("a:1")]
    talk.members("me", "you")
    assert talk.of(rq.FetchConsumerList) == []


def test_the_member_list_is_fetched_every_twenty_seconds():
    """A notification may have been lost. After a round that failed it takes a second."""
    talk = Conversation(heartbeat_ms=60_000, route_refresh_ms=60_000).pulling(1)
    assert talk.of(rq.FetchConsumerList) == []
    assert not any(isinstance(effect, rq.FetchConsumerList) for effect in talk.at(19_999))
    assert rq.FetchConsumerList("a:1") in talk.at(20_000)
    talk.members()
    assert rq.FetchConsumerList("a:1") in talk.at(21_000)


def test_a_failed_member_list_changes_nothing():
    """The member keeps the queues that it has."""
    talk = Conversation().pulling(2)
    talk.notified()
    assert talk.members() == []
    assert talk.core.owned() == [q(0), q(1)]


def test_a_broker_that_lost_the_member_gets_a_heartbeat_at_once():
    """The queues went to other members; the next round is a second later."""
    talk = Conversation().pulling(2)
    talk.notified()
    talk.members("you")
    assert talk.core.owned() == []
    assert "a:1" in [effect.address for effect in talk.of(rq.SendHeartbeat)]
    assert rq.FetchConsumerList("a:1") in talk.at(1000)


def test_more_queues_cause_a_rebalance():
    """The next refresh of the routes finds them."""
    talk = Conversation().pulling(2)
    assert talk.routes(T=route(2)) == []
    assert talk.routes(T=route(3)) == [rq.FetchConsumerList("a:1")]
    talk.members("me")
    assert talk.of(fx.Assigned) == [fx.Assigned((q(2),))]


def test_arriving_and_departing_brokers_cause_rebalances():
    """A broker's queues are shared once it has a route, and lost with its route: nothing can be committed."""
    talk = Conversation().pulling(1)
    talk.routes(T=route(1, brokers=("a", "b")))
    assert [effect.address for effect in talk.of(rq.SendHeartbeat)] == ["b:1"]
    assert len(talk.of(rq.FetchConsumerList)) == 1
    talk.members("me")
    assert talk.of(fx.Assigned) == [fx.Assigned((q(0, broker="b"),))]
    talk.heartbeat("b:1")
    talk.members("me")
    talk.routes(T=route(1))
    talk.members("me")
    assert talk.of(fx.Lost) == [fx.Lost((q(0, broker="b"),))]


def test_a_lost_connection_is_mended_by_a_heartbeat_and_a_rebalance():
    """The broker may have restarted, and has forgotten the member."""
    talk = Conversation().pulling(1)
    talk.lost()
    assert talk.at(99) == []
    assert [effect.address for effect in talk.at(100)] == ["a:1"]
    talk.heartbeat(ok=False)
    assert [e.address for e in talk.at(1100) if isinstance(e, rq.SendHeartbeat)] == ["a:1"]
    assert talk.heartbeat() == [rq.FetchConsumerList("a:1")]


def test_a_dead_broker_is_retried_once_a_second_for_ever():
    """The regular heartbeats add no attempts."""
    talk = Conversation(heartbeat_ms=5000).pulling(1)
    talk.lost()
    tries = 0
    for now_ms in range(100, 60_000, 50):
        for effect in talk.at(now_ms):
            if isinstance(effect, rq.SendHeartbeat):
                tries += 1
                talk.heartbeat(ok=False)
    assert 50 <= tries <= 60


def test_the_member_list_is_fetched_from_a_broker_that_answers():
    """One dead broker does not stop the rebalance of a topic that other brokers also have."""
    talk = Conversation()
    talk.start()
    talk.routes(T=route(1, brokers=("a", "b")))
    talk.heartbeat("a:1", ok=False)
    assert talk.heartbeat("b:1") == [rq.FetchConsumerList("b:1")]


def test_topics_at_one_broker_share_a_member_list():
    """One list serves both topics."""
    talk = Conversation(topics=("T", "U"))
    talk.start()
    talk.routes(T=route(1), U=route(1))
    assert talk.heartbeat() == [rq.FetchConsumerList("a:1")]
    talk.members("me", topics=("T", "U"))
    assert talk.of(fx.Assigned) == [fx.Assigned((q(0), q(0, topic="U")))]


def test_a_queue_not_pulled_for_two_minutes_is_taken_again():
    """The answer to its pull never arrived."""
    talk = Conversation(rebalance_ms=600_000, route_refresh_ms=600_000).pulling(1)
    talk.at(120_001)
    for commit in talk.of(rq.CommitOffset):
        talk.commit_answered(commit)
    talk.notified()
    talk.members("me")
    assert talk.of(fx.Revoked) == [fx.Revoked((q(0),))]
    assert talk.of(fx.Assigned) == [fx.Assigned((q(0),))]
    assert len(talk.of(rq.QueryOffset)) == 1


def test_a_strategy_that_raises_changes_nothing():
    """The error is logged, and the strategy is called again in a second."""

    def broken(client_id, queues, client_ids):
        raise ZeroDivisionError

    talk = Conversation(strategy=broken).joined(2)
    assert talk.effects == []
    assert talk.at(1000) == [rq.FetchConsumerList("a:1")]


def test_a_broken_route_is_ignored():
    """The former route stays."""
    talk = Conversation().pulling(1)
    broken = TopicRouteData(order_topic_conf="?", broker_datas=[BrokerData(broker_name="x")])
    assert talk.routes(T=broken) == []
    assert talk.core.owned() == [q(0)]


def test_leaving_drains_commits_and_says_goodbye_in_this_order():
    """Waiting messages are dropped, running handlers may end, done messages are committed, then the member
    unregisters.
    """
    talk = Conversation().pulling(1)
    talk.pulled(q(0), found(0, 1, 2))
    done, running, waiting = talk.deliveries()
    talk.handled((done, HandlerOutcome.SUCCESS))
    running.begin()
    (commit,) = talk.stop()
    assert commit == rq.CommitOffset(q(0), 1, "a:1")
    assert not waiting.begin()
    talk.commit_answered(commit)
    assert talk.effects == []
    talk.handled((waiting, HandlerOutcome.SKIPPED), (running, HandlerOutcome.SUCCESS))
    assert talk.effects == [rq.CommitOffset(q(0), 2, "a:1"), fx.Revoked((q(0),))]
    (unregister,) = talk.commit_answered(talk.effects[0])
    assert unregister == rq.Unregister("a:1")
    assert talk._(unregister.ask.done(None, talk.now_ms)) == [fx.Stopped()]


def test_leaving_has_a_deadline():
    """A handler that does not end is abandoned."""
    talk = Conversation().pulling(1)
    talk.pulled(q(0), found(0))
    talk.deliveries()[0].begin()
    assert talk.stop(timeout_ms=500) == []
    assert talk.at(499) == []
    assert talk.at(500) == [fx.Revoked((q(0),)), rq.Unregister("a:1")]


def test_leaving_does_not_wait_for_a_broker_that_does_not_answer():
    """A second after the time to drain, the member stops waiting for unanswered commits."""
    talk = Conversation().pulling(1)
    talk.pulled(q(0), found(0, 1))
    first, second = talk.deliveries()
    talk.handled((first, HandlerOutcome.SUCCESS))
    second.begin()
    talk.stop(timeout_ms=500)
    talk.at(500)
    assert talk.of(rq.Unregister) == []
    assert talk.at(1500) == [rq.Unregister("a:1")]


def test_the_first_commits_of_a_topic_go_one_after_the_other():
    """Apache's broker loses all but one of those that arrive at once, and acknowledges them all."""
    talk = Conversation().pulling(3)
    for number in range(3):
        talk.pulled(q(number), found(0))
        talk.handled(*((delivery, HandlerOutcome.SUCCESS) for delivery in talk.deliveries()))
    talk.stop()
    committed = []
    while commits := talk.of(rq.CommitOffset):
        committed.append([commit.queue for commit in commits])
        for commit in commits:
            assert commit.offset == 1
            talk.commit_answered(commit)
    assert committed == [[q(0)], [q(1), q(2)]]
    assert talk.of(rq.Unregister) == [rq.Unregister("a:1")]


def test_after_an_acknowledged_commit_all_queues_are_committed_at_once():
    """The broker has made its table by then."""
    talk = Conversation().pulling(3, offset=5)
    for number in range(3):
        talk.pulled(q(number), found(5))
        talk.handled(*((delivery, HandlerOutcome.SUCCESS) for delivery in talk.deliveries()))
    talk.stop()
    assert [commit.queue for commit in talk.of(rq.CommitOffset)] == [q(0), q(1), q(2)]


def test_a_first_commit_that_failed_lets_the_next_one_go():
    """The next one is sent when a commit is due."""
    talk = Conversation(persist_ms=100).pulling(2)
    for number in range(2):
        talk.pulled(q(number), found(0))
        talk.handled(*((delivery, HandlerOutcome.SUCCESS) for delivery in talk.deliveries()))
    talk.at(100)
    (first,) = talk.of(rq.CommitOffset)
    talk.at(200)
    assert talk.of(rq.CommitOffset) == []
    talk.commit_answered(first, ok=False)
    talk.at(300)
    assert len(talk.of(rq.CommitOffset)) == 1


def test_after_leaving_no_queue_is_taken():
    """Later events change nothing."""
    talk = Conversation().pulling(2)
    (late,) = talk.of(rq.Pull)
    talk.stop()
    assert talk.of(rq.Unregister) == [rq.Unregister("a:1")]
    assert talk.notified() == []
    assert talk.routes(T=route(8)) == []
    assert talk.members("me") == []
    assert talk._(late.ask.done(nothing(1)[0], talk.now_ms)) == []
    assert talk.heartbeat("b:1") == []
    assert talk.stop() == []


def test_a_member_that_never_started_has_nothing_to_leave():
    """The test stops it before a start."""
    assert Conversation().stop() == [fx.Stopped()]
