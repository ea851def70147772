"""A server's TLS: requirements on its files, its modes at sockets, and file changes during connections."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from libramq.clock import SystemClock
from libramq.errors import ConfigError
from libramq.transport import handshakes as handshakes_module
from libramq.transport import tls_options as tls_options_module
from libramq.transport.handshakes import BEGUN_PER_ROUND, Handshakes
from libramq.transport.server import Server
from libramq.transport.server_tls import FILE_BYTES_MAX, HANDSHAKE_BYTE, ServerTls, load
from libramq.transport.tls import Tls
from libramq.transport.tls_options import tls_options
from tests.fakes import ManualClock
from tests.transport.certificates import LONG_AGO, Certificates
from tests.transport.loops import LOOPS, run_on, until
from tests.transport.test_server import Client, Echo

on_each_loop = pytest.mark.parametrize("loop", list(LOOPS))


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def encrypted_key(certificates: Certificates) -> None:
    private = load_pem_private_key(certificates.key.read_bytes(), None)
    certificates.key.write_bytes(
        private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush"))
    )


def expired_authority(certificates: Certificates) -> None:
    certificates.certificate.write_bytes(certificates.ca_file.read_bytes())


def endless(certificates: Certificates) -> None:
    """A running broker used to read the file on its loop, until memory was full."""
    certificates.certificate.unlink()
    certificates.certificate.symlink_to("/dev/zero")


SPOIL: dict[str, tuple[Callable[[Certificates], object], str]] = {
    "missing": (lambda c: c.certificate.unlink(), r"certPath=.*server\.pem cannot be read: No such file"),
    "a device": (endless, r"certPath=.*server\.pem is not a file"),
    "large": (
        lambda c: c.certificate.write_bytes(b"-" * (FILE_BYTES_MAX + 1)),
        r"more than \d+ bytes; is it",
    ),
    "no key": (lambda c: c.key.unlink(), r"keyPath=.*server\.key cannot be read: No such file"),
    "expired": (
        lambda c: c.issue(not_before=LONG_AGO, not_after=LONG_AGO.replace(year=2002)),
        r"certPath=.*: the certificate has expired; have it renewed",
    ),
    "early": (
        lambda c: c.issue(not_before=LONG_AGO.replace(year=2100), not_after=LONG_AGO.replace(year=2101)),
        r"certPath=.*: the certificate is not valid yet",
    ),
    "mismatch": (
        lambda c: c.write_key(trustme.CA().issue_cert("x").private_key_pem.bytes()),
        r"keyPath=.* is not the key of tls\.server\.certPath=.*; name the key",
    ),
    "readable": (lambda c: c.key.chmod(0o640), r"keyPath=.* can be read by others \(mode 0640\); chmod 600"),
    "encrypted": (
        encrypted_key,
        r"keyPath=.* is encrypted, and tls\.server\.keyPassword is not its password",
    ),
    "no certificate": (lambda c: c.certificate.write_text("hi"), r"certPath=.* has no certificate in PEM"),
    "key elsewhere": (lambda c: c.key.write_text("hi"), r"keyPath=.* has no private key in PEM"),
    "broken": (
        lambda c: c.certificate.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"),
        r"cannot be used together",
    ),
}


@pytest.mark.parametrize(("spoil", "why"), SPOIL.values(), ids=list(SPOIL))
def test_unfit_files_are_refused_with_the_reason_and_the_remedy(
    certificates: Certificates, spoil: Callable[[Certificates], object], why: str
) -> None:
    load(certificates.options())
    spoil(certificates)
    with pytest.raises(ConfigError, match=why) as refused:
        load(certificates.options())
    assert len(str(refused.value).splitlines()) == 1


def test_a_key_may_have_a_password_and_lie_in_the_certificates_file(certificates: Certificates) -> None:
    encrypted_key(certificates)
    load(certificates.options(server_key_password="hush"))
    assert "hush" not in repr(certificates.options(server_key_password="hush"))
    both = certificates.client("127.0.0.1")
    load(tls_options({"tls.server.certPath": str(both)}))


def test_the_authorities_of_clients_are_read_with_the_rest(certificates: Certificates) -> None:
    trust = certificates.directory / "trust.pem"
    options = certificates.options(need_client_auth="optional", server_trust_cert_path=str(trust))
    with pytest.raises(ConfigError, match=r"trustCertPath=.* cannot be read: No such file"):
        load(options)
    trust.write_text("nothing")
    with pytest.raises(ConfigError, match=r"trustCertPath=.* has no certificate in PEM"):
        load(options)


def test_an_expiry_is_announced_a_month_before_and_every_day(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, and with the first connection of each later day; a new certificate stops it."""
    expires_s = datetime(2030, 6, 30, tzinfo=UTC).timestamp()
    certificates.issue(not_after=datetime(2030, 6, 30, tzinfo=UTC))
    now_s = expires_s - 40 * 86_400
    tls = ServerTls(certificates.options(), lambda: now_s)
    for days_left, count in ((40, 0), (29.5, 1), (29.2, 1), (28.4, 2), (-1, 3)):
        now_s = expires_s - days_left * 86_400
        tls(HANDSHAKE_BYTE)
        assert len(caplog.records) == count
    assert "days=29" in caplog.messages[0] or "29" in str(caplog.records[0].msg)
    assert "has expired" in str(caplog.records[2].msg)
    caplog.clear()
    ServerTls(certificates.options(), lambda: expires_s - 86_400)
    assert len(caplog.records) == 1
    certificates.issue(not_after=datetime(2040, 1, 1, tzinfo=UTC))
    tls(HANDSHAKE_BYTE)
    assert [each for each in caplog.records if "expire" in str(each.msg)] == caplog.records[:1]


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"tls.server.mode": "enforcing"}, r"tls\.server\.mode=enforcing needs a certificate"),
        ({"tls.server.mode": "permissive"}, r"tls\.server\.mode=permissive needs a certificate"),
        ({"tls.server.mode": "strict"}, r"mode=strict: write disabled, permissive, enforcing"),
        ({"tls.server.need.client.auth": "required"}, r"auth=required: write none, optional, require"),
        ({"tls.server.keyPath": "k"}, r"keyPath is a key without its certificate"),
        ({"tls.server.certPath": "c", "tls.server.need.client.auth": "require"}, r"set|trustCertPath"),
        (
            {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": "ca"},
            r"has no effect on plain connections",
        ),
        (
            {
                "tls.server.certPath": "c",
                "tls.server.need.client.auth": "require",
                "tls.server.trustCertPath": "ca",
            },
            r"auth=require: plain connections, which .* show none; set tls",
        ),
        ({"tls.test.mode.enable": "true"}, r"clients cannot verify"),
        ({"tls.enable": "yes"}, r"tls\.enable=yes; true or false"),
        ({"tls.enable": "true", "tls.verify": "no"}, r"tls\.client: TLS: verify='no'"),
        ({"tls.server.keypassword": "hush"}, r"tls\.server\.keypassword: there is no such TLS option"),
        ({"tls.config.file": "/no/file"}, r"cannot read /no/file: No such file"),
    ],
)
def test_options_that_contradict_each_other_are_refused(properties: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        tls_options(properties)
    assert "hush" not in str(refused.value)


def test_apaches_file_of_options_is_read_and_has_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is from Apache's guide; both switches that would disable verification have no effect."""
    file = tmp_path / "tls.properties"
    file.write_text(
        "tls.test.mode.enable=false                     \n"
        "tls.server.need.client.auth=require   \n"
        "tls.server.keyPath=/opt/certFiles/server.key\n"
        "tls.server.keyPassword=123456\n"
        "tls.server.certPath=/opt/certFiles/server.pem\n"
        "tls.server.authClient=false\n"
        "tls.server.trustCertPath=/opt/certFiles/ca.pem\n"
        "tls.client.authServer=false\n"
        "tls.client.trustCertPath=/opt/certFiles/ca.pem\n"
    )
    own = {"tls.enable": "true", "tls.server.mode": "enforcing"}
    options = tls_options({"tls.config.file": str(file), "tls.server.certPath": "no"} | own)
    assert options.need_client_auth == "require"
    assert options.server_cert_path == "/opt/certFiles/server.pem"
    assert options.outgoing == Tls(ca_file="/opt/certFiles/ca.pem")
    monkeypatch.setattr(tls_options_module, "DEFAULT_FILE", file)
    assert tls_options(own).server_cert_path == "/opt/certFiles/server.pem"
    file.write_text("tls.server.keypath=x")
    with pytest.raises(
        ConfigError, match=r"tls\.properties: tls\.server\.keypath: there is no such TLS option"
    ):
        tls_options({"tls.config.file": str(file)})


async def serve(tls: ServerTls) -> tuple[Server, Echo, int]:
    echo = Echo()
    server = Server(echo, SystemClock().monotonic_ms, tls=tls)
    return server, echo, await server.listen("127.0.0.1", 0)


async def connect(port: int, tls: Tls) -> Client:
    return Client(
        *await asyncio.open_connection("127.0.0.1", port, ssl=tls.context(), server_hostname="127.0.0.1")
    )


async def close(server: Server, *clients: Client) -> None:
    for client in clients:
        await client.close()
    await server.close()


@on_each_loop
@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_a_plain_connection_is_served_or_closed(
    loop: str, mode: str, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        server, echo, port = await serve(ServerTls(certificates.options(server_mode=mode)))
        plain, encrypted = await Client.connect(port), await connect(port, certificates.tls())
        assert await encrypted.ask() == b"hi"
        plain.writer.write(plain.frame(b"hi"))
        if mode == "permissive":
            assert [reply.body for reply in await plain.read(1)] == [b"hi"]
        else:
            assert await plain.is_ended()
            assert "not encrypted, and tls.server.mode is enforcing" in caplog.text
            assert len(echo.peers) == 1
        await close(server, plain, encrypted)
        assert server.connection_count == 0

    run_on(loop, scenario)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@on_each_loop
def test_versions_before_tls_1_2_are_refused(loop: str, certificates: Certificates) -> None:
    context = certificates.tls().context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1

    async def scenario() -> None:
        server, echo, port = await serve(ServerTls(certificates.options()))
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context.maximum_version = version
            client = Client(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
            assert await client.ask(b"large" * 50_000) == b"large" * 50_000
            await client.close()
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert len(echo.peers) == 2
        await server.close()

    run_on(loop, scenario)


@on_each_loop
def test_changed_files_count_for_later_connections_and_broken_ones_never(
    loop: str, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        tls = ServerTls(certificates.options())
        server, _, port = await serve(tls)
        old = await connect(port, certificates.tls())
        before = certificates.tls()

        certificates.certificate.write_text("half")
        for _ in range(2):
            client = await connect(port, before)
            assert await client.ask() == b"hi"
            await client.close()
        assert caplog.text.count("changed TLS files are not used") == 1

        certificates.issue("broker.example")
        certificates.key.chmod(0o644)
        client = await connect(port, before)
        assert await client.ask() == b"hi"
        await client.close()
        assert "chmod 600 it" in caplog.text
        certificates.key.chmod(0o600)
        renewed = await connect(port, certificates.tls(verify="ca"))
        names = renewed.writer.get_extra_info("peercert")["subjectAltName"]
        assert names == (("DNS", "broker.example"),)
        assert await old.ask() == await renewed.ask() == b"hi"
        assert caplog.text.count("changed TLS files are used") == 1

        certificates.issue(not_before=LONG_AGO, not_after=LONG_AGO.replace(year=2002))
        after = await connect(port, certificates.tls(verify="ca"))
        assert after.writer.get_extra_info("peercert")["subjectAltName"] == names
        assert "the certificate has expired" in caplog.text
        await close(server, old, renewed, after)

    run_on(loop, scenario)


@on_each_loop
def test_only_names_of_hosts_people_and_uris_can_be_a_users(loop: str, certificates: Certificates) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([
        x509.DirectoryName(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "root")])),
        x509.OtherName(x509.ObjectIdentifier("1.2.3.4"), b"\x0c\x05alice"),
        x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
        x509.DNSName("orders.example"),
    ])  # fmt: skip
    authority = x509.load_pem_x509_certificate(certificates.authority.cert_pem.bytes())
    signer = serialization.load_pem_private_key(certificates.authority.private_key_pem.bytes(), None)
    now = datetime.now(UTC)
    issued = x509.CertificateBuilder(
        issuer_name=authority.subject,
        subject_name=x509.Name([]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now,
        not_valid_after=now + timedelta(days=1),
    ).add_extension(names, critical=True)
    file = certificates.directory / "odd.pem"
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + issued.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]
    )

    async def scenario() -> None:
        options = certificates.options(
            server_mode="enforcing",
            need_client_auth="require",
            server_trust_cert_path=str(certificates.ca_file),
        )
        server, echo, port = await serve(ServerTls(options))
        client = await connect(port, certificates.tls(cert_file=str(file)))
        assert await client.ask() == b"hi"
        assert echo.peers[0].certificate_names == ("orders.example",)
        await client.close()
        await server.close()

    run_on(loop, scenario)


@on_each_loop
@pytest.mark.parametrize("need", ["optional", "require"])
def test_a_clients_certificate_names_it(loop: str, need: str, certificates: Certificates) -> None:
    stranger = Certificates(certificates.directory / "stranger")

    async def scenario() -> None:
        options = certificates.options(
            server_mode="enforcing", need_client_auth=need, server_trust_cert_path=str(certificates.ca_file)
        )
        server, echo, port = await serve(ServerTls(options))
        own = await connect(port, certificates.tls(cert_file=str(certificates.client("orders.example"))))
        assert await own.ask() == b"hi"
        assert echo.peers[0].certificate_names == ("orders.example",)
        expired = {"not_before": LONG_AGO, "not_after": LONG_AGO.replace(year=2002)}
        for file in (stranger.client("orders.example"), certificates.client("late.example", **expired)):
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError, ValueError)):
                await (await connect(port, certificates.tls(cert_file=str(file)))).ask()
        try:
            without = await connect(port, certificates.tls())
            is_served = await without.ask() == b"hi"
        except (ssl.SSLError, ConnectionError, ValueError):
            is_served = False
        assert is_served == (need == "optional")
        if is_served:
            assert echo.peers[1].certificate_names == ()
        assert len(echo.peers) == 1 + is_served
        await own.close()
        await server.close()

    run_on(loop, scenario)


@on_each_loop
def test_too_many_unfinished_handshakes_end_only_the_oldest(
    loop: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(handshakes_module, "HANDSHAKES_MAX", 10)
    caplog.set_level("INFO")

    async def scenario() -> None:
        server, echo, port = await serve(ServerTls(certificates.options()))
        half = []
        for _ in range(25):
            client = await Client.connect(port)
            client.writer.write(b"\x16\x03\x01\x02\x00\x01")
            half.append(client)
        await until(lambda: "the oldest of 10 unfinished handshakes" in caplog.text)
        whole = await connect(port, certificates.tls())
        assert await whole.ask() == b"hi"
        await until(lambda: server.connection_count == 10)  # Nine unfinished ones, and the finished one.
        assert len(echo.peers) == 1
        for client in half[:15]:
            assert await client.is_ended()
        await close(server, *half, whole)
        assert server.connection_count == 0

    run_on(loop, scenario)


@on_each_loop
def test_the_last_handshake_to_come_begins_first_and_none_waits_for_ever(loop: str) -> None:
    """Behind thousands of handshakes that never finish, a client would lose patience."""

    async def scenario() -> None:
        clock, begun, given_up = ManualClock(), list[int](), list[int]()
        handshakes = Handshakes(clock.monotonic_ms)
        for number in range(2 * BEGUN_PER_ROUND):
            handshakes.wait(partial(begun.append, number), partial(given_up.append, number))
            if number == 1:
                clock.advance(1)
        clock.advance(handshakes_module.HANDSHAKE_MS_MAX - 1)
        await until(lambda: len(begun) == 2 * BEGUN_PER_ROUND - 2)
        assert begun == list(range(2, 2 * BEGUN_PER_ROUND))[::-1]
        assert given_up == [0, 1]

    run_on(loop, scenario)


@on_each_loop
def test_many_handshakes_begin_a_few_at_a_time(loop: str, certificates: Certificates) -> None:
    """All other connections are served between two rounds of handshakes."""

    async def scenario() -> None:
        running, rounds, begun = asyncio.get_running_loop(), 0, Counter[int]()

        def next_round() -> None:
            nonlocal rounds
            rounds += 1
            if begun.total() < 40:
                running.call_soon(next_round)

        handshakes = Handshakes(SystemClock().monotonic_ms)
        for _ in range(40):
            handshakes.wait(lambda: begun.update([rounds]), lambda: None)
        next_round()
        await until(lambda: begun.total() == 40)
        assert set(begun.values()) == {BEGUN_PER_ROUND}

        server, echo, port = await serve(ServerTls(certificates.options()))
        clients = await asyncio.gather(*(connect(port, certificates.tls()) for _ in range(40)))
        assert [await client.ask() for client in clients] == [b"hi"] * 40
        assert len(echo.peers) == 40
        assert len(server.handshakes) == 0
        await close(server, *clients)

    run_on(loop, scenario)


@on_each_loop
def test_a_client_that_does_not_read_is_not_read_from_either(loop: str, certificates: Certificates) -> None:
    """Data that waits below the encryption counts like that of a plaintext connection."""

    async def scenario() -> None:
        server, echo, port = await serve(ServerTls(certificates.options()))
        echo.body = bytes(1 << 20)
        client = await connect(port, certificates.tls())
        client.writer.transport.pause_reading()
        for _ in range(40):
            client.writer.write(client.frame())
            await asyncio.sleep(0)
        await until(lambda: bool(echo.peers) and echo.peers[0]._is_congested)  # type: ignore[attr-defined]
        assert echo.peers[0].unsent_bytes > 8 << 20  # type: ignore[attr-defined]
        client.writer.transport.resume_reading()
        replies = await client.read(40)
        assert [len(reply.body) for reply in replies] == [1 << 20] * 40
        await close(server, client)

    run_on(loop, scenario)


@on_each_loop
def test_a_clients_goodbye_ends_its_connection(loop: str, certificates: Certificates) -> None:
    async def scenario() -> None:
        server, echo, port = await serve(ServerTls(certificates.options()))
        client = await connect(port, certificates.tls())
        client.writer.write(client.frame(b"last"))
        assert [reply.body for reply in await client.read(1)] == [b"last"]
        await client.close()
        await until(lambda: len(echo.gone) == 1)
        await server.close()

    run_on(loop, scenario)
