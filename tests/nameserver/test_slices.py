"""Brokers with tens of thousands of topics come and go in slices; other requests are served in between."""

import gc
import itertools

import pytest

from libramq.codes import RequestCode, ResponseCode
from libramq.formats import fastjson
from libramq.formats.tables import TopicConfigSerializeWrapper
from libramq.kernel.work import PORTION
from libramq.nameserver import administration
from libramq.nameserver.displacement import PROBE_MS
from libramq.nameserver.route_info import RouteInfo
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials
from libramq.runtime import busy
from libramq.runtime.performer import TURN_US_MAX
from tests.fakes import FakePeer
from tests.nameserver.tables import header, register, table
from tests.nameserver.test_displacement import PAIR, Registry

TOPICS = [f"topic-{number:05}" for number in range(4 * PORTION + 5)]
FIRST, LAST = TOPICS[0], TOPICS[-1]
BROKER = header("broker-b", "10.0.0.2:10911")


class Crowd(Registry):
    """A name server whose turns have time for one step, and `large`, a broker with many topics."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        super().__init__(credentials)
        self.timers.elapsed_us = itertools.count(0, TURN_US_MAX).__next__  # type: ignore[method-assign]
        self.large = FakePeer("10.0.0.2:40000")

    def begin(self, peer: FakePeer, *topics: str) -> None:
        """Begin a registration: its body is decoded, and its first slice is processed."""
        self.claim(peer, BROKER, *topics)
        self.threads.run_all()

    def slices(self) -> list[int]:
        """Run all remaining turns; return how many topics were added or removed in each."""
        counts = []
        while (turn := self.performer.turns.timer) is not None:
            before = len(self.routes.topics())
            turn.cancel()
            turn.action()  # type: ignore[attr-defined]
            counts.append(abs(len(self.routes.topics()) - before))
        return counts

    def tidy(self) -> list[int]:
        """Let time pass until nothing is left of departed brokers.

        Return how many topics each turn removed.
        """
        counts = []
        while self.routes.is_untidy:
            before = len(self.routes.topics())
            self.pass_by(1)
            counts.append(before - len(self.routes.topics()))
        return counts

    def finds(self, topic: str) -> bool:
        """Request a route as another client."""
        reply = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, peer=FakePeer())
        return reply.code == ResponseCode.SUCCESS


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def test_a_broker_with_thousands_of_topics_is_registered_in_slices(crowd):
    crowd.begin(crowd.large, *TOPICS)
    assert crowd.answers(crowd.large) == []
    assert not crowd.finds(LAST)
    slices = crowd.slices()
    assert max(slices) <= PORTION
    assert len(slices) > 3
    assert [answer.code for answer in crowd.answers(crowd.large)] == [ResponseCode.SUCCESS]
    assert crowd.routes.topics() == ["T", "U", *TOPICS]
    assert crowd.finds(LAST)


def test_the_topics_of_a_broker_that_has_gone_are_forgotten_in_slices(crowd):
    crowd.begin(crowd.large, *TOPICS)
    crowd.slices()
    crowd.end(crowd.large)
    assert not crowd.finds(FIRST), "no client is sent to that broker any more"
    assert max(crowd.tidy()) <= PORTION
    assert crowd.routes.topics() == ["T", "U"]


def test_a_broker_that_leaves_during_its_registration_leaves_nothing(crowd):
    crowd.begin(crowd.large, *TOPICS)
    crowd.end(crowd.large)
    crowd.slices()
    crowd.tidy()
    assert crowd.routes.topics() == ["T", "U"]
    assert list(crowd.routes.clusters().broker_addr_table) == ["broker-a"]


def test_a_broker_that_returns_early_has_its_current_topics_only(crowd):
    crowd.begin(crowd.large, *TOPICS)
    crowd.slices()
    crowd.end(crowd.large)
    again = FakePeer("10.0.0.2:40001")
    crowd.begin(again, FIRST, LAST)
    assert crowd.answers(again)[0].code == ResponseCode.SUCCESS
    crowd.tidy()
    assert set(crowd.routes.topics()) == {"T", "U", FIRST, LAST}
    assert crowd.finds(FIRST)
    assert crowd.finds(LAST)


def test_a_topic_that_is_deleted_while_its_broker_is_registered_stays_deleted(crowd):
    crowd.begin(crowd.large, *TOPICS)
    for topic in (FIRST, LAST):
        crowd.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}, peer=FakePeer())
    crowd.slices()
    assert not crowd.finds(FIRST)
    assert not crowd.finds(LAST)
    assert crowd.routes.topics() == ["T", "U", *TOPICS[1:-1]]


def decoded_tables() -> int:
    """Return how many topic tables are in memory."""
    return sum(type(each) is TopicConfigSerializeWrapper for each in gc.get_objects())


def test_large_registrations_are_decoded_one_after_the_other(crowd, monkeypatch):
    """Twenty of 50,000 topics used to take 713 MB: all were decoded before the first one was applied."""
    monkeypatch.setattr(busy, "USUAL_BYTES_MAX", 0)
    monkeypatch.setattr(busy, "HUGE_LANE_BYTES", 1)
    crowd.performer._large = busy.LargeRequests()
    before = decoded_tables()
    peers = [FakePeer(f"10.0.1.{number}:40000") for number in range(6)]
    for number, peer in enumerate(peers):
        crowd.claim(peer, header(f"broker-{number}", f"10.0.1.{number}:10911"), *TOPICS)
    counts: list[int] = []
    while crowd.threads.work or crowd.performer.turns.timer is not None:
        crowd.threads.run_all()
        if (turn := crowd.performer.turns.timer) is not None:
            turn.cancel()
            turn.action()
        counts.append(decoded_tables() - before)
    assert max(counts) == 1
    for peer in peers:
        assert [answer.code for answer in crowd.answers(peer)] == [ResponseCode.SUCCESS]


def test_a_registration_that_waits_for_a_probe_is_not_held_decoded(crowd):
    crowd.begin(crowd.large, *TOPICS)
    crowd.slices()
    before = decoded_tables()
    for number in range(6):
        crowd.begin(FakePeer(f"10.0.1.{number}:40000"), *TOPICS)
    assert decoded_tables() == before
    lanes = crowd.performer._large
    assert (lanes._usual.taken_bytes, lanes._huge.taken_bytes) == (0, 0)


def test_a_takeover_in_the_middle_of_a_registration_has_all_its_topics(crowd):
    """It has the same table version, of which the displaced connection had registered a part."""
    crowd.begin(crowd.large, *TOPICS)
    again = FakePeer("10.0.0.2:40001")
    crowd.begin(again, *TOPICS)
    crowd.pass_by(PROBE_MS)
    crowd.threads.run_all()  # A registration that waited for the probe is decoded again.
    crowd.slices()
    assert [answer.code for answer in crowd.answers(again)] == [ResponseCode.SUCCESS]
    assert crowd.routes.topics() == ["T", "U", *TOPICS]
    crowd.end(crowd.large)
    assert crowd.finds(LAST)


def test_a_signed_takeover_in_the_middle_of_a_registration_wins():
    """It has the broker's name and another address.

    The old broker is alive, and its slices used to continue.
    """
    crowd = Crowd(PAIR)
    crowd.claim(crowd.large, BROKER, *TOPICS, by=PAIR)
    crowd.threads.run_all()
    other = FakePeer("10.0.0.3:40000")
    crowd.claim(other, header("broker-b", "10.0.0.3:10911"), FIRST, LAST, by=PAIR)
    crowd.slices()
    assert [answer.code for answer in crowd.answers(other)] == [ResponseCode.SUCCESS]
    (refused,) = crowd.answers(crowd.large)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "another broker has become broker-b with id 0" in refused.remark
    assert not crowd.finds(TOPICS[-2]), "a slice of the old registration"
    assert crowd.finds(LAST)


def test_a_master_that_registers_during_its_slaves_registration_keeps_its_permissions():
    """The slave acted for it, with read-only topics."""
    routes, slave, master = RouteInfo(), object(), object()
    acting = header("broker-b", "10.0.0.3:10911", id_=1, acting_master=True)
    steps = routes.register(acting, table(*TOPICS), owner=slave, zone=None, now_ms=0)
    next(steps)
    register(routes, BROKER, table(*TOPICS, counter=2), owner=master)
    assert list(steps) == []
    assert {routes.route(topic).queue_datas[0].perm for topic in TOPICS} == {6}


def test_long_lists_of_topics_are_encoded_by_a_thread(crowd, monkeypatch):
    """The topics of a cluster are collected in slices."""
    monkeypatch.setattr(administration, "ENCODED_AT_ONCE_MAX", len(TOPICS))
    crowd.begin(crowd.large, *TOPICS)
    crowd.slices()
    looked: list[int] = []
    of_cluster = crowd.routes.of_cluster

    def counted(cluster, topics):
        looked.append(len(topics))
        return of_cluster(cluster, topics)

    crowd.routes.of_cluster = counted
    for code, ext in (
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}),
    ):
        peer = FakePeer()
        crowd.performer.received(peer, [Command(code=code, ext=ext, opaque=77)])
        crowd.slices()
        assert crowd.answers(peer) == [], "not on the loop"
        crowd.threads.run_all()
        (answer,) = crowd.answers(peer)
        assert fastjson.loads(answer.body)["topicList"] == ["T", "U", *TOPICS]
    assert max(looked) == PORTION
    assert sum(looked) == len(TOPICS) + 2


def test_topics_left_to_a_slave_become_read_only_at_once():
    """No topic is modified: permissions are computed for each route."""
    routes, slave, master = RouteInfo(), object(), object()
    register(routes, header("broker-b", acting_master=True), table(*TOPICS), owner=master)
    acting = header("broker-b", "10.0.0.3:10911", id_=1, acting_master=True)
    register(routes, acting, table(*TOPICS), owner=slave)
    stored = dict(routes._brokers["broker-b"].queues)
    routes.owner_lost(master)
    assert all(routes._brokers["broker-b"].queues[topic] is queues for topic, queues in stored.items())
    assert {routes.route(topic).queue_datas[0].perm for topic in TOPICS} == {4}
    register(routes, header("broker-b", acting_master=True), table(*TOPICS, counter=2), owner=master)
    assert {routes.route(topic).queue_datas[0].perm for topic in TOPICS} == {6}


def test_a_partly_registered_version_is_registered_again_in_full():
    """Otherwise topics that were already known would keep the settings of the previous version."""
    routes, owner = RouteInfo(), object()
    register(routes, BROKER, table(*TOPICS), owner=owner)
    wider = table(*TOPICS, queues=8, counter=2)
    next(routes.register(BROKER, wider, owner=owner, zone=None, now_ms=0))
    register(routes, BROKER, wider, owner=object())
    assert {routes.route(topic).queue_datas[0].write_queue_nums for topic in TOPICS} == {8}
