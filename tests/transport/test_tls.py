"""TLS: a peer with the wrong identity and a peer without TLS get different errors of one sentence each."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from libramq.clock import SystemClock
from libramq.errors import ConfigError, ConnectFailed, ConnectionLost, RemoteError
from libramq.remoting.command import Command
from libramq.transport.access import Access
from libramq.transport.asyncio_remotes import AsyncioRemotes
from libramq.transport.blocking import BlockingRemote
from libramq.transport.tls import Tls
from tests.transport.echo_server import EchoServer, echo_server
from tests.transport.loops import LOOPS, run_on

Ask = Callable[[str, Tls | None], bytes]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


SECRET = b"secret" * 20_000  # Too large for one read.


def serving(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def asyncio_ask(loop: str) -> Ask:
    def ask(address: str, tls: Tls | None) -> bytes:
        bodies: list[bytes] = []

        async def scenario() -> None:
            remotes = AsyncioRemotes(SystemClock().monotonic_ms, access=Access(tls=tls))
            try:
                bodies.append((await remotes.call(address, Command(code=1, body=SECRET))).body)
            finally:
                await remotes.aclose()

        run_on(loop, scenario)
        return bodies[0]

    return ask


def blocking_ask(address: str, tls: Tls | None) -> bytes:
    remote = BlockingRemote(address, SystemClock().monotonic_ms, access=Access(tls=tls))
    try:
        return remote.call(Command(code=1, body=SECRET)).body
    finally:
        remote.close()


@pytest.fixture(params=[*LOOPS, "blocking"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Send a server one request through each shell."""
    return blocking_ask if request.param == "blocking" else asyncio_ask(request.param)


def test_a_trusted_server_is_used(ask: Ask, authority: trustme.CA, ca_file: str) -> None:
    with echo_server(serving(authority)) as server:
        assert ask(server.address, Tls(ca_file=ca_file)) == SECRET
    assert [request.body for request in server.requests] == [SECRET]


def test_an_untrusted_server_is_not_used(ask: Ask, authority: trustme.CA) -> None:
    with (
        echo_server(serving(authority)) as server,
        pytest.raises(ConnectFailed, match=r"certificate of .* is not accepted: .*; give the ca_file"),
    ):
        ask(server.address, Tls())
    assert not server.requests


def test_the_certificates_name_is_checked_by_default(ask: Ask, authority: trustme.CA, ca_file: str) -> None:
    with echo_server(serving(authority, "broker.example")) as server:
        with pytest.raises(
            ConnectFailed, match=r"mismatch, certificate is not valid for '127.0.0.1'.*verify=ca"
        ):
            ask(server.address, Tls(ca_file=ca_file))
        assert ask(server.address, Tls(ca_file=ca_file, verify="ca")) == SECRET


def test_the_authority_can_be_checked_without_the_name(
    ask: Ask, authority: trustme.CA, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    with echo_server(serving(authority)) as server, pytest.raises(ConnectFailed, match="is not accepted"):
        ask(server.address, Tls(ca_file=str(stranger), verify="ca"))


def test_all_checks_can_be_switched_off(ask: Ask, authority: trustme.CA) -> None:
    with echo_server(serving(authority, "broker.example")) as server:
        assert ask(server.address, Tls(verify="none")) == SECRET


def test_a_plaintext_server_is_distinguished_from_an_untrusted_one(ask: Ask) -> None:
    with echo_server() as server, pytest.raises(ConnectFailed, match=r"no TLS handshake .*does it serve TLS"):
        ask(server.address, Tls(verify="none"))
    assert not server.requests


def test_a_plaintext_client_gets_an_error_that_names_tls(ask: Ask, authority: trustme.CA) -> None:
    with (
        echo_server(serving(authority)) as server,
        pytest.raises(RemoteError, match="may require TLS"),
    ):
        ask(server.address, None)


def test_a_server_that_takes_no_more_connections_is_not_mistaken_for_one_with_tls(ask: Ask) -> None:
    def refuse() -> None:
        with contextlib.suppress(OSError):
            while True:
                listening.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=refuse, daemon=True).start()
        with pytest.raises(RemoteError, match=r"TLS .*, or take no more connections"):
            ask(f"127.0.0.1:{listening.getsockname()[1]}", None)
        listening.shutdown(socket.SHUT_RDWR)  # Ends the thread.


def test_a_server_may_require_a_client_certificate(
    ask: Ask, authority: trustme.CA, ca_file: str, tmp_path: Path
) -> None:
    context = serving(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    own = tmp_path / "client.pem"
    authority.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(str(own))
    with echo_server(context) as server:
        assert ask(server.address, Tls(ca_file=ca_file, cert_file=str(own))) == SECRET
        # TLS 1.3 reports a missing certificate only after the client's handshake; a reset may overtake it.
        with pytest.raises((ConnectionLost, ConnectFailed), match=r"certificate|handshake|reset by peer"):
            ask(server.address, Tls(ca_file=ca_file))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"ca_file": "missing.pem"}, "TLS: ca_file missing.pem cannot be used: No such file"),
        ({"cert_file": "missing.pem"}, "TLS: cert_file missing.pem .* cannot be used: No such file"),
        ({"verify": "maybe"}, "TLS: verify='maybe': give full, ca, none"),
        ({"key_file": "key.pem"}, "give cert_file too"),
        ({"verify": "none", "ca_file": "ca.pem"}, "leave ca_file out"),
    ],
)
def test_unusable_files_are_reported_before_connecting(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        AsyncioRemotes(SystemClock().monotonic_ms, access=Access(tls=Tls(**wrong)))  # type: ignore[arg-type]


def test_a_file_without_a_certificate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("nothing")
    with pytest.raises(ConfigError, match=r"TLS: ca_file .*ca\.pem cannot be used"):
        Tls(ca_file=str(path)).context()


def test_the_keys_password_is_not_shown() -> None:
    assert "hunter2" not in repr(Tls(cert_file="c", key_password="hunter2"))


@pytest.mark.parametrize("loop", list(LOOPS))
def test_changed_files_count_for_later_connections_and_broken_ones_never(
    loop: str, authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))

    async def scenario() -> None:
        remotes = AsyncioRemotes(SystemClock().monotonic_ms, access=Access(tls=Tls(ca_file=str(ca_file))))

        async def body_of(server: EchoServer) -> bytes:
            return (await remotes.call(server.address, Command(code=1, body=b"hi"))).body

        try:
            with echo_server(serving(authority)) as first, echo_server(serving(authority)) as second:
                ca_file.write_text("half")
                assert await body_of(first) == await body_of(second) == b"hi"
                assert caplog.text.count("changed TLS files are not used") == 1
                trustme.CA().cert_pem.write_to_path(str(ca_file))
                assert await body_of(first) == b"hi", "its connection is open"
                with echo_server(serving(authority)) as third, pytest.raises(ConnectFailed, match="accepted"):
                    await body_of(third)
                await remotes.aclose()
        finally:
            await remotes.aclose()

    run_on(loop, scenario)
