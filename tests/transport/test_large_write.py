"""A large answer: what the socket takes is gone, and what it does not take is a copy of the rest alone."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from libramq.transport.large_write import send_now

DATA = bytes(range(256)) * 64 * 1024  # 16 MiB: more than any socket takes at once.


class FakeTransport:
    """A transport over one end of a pair of sockets."""

    def __init__(self, end: socket.socket, waiting_bytes: int = 0) -> None:
        self._extra = {"socket": end}
        self._waiting_bytes = waiting_bytes

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def get_extra_info(self, name: str) -> Any:
        return self._extra.get(name)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    server, client = socket.socketpair()
    server.setblocking(False)
    with server, client:
        yield server, client


def test_only_what_the_socket_does_not_take_is_left(ends):
    server, client = ends
    rest = send_now(FakeTransport(server), DATA)
    assert 0 < len(rest) < len(DATA)
    received = b""
    while len(received) < len(DATA) - len(rest):
        received += client.recv(1 << 20)
    assert received + rest == DATA


def test_nothing_overtakes_what_waits_already(ends):
    server, _ = ends
    assert send_now(FakeTransport(server, waiting_bytes=1), DATA) is DATA


def test_a_broken_connection_is_the_transports_matter(ends):
    server, client = ends
    client.close()
    assert send_now(FakeTransport(server), DATA) == DATA
