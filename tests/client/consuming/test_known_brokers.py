"""Tests of the known brokers: routes are queried when they are needed."""

import pytest

from libramq.client.consuming.handling.handler_result import HandlerOutcome
from tests.client.consuming import requests as rq
from tests.client.consuming.conversation import found, nothing, q
from tests.client.consuming.coordinated import Member, assigned
from tests.client.consuming.examples import route


def test_a_granted_queue_of_an_unrouted_broker_causes_a_route_query():
    """There is one each second while that lasts; then the queue is opened, and the regular refresh keeps
    its time.
    """
    talk = Member(route_refresh_ms=30_000).member()
    talk.routes(**{"T": route(4), "%RETRY%g": route(1)})
    talk.polled(assigned(q(0, broker="new")))
    assert len(talk.of(rq.FetchRoutes)) == 1
    assert talk.of(rq.OpenQueue) == []
    talk.at(talk.now_ms + 999, with_routes=True)
    assert talk.of(rq.FetchRoutes) == []
    talk.at(talk.now_ms + 201, with_routes=True)
    assert len(talk.of(rq.FetchRoutes)) == 1
    talk.routes(T=route(4, brokers=("a", "new")))
    talk.at(talk.now_ms + 200)
    assert [request.address for request in talk.of(rq.OpenQueue)] == ["new:1"]
    talk.at(talk.now_ms + 29_700, with_routes=True)
    assert talk.of(rq.FetchRoutes) == []
    talk.at(talk.now_ms + 101, with_routes=True)
    assert len(talk.of(rq.FetchRoutes)) == 1


def reading():
    """Return a member that reads a queue of broker a, which is no longer in any route."""
    talk = Member(persist_ms=100).holding(q(0))
    talk.routes(**{"T": route(4, brokers=("a", "b")), "%RETRY%g": route(1, brokers=("b",))})
    talk.pulled(q(0), found(0))
    (talk.delivery,) = talk.deliveries()
    talk.routes(T=route(4, brokers=("b",)))
    return talk


@pytest.mark.parametrize("what", ["pull", "commit"])
def test_an_owned_queue_without_a_broker_causes_a_route_query(what):
    """A name server that has just started lists some brokers only, and the next regular refresh is far
    away.
    """
    talk = reading()
    if what == "pull":
        talk.pulled(q(0), nothing(1))
    else:
        talk.handled((talk.delivery, HandlerOutcome.SUCCESS))
        talk.at(talk.now_ms + 100, with_routes=True)
    assert len(talk.of(rq.FetchRoutes)) == 1
    if what == "pull":
        for _ in range(3):  # As long as that lasts.
            talk.at(talk.now_ms + 1_000, with_routes=True)
            assert len(talk.of(rq.FetchRoutes)) == 1


def test_a_queue_is_read_as_soon_as_the_route_of_its_broker_is_known():
    """It does not wait until its pull is retried."""
    talk = reading()
    talk.pulled(q(0), nothing(1))
    assert talk.of(rq.Pull) == []
    talk.routes(T=route(4, brokers=("a", "b")))
    assert [effect.address for effect in talk.of(rq.SendHeartbeat)] == ["a:1"]
    talk.heartbeat("a:1", offers=True)
    assert [pull.queue for pull in talk.of(rq.Pull)] == [q(0)]
