"""Certificates of servers and clients as files, from an authority of the test."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trustme

from libramq.transport.tls import Tls
from libramq.transport.tls_options import TlsOptions

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


class Certificates:
    """A certificate authority, and the files it has issued."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.authority = trustme.CA()
        self.ca_file = directory / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca_file))
        self.certificate, self.key = directory / "server.pem", directory / "server.key"
        self.issue()

    def issue(self, *names: str, **options: Any) -> None:
        """Write a new certificate and key for the server, replacing the previous ones."""
        issued = self.authority.issue_cert(*(names or ("127.0.0.1", "localhost")), **options)
        self.certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        self.write_key(issued.private_key_pem.bytes())

    def write_key(self, text: bytes) -> None:
        self.key.touch(mode=0o600)
        self.key.write_bytes(text)

    def client(self, name: str, **options: Any) -> Path:
        """Return the file of a client's certificate and key."""
        path = self.directory / f"{name}.pem"
        path.touch(mode=0o600)
        issued = self.authority.issue_cert(name, **options)
        path.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        return path

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties of a server."""
        return {"tls.server.certPath": str(self.certificate), "tls.server.keyPath": str(self.key)}

    def options(self, **more: Any) -> TlsOptions:
        """Return the options of a server."""
        return TlsOptions(server_cert_path=str(self.certificate), server_key_path=str(self.key), **more)

    def tls(self, **more: Any) -> Tls:
        """Return a client's TLS settings."""
        return Tls(ca_file=str(self.ca_file), **more)
