"""NOTIFY_MIN_BROKER_ID_CHANGE: which brokers are notified of the lowest id of a master and its slaves."""

from collections.abc import Iterator

import pytest

from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConnectFailed
from libramq.nameserver.config import NameServerConfig
from libramq.nameserver.engine import name_server_engine
from libramq.nameserver.route_info import RouteInfo
from libramq.runtime.seams import Seams
from tests.broker.brokers import QuestionKeeper
from tests.fakes import FakePeer, ManualClock, ManualThreads, ManualTimers, raise_it
from tests.nameserver.test_processor import Server

MASTER, FIRST, SECOND = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
HA = "10.0.0.1:10912"


class Notifying(Server):
    """A name server that records its requests to brokers."""

    performer: QuestionKeeper

    def __init__(self, *, is_on: bool = True) -> None:
        super().__init__()
        config = NameServerConfig(notify_min_broker_id_changed=is_on)
        self.clock, self.routes = ManualClock(), RouteInfo()
        self.engine = name_server_engine(self.routes, clock=self.clock, config=config)
        self.timers, self.threads = ManualTimers(), ManualThreads()
        self.performer = QuestionKeeper(
            self.engine,
            Seams(remotes=None, timers=self.timers, threads=self.threads),
            monotonic_ms=self.clock.monotonic_ms,
            listen=lambda listening: listening(),
            failed=raise_it,
        )

    def joins(self, id_: int, address: str, *, acts: bool = True) -> FakePeer:
        """Register a broker over a new connection; return the connection."""
        self.broker = FakePeer()
        ha = HA if id_ == 0 else ""
        answer = self.register("T", "U", address=address, id_=id_, ha=ha, acting_master=acts)
        assert answer.code == ResponseCode.SUCCESS
        return self.broker

    def sent(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Return the notifications since the last call, with their addresses; no broker answers them."""
        asked, self.performer.asked = self.performer.asked, []
        for question in asked:
            command = question.command()
            assert command.code == RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
            yield question.address, command.ext
            question.done(ConnectFailed("nobody listens"))


@pytest.fixture
def server() -> Notifying:
    return Notifying()


def test_slaves_are_informed_when_their_master_leaves_and_returns(server: Notifying) -> None:
    master = server.joins(0, MASTER)
    server.joins(2, SECOND)
    server.joins(1, FIRST)
    assert list(server.sent()) == [], "0 was the lowest id throughout"
    server.performer.closed(master)
    left = {"minBrokerId": "1", "minBrokerAddr": FIRST, "offlineBrokerAddr": MASTER}
    assert sorted(server.sent()) == [(FIRST, left), (SECOND, left)]
    server.joins(0, MASTER)
    back = {"minBrokerId": "0", "minBrokerAddr": MASTER, "haBrokerAddr": HA}
    assert sorted(server.sent()) == [(FIRST, back), (SECOND, back)]


def test_a_slave_that_leaves_changes_nothing_for_the_others(server: Notifying) -> None:
    server.joins(0, MASTER)
    slave = server.joins(1, FIRST)
    server.performer.closed(slave)
    assert list(server.sent()) == []


def test_the_last_broker_of_a_name_leaves_without_notifications(server: Notifying) -> None:
    server.performer.closed(server.joins(0, MASTER))
    server.joins(1, FIRST)
    assert list(server.sent()) == [], "the earlier broker of the same name is forgotten"


def test_brokers_that_do_not_act_are_not_informed_of_a_loss(server: Notifying) -> None:
    """Apache's name server notifies them of the return only."""
    master = server.joins(0, MASTER, acts=False)
    server.joins(1, FIRST, acts=False)
    server.performer.closed(master)
    assert list(server.sent()) == []
    server.joins(0, MASTER, acts=False)
    assert [address for address, _ in server.sent()] == [FIRST]


def test_no_broker_is_notified_unless_the_option_is_set() -> None:
    server = Notifying(is_on=False)
    master = server.joins(0, MASTER)
    server.joins(1, FIRST)
    server.performer.closed(master)
    assert list(server.sent()) == []
    changed = server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"notifyMinBrokerIdChanged=true")
    assert changed.code == ResponseCode.SUCCESS
    server.joins(0, MASTER)
    assert [address for address, _ in server.sent()] == [FIRST]
