"""The presence: routes that are asked for when they are needed."""

from libramq.client.core import effects as fx
from tests.client.core.conversation import q
from tests.client.core.coordinated import Member, assigned
from tests.client.core.examples import route


def test_a_granted_queue_of_a_broker_that_no_route_names_has_the_routes_asked_for():
    """Once a second while that lasts; then it is opened, and the regular look keeps its time."""
    talk = Member(route_refresh_ms=30_000).member()
    talk.routes(**{"T": route(4), "%RETRY%g": route(1)})
    talk.polled(assigned(q(0, broker="new")))
    assert len(talk.of(fx.FetchRoutes)) == 1
    assert talk.of(fx.OpenQueue) == []
    talk.at(talk.now_ms + 999, with_routes=True)
    assert talk.of(fx.FetchRoutes) == []
    talk.at(talk.now_ms + 201, with_routes=True)
    assert len(talk.of(fx.FetchRoutes)) == 1
    talk.routes(T=route(4, brokers=("a", "new")))
    talk.at(talk.now_ms + 200)
    assert [request.address for request in talk.of(fx.OpenQueue)] == ["new:1"]
    talk.at(talk.now_ms + 29_700, with_routes=True)
    assert talk.of(fx.FetchRoutes) == []
    talk.at(talk.now_ms + 101, with_routes=True)
    assert len(talk.of(fx.FetchRoutes)) == 1
