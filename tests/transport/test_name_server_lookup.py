"""Name servers listed on a page: valid contents, when the page is fetched again, and who uses it."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from libramq.client.identity import name_server_addresses
from libramq.client.routing.name_servers import NameServers
from libramq.client.routing.routes import first_server, look_up
from libramq.errors import ConfigError, NameServerUnavailable
from libramq.transport import name_server_lookup
from libramq.transport.address import is_lookup
from libramq.transport.name_server_lookup import REFRESH_SECONDS, NameServerLookup, fetch
from tests.fakes import ManualClock


class Page:
    """A page that a test changes."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"10.0.0.1:9876;10.0.0.2:9876\n"
        self.announced: int | None = None
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(page.status)
                self.send_header("Content-Length", str(page.announced or len(page.body)))
                self.end_headers()
                self.wfile.write(page.body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/rocketmq/nsaddr"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def page() -> Iterator[Page]:
    page = Page()
    yield page
    page.close()


@pytest.mark.parametrize(
    ("namesrv", "is_one"),
    [
        ("http://config.example:8080/rocketmq/nsaddr", True),
        ("https://config.example/nsaddr", True),
        ("http://10.0.0.1:9876", False),
        ("http://10.0.0.1:9876/", False),
        ("10.0.0.1:9876;10.0.0.2:9876", False),
    ],
)
def test_a_url_with_a_path_is_looked_up(namesrv, is_one):
    assert is_lookup(namesrv) is is_one


def test_half_a_page_is_none(page):
    """Half of the last address would be a different address."""
    page.body = b"10.0.0.1:9876;" * 5_000
    with pytest.raises(NameServerUnavailable, match="more than 65536 bytes"):
        fetch(page.url)
    page.body, page.announced = b"10.0.0.1:98", 13
    with pytest.raises(NameServerUnavailable, match="2 bytes early"):
        fetch(page.url)


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_page_that_arrives_byte_by_byte_is_abandoned(start, monkeypatch):
    """Each byte arrived within the socket's timeout, so a client waited as long as bytes kept coming."""
    monkeypatch.setattr(name_server_lookup, "PAGE_SECONDS_MAX", 0.3)
    given_up = threading.Event()

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(start)
            while not given_up.wait(0.02):
                connection.sendall(b"1")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            with pytest.raises(NameServerUnavailable, match=r"slowly|incomplete"):
                fetch(f"http://127.0.0.1:{server.getsockname()[1]}/nsaddr")
        finally:
            given_up.set()
            thread.join()


def test_the_first_line_of_the_page_counts(page):
    page.body = b"  10.0.0.3:9876 \r\nanything else"
    assert fetch(page.url) == ("10.0.0.3:9876",)


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b"10.0.0.1:9876"), (200, b""), (200, b"not an address"), (200, b"\xff"), (200, b"x" * 100_000)],
)
def test_a_page_without_addresses_is_an_error_that_names_it(page, status, body):
    page.status, page.body = status, body
    with pytest.raises(NameServerUnavailable, match=r"no list of name servers at http://127\.0\.0\.1"):
        fetch(page.url)


def test_nobody_listens_there(page):
    lookup = NameServerLookup("http://127.0.0.1:1/nsaddr")
    with pytest.raises(NameServerUnavailable, match=r"127\.0\.0\.1:1/nsaddr"):
        lookup.look()


@pytest.mark.parametrize("url", ["http://h:99999/p", "http://h:x/p", "http:///p"])
def test_an_impossible_url_is_a_wrong_setting(url):
    with pytest.raises(ConfigError, match="not the URL of a list of name servers"):
        name_server_addresses(url)


class Clock:
    """A clock and a page for a lookup, and a way to wait for its thread."""

    def __init__(self) -> None:
        self.now = 0.0
        self.page: tuple[str, ...] | None = ("a:1", "b:1")
        self.fetched = 0

    def fetch(self, url: str) -> tuple[str, ...]:
        self.fetched += 1
        if self.page is None:
            raise NameServerUnavailable("away")
        return self.page

    def refresh(self, lookup: NameServerLookup) -> None:
        """Let two minutes pass, use the lookup, and wait for the thread that this starts."""
        self.now += REFRESH_SECONDS
        before = set(threading.enumerate())
        assert list(lookup)
        for thread in set(threading.enumerate()) - before:
            thread.join()


def test_the_page_is_fetched_again_after_two_minutes_of_use():
    clock = Clock()
    lookup = NameServerLookup("http://h/p", fetch=clock.fetch, monotonic=lambda: clock.now)
    assert (len(lookup), clock.fetched) == (0, 0)
    lookup.look()
    lookup.look()
    clock.now += REFRESH_SECONDS - 1
    assert (list(lookup), lookup[0], clock.fetched) == (["a:1", "b:1"], "a:1", 1)
    clock.page = ("c:1",)
    clock.refresh(lookup)
    assert (list(lookup), clock.fetched) == (["c:1"], 2)


def test_the_addresses_of_before_stay_while_the_page_is_away():
    clock = Clock()
    lookup = NameServerLookup("http://h/p", fetch=clock.fetch, monotonic=lambda: clock.now)
    lookup.look()
    clock.page = None
    clock.refresh(lookup)
    assert list(lookup) == ["a:1", "b:1"]
    clock.page = ("c:1",)
    clock.refresh(lookup)
    assert list(lookup) == ["c:1"]


async def test_a_client_finds_its_name_servers_by_url(page):
    addresses = name_server_addresses(page.url)
    assert first_server(addresses) == page.url.split("/")[2]
    await look_up(addresses)
    assert list(addresses) == ["10.0.0.1:9876", "10.0.0.2:9876"]


class Asked:
    """Connections that record the requested addresses."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def send(self, address, command, done, *, timeout_ms):
        self.addresses.append(address)


def test_name_servers_follow_a_list_that_changes():
    """A client keeps its name server while the list contains it; otherwise it switches to another one."""
    import random

    from libramq.rpc.name_server_calls import all_topics

    listed, asked = ["a:1", "b:1"], Asked()
    servers = NameServers(asked, listed, random.Random(1), ManualClock().monotonic_ms)

    def ask() -> str:
        servers.ask(all_topics(), lambda outcome: None)
        return asked.addresses[-1]

    first = ask()
    listed[:] = ["c:1", "d:1", first]
    assert ask() == first
    listed[:] = ["e:1"]
    assert ask() == "e:1"
    listed.clear()
    assert ask() == "e:1"
