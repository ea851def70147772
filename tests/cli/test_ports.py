"""The choice of ports for `libra up`."""

import socket

import pytest

from libramq.cli.servers import ports
from libramq.cli.servers.ports import Ports, choose_ports, further_broker_ports, is_free
from libramq.errors import ConfigError
from tests.interop import ports as tests_ports

HOST = "127.0.0.1"


@pytest.fixture
def taken():
    """A port that a socket already listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free(monkeypatch):
    """Free default ports, regardless of other programs on this machine."""
    broker, nameserver = tests_ports.free_broker_port(), tests_ports.free_port()
    monkeypatch.setattr(ports, "NAME_SERVER_PORT", nameserver)
    monkeypatch.setattr(ports, "BROKER_PORT", broker)
    return nameserver, broker


def test_rocketmqs_ports_are_used_where_they_are_free(free):
    assert choose_ports(HOST, None, None) == (*free, ())


def test_a_taken_default_port_is_replaced_with_a_notice(free, monkeypatch, taken):
    monkeypatch.setattr(ports, "NAME_SERVER_PORT", taken)
    chosen = choose_ports(HOST, None, None)
    assert chosen.nameserver not in (taken, free[1], free[1] - 2)
    assert chosen.broker == free[1]
    assert chosen.remarks == (
        f"port {taken} is taken: the name server listens on {chosen.nameserver} instead",
    )


@pytest.mark.parametrize("offset", [0, ports.VIP_DISTANCE])
def test_a_broker_needs_two_ports(free, monkeypatch, taken, offset):
    monkeypatch.setattr(ports, "BROKER_PORT", taken + offset)
    chosen = choose_ports(HOST, None, None)
    assert chosen.broker != taken + offset
    assert is_free(HOST, chosen.broker - ports.VIP_DISTANCE)
    assert len(chosen.remarks) == 1


def test_a_taken_port_named_by_the_user_is_an_error(free, taken):
    with pytest.raises(ConfigError, match=f"port {taken} .* is taken; .* --nameserver-port"):
        choose_ports(HOST, taken, None)
    with pytest.raises(ConfigError, match=f"port {taken} .* is taken; .* --broker-port"):
        choose_ports(HOST, None, taken)
    with pytest.raises(ConfigError, match=f"port {taken} .* is taken; a broker needs it beside {taken + 2}"):
        choose_ports(HOST, None, taken + ports.VIP_DISTANCE)


def test_name_server_and_broker_cannot_share_a_port(free):
    with pytest.raises(ConfigError, match="collide"):
        choose_ports(HOST, free[1] - ports.VIP_DISTANCE, free[1])


def test_invalid_ports_are_refused():
    with pytest.raises(ConfigError, match="70000 is not a port"):
        choose_ports(HOST, 70_000, None)


def test_ports_of_further_brokers_are_ten_apart_and_avoid_taken_ones(monkeypatch, taken):
    first = taken - ports.BROKER_DISTANCE
    monkeypatch.setattr(ports, "is_free", lambda _host, port: port != taken)
    chosen, remarks = further_broker_ports(HOST, Ports(1, first, ()), 2)
    assert chosen[0] not in (taken, first, first - 2)
    assert chosen[1] == first + 2 * ports.BROKER_DISTANCE
    assert remarks == [f"port {taken} or {taken - 2} is taken: a broker listens on {chosen[0]}"]
