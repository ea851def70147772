"""Encrypted servers as an operator starts them: `libra up --set`, and the steps of the guide."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from libramq.formats.properties_file import parse_properties
from tests.cli.commands import end, libra, one_line, start
from tests.interop.ports import free_broker_port, free_port
from tests.transport.certificates import Certificates

GUIDE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls")


@pytest.fixture
def access(certificates: Certificates, tmp_path: Path) -> Path:
    """The access file of clients that know the authority."""
    file = tmp_path / "access.properties"
    file.write_text(f"tls.enable=true\ntls.client.trustCertPath={certificates.ca_file}\n")
    return file


def test_up_encrypts_its_name_server_and_all_brokers(
    certificates: Certificates, access: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two brokers, one in a separate process that receives the options over a pipe."""
    options = certificates.properties | {
        "tls.server.mode": "enforcing",
        "tls.enable": "true",
        "tls.client.trustCertPath": str(certificates.ca_file),
    }
    settings = [word for name, text in options.items() for word in ("--set", f"{name}={text}")]
    port = free_port()
    up = start(
        [
            *("up", "--brokers", "2", "--data", str(tmp_path / "data"), *settings),
            *("--nameserver-port", str(port), "--broker-port", str(free_broker_port(brokers=2))),
        ]
    )
    namesrv = f"127.0.0.1:{port}"
    try:
        assert up.stdout is not None
        while "LibraMQ is up" not in (line := up.stdout.readline()):
            assert line, up.stderr.read() if up.stderr else ""
        monkeypatch.setenv("LIBRA_ACCESS", str(access))
        listed = libra("admin", "clusterList", "-n", namesrv)
        assert "broker-a" in listed.out
        assert "broker-b" in listed.out
        assert libra("send", "-n", namesrv, "-t", "T", "hello").code == 0
        assert "hello" in libra("tail", "-n", namesrv, "-t", "T", "--from", "earliest", "--count", "1").out
    finally:
        end(up)


@contextmanager
def serving(directory: Path, ports: tuple[int, int], options: dict[str, str]) -> Iterator[str]:
    """Run a name server and a broker from their files; yield the name server's address."""
    namesrv = f"127.0.0.1:{ports[0]}"
    lines = "".join(f"{name}={text}\n" for name, text in options.items())
    names, brokers = directory / "namesrv.conf", directory / "broker.conf"
    names.write_text(f"listenPort={ports[0]}\n{lines}")
    brokers.write_text(
        f"namesrvAddr={namesrv}\nlistenPort={ports[1]}\nstorePathRootDir={directory}/data\n{lines}"
    )
    with ExitStack() as stack:
        for kind, file in (("nameserver", names), ("broker", brokers)):
            process = start([kind, "-c", str(file)])
            stack.callback(end, process)
            assert process.stdout is not None
            assert "Ctrl-C stops it" in process.stdout.readline(), process.communicate()[1]
        yield namesrv


def test_the_steps_of_the_guide(
    certificates: Certificates, access: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step exactly the expected clients work."""
    section = GUIDE.read_text().partition("\n## TLS\n")[2]
    block = re.search(r"```properties\n(.*?)```", section, re.DOTALL)
    assert block is not None
    options = parse_properties(block[1].replace("/etc/libramq", str(certificates.directory)))
    ports = free_port(), free_broker_port()

    def sends(namesrv: str, body: str, *, is_encrypted: bool) -> bool:
        with monkeypatch.context() as environment:
            if is_encrypted:
                environment.setenv("LIBRA_ACCESS", str(access))
            return libra("send", "-n", namesrv, "-t", "Guide", body).code == 0

    with serving(tmp_path, ports, options) as namesrv:  # 1.
        assert sends(namesrv, "plain", is_encrypted=False)
    options |= {"tls.enable": "true", "tls.client.trustCertPath": str(certificates.ca_file)}
    with serving(tmp_path, ports, options) as namesrv:  # 2 and 3.
        assert sends(namesrv, "still plain", is_encrypted=False)
        assert sends(namesrv, "encrypted", is_encrypted=True)
    with serving(tmp_path, ports, options | {"tls.server.mode": "enforcing"}) as namesrv:  # 4.
        assert not sends(namesrv, "too late", is_encrypted=False)
        assert sends(namesrv, "encrypted only", is_encrypted=True)
        monkeypatch.setenv("LIBRA_ACCESS", str(access))
        tailed = libra("tail", "-n", namesrv, "-t", "Guide", "--from", "earliest", "--count", "4")
        for body in ("plain", "still plain", "encrypted", "encrypted only"):
            assert body in tailed.out


@pytest.mark.parametrize("command", ["nameserver", "broker"])
def test_an_unfit_certificate_is_one_sentence(
    certificates: Certificates, tmp_path: Path, command: str
) -> None:
    certificates.key.chmod(0o644)
    file = tmp_path / "server.conf"
    file.write_text("".join(f"{name}={text}\n" for name, text in certificates.properties.items()))
    assert "server.key can be read by others (mode 0644); chmod 600 it" in one_line(
        libra(command, "-c", str(file))
    )
