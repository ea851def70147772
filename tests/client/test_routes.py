"""Tests of a producer's routes, with name servers that answer when the test says so."""

from collections.abc import Callable

from libramq.client.routing.name_servers import Routed
from libramq.client.routing.routes import Routes
from libramq.errors import LibraError, NameServerUnavailable, RemoteProtocolError
from libramq.formats.route import BrokerData, QueueData, TopicRouteData


def route() -> TopicRouteData:
    return TopicRouteData(
        broker_datas=[BrokerData(broker_name="a", broker_addrs={0: "10.0.0.1:10911"})],
        queue_datas=[QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)],
    )


class NameServers:
    """Name servers that answer when the test says so, or at once if `is_gone`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Routed]] = []
        self.is_gone = False

    def route(self, topic: str, routed: Routed) -> None:
        self.asked.append((topic, routed))
        if self.is_gone:
            routed(NameServerUnavailable("gone"))

    def route_to_send(self, topic: str, routed: Routed, *, queue_count: int) -> None:
        self.route(topic, routed)

    def answer(self, outcome: TopicRouteData | LibraError | None = None) -> None:
        self.asked.pop(0)[1](outcome or route())


def made() -> tuple[NameServers, Routes]:
    names = NameServers()
    return names, Routes(names, default_queue_count=4)  # type: ignore[arg-type]


def called(times: list[int]) -> Callable[[], None]:
    return lambda: times.append(1)


def test_concurrent_lookups_of_a_topic_share_one_query():
    names, routes = made()
    found: list[object] = []
    routes.publish_info("T", found.append)
    routes.publish_info("T", found.append)
    assert [topic for topic, _ in names.asked] == ["T"]
    names.answer()
    assert [len(info.queues) for info in found] == [1, 1]  # type: ignore[attr-defined]
    routes.publish_info("T", found.append)
    assert not names.asked
    assert len(found) == 3


def test_a_failed_lookup_keeps_the_old_route_and_stops_no_other():
    names, routes = made()
    for topic in ("T", "U"):
        routes.fetch(topic, lambda _: None)
        names.answer()
    done: list[int] = []
    routes.refresh(called(done))
    names.answer(NameServerUnavailable("gone"))
    assert [topic for topic, _ in names.asked] == ["U"]
    names.answer()
    assert done == [1]
    assert routes.table.published.get("T") is not None


def test_a_route_that_cannot_be_used_is_an_error_and_the_next_one_counts():
    """An operator writes the order by hand; sends waited for ever, even after it was corrected."""
    names, routes = made()
    found: list[object] = []
    routes.publish_info("T", found.append)
    names.answer(TopicRouteData(order_topic_conf="a=2", broker_datas=[], queue_datas=[]))
    assert isinstance(found[0], RemoteProtocolError)
    routes.publish_info("T", found.append)
    names.answer()
    assert len(found[1].queues) == 1  # type: ignore[attr-defined]


def test_a_stop_ends_a_refresh_of_thousands_of_topics():
    """Requests fail at once when connections are closed; in turn they would overflow the stack."""
    names, routes = made()
    for number in range(1_500):
        routes.fetch(f"T{number}", lambda _: None)
        names.answer()
    done: list[int] = []
    routes.refresh(called(done))
    names.is_gone = True
    routes.close()
    names.answer(NameServerUnavailable("gone"))
    assert done == [1]
    assert names.asked == []
