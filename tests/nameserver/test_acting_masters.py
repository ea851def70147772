"""Routes while a master is gone: the slave with the lowest id acts for it, if both sides allow it."""

import pytest

from libramq.codes import RequestCode, ResponseCode
from libramq.formats import fastjson
from libramq.groups.cluster_view import BROKERS_TOPIC
from tests.fakes import FakePeer
from tests.nameserver.test_processor import Server

MASTER, FIRST, SECOND = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
MEMBERS = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"


def pair(*, acts: bool = True, on: bool = True) -> tuple[Server, FakePeer]:
    """Return a name server that knows a master with two slaves, and the master's connection."""
    server, master = Server(), FakePeer()
    if on:
        changed = server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"supportActingMaster=true")
        assert changed.code == ResponseCode.SUCCESS
    server.broker, slaves = master, server.broker
    server.register("T", MEMBERS, BROKERS_TOPIC, address=MASTER, acting_master=acts)
    server.broker = slaves
    for id_, address in ((2, SECOND), (1, FIRST)):
        server.register("T", MEMBERS, BROKERS_TOPIC, address=address, id_=id_, acting_master=acts)
    return server, master


def addresses(server: Server, topic: str = "T") -> dict[int, str]:
    reply = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    (broker,) = fastjson.loads(reply.body)["brokerDatas"]
    return {int(id_): address for id_, address in broker["brokerAddrs"].items()}


def permission(server: Server) -> int:
    reply = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    (queues,) = fastjson.loads(reply.body)["queueDatas"]
    return int(queues["perm"])


def test_the_lowest_slave_acts_while_the_master_is_gone():
    server, master = pair()
    assert addresses(server) == {0: MASTER, 1: FIRST, 2: SECOND}
    server.performer.closed(master)
    assert addresses(server) == {0: FIRST, 2: SECOND}
    assert permission(server) == 4
    server.broker = FakePeer()
    server.register("T", MEMBERS, BROKERS_TOPIC, address=MASTER, acting_master=True)
    assert addresses(server) == {0: MASTER, 1: FIRST, 2: SECOND}
    assert permission(server) == 6


@pytest.mark.parametrize("topic", [MEMBERS, BROKERS_TOPIC])
def test_brokers_learn_which_members_are_really_there(topic: str):
    """An acting master was mistaken for a coordinator: groups stalled until their master returned."""
    server, master = pair()
    server.performer.closed(master)
    assert addresses(server, topic) == {1: FIRST, 2: SECOND}


@pytest.mark.parametrize(("acts", "on"), [(False, True), (True, False)])
def test_a_slave_acts_only_if_both_sides_allow_it(acts: bool, on: bool):
    server, master = pair(acts=acts, on=on)
    server.performer.closed(master)
    assert addresses(server) == {1: FIRST, 2: SECOND}
