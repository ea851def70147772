"""Addresses, and how a server chooses the ones it listens on."""

import pytest

from libramq.errors import ConfigError
from libramq.transport.address import check_bind_address, is_loopback, split_address, split_name_servers


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9876", ("127.0.0.1", 9876)), (" h:1 ", ("h", 1)), ("[::1]:65535", ("::1", 65535))],
)
def test_addresses_are_parsed(text, address):
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", "h", "h:", ":1", "h:0", "h:65536", "h:x", "h:-1", "h:1.5", "h:1:"])
def test_invalid_addresses_are_refused(text):
    with pytest.raises(ConfigError, match="host:port"):
        split_address(text)


def test_lists_of_name_servers_are_parsed():
    assert split_name_servers("a:1;b:2, c:3 ;") == ("a:1", "b:2", "c:3")
    for text in ("", ";", "a:1;b"):
        with pytest.raises(ConfigError):
            split_name_servers(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_local_addresses_are_recognised(host):
    assert is_loopback(host)
    check_bind_address(host, allow_public=False, remedy="")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "no.such.host.invalid"])
def test_public_addresses_need_permission(host):
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match="say please"):
        check_bind_address(host, allow_public=False, remedy="say please")
    check_bind_address(host, allow_public=True, remedy="")
